"""Both towers against transformers' CLIPModel, loaded from the folder that it saves."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.loading.conversion import to_openai
from pbprompt.vision.towers.loading.load import load_backbone

TINY_TEXT = {
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "bos_token_id": 598,
    "eos_token_id": 599,
}
TINY_VISION = {
    "hidden_size": 96,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
}
BASE_TEXT = {"eos_token_id": 49407}  # transformers' defaults are the text tower of ViT-B/16


def models(tmp_path, text: dict, vision: dict, activation: str, embed_dim: int) -> tuple[Any, Backbone]:
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config={**text, "hidden_act": activation},
        vision_config={**vision, "hidden_act": activation},
        projection_dim=embed_dim,
    )
    model = CLIPModel(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # nothing left at zero or one, where mistakes hide
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim > 1 and "embedding" not in name:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
            else:
                parameter.copy_(0.3 * noise)
        model.logit_scale.fill_(2.5)
    model.save_pretrained(tmp_path)
    return model, load_backbone(tmp_path)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def prompts(vocab: int, context: int, lengths: list[int]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    ids = torch.zeros(len(lengths), context, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, : length - 1] = torch.randint(vocab - 2, (length - 1,), generator=generator)
        ids[row, 0], ids[row, length - 1] = vocab - 2, vocab - 1
    return ids


@torch.no_grad()
def test_long_clip(tmp_path) -> None:
    """Its file has two tables of positions, of which its tower adds the first 20 of one, then the other."""
    text = {**TINY_TEXT, "max_position_embeddings": 32, "num_attention_heads": 1}
    vision = {**TINY_VISION, "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 1}
    model, short = models(tmp_path, text, vision, "quick_gelu", embed_dim=48)
    state = to_openai(load_file(tmp_path / "model.safetensors"))
    stretched = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    state["positional_embedding_res"] = stretched
    torch.save(state, tmp_path / "longclip-B.pt")
    backbone = load_backbone(tmp_path / "longclip-B.pt", activation="quick_gelu")
    model.text_model.embeddings.position_embedding.weight[20:] = stretched[20:]
    ids = prompts(600, 32, [9, 30])
    wanted = model.text_projection(model.text_model(ids).pooler_output)
    lengths = torch.tensor([9, 30])
    assert relative(backbone.text(backbone.token_embedding(ids), lengths), wanted) <= 1e-5
    assert relative(short.text(short.token_embedding(ids), lengths)[1:], wanted[1:]) > 1e-2


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_tiny(tmp_path, activation: str) -> None:
    model, backbone = models(tmp_path, TINY_TEXT, TINY_VISION, activation, embed_dim=48)
    assert backbone.config.activation == activation
    assert (backbone.grid, backbone.embed_dim, backbone.text_width) == ((4, 4), 48, 64)
    assert backbone.logit_scale == pytest.approx(torch.tensor(2.5).exp().item())
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    lengths = [2, 3, 9, 16]
    ids = prompts(600, 16, lengths)
    with torch.no_grad():
        vision = model.vision_model(images)
        tokens = model.visual_projection(model.vision_model.post_layernorm(vision.last_hidden_state))
        pooled = model.visual_projection(vision.pooler_output)
        text = model.text_projection(model.text_model(ids).pooler_output)
    encoded = backbone.image(images)
    assert relative(encoded.global_, pooled) <= 1e-5
    assert relative(encoded.patches, tokens[:, 1:]) <= 1e-5
    assert relative(backbone.text(backbone.token_embedding(ids), torch.tensor(lengths)), text) <= 1e-5


def test_activations_differ(tmp_path) -> None:
    """The check above could not fail on a mistaken activation if the two were alike."""
    ids = prompts(600, 16, [9])
    quick, exact = (
        models(tmp_path / name, TINY_TEXT, TINY_VISION, name, embed_dim=48)[1]
        for name in ("quick_gelu", "gelu")
    )
    features = [b.text(b.token_embedding(ids), torch.tensor([9])) for b in (quick, exact)]
    assert relative(*features) > 1e-3
    assert quick.fingerprint != exact.fingerprint


def test_text_tower_of_vit_b_16(tmp_path) -> None:
    model, backbone = models(tmp_path, BASE_TEXT, TINY_VISION, "quick_gelu", embed_dim=512)
    assert (backbone.config.text.layers, backbone.config.text.heads, backbone.text_width) == (12, 8, 512)
    texts = ["a photo of a cat.", "a centered satellite photo of annual crop land.", ""]
    ids, lengths = backbone.tokenizer(texts)
    with torch.no_grad():
        theirs = model.text_projection(model.text_model(ids).pooler_output)
    assert relative(backbone.text(backbone.token_embedding(ids), lengths), theirs) <= 1e-5
