"""A tiny SigLIP with random weights, written as Hugging Face's folders are."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

if TYPE_CHECKING:
    from transformers import SiglipModel  # which takes seconds: it is imported where one is made

WORDS = [
    *("a", "photo", "of", "the", "cat", "dog", "tench", "golden", "retriever", "red", "panda", "word"),
    *("x", "b", "c", "d", "e", "f", "g"),
]
SIZES = {"hidden_size": 32, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 4}
CONTEXT = 64


def siglip_model(seed: int = 0) -> "SiglipModel":
    """transformers' own, every tensor random: zeros and ones would hide a norm or a bias left out."""
    from transformers import SiglipConfig, SiglipModel

    config = SiglipConfig(
        text_config={**SIZES, "vocab_size": 600, "max_position_embeddings": CONTEXT},
        vision_config={**SIZES, "image_size": 32, "patch_size": 8},
    )
    model = SiglipModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, value in model.named_parameters():
        value.data = 0.2 * torch.randn(value.shape, generator=generator) + (
            "norm" in name and "weight" in name
        )
    model.logit_scale.data.fill_(2.0)
    return model


def sentence_backend() -> Tokenizer:
    """Whole words with the space before them, and letters where a word is unknown."""
    letters = [chr(code) for code in range(33, 127)]
    pieces = ["<pad>", "<eos>", "<unk>", "▁", *letters, *(f"▁{word}" for word in WORDS), *WORDS]
    vocabulary = [(piece, -1.0 if len(piece) > 1 else -9.0) for piece in dict.fromkeys(pieces)]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=False))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.decoder = decoders.Replace("▁", " ")
    backend.add_special_tokens(["<pad>", "<eos>", "<unk>"])
    return backend


def write_siglip(folder: Path, model: "SiglipModel", tokenizer_class: str = "GemmaTokenizer") -> Path:
    """The model's folder as the hub has them."""
    model.save_pretrained(folder)
    sentence_backend().save(str(folder / "tokenizer.json"))
    write(
        folder / "tokenizer_config.json",
        tokenizer_class=tokenizer_class,
        eos_token="<eos>",
        pad_token="<pad>",
    )
    size = {"height": 32, "width": 32}
    write(
        folder / "preprocessor_config.json", size=size, resample=2, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return folder


def write(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(content))


def change(path: Path, **content: Any) -> None:
    """Change a JSON file's fields."""
    write(path, **(json.loads(path.read_text()) | content))
