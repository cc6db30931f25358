"""A tiny MetaCLIP 2 with random weights, written as Hugging Face's and open_clip's folders are."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from siglip_folder import WORDS, write
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pbprompt.vision.towers.loading.conversion import to_openai

if TYPE_CHECKING:
    from transformers import MetaClip2Model  # which takes seconds: it is imported where one is made

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 128}
CONTEXT, SOS, PAD, EOS = 77, 0, 1, 2
SQUASH = {"size": {"height": 32, "width": 32}, "do_center_crop": False, "resample": 3}


def metaclip_model(activation: str = "quick_gelu", seed: int = 0) -> "MetaClip2Model":
    """transformers' own, every tensor random: zeros and ones would hide a norm or a bias left out."""
    from transformers import MetaClip2Config, MetaClip2Model

    text = {"vocab_size": 600, "max_position_embeddings": CONTEXT, "bos_token_id": SOS, "eos_token_id": EOS}
    config = MetaClip2Config(
        text_config={**SIZES, **text, "hidden_act": activation},
        # wider inside than 4 × 32, as the largest one's is
        vision_config={
            **SIZES,
            "image_size": 32,
            "patch_size": 8,
            "hidden_act": activation,
            "intermediate_size": 144,
        },
        projection_dim=24,
    )
    model = MetaClip2Model(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        value.data = 0.2 * torch.randn(value.shape, generator=generator) + (
            "norm" in name and "weight" in name
        )
    model.logit_scale.data.fill_(2.0)
    return model


def xlm_backend() -> Tokenizer:
    """XLM-V's make: the specials first, and every word with its space before it."""
    letters = [chr(code) for code in range(33, 127)]
    pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "▁",
        *letters,
        *(f"▁{word}" for word in WORDS),
        "▁Katze",
        "▁猫",
    ]
    vocabulary = [(piece, -1.0 if len(piece) > 1 else -9.0) for piece in dict.fromkeys(pieces)]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return backend


def write_metaclip(folder: Path, model: "MetaClip2Model") -> Path:
    """Hugging Face's folder."""
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    write(folder / "preprocessor_config.json", **SQUASH)
    return folder


def write_metaclip_open_clip(folder: Path, hugging_face: Path, quick_gelu: bool) -> Path:
    """The same weights as open_clip writes them."""
    folder.mkdir()
    state = to_openai(load_file(hugging_face / "model.safetensors"))
    save_file(
        {key: value.contiguous() for key, value in state.items()}, folder / "open_clip_model.safetensors"
    )
    text = {"hf_tokenizer_name": "facebook/xlm-v-base", "pool_type": "eos", "eos_id": EOS, "heads": 2}
    write(
        folder / "open_clip_config.json",
        model_cfg={
            "embed_dim": 24,
            "quick_gelu": quick_gelu,
            "vision_cfg": {
                "image_size": 32,
                "layers": 2,
                "width": 32,
                "head_width": 16,
                "patch_size": 8,
                "mlp_ratio": 4.5,
            },
            "text_cfg": {**text, "context_length": CONTEXT, "vocab_size": 600, "width": 32, "layers": 2},
        },
        preprocess_cfg={"interpolation": "bicubic", "resize_mode": "squash", "size": 32},
    )
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    xlm_backend().save(str(folder / "tokenizer.json"))
    specials = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": {"content": "<pad>"}}
    write(folder / "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer", **specials)
