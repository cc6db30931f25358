"""transformers' CLIP image tower in a backbone's sizes, to compare with where that library is installed."""

from collections.abc import Callable

import torch
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.clip.vit import VitConfig


def transformers_tower(backbone: Backbone) -> Callable[[Tensor], Tensor] | None:
    """Preprocessed images -> features of a CLIPModel with random weights; None without transformers."""
    try:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection
    except ImportError:
        return None
    sizes = backbone.config.vision
    assert isinstance(sizes, VitConfig)
    config = CLIPVisionConfig(
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
        projection_dim=backbone.embed_dim,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        image_size=sizes.image_size,
        patch_size=sizes.patch_size,
        hidden_act=backbone.config.activation,
    )
    model = CLIPVisionModelWithProjection(config).eval().to(backbone.device, backbone.dtype)

    def features(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(pixel_values=pixels).image_embeds

    return features
