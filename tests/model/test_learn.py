"""From a dataset to a tuned method: what each epoch sees, and what names a run."""

import threading
from dataclasses import replace

import pytest
import torch
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.evidence.rivals.nearest import NearestMean
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import Method, make_config
from pbprompt.model.learn import epoch_features, one_ahead, run_identity, tune
from pbprompt.prompts.loop.loop import Run
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.towers.backbone import random_backbone

COUNT = 6


@pytest.fixture
def dataset(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for place in range(COUNT):
        pixels = torch.randint(256, (40, 48, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(tmp_path / f"{place}.png")
    items = tuple(Item(f"{place}.png", place % 2) for place in range(COUNT))
    return Dataset("toys", tmp_path, ("cat", "dog"), train=items, test=items)


@pytest.fixture
def bank(tiny_vit):
    return FeatureCache(tiny_vit, progress=False)


def same(one, other):
    return torch.equal(one.global_, other.global_) and torch.equal(one.patches, other.patches)


def test_the_centre_crop_is_every_epochs(bank, dataset):
    source = epoch_features(bank, dataset, 1, "centre", 3)
    assert same(source(0), bank.encode(dataset.root, dataset.train)) and same(source(0), source(7))


def test_a_number_of_views_is_taken_in_turn(bank, dataset):
    source = epoch_features(bank, dataset, 1, 2, 3)
    for epoch in range(5):
        wanted = bank.views(dataset.root, dataset.train, seed=1, epoch=epoch % 2)
        torch.testing.assert_close(source(epoch).global_, wanted.global_, rtol=1e-5, atol=1e-5)
        assert source(epoch).labels.tolist() == wanted.labels.tolist()
    assert not same(source(0), source(1)) and same(source(0), source(2))


def test_fresh_views_are_each_epochs_own(bank, dataset):
    source = epoch_features(bank, dataset, 1, "fresh", 3)
    assert not same(source(0), source(1)) and not same(source(0), source(2)) and same(source(1), source(1))


def test_tune_trains_and_announces_first(bank, dataset, tmp_path):
    announced = []
    config = make_config(PBPrompt, overrides=["epochs=2", "batch_size=4", "warmup_epochs=0"])
    method, terms = tune(
        dataset,
        bank,
        PBPrompt,
        config,
        FitOptions(
            shots=3,
            seed=1,
            folder=tmp_path / "out",
            progress=False,
            announce=lambda method: announced.append(method.generator.words.detach().clone()),
        ),
    )
    assert method.classes == ("cat", "dog") and method.template == dataset.template
    assert len(announced) == 1 and not torch.equal(announced[0], method.generator.words)
    assert {"total", "nll", "accuracy"} < set(terms)
    assert (tmp_path / "out" / "log.jsonl").read_text().count('"epoch"') == 2


def test_epochs_come_from_the_settings_or_the_schedule(bank, dataset, monkeypatch):
    runs = []
    monkeypatch.setattr("pbprompt.model.learn.train", lambda *arguments: runs.append(arguments) or {})
    for overrides, shots in ((["epochs=7"], 1), (["epochs=0"], 1), (["epochs=0"], 16)):
        config = make_config(PBPrompt, overrides=overrides)
        tune(dataset, bank, PBPrompt, config, FitOptions(shots=shots, seed=1))
    assert [run.epochs for *_, run in runs] == [7, 100, 400]
    assert all(examples == COUNT and isinstance(run, Run) for *_, examples, run in runs)


def test_nothing_to_tune_on(bank, dataset):
    with pytest.raises(InputError, match="toys has no training items"):
        tune(replace(dataset, train=()), bank, PBPrompt, make_config(PBPrompt), FitOptions(shots=1, seed=1))


def test_everything_that_changes_a_run_changes_its_name(tiny_vit, dataset):
    class Other(PBPrompt):
        name = "other"

    def method(kind=PBPrompt, backbone=tiny_vit, **settings):
        return kind(replace(make_config(PBPrompt), **settings), backbone)

    plain = FitOptions(seed=1, views="centre")
    usual = (dataset, method(), plain, 60, 0, None)
    changes = [
        (0, replace(dataset, train=dataset.train[1:])),
        (0, replace(dataset, classes=("cat", "hound"))),
        (0, replace(dataset, template="a drawing of a {}.")),
        (1, method(backbone=random_backbone(tiny_vit.config, seed=1))),
        (1, method(Other)),
        (1, method(ct_weight=0.5)),
        (2, replace(plain, unseen_names=("moon",))),
        (2, replace(plain, seed=2)),
        (2, replace(plain, views="fresh")),
        (2, replace(plain, views=2)),
        (3, 61),
        (4, 100),
        (5, torch.tensor([0.5, 1.5])),
    ]
    names = [run_identity(*usual)]
    for place, value in changes:
        names.append(run_identity(*usual[:place], value, *usual[place + 1 :]))
    assert len(set(names)) == len(changes) + 1
    moved = replace(dataset, root=dataset.root.parent)
    assert run_identity(moved, *usual[1:]) == names[0]  # where the images lie does not matter


def test_what_takes_no_steps_refuses_epochs(bank, dataset):
    config = make_config(NearestMean, overrides=["epochs=1"])
    with pytest.raises(InputError, match="leave epochs and budget at 0"):
        tune(dataset, bank, NearestMean, config)


def test_parameters_that_nothing_would_train_are_refused(bank, dataset):
    class Untrained(Method):
        name = "untrained"

        def __init__(self, config, backbone):
            super().__init__(config, backbone)
            self.weight = torch.nn.Parameter(torch.zeros(1))

    with pytest.raises(InputError, match=r"untrained .* derive it from pbprompt\.Trained"):
        tune(dataset, bank, Untrained, Untrained.Config())


# ---------------------------------------------------------------- epochs made one ahead


def test_the_next_is_made_while_this_one_is_in_use():
    made, second = [], threading.Event()

    def make(index):
        made.append(index)
        if index == 1:
            second.set()
        return index * 10

    get = one_ahead(make, 3)
    assert get(0) == 0
    assert second.wait()  # nobody has asked for it yet
    assert [get(1), get(2)] == [10, 20]
    assert made == [0, 1, 2]


def test_it_starts_where_it_is_asked():
    assert one_ahead(str, 5)(3) == "3"


def test_an_error_comes_with_its_own_epoch():
    def make(index):
        if index == 1:
            raise ValueError("epoch 1")
        return index

    get = one_ahead(make, 2)
    assert get(0) == 0
    with pytest.raises(ValueError, match="epoch 1"):
        get(1)
