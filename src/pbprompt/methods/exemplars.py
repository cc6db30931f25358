"""What a method keeps of its training images: tensors as long as the images are many, and the class names."""

import json
from typing import Any

import torch
from torch import Tensor

from pbprompt.clip.backbone import Backbone
from pbprompt.methods.base import Method, MethodConfig


class Memory(Method):
    """A method that knows the classes it has images of by name.

    Its tensors are empty until `begin` fills them or saved ones are loaded. The names are kept with them,
    so that a later `prepare` with other names, or with the same in another order, finds what belongs to each.
    """

    _names: Tensor

    def __init__(self, config: MethodConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.register_buffer("_names", torch.empty(0, dtype=torch.uint8))

    @property
    def seen(self) -> tuple[str, ...]:
        """The classes it has images of, in the order of the labels; none before `begin`."""
        return tuple(json.loads(bytes(self._names.tolist()))) if len(self._names) else ()

    def remember(self) -> None:
        """Keep the present classes' names."""
        text = json.dumps(self.classes).encode()
        self._names.data = torch.tensor(list(text), dtype=torch.uint8, device=self._names.device)

    def labels_of_classes(self) -> list[int]:
        """For each present class its label in training, −1 for one without images."""
        known = {name: label for label, name in enumerate(self.seen)}
        return [known.get(name, -1) for name in self.classes]

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for what was saved; the tensors stay the same objects, as an optimiser may hold them."""
        for name, own in (*self._parameters.items(), *self._buffers.items()):
            saved = state.get(prefix + name)
            if own is not None and saved is not None and saved.shape[1:] == own.shape[1:]:
                own.data = own.data.new_empty(saved.shape)
        super()._load_from_state_dict(state, prefix, *rest)
