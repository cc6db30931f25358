"""Write tests/parity/towers.json: what timm's and open_clip's own towers give with weights drawn by seed.

    PYTHONPATH=FOLDER python scripts/record_towers.py

FOLDER has timm and open_clip_torch: `pip install --no-deps --target FOLDER timm open_clip_torch`. They import
torchvision, which has no build for every torch; nothing of it is used here, so where it is missing an empty
stand-in takes its place. Nothing of theirs is kept but the names and shapes of their tensors and the numbers
that they give. `drawn` is the same in tests/support/trunk_folder.py, which writes the checkpoints.
"""

import json
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

from pbprompt.files import write_text

FILE = Path(__file__).parents[1] / "tests" / "parity" / "towers.json"
EMBED, TEXT_WIDTH, VOCABULARY = 24, 64, 1200
SIZES: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 2,
    "num_heads": 2,
    "num_classes": EMBED,
}
# as timm builds the published models, but for the sizes
EVA: dict[str, Any] = {
    "qkv_fused": False,
    "mlp_ratio": 8 / 3,
    "swiglu_mlp": True,
    "scale_mlp": True,
    "scale_attn_inner": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": (16, 16),
    "global_pool": "token",
}
PERCEPTION: dict[str, Any] = {
    "global_pool": "map",
    "attn_type": "rope",
    "use_pre_transformer_norm": True,
    "use_rot_pos_emb": True,
    "ref_feat_shape": (4, 4),
    "rope_grid_indexing": "xy",
    "attn_pool_num_heads": 8,
    "attn_pool_mlp_ratio": 4.0,
}


def drawn(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """A state dict by seed: numpy's old generator, whose stream never changes."""
    generator, state = np.random.RandomState(0), {}
    for key in sorted(shapes):
        values = 0.2 * generator.standard_normal(shapes[key])
        if "norm" in key or ".ln_" in key:
            values += key.endswith("weight")
        state[key] = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return state


def fill(module: nn.Module, prefix: str, state: dict[str, Tensor]) -> None:
    module.load_state_dict(
        {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}
    )


def record(trunk: nn.Module, text: nn.Module, context: int) -> dict[str, Any]:
    """The names and shapes of both towers' tensors, and what they give."""
    parts = {"visual.trunk.": trunk.eval(), "text.": text.eval()}
    shapes = {
        prefix + k: list(v.shape) for prefix, part in parts.items() for k, v in part.state_dict().items()
    }
    state = drawn(shapes)
    for prefix, part in parts.items():
        fill(part, prefix, state)
    pixels = torch.from_numpy(np.random.RandomState(1).standard_normal((2, 3, 32, 32)).astype(np.float32))
    ids = torch.zeros(2, context, dtype=torch.long)
    ids[0, :8] = torch.tensor([VOCABULARY - 2, 11, 12, 13, 14, 300, 400, VOCABULARY - 1])
    ids[1, :4] = torch.tensor([VOCABULARY - 2, 20, 21, VOCABULARY - 1])
    looked_up: list[Tensor] = []
    embedding: Any = text.get_submodule("token_embedding")
    embedding.register_forward_hook(lambda module, given, out: looked_up.append(out))
    features = text(ids)
    (gradient,) = torch.autograd.grad(features.square().sum(), looked_up[0])
    with torch.no_grad():
        image = trunk(pixels)
    return {
        "shapes": shapes,
        "context": context,
        "ids": ids[:, :8].tolist(),
        "image": digits(image),
        "text": digits(features),
        "gradient": digits(gradient[:, 1:3]),
    }


def digits(values: Tensor) -> Any:
    """Nested lists of numbers with the digits that float32 has."""
    return [digits(part) for part in values] if values.ndim else float(f"{values.item():.8g}")


def main() -> None:
    """Record each tower."""
    if find_spec("torchvision") is None:
        for name in ("", ".transforms", ".transforms.functional", ".ops", ".ops.misc", ".datasets"):
            stand_in = MagicMock(__path__=[], __version__="0")
            stand_in.__spec__ = ModuleSpec(f"torchvision{name}", None)
            sys.modules[f"torchvision{name}"] = stand_in
    from open_clip.transformer import TextTransformer
    from timm.models.eva import Eva

    norm = partial(nn.LayerNorm, eps=1e-5)

    def text(context: int) -> nn.Module:
        return TextTransformer(context, VOCABULARY, TEXT_WIDTH, heads=1, layers=1, output_dim=EMBED)

    kept = {
        "eva": record(Eva(**SIZES, **EVA), text(77), 77),
        "perception": record(Eva(**SIZES, **PERCEPTION, norm_layer=norm, rope_grid_offset=1.0), text(32), 32),
        "perception without a class token": record(
            Eva(**SIZES, **PERCEPTION, norm_layer=norm, class_token=False), text(32), 32
        ),
    }
    peers = {name: version(name) for name in ("timm", "open_clip_torch")}
    write_text(FILE, json.dumps({"peers": peers, **kept}) + "\n")


if __name__ == "__main__":
    main()
