"""A model in a folder, from Python as from the command line."""

import numpy as np
import pytest
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.model.fitting import fit_into, fit_stream_into
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.stream import Stream


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
    bank = FeatureBank(tiny_vit, cache=tmp_path / "cache", progress=False)
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
