"""What a method keeps of its training images: tensors as long as the images are many, and the class names.

Training-free methods are made of it: `begin` is all of their fit. `nearest_mean.py` is the whole of one.

A method that cannot tell a name without images says `takes_new_names = False`; `prepare` then refuses it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from jaxtyping import Int
from torch import Tensor, nn

from pbprompt.errors import InputError
from pbprompt.learners.fitted import Fitted
from pbprompt.learners.method import EpochViews, Method, MethodConfig
from pbprompt.learners.zeroshot import sentence_features
from pbprompt.vision.images.names import ClassLabel
from pbprompt.vision.towers.backbone import Backbone, Encoded


class Memory(Method):
    """A method that knows the classes it was trained on by name.

    Its tensors are empty until `begin` fills them or saved ones are loaded. The names are kept with them,
    so that a later `prepare` with other names, or with the same in another order, finds what belongs to each.
    """

    trains = True

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self._names = nn.Buffer(torch.empty(0, dtype=torch.uint8))

    def prepare(self, classes: Sequence[str], template: str) -> None:
        labels = self.labels_of_classes(classes)
        if self.seen and not self.takes_new_names and -1 in labels:
            other = "method" if self.backbone.reads_text else "backbone"
            raise InputError(
                f"{self.name} knows only the classes it has images of, and {classes[labels.index(-1)]!r} "
                f"is none of them: use those, or a {other} that reads class names"
            )
        super().prepare(classes, template)

    def expect(self, classes: Sequence[str], template: str) -> None:
        """`prepare` for classes of which it learns the first images next."""
        if self.takes_new_names:
            self.prepare(classes, template)
        else:  # no name is read, and nothing is asked of a new class before it has images
            super().prepare(classes, template)

    def begin(self, images: Encoded, labels: Int[Tensor, " n"], seed: int) -> None:
        """Learn from all training images; what it makes of them is kept as state."""

    def begin_on(self, views: EpochViews, seed: int) -> None:
        """`begin` for a method that wants more of the training images than the first epoch's views."""
        images, labels, _ = views(0)
        self.begin(images, labels, seed)

    @property
    def seen(self) -> tuple[str, ...]:
        """The classes it was trained on, in the order of the labels; none before `begin`."""
        told = json.loads(bytes(self._names.tolist())) if len(self._names) else []
        return tuple(one if isinstance(one, str) else ClassLabel(*one) for one in told)

    def remember(self, classes: Sequence[str] | None = None) -> None:
        """Keep the present classes, unless others are given; one with a name to read is [label, name]."""
        given = self.classes if classes is None else classes
        text = json.dumps([[one, one.name] if isinstance(one, ClassLabel) else one for one in given]).encode()
        self._names.data = torch.tensor(list(text), dtype=torch.uint8, device=self._names.device)

    def labels_of_classes(self, classes: Sequence[str] | None = None) -> list[int]:
        """For each class its label in training, −1 for a new one; without any given, for the present ones."""
        if classes is None and not self.seen:
            raise InputError(f"{self.name} has learned from no image yet: fit it on images first")
        return labels_among(self.seen, self.classes if classes is None else classes)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for what was saved; the tensors stay the same objects, as an optimiser may hold them."""
        for name, own in (*self._parameters.items(), *self._buffers.items()):
            saved = state.get(prefix + name)
            if own is not None and saved is not None and _has_room(own.shape, saved.shape):
                own.data = own.data.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)


class FittedMemory(Memory):
    """A memory that holds one `Fitted`: its tensors are all its state, besides the names."""

    _fitted: Fitted | None = None

    def restored(self, tensors: Mapping[str, Tensor]) -> Fitted:
        """What has these tensors."""
        raise NotImplementedError

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._fitted:
            destination.update({prefix + name: value for name, value in self._fitted.tensors().items()})

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        names = prefix + "_names"
        mine = {key: state.pop(key) for key in [*state] if key.startswith(prefix) and key != names}
        super()._load_from_state_dict(state, prefix, *rest)
        tensors = {key.removeprefix(prefix): value.to(self.backbone.device) for key, value in mine.items()}
        try:
            self._fitted = self.restored(tensors) if self.seen else None
        except (KeyError, ValueError, IndexError, RuntimeError) as error:
            *_, errors = rest
            errors.append(f"{prefix}: {type(error).__name__} {error}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._fitted:
            self._fitted = self.restored({name: fn(value) for name, value in self._fitted.tensors().items()})
        return self


class MemoryBesideText(Memory):
    """A memory of images beside `_text`, the feature of each class's sentence, not normalised."""

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        if self.backbone.reads_text:
            self._text = sentence_features(self.backbone, classes, template)
        else:
            self._text = torch.zeros(len(classes), self.backbone.embed_dim, device=self.backbone.device)


def labels_among(known: Sequence[str], asked: Sequence[str]) -> list[int]:
    """For each class that is asked about its place among the known ones, −1 for a new one.

    Two classes may have one name: the second of a name is the second that is known by that name.
    """
    labels = dict[str, list[int]]()
    for label, name in reversed([*enumerate(known)]):
        labels.setdefault(name, []).append(label)
    return [labels[name].pop() if labels.get(name) else -1 for name in asked]


def _has_room(own: torch.Size, saved: torch.Size) -> bool:
    """Whether all dimensions agree but the first and those that were 0: so many as were saved."""
    return len(own) == len(saved) and all(
        mine in (0, theirs) for mine, theirs in zip(own[1:], saved[1:], strict=True)
    )
