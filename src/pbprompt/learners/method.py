"""What every method is: settings, class features of names before frozen towers, and answers by these.

One that learns from images is a `Memory` (`memory.py`), at once, or `Trained` (`trained.py`), by steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.config import with_overrides
from pbprompt.errors import InputError
from pbprompt.learners.fitted import Familiar
from pbprompt.registry import methods
from pbprompt.seeding import checked_seed
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone, Encoded


def setting(default: Any, text: str, *, least: float | None = None, most: float = math.inf) -> Any:
    """A config field, its help and bounds.

    Args:
        default: its value unless given.
        text: its help.
        least: the smallest value that is taken.
        most: the largest.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyConfig(MethodConfig):
        ...     weight: float = setting(0.5, "of the residual", least=0)
        >>> MyConfig(weight=0.2).weight
        0.2
    """
    return field(default=default, metadata={"help": text, "least": least, "most": most})


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """How a method is trained; each method adds its own settings. The defaults are the field's protocol.

    A setting that a method gives another default keeps its bounds.

    Example:
        >>> MethodConfig(epochs=20, optimiser="adamw").learning_rate
        0.002
    """

    optimiser: Literal["sgd", "adam", "adamw"] = setting("sgd", "sgd, adam or adamw")
    learning_rate: float = setting(0.002, "highest learning rate; cosine to zero over the epochs", least=0)
    weight_decay: float = setting(5e-4, "weight decay of the optimiser", least=0)
    warmup_epochs: int = setting(1, "first epochs at a constant learning rate of 1e-5", least=0)
    batch_size: int = setting(32, "images per step; 0: the method's choice by the number of images", least=0)
    epochs: int = setting(0, "passes over the training images; 0: the method's schedule by shots", least=0)
    budget: int = setting(
        0, "steps in all, whatever the epochs; 0: the method's schedule, or the epochs", least=0
    )
    clip_norm: float = setting(0.0, "gradient norm to clip at; 0: no clipping", least=0)
    keep: float = setting(
        1.0, "share of the change by training that is kept; less suits other domains", least=0, most=1
    )
    momentum: float = setting(0.9, "momentum of sgd", least=0)
    adam_epsilon: float = setting(1e-8, "what adam and adamw add to the divisor", least=0)
    anneal: Literal["epoch", "step"] = setting("epoch", "how often the learning rate falls")

    def __post_init__(self) -> None:
        """Refuse settings out of bounds, or NaN."""
        bounded = [one for kind in type(self).__mro__ if is_dataclass(kind) for one in fields(kind)]
        for one in bounded:
            least, most = one.metadata.get("least"), one.metadata.get("most", math.inf)
            value = getattr(self, one.name)
            if least is not None and not least <= value <= most:
                upper = "or more" if most == math.inf else f"to {most}"
                raise InputError(f"setting {one.name!r} is {value}: it takes {least} {upper}")


class Batch(NamedTuple):
    """Images in the joint space (not normalised) with their labels.

    Of a method with taps in the image tower they are encoded by that, with gradients, and `frozen` is what
    the tower without taps says of them.
    """

    images: Encoded
    labels: Int[Tensor, " b"]
    frozen: Float[Tensor, "b d"] | None = None


EpochViews = Callable[[int], Batch]  # the training images as an epoch has them


class Method(nn.Module):
    """A way to make class features.

    A subclass sets `Config`, `presets` and `paper`, builds its parameters in `__init__`, and implements
    `prepare` and `class_features`. Its parameters and buffers are all there is to save. The other hooks have
    defaults that suit most. What only some methods can do, such as learning on, is a protocol of
    `learners/fitted.py`: who has its functions can.

    The attributes below are facts. One that depends on the settings is set again in `__init__`, so ask a
    built method rather than its class where there is one.

    Args:
        config: the settings.
        backbone: the frozen towers.

    Example:
        >>> from pbprompt.registry import find_method
        >>> kind = find_method("zeroshot")
        >>> method = kind(kind.Config(), load_backbone("lite"))
        >>> method.prepare(["cat", "dog"], "a photo of a {}.")
        >>> method.classes
        ('cat', 'dog')
    """

    name: ClassVar[str]
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    paper: ClassVar[str] = ""
    tags: ClassVar[tuple[str, ...]] = ()  # more words for the list of methods; nothing is decided by them
    revision: ClassVar[int] = 1  # raised when its results change, so that earlier runs do not count
    trains: ClassVar[bool] = False  # it learns from images, as a `Memory` or `Trained`
    needs_text: ClassVar[bool] = True  # it cannot do without a text tower; without, images are enough
    takes_several: ClassVar[bool] = False  # it can see by several backbones at once
    tunes_towers: ClassVar[bool] = False  # it reaches into the image tower's blocks, and needs some there
    takes_new_names: bool = True  # it can tell classes that it had no image of, by their names
    takes_weights: bool = False  # training images may count unequally
    image_conditioned: bool = False  # each image has prompts of its own, so that there is no bank to look at
    promptless: ClassVar[str] = ""  # why its bank holds no text feature of each class, if so
    exportable: bool = True  # its prediction is one fixed computation on a bank, which ONNX can hold

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__()
        if len(backbone.towers) > 1 and not self.takes_several:
            able = ", ".join(other for other, kind in methods().items() if kind.takes_several)
            raise InputError(f"{self.name} sees by one backbone: give one, or use one of {able} with several")
        if not backbone.reads_text:
            if self.needs_text:
                able = ", ".join(other for other, kind in methods().items() if not kind.needs_text)
                raise InputError(
                    f"{self.name} reads class names, but {backbone.config.name} is an image tower that reads "
                    f"no text: use one of {able}, or a backbone with a text tower, such as lite"
                )
            self.takes_new_names = False
        self.config = config
        self._given = (backbone,)  # a tuple: the towers are no part of this module's state
        self.classes: tuple[str, ...] = ()
        self.template = ""

    def prepare(self, classes: Sequence[str], template: str) -> None:
        """Take the class names (and the sentence around them, where a method uses one)."""
        self.classes, self.template = tuple(classes), template

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """`samples` draws of every class's text feature (one where the method is deterministic).

        A method whose features depend on the image returns what its `sample_logits` needs, shaped [s, c, …].
        """
        raise NotImplementedError

    @property
    def given(self) -> Backbone:
        """The towers it was made with."""
        return self._given[0]

    @property
    def backbone(self) -> Backbone:
        """The towers it sees by: those that it was given, with its taps in them."""
        return self.given

    @property
    def fitted(self) -> Any:
        """Who is asked what only some can do, by a protocol of `learners/fitted.py`; None before a fit."""
        return self

    @classmethod
    def needs_validation(cls, config: MethodConfig) -> bool:
        """Whether with these settings it makes a choice by validation images after training (`choose`)."""
        return False

    def choose(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Once after training, where it needs validation images: what it finds in them is kept as state."""

    def counted_parameters(self) -> int:
        """Learnable parameters as the method's paper counts them."""
        return sum(parameter.numel() for parameter in self.parameters())

    # prediction

    @property
    def prediction_scale(self) -> float:
        """Factor on the logits of a prediction: below 1, it is less sure than in training."""
        return 1.0

    @property
    def plan_temperature(self) -> float:
        """T of the transport plans that are drawn as heat maps; the paper's 1 where the method has none."""
        return 1.0

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        """Logits of images under each draw of the class features: the bank of `class_features`."""
        return class_logits(images.global_, features, self.backbone.logit_scale * self.prediction_scale)

    def answer(
        self, images: Encoded, features: Float[Tensor, "s c d"]
    ) -> tuple[Float[Tensor, "k b c"], Float[Tensor, " b"] | None]:
        """Logits and, where it can be told, familiarity: of one pass, where both rest on the same."""
        familiar = self.fitted.familiarity(images) if isinstance(self.fitted, Familiar) else None
        return self.sample_logits(images, features), familiar

    def combine(self, features: Float[Tensor, "s c d"]) -> Float[Tensor, "k c d"]:
        """The classifiers a prediction uses, made of the draws: the draws themselves, unless overridden."""
        return features

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The text features behind a bank, to look at; refused where it holds something else."""
        if why := self.promptless or "makes its prompts anew for every image" * self.image_conditioned:
            raise InputError(
                f"{self.name} {why} and has no class features to look into: use a model of pbprompt or coop"
            )
        return features

    def directions(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """What a unit image feature is multiplied with for a class's logit, up to what all classes share."""
        return self.backbone.logit_scale * self.prediction_scale * unit(features)


AnyMethod = TypeVar("AnyMethod", bound=Method)


def make_config(
    kind: type[Method], preset: str = "default", variant: str = "", overrides: Sequence[str] = ()
) -> MethodConfig:
    """A method's settings: preset, then variant, then `key=value` words."""
    values: dict[str, Any] = {}
    for what, name, known in (("preset", preset, kind.presets), ("variant", variant, kind.variants)):
        if name in known:
            values |= known[name]
        elif name not in ("", "default"):
            options = ", ".join(known) or "none"
            raise InputError(f"{kind.name} has no {what} {name!r}: it has {options}")
    return with_overrides(kind.Config(**values), overrides)


def build_method(
    kind: type[AnyMethod],
    config: MethodConfig,
    backbone: Backbone,
    seed: int,
    classes: Sequence[str] = (),
    template: str = "",
) -> AnyMethod:
    """A fresh method on the backbone's device, prepared for the classes where some are given.

    What it draws at random in its `__init__` and in that first `prepare` is a function of the seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checked_seed(seed))
        method = kind(config, backbone).to(backbone.device)
        if classes:
            method.prepare(classes, template)
        return method.to(backbone.device)
