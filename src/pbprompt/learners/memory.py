"""Methods whose fit is one function of labelled images, and what such a function makes.

    TrainingImages ──fit──▶ Remembered ──▶ bank, logits, predict, for_classes, tensors

A method of your own is two classes: a frozen `Remembered` with its tensors as fields, and a `Memory` whose
`fit` makes one. `evidence/rivals/nearest.py` is the whole of one.

A method that cannot tell a name without images says `takes_new_names = False`; `prepare` then refuses it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self, get_args, get_type_hints

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.method import EpochViews, Method, MethodConfig
from pbprompt.learners.predictive import Predictive
from pbprompt.learners.zeroshot import ZeroShotConfig, name_features
from pbprompt.vision.images.names import ClassLabel
from pbprompt.vision.similarity import class_logits
from pbprompt.vision.towers.backbone import Backbone, Encoded


@dataclass(frozen=True, eq=False)
class Asked:
    """The classes that a model is asked about, among those that it has images of."""

    known: tuple[str, ...]
    """in the order of the labels"""
    classes: tuple[str, ...]
    width: int
    """d"""
    scale: float
    """exp(logit scale)"""
    read: Callable[[tuple[str, ...]], Float[Tensor, "c d"]]

    @cached_property
    def labels(self) -> list[int]:
        """Of each class its label, −1 of a new one."""
        return labels_among(self.known, self.classes)

    @cached_property
    def texts(self) -> Float[Tensor, "c d"]:
        """The feature of each class's sentence, not normalised; 0 where no text is read."""
        return self.read(self.classes)


class TrainingImages(NamedTuple):
    """All training images; the labels are places among the classes that are asked about."""

    asked: Asked
    images: Encoded
    labels: Int[Tensor, " n"]
    weights: Float[Tensor, " n"] | None = None
    """how often each counts, 1 on the average; None: once"""
    groups: Int[Tensor, " n"] | None = None
    """the series each is of; None: each is by itself"""
    unlabelled: Float[Tensor, "m d"] | None = None
    """features of images without a label"""


@dataclass(frozen=True, eq=False)
class Remembered:
    """A `Fitted` that is made of tensors, its fields: all there is to save besides the names.

    It implements `bank`, and `logits` where these are more than scale·cosine to the bank.
    """

    asked: Asked

    def bank(self, samples: int = 1) -> Float[Tensor, "s c k"]:
        """What answers about these classes rest on, made once."""
        raise NotImplementedError

    def logits(self, images: Encoded, bank: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        return class_logits(images.global_, bank, self.asked.scale)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.asked.classes

    def predict(self, images: Encoded) -> Predictive:
        return Predictive.of_logits(self.logits(images, self.bank())).of_classes(self.classes)

    def for_classes(self, names: Sequence[str]) -> Self:
        return replace(self, asked=replace(self.asked, classes=tuple(names)))

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def checked(self) -> Self:
        """Itself, refused where its tensors are not of the shapes that its fields have."""
        hints, sizes = get_type_hints(type(self)), {"d": self.asked.width}
        for name, value in self.tensors().items():
            hint, *_ = get_args(hints[name]) or (hints[name],)
            axes = hint.dim_str.split()
            sizes |= {axis: int(axis) for axis in axes if axis.isdigit()}
            fits = [sizes.setdefault(*pair) == pair[1] for pair in zip(axes, value.shape, strict=True)]
            if not all(fits):
                raise ValueError(f"{name} is of shape {tuple(value.shape)}")
        return self


class KnowsClasses(Method):
    """A method that knows the classes it was trained on by name.

    The names are kept with its tensors, so that a later `prepare` with other names, or with the same in
    another order, finds what belongs to each.
    """

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self._names = nn.Buffer(torch.empty(0, dtype=torch.uint8))

    def prepare(self, classes: Sequence[str], template: str) -> None:
        labels = labels_among(self.seen, classes)
        if self.seen and not self.takes_new_names and -1 in labels:
            other = "method" if self.backbone.reads_text else "backbone"
            raise InputError(
                f"{self.name} knows only the classes it has images of, and {classes[labels.index(-1)]!r} "
                f"is none of them: use those, or a {other} that reads class names"
            )
        super().prepare(classes, template)

    @property
    def seen(self) -> tuple[str, ...]:
        """The classes it was trained on, in the order of the labels; none before."""
        kept = json.loads(bytes(self._names.tolist())) if len(self._names) else []
        return tuple(one if isinstance(one, str) else ClassLabel(*one) for one in kept)

    def remember(self, classes: Sequence[str]) -> None:
        """Keep these classes; one with a name to read is [label, name]."""
        text = json.dumps([[one, one.name] if isinstance(one, ClassLabel) else one for one in classes])
        self._names.data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self._names.device)

    def labels_of_classes(self) -> list[int]:
        """For each of the present classes its label in training, −1 for a new one."""
        if not self.seen:
            raise InputError(f"{self.name} has learned from no image yet: fit it on images first")
        return labels_among(self.seen, self.classes)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for what was saved; the tensors stay the same objects, as an optimiser may hold them."""
        for name, own in (*self._parameters.items(), *self._buffers.items()):
            saved = state.get(prefix + name)
            if own is not None and saved is not None and own.shape[1:] == saved.shape[1:]:
                own.data = own.data.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)


class Memory(KnowsClasses):
    """A door to what `fit` makes of all training images: it holds that, saves it, and has it asked."""

    trains = True
    makes: ClassVar[type[Any]] = Remembered  # by `fit`
    learned: ClassVar[tuple[str, ...]] = ()  # tensors of it that steps then train, if any do: parameters
    _fitted: Any = None

    def fit(self, shown: TrainingImages) -> Any:
        """What is made of labelled images: a `Fitted`, of the type above."""
        raise NotImplementedError

    def begin(
        self,
        images: Encoded,
        labels: Int[Tensor, " n"],
        weights: Float[Tensor, " n"] | None = None,
        groups: Int[Tensor, " n"] | None = None,
        unlabelled: Float[Tensor, "m d"] | None = None,
    ) -> None:
        """Learn from all training images."""
        with torch.no_grad():
            asked = replace(self.asked, known=self.classes)
            self.hold(self.fit(TrainingImages(asked, images, labels, weights, groups, unlabelled)))
        self.remember(self.classes)

    def begin_on(self, views: EpochViews, seed: int, **more: Tensor | None) -> None:
        """`begin`, where the training images are at hand as each epoch has them: with the first one's."""
        images, labels, _ = views(0)
        self.begin(images, labels, **more)

    @property
    def fitted(self) -> Any:
        return self._fitted

    def known(self) -> Any:
        """What was fitted, refused where nothing was."""
        if self._fitted is None:
            self.labels_of_classes()
        return self._fitted

    def hold(self, fitted: Any) -> None:
        """Have this asked from now on."""
        for name in self.learned:
            parameter = self.get_parameter(name)
            parameter.data = getattr(fitted, name).detach()
            fitted = replace(fitted, **{name: parameter})
        self._fitted = fitted

    @property
    def asked(self) -> Asked:
        read = partial(read_sentences, self.backbone, self.template)
        width, scale = self.backbone.embed_dim, self.backbone.logit_scale
        return Asked(self.seen, self.classes, width, scale, read)

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        if self._fitted:
            self.hold(replace(self._fitted, asked=self.asked))

    def restored(self, tensors: Mapping[str, Tensor]) -> Any:
        """What has these tensors."""
        return self.makes(self.asked, **tensors).checked()

    # what a prediction asks

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c k"]:
        bank: Tensor = self.known().bank(samples)
        return bank

    def sample_logits(self, images: Encoded, features: Float[Tensor, "s c k"]) -> Float[Tensor, "s b c"]:
        logits: Tensor = self.known().logits(images, features)
        return logits

    # what is saved

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in (self._fitted.tensors() if self._fitted else {}).items():
            destination.setdefault(prefix + name, value)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        own = {prefix + name for name in (*self._parameters, *self._buffers)}
        mine = {key: state.pop(key) for key in [*state] if key.startswith(prefix) and key not in own}
        super()._load_from_state_dict(state, prefix, *rest)
        tensors = {key.removeprefix(prefix): value.to(self.backbone.device) for key, value in mine.items()}
        tensors |= {name: self.get_parameter(name) for name in self.learned}
        try:
            self._fitted = None
            if self.seen:
                self.hold(self.restored(tensors))
        except (KeyError, ValueError, IndexError, TypeError, RuntimeError) as error:
            *_, errors = rest
            errors.append(f"{prefix}: {type(error).__name__} {error}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._fitted:
            self.hold(self.restored({name: fn(value) for name, value in self._fitted.tensors().items()}))
        return self


def read_sentences(backbone: Backbone, template: str, names: tuple[str, ...]) -> Float[Tensor, "c d"]:
    """Features of names in a sentence; 0 where no text is read."""
    if not backbone.reads_text:
        return torch.zeros(len(names), backbone.embed_dim, device=backbone.device)
    return name_features(backbone, names, template, ZeroShotConfig())


def labels_among(known: Sequence[str], asked: Sequence[str]) -> list[int]:
    """For each class that is asked about its place among the known ones, −1 for a new one.

    Two classes may have one name: the second of a name is the second that is known by that name.
    """
    labels = dict[str, list[int]]()
    for label, name in reversed([*enumerate(known)]):
        labels.setdefault(name, []).append(label)
    return [labels[name].pop() if labels.get(name) else -1 for name in asked]
