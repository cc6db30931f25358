"""One small interface over every frozen image-text model, and over image towers without text."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.vision.images.crops import Fit, Interpolation
from pbprompt.vision.images.transforms import Preprocess, Triple
from pbprompt.vision.towers.text import TextConfig, TextTower
from pbprompt.vision.towers.tokenizer import AnyTokenizer, Tokenizer

if TYPE_CHECKING:
    from pbprompt.vision.towers.taps import Taps

Activation = Literal["quick_gelu", "gelu", "gelu_tanh", "own"]  # own: as timm has it

CLIP_MEAN: Triple = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Triple = (0.26862954, 0.26130258, 0.27577711)


class Images(NamedTuple):
    """How a model's images are prepared: its test transform, apart from their size."""

    mean: Triple = CLIP_MEAN
    std: Triple = CLIP_STD
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"
    resize: int | None = None  # the short side before the crop, where that is more than the crop


CLIP_IMAGES = Images()


class VisionConfig(Protocol):
    """Sizes of an image tower, each family's its own; `grid` is of its patches, down and across."""

    @property
    def image_size(self) -> int: ...

    @property
    def grid(self) -> tuple[int, int]: ...

    def build(self, embed_dim: int, activation: str) -> nn.Module: ...


@dataclass(frozen=True)
class BackboneConfig:
    """What a model is, apart from its weights. The activation is part of it: weights do not tell.

    `text` is None for an image tower alone.
    """

    name: str
    embed_dim: int
    vision: VisionConfig
    text: TextConfig | None
    activation: Activation = "quick_gelu"
    images: Images = CLIP_IMAGES


class Encoded(NamedTuple):
    """An image in the joint space: one global vector and one vector per patch, neither normalised."""

    global_: Float[Tensor, "b d"]
    patches: Float[Tensor, "b m e"]

    def to(self, device: torch.device | str) -> "Encoded":
        return Encoded(self.global_.to(device), self.patches.to(device))


class Backbone(nn.Module):
    """Frozen image and text towers with a common joint space.

    Weights are buffers, not parameters: no optimiser can take them and no gradient is ever kept for them,
    while gradients flow through the text tower to the embeddings that a method injects. Nothing in the
    towers depends on train mode, and the mode cannot be entered.
    """

    def __init__(
        self, config: BackboneConfig, tokenizer: AnyTokenizer | None = None, visual: nn.Module | None = None
    ) -> None:
        """Lay the towers out without values: `load_weights` or `random_backbone` gives them.

        Without a tokenizer, CLIP's own is used where there is a text tower. `visual`: an image tower that is
        built already.
        """
        super().__init__()
        self.config = config
        self.embed_dim = self.patch_width = config.embed_dim
        self.text_width = config.text.width if config.text else 0
        self.context_length = config.text.context_length if config.text else 0
        self.grid = config.vision.grid
        self.logit_scale = 1.0
        self.logit_bias: float | None = None  # of models trained with a sigmoid loss
        self.fingerprint = ""
        self.text_taps: Taps | None = None  # what a method does inside the text tower's blocks (`taps`)
        self.preprocess = Preprocess(config.vision.image_size, **config.images._asdict())
        if tokenizer is None and config.text is not None:
            tokenizer = Tokenizer(config.text.vocab_size, config.text.context_length)
        self._tokenizer = tokenizer
        with torch.device("meta"):
            build = config.vision.build
            self.visual = build(config.embed_dim, config.activation) if visual is None else visual
            if config.text is not None:
                self.textual = TextTower(config.text, config.embed_dim, config.activation)
        _parameters_to_buffers(self)
        super().train(False)

    def load_weights(
        self, state: dict[str, Tensor], logit_scale: float, fingerprint: str, logit_bias: float | None = None
    ) -> "Backbone":
        """Take the towers' values. Keys: `visual.*` and `textual.*`; `logit_scale` is the factor itself."""
        self.load_state_dict(state, assign=True)
        loaded = next(iter(state.values()))
        self.to(loaded.device, loaded.dtype)  # what a tower computes for itself follows its weights
        for buffer in self.buffers():
            buffer.requires_grad_(False)
        self.logit_scale, self.logit_bias = logit_scale, logit_bias
        self.fingerprint = fingerprint
        return self

    def framed(self, fit: Fit | None = None) -> "Backbone":
        """The same towers, which make a square of an image so; None: as they were trained."""
        fit = fit or self.config.images.fit
        if fit == self.preprocess.fit:
            return self
        other = copy.copy(self)
        other.preprocess = replace(self.preprocess, fit=fit)
        return other

    @property
    def base(self) -> "Backbone":
        """The frozen towers themselves, whatever a method does inside them."""
        return self

    @property
    def towers(self) -> "Sequence[Backbone]":
        """What it is made of: itself, or several (`several.py`)."""
        return (self,)

    @property
    def widths(self) -> list[int]:
        """Of the parts of its image and text features."""
        return [tower.embed_dim for tower in self.towers]

    @property
    def reads_text(self) -> bool:
        """Whether there is a text tower: without, a class is known by its images alone."""
        return self.config.text is not None

    @property
    def text_sizes(self) -> TextConfig:
        """Sizes of the text tower."""
        if self.config.text is None:
            raise self._without_text()
        return self.config.text

    @property
    def tokenizer(self) -> AnyTokenizer:
        """What turns texts into tokens, with which every use of the text tower begins."""
        if self._tokenizer is None:
            raise self._without_text()
        return self._tokenizer

    def _without_text(self) -> InputError:
        return InputError(
            f"{self.config.name} is an image tower that reads no text: use a backbone with a text tower, "
            "such as lite"
        )

    def image(self, x: Float[Tensor, "b 3 h w"]) -> Encoded:
        """Encode preprocessed images."""
        return Encoded(*self.visual(x.to(self.dtype)))

    def token_embedding(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n w"]:
        """Look token ids up."""
        return self.textual.token_embedding(ids)

    def text(self, embeddings: Float[Tensor, "n l w"], lengths: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """Encode prompts given as embeddings, with all that encloses them: every position is computed.

        A tower that sees padding gets the model's own around each prompt, whatever was given there.
        """
        if not self.textual.causal:
            full, pad = self.context_length, torch.tensor(self.tokenizer.pad, device=self.device)
            whole = self.token_embedding(pad).to(embeddings).repeat(len(embeddings), full, 1)
            for row, (prompt, length) in enumerate(zip(embeddings, lengths.tolist(), strict=True)):
                first = full - length if self.tokenizer.pads_left else 0
                whole[row, first : first + length] = prompt[:length]
            embeddings = whole
        return self.textual(embeddings, lengths)

    @cached_property
    def embedding_scale(self) -> float:
        """Root mean square of the token embeddings: the unit in which noise on them is small or large."""
        return self.textual.token_embedding.weight.float().square().mean().sqrt().item()

    @property
    def dtype(self) -> torch.dtype:
        return next(buffer.dtype for buffer in self.buffers() if buffer.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next(self.buffers()).device

    def train(self, mode: bool = True) -> "Backbone":
        """Stay in eval mode, whatever is asked: a module that contains a backbone may call this freely."""
        return super().train(False)


def random_backbone(config: BackboneConfig, seed: int = 0) -> Backbone:
    """A backbone with random weights of CLIP's initial scales: for tests and benchmarks."""
    backbone = Backbone(config)
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for key, meta in backbone.state_dict().items():
        if ".ln_" in key:
            value = torch.ones(meta.shape) if key.endswith("weight") else torch.zeros(meta.shape)
        else:
            fan_in = meta.shape[1:].numel() if meta.ndim > 1 else 1
            scale = 0.02 if key.endswith(("bias", "embedding", "embedding.weight")) else fan_in**-0.5
            value = torch.randn(meta.shape, generator=generator) * scale
        state[key] = value
    return backbone.load_weights(state, logit_scale=100.0, fingerprint=f"random-{config.name}-{seed}")


def _parameters_to_buffers(module: nn.Module) -> None:
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())
