"""SigLIP's files: its config and preprocessing, and its architecture from the tensors."""

from pathlib import Path

from torch import Tensor

from pbprompt.clip.backbone import BackboneConfig
from pbprompt.clip.layers import SIGLIP_EPS
from pbprompt.clip.loading.checkpoint_config import CheckpointConfig, hugging_face_sizes, known_sizes, towers
from pbprompt.clip.loading.companions import HF_CONFIG, SIGLIP_IMAGES, read_json, read_preprocessor
from pbprompt.clip.loading.tensors import count, shape
from pbprompt.clip.siglip import SiglipVisionConfig
from pbprompt.clip.text import TextConfig
from pbprompt.errors import InputError

ACTIVATION = "gelu_pytorch_tanh"


def is_siglip(state: dict[str, Tensor]) -> bool:
    """Whether tensors (under OpenAI's or Hugging Face's names) have SigLIP's attention pool."""
    return "visual.pool.probe" in state


def read_siglip_config(path: Path) -> CheckpointConfig:
    """Hugging Face's SigLIP config beside the weights; what it leaves out has transformers' default."""
    config_path = path.parent / HF_CONFIG
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
    alike = {"width": 768, "hidden": 3072, "layers": 12, "heads": 12}
    sizes = hugging_face_sizes("vision", vision, image_size=224, patch_size=16, **alike)
    sizes |= hugging_face_sizes("text", text, context_length=64, vocab_size=32000, **alike)
    sizes["embed_dim"] = text.get("projection_size")
    return CheckpointConfig(
        activation="gelu_tanh",
        sizes=known_sizes(sizes),
        images=read_preprocessor(path.parent, sizes["vision.image_size"], SIGLIP_IMAGES),
        family="siglip",
        vocabulary="siglip",
    )


def find_siglip(source: str, name: str, state: dict[str, Tensor], told: CheckpointConfig) -> BackboneConfig:
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
    text = TextConfig(
        causal=False,
        reads_last=True,
        context_length=shape(source, state, "positional_embedding", 2)[0],
        vocab_size=vocab_size,
        width=text_width,
        heads=_heads(source, told, "text", text_width),
        layers=count(state, r"transformer\.resblocks\.(\d+)\."),
        hidden=shape(source, state, "transformer.resblocks.0.mlp.c_fc.weight", 2)[0],
    )
    return BackboneConfig(name, width, vision, text, "gelu_tanh", *told.images)


def _heads(source: str, told: CheckpointConfig, tower: str, width: int) -> int:
    heads = told.sizes[f"{tower}.heads"]
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(f"{source}: the config says {heads!r} heads, but the {tower} tower is {width} wide")
    return heads
