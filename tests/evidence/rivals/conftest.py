"""What tests of methods on frozen features share: drawn features, sentences over all positions, logits."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pbprompt.learners.method import Method, build_method
from pbprompt.vision.towers.backbone import Backbone, Encoded

NAMES = ("cat", "golden_retriever", "x")
TEMPLATE = "a photo of a {}, a thing."
LABELS = (0, 1, 1, 2, 0, 1, 2)


class Frozen:
    """A method fitted on seven drawn images of three classes, and its inputs as numpy has them."""

    names, template, labels = NAMES, TEMPLATE, LABELS

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.images = self.encoded(len(LABELS), seed=1)
        self.others = self.encoded(5, seed=2)
        self.x, self.z = rows(self.images.global_), rows(self.others.global_)
        self.text = np.stack([self.sentence(name) for name in NAMES])
        self.unit_text = self.text / np.linalg.norm(self.text, axis=1, keepdims=True)
        self.onehot = np.eye(3)[list(LABELS)]

    def encoded(self, count: int, seed: int) -> Encoded:
        generator = torch.Generator().manual_seed(seed)
        x = 7 * torch.randn(count, self.backbone.embed_dim, generator=generator).to(self.backbone.dtype)
        return Encoded(x, x.new_zeros(count, 0, self.backbone.embed_dim))

    def sentence(self, name: str) -> np.ndarray:
        tokenizer = self.backbone.tokenizer
        ids = [
            tokenizer.sos,
            *tokenizer.encode(TEMPLATE.replace("{}", name.replace("_", " "))),
            tokenizer.eot,
        ]
        embedded = self.backbone.token_embedding(torch.tensor(ids))
        padding = embedded.new_zeros(self.backbone.context_length - len(ids), embedded.shape[1])
        return self.backbone.text(torch.cat([embedded, padding])[None], torch.tensor([len(ids)]))[0].numpy()

    def fit(
        self,
        kind: type[Method],
        names: Sequence[str] = NAMES,
        labels: Sequence[int] = LABELS,
        images: Encoded | None = None,
        **settings: object,
    ) -> Method:
        method = build_method(kind, kind.Config(**settings), self.backbone, seed=0).to(self.backbone.dtype)
        method.prepare(tuple(names), TEMPLATE)
        method.begin(images or self.images, torch.tensor(labels))
        return method

    def logits(self, method: Method, images: Encoded | None = None) -> np.ndarray:
        bank = method.class_features(1, torch.Generator())
        return method.sample_logits(images or self.others, bank).squeeze(0).detach().numpy()


def rows(x: torch.Tensor) -> np.ndarray:
    x = x.double().numpy()
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture
def frozen(double_vit) -> Frozen:
    return Frozen(double_vit)


@pytest.fixture
def frozen_tiny(tiny_vit) -> Frozen:
    return Frozen(tiny_vit)
