"""EVA-02-CLIP and PE-Core against numbers of timm's and open_clip's own towers: towers.json."""

import numpy as np
import pytest
import torch
from plain_text import plain, relative
from trunk_folder import KEPT, TOWERS, write_trunk

from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import TextEngine
from pbprompt.vision.towers.loading.load import load_backbone


@pytest.fixture(scope="module", params=TOWERS)
def loaded(request, tmp_path_factory) -> tuple[dict, Backbone]:
    folder = write_trunk(tmp_path_factory.mktemp("trunk"), request.param)
    return KEPT[request.param], load_backbone(folder)


def test_the_peers_are_named():
    assert set(KEPT["peers"]) == {"timm", "open_clip_torch"}


@torch.no_grad()
def test_image_features_are_theirs(loaded):
    kept, ours = loaded
    pixels = np.random.RandomState(1).standard_normal((2, 3, 32, 32)).astype(np.float32)
    image = ours.image(torch.from_numpy(pixels))
    assert relative(image.global_, torch.tensor(kept["image"])) <= 1e-5
    assert image.patches.shape == (2, 16, 24)


def test_text_features_and_gradients_are_theirs(loaded):
    """The gradient at two places in the middle of each prompt, where the engine has context vectors."""
    kept, ours = loaded
    ids = [[token for token in row if token] for row in kept["ids"]]
    context = torch.stack([ours.token_embedding(torch.tensor(row[1:3])) for row in ids])[None]
    context.requires_grad_()
    prompts = [[row[0], -1, -2, *row[3:]] for row in ids]
    features = TextEngine(ours, prompts)(context)
    assert relative(features[0], torch.tensor(kept["text"])) <= 1e-5
    (gradient,) = torch.autograd.grad(features.square().sum(), context)
    assert relative(gradient[0], torch.tensor(kept["gradient"])) <= 1e-5
    assert relative(features, plain(ours, prompts, context)) <= 1e-5
