"""A model in a folder, from Python as from the command line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gather import gather
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.model import fitting, nothing
from pbprompt.model.fitting import (
    check_streams,
    fit_gathered,
    fit_into,
    fit_stream_into,
    gather_stream,
    is_stream,
    stream_checkpoint,
)
from pbprompt.model.streamed_statistics import Gathered
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.build_dataset import Choices
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Encoded


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for seed in range(12):
        pixels = np.random.default_rng(seed).integers(0, 80, (34, 34, 3), dtype=np.uint8)
        pixels[..., seed % 2] += 120
        file = root / "train" / ("red", "green")[seed % 2] / f"{seed:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return root


def test_a_draw_is_fitted_judged_and_saved(photos, tiny_vit, tmp_path):
    dataset, kind, announced = open_dataset(photos), find_method("nearest-mean"), []
    bank = FeatureCache(tiny_vit, cache=tmp_path / "cache", progress=False)
    folder, few = tmp_path / "model", draw(dataset, 2, seed=1).apply(dataset)
    model = fit_into(
        folder, few, bank, kind, kind.Config(), FitOptions(announce=announced.append), temperature=True
    )
    assert announced == [model.method] and (folder / "draw.jsonl").is_file()
    saved = TunedModel.load(folder, tiny_vit)
    assert saved.info == model.info and saved.info.temperature != 1
    assert saved.calibration == model.calibration and len(saved.calibration) == 8
    with pytest.raises(InputError, match="holds a finished model"):
        fit_into(folder, few, bank, kind, kind.Config())


def test_a_model_of_a_stream_tells_images_without_content(photos, tiny_vit, tmp_path, monkeypatch):
    monkeypatch.setattr(nothing, "FEWEST", 12)
    kind, stream = find_method("conjugate"), Stream([str(photos)])
    fit_stream_into(tmp_path / "model", stream, tiny_vit, kind, kind.Config())
    found = TunedModel.load(tmp_path / "model", tiny_vit).nothing
    dataset = open_dataset(photos)
    features = FeatureCache(tiny_vit, cache=tmp_path / "cache", progress=False).encode(photos, dataset.train)
    for mine, theirs in zip(found, nothing.Nothing.fit(tiny_vit, features.global_), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_stream_is_fitted_in_one_pass_and_saved(photos, tiny_vit, tmp_path):
    kind, names = find_method("conjugate"), tmp_path / "names.csv"
    names.write_text("red,ruby\ngreen,emerald\n")
    stream = Stream([str(photos)])
    model, found = fit_stream_into(
        tmp_path / "model", stream, tiny_vit, kind, kind.Config(), classes_file=names
    )
    assert found.images == 12 and set(model.classes) == {"red", "green"}
    saved = TunedModel.load(tmp_path / "model", tiny_vit)
    assert {*map(read_name, saved.classes)} == {*map(read_name, saved.method.seen)} == {"ruby", "emerald"}
    assert saved.calibration == model.calibration
    assert {path.name for path in tmp_path.iterdir()} == {"model", "names.csv"}  # nothing is kept beside it
    with pytest.raises(InputError, match="coop needs all its training images at once"):
        fit_stream_into(
            tmp_path / "other", stream, tiny_vit, find_method("coop"), find_method("coop").Config()
        )


CLASSES = ("BigCat", "dog", "hen")


@pytest.fixture(scope="module")
def streamed_photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for seed in range(15):
        pixels = np.random.default_rng(seed).integers(0, 80, (34, 34, 3), dtype=np.uint8)
        pixels[..., seed % 3] += 120
        file = root / "train" / CLASSES[seed % 3] / f"{seed:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    return root


@pytest.fixture(scope="module")
def fitted(streamed_photos, tiny_vit):
    kind = find_method("conjugate")
    found = gather_stream(Stream([streamed_photos]), tiny_vit, progress=False)
    return fit_gathered(found, tiny_vit, kind, kind.Config(), Choices(), str(streamed_photos))


def test_it_is_the_fit_in_memory(streamed_photos, tiny_vit, fitted, tmp_path):
    kind = find_method("conjugate")
    bank = FeatureCache(tiny_vit, cache=tmp_path / "cache", progress=False)
    dataset = open_dataset(streamed_photos)
    whole = TunedModel.fit(dataset, bank, kind, kind.Config(), FitOptions(group="none", progress=False))
    model = fitted
    assert model.classes == whole.classes == ("BigCat", "dog", "hen")
    assert model.info.data.images == 15
    features = bank.encode(dataset.root, dataset.train)
    images = Encoded(features.global_, features.patches)
    for _ in range(2):  # and after they learned one image more, of a new class
        one, other = (found.predictor(images).probabilities for found in (model, whole))
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        more = Encoded(images.global_[:1], images.patches[:1])
        model, whole = model.partial_fit(more, ["owl"]), whole.partial_fit(more, ["owl"])


def test_it_is_saved_and_calibrated_by_what_it_kept(fitted, tiny_vit, tmp_path):
    model = fitted.with_left_out()
    assert model.calibration is not None and len(model.calibration) == 15
    model.save(tmp_path / "model")
    again = TunedModel.load(tmp_path / "model", tiny_vit)
    assert torch.equal(again.predictor.bank, model.predictor.bank)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ((), "streamed_photos.tar: no image to learn from: all are broken"),
        (("cat",), "streamed_photos.tar: only one class, 'cat'"),
        (("big_cat", "big cat"), "both named 'big cat'"),
    ],
)
def test_what_cannot_be_fitted(tiny_vit, labels, problem):
    kind, count = find_method("conjugate"), len(labels)
    evidence = gather([(torch.randn(count, tiny_vit.embed_dim), torch.arange(count))], tiny_vit.embed_dim)
    found = Gathered(labels, evidence, count, 0, 1, ("all are broken",))
    with pytest.raises(InputError, match=problem):
        fit_gathered(found, tiny_vit, kind, kind.Config(), Choices(), source="streamed_photos.tar")


@pytest.mark.parametrize(("name", "settings"), [("coop", {}), ("linear-probe", {})])
def test_methods_that_need_all_images_at_once_say_so(tiny_vit, name, settings):
    kind = find_method(name)
    with pytest.raises(InputError, match=f"{name} needs all its training images at once"):
        check_streams(kind, kind.Config(**settings), tiny_vit)


def test_what_is_gathered_lies_beside_the_model_under_its_jobs_name(
    tiny_vit, double_vit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    stream = Stream(["a.tar"])
    mine = stream_checkpoint(Path("model/"), stream, tiny_vit)
    assert mine.path == tmp_path / ".model.gathered" / "0.safetensors"
    assert (
        stream_checkpoint(Path(), stream, tiny_vit).folder == tmp_path.parent / f".{tmp_path.name}.gathered"
    )
    same = stream_checkpoint(Path("model"), Stream(["a.tar"]), tiny_vit)
    assert same.job == mine.job
    others = (
        (Stream(["b.tar"]), tiny_vit),
        (Stream(["a.tar"], allow_urls=True), tiny_vit),
        (stream, double_vit),
    )
    assert all(stream_checkpoint(Path("model"), *other).job != mine.job for other in others)


def test_which_sources_are_streams(streamed_photos, tmp_path, monkeypatch):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.tar").write_bytes(b"")
    (tmp_path / "t.csv").write_text("image,label\na.png,x\n")
    for source, expected in (
        ("s3://bucket/a", True),
        (tmp_path / "x.tar.gz", False),  # which is not there
        (tmp_path / "shards" / "a.tar", True),
        (tmp_path / "shards", True),
        (tmp_path / "shards" / "*.tar", True),
        (streamed_photos, False),
        (tmp_path / "t.csv", False),
        ("caltech101", False),
        (tmp_path / "nothing", False),
    ):
        assert is_stream(str(source), every=False) is expected, source
    assert not is_stream(str(streamed_photos), every=True)
    monkeypatch.setattr(fitting, "MANY", 0)
    assert is_stream(str(streamed_photos), every=True)
    (streamed_photos / "all.tar").write_bytes(b"")  # beside the images that came out of it
    assert not is_stream(str(streamed_photos), every=False)
