"""What is measured: backbones, class names as long as ImageNet's, and methods as published."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from pbprompt.learners.method import Batch, build_method, make_config
from pbprompt.learners.trained import Trained
from pbprompt.registry import find_method
from pbprompt.research.costs import VIT_B16, class_names
from pbprompt.vision.towers.backbone import Backbone, BackboneConfig, Encoded, random_backbone
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig

TINY = BackboneConfig("tiny", 64, VitConfig(32, 8, 64, 2, 4), TextConfig(77, 49408, 64, 4, 3))

TEMPLATE = "a photo of a {}."
SHOTS = 16

# Settings beside each method's own: PBPrompt with one sample and batches of 32, as its paper has it.
OVERRIDES: dict[str, list[str]] = {
    "coop": [],
    "cocoop": [],
    "plot": [],
    "vpt": [],
    "pbprompt": ["train_samples=1", "antithetic=false", "batch_size=32", "ending=stop"],
}
METHODS = tuple(OVERRIDES)


@dataclass(frozen=True)
class Options:
    """What the command line asks for. `quick` takes a tiny random backbone and few classes: a try-out."""

    device: str = "cpu"
    quick: bool = False
    whole: bool = False
    images: int | None = None
    epochs: int | None = None

    @property
    def limit(self) -> float:
        """Seconds after which a timing is not repeated any more."""
        return 0.05 if self.quick else 2.0


@dataclass(frozen=True)
class Case:
    """A method on a backbone with so many classes; what is not said is as published."""

    method: str
    backbone: str
    classes: int
    device: str
    dtype: str
    limit: float = 2.0
    overrides: tuple[str, ...] = ()

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")


@lru_cache(maxsize=2)  # on CUDA all cases share a process
def make_backbone(name: str, device: str, dtype: str = "float32") -> Backbone:
    """The embedded backbone, or one with random weights."""
    if name == "lite":
        return load_backbone("lite", device=device, dtype=getattr(torch, dtype))
    config = {"ViT-B/16": VIT_B16, "tiny": TINY}[name]
    return random_backbone(config).to(device=device, dtype=getattr(torch, dtype))


def make_method(case: Case, backbone: Backbone) -> Trained:
    """The method prepared for the classes, its parameters shaken a little: a zero would hide an error."""
    kind = find_method(case.method)
    config = make_config(kind, overrides=[*OVERRIDES[case.method], *case.overrides])
    method = build_method(kind, config, backbone, seed=0)
    method.prepare(class_names(backbone.tokenizer, case.classes), TEMPLATE)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=random).to(parameter))
    return method


def random_batch(backbone: Backbone, classes: int, count: int, patches: int | None = None) -> Batch:
    """Encoded images as the library keeps them: global vectors in float32, patches in float16."""
    random = torch.Generator().manual_seed(3)
    patches = patches or backbone.grid[0] * backbone.grid[1]
    global_ = torch.randn(count, backbone.embed_dim, generator=random)
    local = torch.randn(count, patches, backbone.embed_dim, generator=random).half()
    labels = torch.randint(classes, (count,), generator=random)
    device = backbone.device
    return Batch(Encoded(global_.to(device), local.to(device)), labels.to(device))
