"""What every method is: learnable parameters before frozen towers, a loss of named terms, class features."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.clip.backbone import Backbone, Encoded
from pbprompt.clip.prompts import name_tokens
from pbprompt.config import with_overrides
from pbprompt.core.evidence import Evidence
from pbprompt.core.label_head import LabelHead
from pbprompt.core.likelihood import class_logits, unit
from pbprompt.errors import InputError
from pbprompt.registry import methods
from pbprompt.seeding import checked


def setting(default: Any, text: str, *, later: bool = False) -> Any:
    """A config field with its help. `later`: runs from before there was a choice keep their names."""
    return field(default=default, metadata={"help": text, "later": later})


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """How a method is trained; each method adds its own settings. The defaults are the field's protocol."""

    optimiser: Literal["sgd", "adam", "adamw"] = setting("sgd", "sgd, adam or adamw")
    learning_rate: float = setting(0.002, "highest learning rate; cosine to zero over the epochs")
    weight_decay: float = setting(5e-4, "weight decay of the optimiser")
    warmup_epochs: int = setting(1, "first epochs at a constant learning rate of 1e-5")
    batch_size: int = setting(32, "images per step; 0: the method's choice by the number of images")
    epochs: int = setting(0, "passes over the training images; 0: the method's schedule by shots")
    clip_norm: float = setting(0.0, "gradient norm to clip at; 0: no clipping")
    keep: float = setting(1.0, "share of the change by training that is kept; less suits other domains")
    momentum: float = setting(0.9, "momentum of sgd", later=True)
    adam_epsilon: float = setting(1e-8, "what adam and adamw add to the divisor", later=True)
    anneal: Literal["epoch", "step"] = setting("epoch", "how often the learning rate falls", later=True)

    def __post_init__(self) -> None:
        self.at_least(
            0, "batch_size", "learning_rate", "weight_decay", "warmup_epochs", "epochs", "clip_norm", "keep"
        )
        self.at_least(0, "momentum", "adam_epsilon")
        if self.keep > 1:
            raise InputError(f"setting 'keep' is {self.keep}: it takes a share, 0 to 1")

    def at_least(self, lowest: float, *keys: str, highest: float = math.inf) -> None:
        """Refuse settings out of bounds (or no number at all)."""
        for key in keys:
            value = getattr(self, key)
            if not lowest <= value <= highest:
                upper = "or more" if highest == math.inf else f"to {highest}"
                raise InputError(f"setting {key!r} is {value}: it takes {lowest} {upper}")


class Batch(NamedTuple):
    """Images in the joint space (not normalised) with their labels."""

    images: Encoded
    labels: Int[Tensor, " b"]


Terms = dict[str, Tensor]


class Method(nn.Module):
    """A way to make class features.

    A subclass sets `Config`, `presets` and `paper`, says what it can do by the attributes below, builds its
    parameters in `__init__`, and implements `prepare`, `loss` and `class_features`. Its parameters and
    buffers are all there is to save. The other hooks have defaults that suit most methods.

    What a method can do is decided by these attributes alone. Those that depend on its settings are set again
    in `__init__`, so ask a built method rather than its class where there is one.
    """

    name: ClassVar[str]
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    tags: ClassVar[tuple[str, ...]] = ()  # more words for the list of methods; nothing is decided by them
    paper: ClassVar[str] = ""
    revision: ClassVar[int] = (
        1  # its author raises it when its results change, so that earlier runs do not count
    )
    trains: ClassVar[bool] = True  # it learns from images; without, there is nothing to tune
    needs_unseen_names: ClassVar[bool] = False  # it trains for classes without images: a task names them
    stepwise: bool = True  # the loop's steps train it; without, `begin` does all there is
    needs_text: ClassVar[bool] = True  # it cannot do without a text tower; without, images are enough
    takes_new_names: bool = True  # it can tell classes that it had no image of, by their names
    image_conditioned: bool = False  # each image has prompts of its own, so that there is no bank to look at
    leaves_out: bool = False  # it judges each training image as if that one had been left out
    learns_on: bool = False  # `learn` adds labelled images to a fitted one, as if it were fitted on all
    streams: bool = False  # `begin_with` takes evidence that one pass over any number of images gathered
    several_labels: bool = False  # images may have several labels each: `label_head` is fitted to such
    takes_weights: bool = False  # training images may count unequally, by `image_weights`
    chooses: bool = False  # `choose` sets some of it by validation images, which training then needs
    exportable: bool = True  # its prediction is one fixed computation on a bank, which ONNX can hold
    # Whether every step runs the same kernels: no value is looked at on the host, nothing is moved there, and
    # random numbers come from the given generator alone, on its device. A GPU then replays it as one graph.
    capturable: ClassVar[bool] = False

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__()
        if not backbone.reads_text:
            if self.needs_text:
                raise _without_text(self.name, backbone)
            self.takes_new_names = False
        self.config = config
        self._frozen = (backbone,)  # a tuple: the towers are no part of this module's state
        self.classes: tuple[str, ...] = ()
        self.template = ""
        self.unseen_names: tuple[str, ...] = ()  # set by a task, used where `needs_unseen_names`
        # how often each training image counts, 1 on the average; set before training, where `takes_weights`
        self.image_weights: Tensor | None = None

    @property
    def backbone(self) -> Backbone:
        return self._frozen[0]

    @property
    def prediction_scale(self) -> float:
        """Factor on the logits of a prediction: below 1, it is less sure than in training."""
        return 1.0

    @property
    def plan_temperature(self) -> float:
        """T of the transport plans that are drawn as heat maps; the paper's 1 where the method has none."""
        return 1.0

    def prepare(self, classes: Sequence[str], template: str) -> None:
        """Take the class names (and the sentence around them, where a method uses one)."""
        self.classes, self.template = tuple(classes), template

    def expect(self, classes: Sequence[str], template: str) -> None:
        """`prepare` for classes of which `learn` gets the first images next."""
        self.prepare(classes, template)

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Once before the first step, with all training images; what it makes is kept as state."""

    def begin_on(self, views: Callable[[int], Batch], seed: int) -> None:
        """`begin` for a method that wants more of the training images than the first epoch's views."""
        self.begin(*views(0), seed)

    def begin_with(self, evidence: Evidence) -> None:
        """`begin` without the images themselves, where it `streams`: the labels are the classes' places."""
        raise InputError(f"{self.name} needs all training images at once: use `conjugate`, or fewer images")

    def finish(self) -> None:
        """Once after the last step: what rests on the trained parameters and is kept as state."""

    def choose(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Once after training, on the validation images, where `chooses`; what it finds is kept as state."""

    def trainable(self) -> list[nn.Parameter]:
        """What the optimiser changes."""
        return list(self.parameters())

    def backward(self, terms: Terms) -> None:
        """Fill the gradients of one step."""
        terms["total"].backward()

    def loss(self, batch: Batch, generator: torch.Generator, examples: int) -> Terms:
        """Named terms of one step: `total` to minimise, the others to log. `examples`: training images."""
        raise InputError(f"{self.name} has nothing to train by steps: leave epochs at 0")

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        """`samples` draws of every class's text feature (one where the method is deterministic).

        A method whose features depend on the image returns what its `sample_logits` needs, shaped [s, c, …].
        """
        raise NotImplementedError

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c d"]) -> Float[Tensor, "s b c"]:
        """Logits of images under each draw of the class features: the bank of `class_features`."""
        return class_logits(images.global_, features, self.backbone.logit_scale * self.prediction_scale)

    def combine(self, features: Float[Tensor, "s c d"]) -> Float[Tensor, "k c d"]:
        """The classifiers a prediction uses, made of the draws: the draws themselves, unless overridden."""
        return features

    def sample_weights(self, features: Float[Tensor, "s c d"]) -> Float[Tensor, " s"] | None:
        """How much each of the bank's draws counts, summing to 1; None: all alike."""
        return None

    def learn(self, images: Encoded, labels: Int[Tensor, " n"]) -> None:
        """Add labelled images of the present classes, where `learns_on`."""
        raise InputError(f"{self.name} cannot learn on: fit it again on all images, or use `conjugate`")

    def label_head(self, images: Encoded, targets: Float[Tensor, "n k"]) -> LabelHead:
        """Where it takes `several_labels`: what tells them. Targets: 1 for a label, else 0."""
        raise InputError(f"{self.name} takes one label an image: use a method that takes several")

    def left_out(self) -> "tuple[Float[Tensor, 'n c'], Int[Tensor, ' n']] | None":
        """Where it `leaves_out`: probabilities of its training images as if each had been left out, with
        their places among the present classes; None where nothing can be left out."""
        return None

    def familiarity(self, images: Encoded) -> Float[Tensor, " b"] | None:
        """p-value of each image as one of the classes with images: low, where it shows none of them."""
        return None

    def prompts_of(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """The text features behind a bank, to look at."""
        return features

    def directions(self, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s c d"]:
        """What a unit image feature is multiplied with for a class's logit, up to what all classes share."""
        return self.backbone.logit_scale * self.prediction_scale * unit(features)

    def sources(self, images: Encoded) -> dict[str, Float[Tensor, "b c"]]:
        """Logits by where they come from, such as names and photographs; none where there is one source."""
        return {}

    def prompt_vectors(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s k b w"]:
        """Learned token embeddings of the prompts, to look at; k: the classes, or 1 where they share them."""
        raise InputError(f"{self.name} has no token embeddings to show: use a model of pbprompt or coop")

    def epochs_for(self, shots: int) -> int:
        """The method's own schedule where `epochs` is 0."""
        if not self.stepwise:
            return 0
        return 50 if shots <= 1 else 100 if shots <= 4 else 200

    def batch_for(self, examples: int) -> int:
        """The method's own choice where `batch_size` is 0."""
        return 32

    def images_a_step(self, examples: int) -> int:
        """The batch size for so many training images."""
        return min(self.config.batch_size or self.batch_for(examples), examples)

    def diagnostics(self, generator: torch.Generator) -> dict[str, float]:
        """What is worth knowing of the parameters besides the loss, logged once an epoch."""
        return {}

    def counted_parameters(self) -> int:
        """Learnable parameters as the method's paper counts them."""
        return sum(parameter.numel() for parameter in self.parameters())


def _without_text(name: str, backbone: Backbone) -> InputError:
    able = ", ".join(other for other, kind in methods().items() if not kind.needs_text)
    return InputError(
        f"{name} reads class names, but {backbone.config.name} is an image tower that reads no text: "
        f"use one of {able}, or a backbone with a text tower, such as lite"
    )


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


def build_method(kind: type[Method], config: MethodConfig, backbone: Backbone, seed: int) -> Method:
    """A fresh method whose initial values are a function of the seed, on the backbone's device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checked(seed))
        return kind(config, backbone).to(backbone.device)


def accuracy(logits: Float[Tensor, "*s b c"], labels: Int[Tensor, " b"]) -> Tensor:
    """Share of a batch that is right, for logging."""
    return (logits.detach().argmax(-1) == labels).float().mean()


def word_embeddings(backbone: Backbone, words: str, tokens: int) -> Float[Tensor, "b w"]:
    """Token embeddings of words such as "a photo of a", which must take exactly `tokens` tokens."""
    ids = backbone.tokenizer.encode(words)
    if len(ids) != tokens:
        raise InputError(f"words {words!r} take {len(ids)} tokens, but tokens is {tokens}: make them equal")
    return backbone.token_embedding(torch.tensor(ids, device=backbone.device)).float()


def name_embeddings(backbone: Backbone, classes: Sequence[str]) -> Float[Tensor, "c w"]:
    """e_c: the mean of the token embeddings of a class name's own tokens."""
    rows = []
    for name in classes:
        ids = name_tokens(backbone.tokenizer, name)
        rows.append(backbone.token_embedding(torch.tensor(ids, device=backbone.device)).float().mean(dim=0))
    return torch.stack(rows)
