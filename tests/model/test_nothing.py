"""Images with nothing to see are told from photographs, by features."""

import numpy as np
import pytest
import torch
from PIL import Image

from pbprompt.apps.classifier.prompt_classifier import PromptClassifier
from pbprompt.evidence.conjugate import Conjugate, ConjugateConfig
from pbprompt.model import nothing
from pbprompt.model.decisions import Rule
from pbprompt.model.nothing import FEWEST, Nothing, drawings
from pbprompt.model.tuned import TunedModel
from pbprompt.testing.fits import few_of_the_sample
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded
from pbprompt.vision.towers.loading.load import load_backbone


@pytest.fixture(scope="module")
def lite():
    return load_backbone("lite")


@pytest.fixture(scope="module")
def model(lite) -> TunedModel:
    dataset = draw(open_dataset("sample:fluent"), 2, 1).apply(open_dataset("sample:fluent"))
    return TunedModel.fit(dataset, FeatureCache(lite, progress=False), Conjugate, ConjugateConfig())


def empty_images() -> list[Image.Image]:
    """None of them is one of the drawings."""
    chance = np.random.default_rng(5)
    bars = chance.integers(0, 256, (1, 11, 3), dtype=np.uint8)
    noise = chance.integers(0, 256, (300, 400, 3), dtype=np.uint8)
    dark = chance.normal(9, 3, (300, 400, 3)).clip(0, 255).astype(np.uint8)
    plain = [Image.new("RGB", (500, 300), colour) for colour in ("black", "white", (90, 120, 60))]
    return [
        *plain,
        Image.fromarray(bars).resize((400, 300), 0),
        Image.fromarray(noise),
        Image.fromarray(dark),
    ]


def test_as_the_equation_has_it(monkeypatch):
    chance = np.random.default_rng(0)
    photographs, shown, asked = (chance.normal(size=(n, 6)) + 1 for n in (30, 4, 9))
    monkeypatch.setattr(nothing, "_features", lambda backbone: torch.from_numpy(shown).float())
    told = Nothing.fit(few_of_the_sample().backbone, torch.from_numpy(photographs).float())

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    centre = unit(photographs).mean(0)

    def likeness(x):
        cosines = unit(unit(x) - centre) @ unit(unit(shown) - centre).T
        return cosines.max(1)

    own = likeness(photographs)
    most = max(own.mean() + 4.5 * (1 + 2 / 30) * own.std(ddof=1), own.max())
    assert float(told.most) == pytest.approx(most, abs=1e-5)
    found = told._replace(most=torch.tensor(0.5)).shown_by(torch.from_numpy(asked).float())
    assert found.tolist() == (likeness(asked) > 0.5).tolist() and 0 < found.sum() < 9


def test_drawings_are_all_different():
    every = drawings()
    assert all(one.shape == (224, 224, 3) and one.dtype == np.uint8 for one in every)
    assert len({one.tobytes() for one in every}) == len(every)
    assert [one.tobytes() for one in every] == [one.tobytes() for one in drawings()]


def test_empty_images_are_marked_and_others_not(model, lite):
    said = model.predict(model.encode([lite.preprocess(one) for one in empty_images()]))
    assert [one.nothing for one in said] == [True] * 6
    assert said[0].to_dict()["nothing"] is True
    pairs = tuple((name, "thing") for name in model.classes[:2])
    told = Rule(threshold=0.0, back_off=(0.0, 0.0), hierarchy=pairs).decide(
        said, [False] * len(model.classes)
    )
    assert all(one.unsure and one.answer == ("", 0.0) for one in told)
    sample = open_dataset("sample:fluent")
    others = FeatureCache(lite, progress=False).encode(sample.root, sample.test)
    marks = model.predict(others.images).nothing
    assert float(marks.float().mean()) < 0.01


def test_it_is_saved_with_the_model(model, lite, tmp_path):
    model.save(tmp_path / "model")
    again = TunedModel.load(tmp_path / "model", lite)
    black = again.encode([lite.preprocess(Image.new("RGB", (64, 64)))])
    assert again.predict(black)[0].nothing
    assert all(torch.equal(one, other) for one, other in zip(model.nothing, again.nothing, strict=True))


def test_what_it_learns_is_something(model, lite):
    black = model.encode([lite.preprocess(Image.new("RGB", (64, 64))) for _ in range(2)])
    taught = model.partial_fit(black, ["black frame", "black frame"])
    assert not taught.predict(black)[0].nothing


def test_few_photographs_do_not_tell(lite):
    features = torch.randn(FEWEST - 1, lite.embed_dim)
    assert Nothing.fit(lite, features) is None
    classifier = PromptClassifier(backbone=lite).fit(features[:4].numpy(), ["a", "b"] * 2)
    assert classifier.predict_uncertainty(features[:2].numpy()).nothing is None
    images = Encoded(features, features[:, None][:, :0])
    assert classifier.model_.predict(images)[0].to_dict()["nothing"] is None
