"""SigLIP's files: its config and preprocessing, its architecture from the tensors, and its tokenizer."""

from pathlib import Path
from typing import Any

from torch import Tensor

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.loading.checkpoint_config import (
    HF_CONFIG,
    HF_PREPROCESSOR,
    HF_TOKENIZER,
    HF_TOKENIZER_CONFIG,
    Told,
    known_sizes,
    read_json,
    towers,
    triple,
)
from pbprompt.clip.loading.shapes import count, shape
from pbprompt.clip.sentence_tokenizer import SentenceTokenizer
from pbprompt.clip.siglip import SIGLIP_EPS, SiglipTextConfig, SiglipVisionConfig
from pbprompt.data.square import Interpolation
from pbprompt.errors import InputError, install_command

HALF = (0.5, 0.5, 0.5)
INTERPOLATIONS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
ACTIVATION = "gelu_pytorch_tanh"


def is_siglip(state: dict[str, Tensor]) -> bool:
    """Whether tensors (under OpenAI's or Hugging Face's names) have SigLIP's attention pool."""
    return "visual.pool.probe" in state


def read_siglip_config(path: Path) -> Told:
    """Hugging Face's SigLIP config beside the weights; what it leaves out has transformers' default."""
    config_path, preprocessor = path.parent / HF_CONFIG, path.parent / HF_PREPROCESSOR
    if not config_path.is_file():
        raise InputError(f"{path}: a SigLIP model needs {HF_CONFIG} beside it; give the folder it came in")
    config = read_json(config_path)
    if config.get("model_type") != "siglip":
        raise InputError(
            f"{config_path}: model_type is {config.get('model_type')!r}, but the tensors are SigLIP's; "
            "give a model of a fixed resolution, with the config that came with it (model_type 'siglip')"
        )
    vision, text = towers(config)
    for tower in (vision, text):
        if (act := tower.get("hidden_act", ACTIVATION)) != ACTIVATION:
            raise InputError(f"{config_path}: hidden_act is {act!r}; SigLIP's is {ACTIVATION!r}")
        if (eps := tower.get("layer_norm_eps", SIGLIP_EPS)) != SIGLIP_EPS:
            raise InputError(f"{config_path}: layer_norm_eps is {eps}; SigLIP's is {SIGLIP_EPS}")
    sizes = {
        "vision.image_size": vision.get("image_size", 224),
        "vision.patch_size": vision.get("patch_size", 16),
        "vision.width": vision.get("hidden_size", 768),
        "vision.hidden": vision.get("intermediate_size", 3072),
        "vision.layers": vision.get("num_hidden_layers", 12),
        "vision.heads": vision.get("num_attention_heads", 12),
        "text.context_length": text.get("max_position_embeddings", 64),
        "text.vocab_size": text.get("vocab_size", 32000),
        "text.width": text.get("hidden_size", 768),
        "text.hidden": text.get("intermediate_size", 3072),
        "text.layers": text.get("num_hidden_layers", 12),
        "text.heads": text.get("num_attention_heads", 12),
        "embed_dim": text.get("projection_size"),
    }
    images = read_json(preprocessor) if preprocessor.is_file() else {}
    resample = images.get("resample", 3)
    if resample not in INTERPOLATIONS:
        raise InputError(
            f"{preprocessor}: resample is {resample!r}; 2 (bilinear) and 3 (bicubic) are supported"
        )
    size, side = images.get("size"), sizes["vision.image_size"]
    if size is not None and size != {"height": side, "width": side}:
        raise InputError(
            f"{preprocessor}: size is {size}, but {config_path.name} says images of {side} pixels"
        )
    return Told(
        activation="gelu_tanh",
        sizes=known_sizes(sizes),
        mean=triple(preprocessor, images, "image_mean", HALF),
        std=triple(preprocessor, images, "image_std", HALF),
        family="siglip",
        fit="squash",
        interpolation=INTERPOLATIONS[resample],
    )


def find_siglip(source: str, name: str, state: dict[str, Tensor], told: Told) -> BackboneConfig:
    """The architecture from the tensors; the heads and the image size from the config."""
    width, _, _, patch = shape(source, state, "visual.conv1.weight", 4)
    positions = shape(source, state, "visual.positional_embedding", 2)[0]
    size = told.sizes["vision.image_size"]
    if not isinstance(size, int) or (size // patch) ** 2 != positions:
        raise InputError(
            f"{source}: the config says images of {size} pixels, the tensors {positions} patches of {patch}"
        )
    vocab_size, text_width = shape(source, state, "token_embedding.weight", 2)
    vision = SiglipVisionConfig(
        image_size=size,
        patch_size=patch,
        width=width,
        layers=count(state, r"visual\.transformer\.resblocks\.(\d+)\."),
        heads=_heads(source, told, "vision", width),
        hidden=shape(source, state, "visual.pool.mlp.c_fc.weight", 2)[0],
    )
    text = SiglipTextConfig(
        context_length=shape(source, state, "positional_embedding", 2)[0],
        vocab_size=vocab_size,
        width=text_width,
        heads=_heads(source, told, "text", text_width),
        layers=count(state, r"transformer\.resblocks\.(\d+)\."),
        hidden=shape(source, state, "transformer.resblocks.0.mlp.c_fc.weight", 2)[0],
    )
    return BackboneConfig(
        name, width, vision, text, "gelu_tanh", told.mean, told.std, told.fit, told.interpolation
    )


def read_tokenizer(folder: Path, text: SiglipTextConfig) -> SentenceTokenizer:
    """The tokenizer beside the weights."""
    for file in (HF_TOKENIZER, HF_TOKENIZER_CONFIG):
        if not (folder / file).is_file():
            raise InputError(
                f"{folder}: lacks {file}, without which SigLIP reads no text; fetch it from the hub"
            )
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError:
        raise InputError(f"SigLIP's text needs tokenizers: run {install_command('siglip')}") from None
    path, told = folder / HF_TOKENIZER, read_json(folder / HF_TOKENIZER_CONFIG)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare ones
        raise InputError(
            f"{path}: not readable ({str(error).splitlines()[0][:120]}); fetch it again"
        ) from None
    if (most := max(backend.get_vocab().values(), default=0)) >= text.vocab_size:
        raise InputError(
            f"{path}: has token ids up to {most}, but the model has {text.vocab_size} tokens; "
            "give the tokenizer that came with the weights"
        )
    kind = str(told.get("tokenizer_class", ""))
    return SentenceTokenizer(
        backend,
        vocab_size=text.vocab_size,
        context_length=text.context_length,
        eot=_special(folder, backend, told, "eos_token"),
        pad=_special(folder, backend, told, "pad_token"),
        punctuation=not kind.startswith("Siglip") or kind.startswith("Siglip2"),
    )


def _special(folder: Path, backend: Any, told: dict[str, Any], name: str) -> int:
    spelled = told.get(name)
    spelled = spelled.get("content") if isinstance(spelled, dict) else spelled
    token = backend.token_to_id(spelled) if isinstance(spelled, str) else None
    if token is None:
        raise InputError(
            f"{folder / HF_TOKENIZER_CONFIG}: {name} is {spelled!r}, which {HF_TOKENIZER} does not have; "
            "give the two files that came with the weights"
        )
    return int(token)


def _heads(source: str, told: Told, tower: str, width: int) -> int:
    heads = told.sizes[f"{tower}.heads"]
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(f"{source}: the config says {heads!r} heads, but the {tower} tower is {width} wide")
    return heads
