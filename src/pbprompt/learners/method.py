"""What every method is: learnable parameters before frozen towers, a loss of named terms, class features."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt import distributed
from pbprompt.config import with_overrides
from pbprompt.errors import InputError
from pbprompt.learners.fitted import Familiar
from pbprompt.registry import methods
from pbprompt.seeding import checked_seed
from pbprompt.vision.similarity import class_logits, unit
from pbprompt.vision.towers.backbone import Backbone, Encoded
from pbprompt.vision.towers.taps import Tapped, TappedTower, Taps


def setting(
    default: Any, text: str, *, least: float | None = None, most: float = math.inf, later: bool = False
) -> Any:
    """A config field, its help and bounds.

    Args:
        default: its value unless given.
        text: its help.
        least: the smallest value that is taken.
        most: the largest.
        later: runs from before there was a choice keep their names.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyConfig(MethodConfig):
        ...     weight: float = setting(0.5, "of the residual", least=0)
        >>> MyConfig(weight=0.2).weight
        0.2
    """
    return field(default=default, metadata={"help": text, "least": least, "most": most, "later": later})


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
        0, "steps in all, whatever the epochs; 0: the method's schedule, or the epochs", least=0, later=True
    )
    clip_norm: float = setting(0.0, "gradient norm to clip at; 0: no clipping", least=0)
    keep: float = setting(
        1.0, "share of the change by training that is kept; less suits other domains", least=0, most=1
    )
    momentum: float = setting(0.9, "momentum of sgd", least=0, later=True)
    adam_epsilon: float = setting(1e-8, "what adam and adamw add to the divisor", least=0, later=True)
    anneal: Literal["epoch", "step"] = setting("epoch", "how often the learning rate falls", later=True)

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


Terms = dict[str, Tensor]
EpochViews = Callable[[int], Batch]  # the training images as an epoch has them


class Method(nn.Module):
    """A way to make class features.

    A subclass sets `Config`, `presets` and `paper`, builds its parameters in `__init__`, and implements
    `prepare`, `class_features` and, where that is more than the cross-entropy, `loss`. Its parameters and
    buffers are all there is to save. The other hooks have defaults that suit most. What only some methods can
    do, such as learning on, is a protocol of `learners/fitted.py`: who has its functions can.

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
    trains: ClassVar[bool] = True  # it learns from images; without, there is nothing to tune
    needs_text: ClassVar[bool] = True  # it cannot do without a text tower; without, images are enough
    uses_unseen_names: ClassVar[bool] = False  # it trains for classes without images too
    takes_several: ClassVar[bool] = False  # it can see by several backbones at once
    tunes_towers: ClassVar[bool] = False  # it reaches into the image tower's blocks, and needs some there
    # Whether every step runs the same kernels: no value is looked at on the host, nothing is moved there, and
    # random numbers come from the given generator alone, on its device. A GPU then replays it as one graph.
    capturable: ClassVar[bool] = False
    stepwise: bool = True  # the loop's steps train it; without, `begin` does all there is
    takes_new_names: bool = True  # it can tell classes that it had no image of, by their names
    takes_weights: bool = False  # training images may count unequally, by `image_weights`
    image_conditioned: bool = False  # each image has prompts of its own, so that there is no bank to look at
    crops: int = 0  # random ones of each image that it learns from beside the centre, unless told otherwise
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
        self._tapped: tuple[Tapped] | None = None
        self.classes: tuple[str, ...] = ()
        self.template = ""
        # how often each training image counts, 1 on the average; set before training, where `takes_weights`
        self.image_weights: Tensor | None = None
        # the series of each training image, for a method that leaves them out; set before training
        self.image_groups: Tensor | None = None
        # classes without images that will be asked about; set before training
        self.unseen_names: tuple[str, ...] = ()

    def prepare(self, classes: Sequence[str], template: str) -> None:
        """Take the class names (and the sentence around them, where a method uses one)."""
        self.classes, self.template = tuple(classes), template

    def expect(self, classes: Sequence[str], template: str) -> None:
        """`prepare` for classes of which it learns the first images next."""
        self.prepare(classes, template)

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        """Named terms of one step: `total` to minimise, the others to log. `examples`: training images.

        Unless overridden, the cross-entropy of what it says of the images.
        """
        if not self.stepwise:
            raise InputError(f"{self.name} has nothing to train by steps: leave epochs at 0")
        logits = self.sample_logits(batch.images, self.class_features(1, generator))
        return cross_entropy_terms(logits[0], batch.labels)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """`samples` draws of every class's text feature (one where the method is deterministic).

        A method whose features depend on the image returns what its `sample_logits` needs, shaped [s, c, …].
        """
        raise NotImplementedError

    # the towers

    @property
    def backbone(self) -> Backbone:
        """The towers it sees by: those that it was given, with its taps in them."""
        return self._tapped[0] if self._tapped else self.given

    @property
    def given(self) -> Backbone:
        """The towers it was made with."""
        return self._given[0]

    def tap(self, image: "Taps | Sequence[Taps] | None" = None, text: "Taps | None" = None) -> None:
        """Reach into the towers, once, in `__init__`. What learns in the taps is state as any other."""
        several = [image] if isinstance(image, Taps) else list(image or ())
        self.image_taps, self.text_taps = nn.ModuleList(several), text
        self._tapped = (Tapped(self.given, several, text),)

    def encoded(self, batch: Batch) -> Batch:
        """A batch as the tower with taps sees it, where there is one: it comes as the states before that.

        Several processes share its images, but for those that dropout would blur otherwise than one would.
        """
        tower = self.backbone.visual
        if not isinstance(tower, TappedTower):
            return batch
        (frozen, states), labels, _ = batch
        rank, size = distributed.world()
        shared = len(labels) >= size > 1 and not tower.noisy
        rows = slice(rank, None, size) if shared else slice(None)
        images, patches = tower.finish(states[rows].to(self.backbone.dtype), frozen[rows])
        if shared:
            images, patches = (distributed.gather(part, len(labels)) for part in (images, patches))
        return Batch(Encoded(images, patches), labels, frozen)

    # training

    @classmethod
    def needs_validation(cls, config: MethodConfig) -> bool:
        """Whether with these settings it makes a choice by validation images after training (`choose`)."""
        return False

    def choose(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Once after training, where it needs validation images: what it finds in them is kept as state."""

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Once before the first step, with all training images; what it makes is kept as state."""

    def begin_on(self, views: EpochViews, seed: int) -> None:
        """`begin` for a method that wants more of the training images than the first epoch's views."""
        images, labels, _ = views(0)
        self.begin(images, labels, seed)

    def end_epoch(self, epoch: int, epochs: int) -> None:
        """After the last step of each epoch, counted from 0."""

    def finish(self) -> None:
        """Once after the last step: what rests on the trained parameters and is kept as state."""

    def finish_on(self, views: EpochViews) -> None:
        """`finish` for a method that wants the training images again."""
        self.finish()

    def trainable(self) -> list[nn.Parameter]:
        """What the optimiser changes."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def rates(self) -> "list[tuple[float, list[nn.Parameter]]]":
        """What is trained, in groups, and the share of the learning rate that each has."""
        return [(1.0, self.trainable())]

    def backward(self, terms: Terms) -> None:
        """Fill the gradients of one step."""
        terms["total"].backward()

    def epochs_for(self, shots: int) -> int:
        """The method's own schedule where `epochs` is 0."""
        if not self.stepwise:
            return 0
        return 50 if shots <= 1 else 100 if shots <= 4 else 200

    def budget_for(self, shots: int) -> int:
        """The method's own budget in steps where `budget` and `epochs` are 0; 0: it counts epochs."""
        return 0

    def batch_for(self, examples: int) -> int:
        """The method's own choice where `batch_size` is 0."""
        return 32

    def images_a_step(self, examples: int) -> int:
        """The batch size for so many training images."""
        return min(self.config.batch_size or self.batch_for(examples), examples)

    def diagnostics(self, generator: torch.Generator) -> dict[str, float]:
        """What is worth knowing of the parameters besides the loss, logged once per epoch."""
        return {}

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
        familiar = self.familiarity(images) if isinstance(self, Familiar) else None
        return self.sample_logits(images, features), familiar

    def combine(self, features: Float[Tensor, "s c d"]) -> Float[Tensor, "k c d"]:
        """The classifiers a prediction uses, made of the draws: the draws themselves, unless overridden."""
        return features

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The text features behind a bank, to look at; refused where it holds something else."""
        if self.image_conditioned:
            raise self.without_prompts("makes its prompts anew for every image")
        return features

    def without_prompts(self, why: str) -> InputError:
        """What `prompts_of` raises where a bank holds no text feature of each class."""
        return InputError(
            f"{self.name} {why} and has no class features to look into: use a model of pbprompt or coop"
        )

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


def accuracy(logits: Float[Tensor, "*s b c"], labels: Int[Tensor, " b"]) -> Tensor:
    """Share of a batch that is right, for logging."""
    return (logits.detach().argmax(-1) == labels).float().mean()


def cross_entropy_terms(logits: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Terms:
    """What the `loss` of most methods returns: the cross-entropy, and the accuracy to log."""
    return {"total": F.cross_entropy(logits, labels), "accuracy": accuracy(logits, labels)}
