"""What the loop does for methods inside the towers: budgets in steps, groups, epochs' ends, kept states."""

import math

import pytest
import torch
from torch import nn

from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Batch, build_method
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop import loop
from pbprompt.prompts.loop.loop import Run, train
from pbprompt.prompts.loop.step import Step
from pbprompt.prompts.rivals.coop import CoOp, CoOpConfig
from pbprompt.prompts.rivals.towers.clip_lora import CLIPLoRA, CLIPLoRAConfig
from pbprompt.testing.fits import NAMES, random_images
from pbprompt.vision.features import cache as bank_module
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded


@pytest.fixture
def few():
    whole = open_dataset("sample:fluent")
    return draw(whole, 1, seed=1).apply(whole)


def made(kind, config, backbone):
    method = build_method(kind, config, backbone, seed=1)
    method.prepare(NAMES, "a {}.")
    return method


def test_a_budget_in_steps_is_kept_to_and_annealed_over(tiny_vit, monkeypatch):
    """12 images in batches of 5: two steps an epoch, so that 7 steps end within an epoch."""
    rates, ends = [], []
    plain = loop.learning_rate
    monkeypatch.setattr(loop, "learning_rate", lambda *given: rates.append(plain(*given)) or rates[-1])
    monkeypatch.setattr(CoOp, "end_epoch", lambda self, *given: ends.append(given))
    config = CoOpConfig(batch_size=5, warmup_epochs=0, anneal="step", learning_rate=0.1)
    images = random_images(tiny_vit)
    steps = []
    run = Run(
        4, FitOptions(seed=1, progress=False, on_log=lambda record: steps.append(record["step"])), budget=7
    )
    train(made(CoOp, config, tiny_vit), lambda epoch: images, len(images), run)
    assert max(steps) == 7 and ends == [(0, 4), (1, 4), (2, 4), (3, 4)]
    wanted = [0.05 * (1 + math.cos(math.pi * step / 7)) for step in range(7)]
    assert [rate for rate in rates if any(math.isclose(rate, one) for one in wanted)][:2] == rates[:2]
    assert all(any(math.isclose(one, rate, rel_tol=1e-9) for rate in rates) for one in wanted)


def test_groups_have_their_share_of_the_rate(tiny_vit):
    class Grouped(CoOp):
        def __init__(self, config, backbone):
            super().__init__(config, backbone)
            self.slow = nn.Parameter(torch.ones(3))

        def rates(self):
            return [(1.0, [self.context]), (0.25, [self.slow])]

        def loss(self, batch, generator, examples):
            terms = super().loss(batch, generator, examples)
            return {**terms, "total": terms["total"] + self.slow.sum()}

    method = made(Grouped, CoOpConfig(optimiser="sgd", momentum=0.0, weight_decay=0.0), tiny_vit)
    images = random_images(tiny_vit)
    step = Step(method, len(images))
    batch = Batch(Encoded(images.global_, images.patches), images.labels)
    step(batch, torch.arange(4), seed=0, rate=0.2)
    assert [group["lr"] for group in step.optimiser.param_groups] == [0.2, 0.05]
    torch.testing.assert_close(method.slow.data, torch.full((3,), 0.95))


@pytest.mark.parametrize("views", ["centre", 2])
def test_images_are_encoded_once_up_to_the_first_touched_block(tiny_vit, few, tmp_path, monkeypatch, views):
    """A second fit, of other settings in the same blocks, reads the states; of more blocks, it encodes."""
    bank = FeatureCache(tiny_vit, cache=tmp_path, progress=False)

    def fit(**settings):
        config = CLIPLoRAConfig(batch_size=14, epochs=3, **settings)
        return TunedModel.fit(few, bank, CLIPLoRA, config, FitOptions(views=views, progress=False))

    fit(last=1)

    def no_encoding(*given):
        raise AssertionError("encoded again")

    monkeypatch.setattr(bank_module, "encode_records", no_encoding)
    assert fit(last=1, rank=3).terms["total"] > 0
    with pytest.raises(AssertionError, match="encoded again"):
        fit(last=2)


def test_a_run_goes_on_where_it_stopped(tiny_vit, few, tmp_path):
    """To the same bits, dropout and all."""
    bank = FeatureCache(tiny_vit, cache=tmp_path / "cache", progress=False)
    config = CLIPLoRAConfig(batch_size=14, budget=5, learning_rate=0.05)

    def fit(folder, steps=None):
        given = FitOptions(folder=folder, max_steps=steps, progress=False)
        return TunedModel.fit(few, bank, CLIPLoRA, config, given).method.state_dict()

    whole = fit(tmp_path / "whole")
    fit(tmp_path / "parts", steps=3)
    parts = fit(tmp_path / "parts")
    assert all(torch.equal(parts[name], value) for name, value in whole.items())
    assert any(value.abs().max() > 0 for name, value in whole.items() if name.endswith("up"))


def test_features_that_are_given_cannot_tune_a_tower(tiny_vit, few):
    class Given:
        backbone = tiny_vit

        def encode(self, root, items):
            return random_images(tiny_vit)

    with pytest.raises(InputError, match="this method tunes them: give a folder or a table of images"):
        TunedModel.fit(few, Given(), CLIPLoRA, CLIPLoRAConfig(), FitOptions(progress=False))
