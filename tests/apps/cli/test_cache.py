"""`pbprompt cache`: what is printed and what is removed."""

import pytest
import torch
from typer.testing import CliRunner

from pbprompt.apps.cli.cache import app
from pbprompt.errors import InputError
from pbprompt.vision.features.cache import feature_folder
from pbprompt.vision.features.store import FeatureStore, total_bytes

pytestmark = pytest.mark.usefixtures("own_cache")


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def stored():
    for transform, count in (("clip-test(size=32, mean=0)", 300), ("train-view(size=32, mean=0)", 2)):
        store = FeatureStore(
            feature_folder(), backbone="ViT-B/16", fingerprint="f", precision="float32", transform=transform
        )
        keys = [str(place) for place in range(count)]
        store.write(keys, torch.zeros(count, 64), torch.zeros(count, 4, 64, dtype=torch.float16))


def test_empty():
    output = run()
    assert str(feature_folder()) in output and "empty" in output
    assert run("prune") == "removed 0 B, kept 0 B\n"


def test_show(stored):
    output = run()
    assert str(feature_folder()) in output
    first = next(line for line in output.splitlines() if "clip-test" in line)
    assert "ViT-B/16" in first and "float32" in first and " 300 " in first and "225.1 KiB" in first
    assert sum("ViT-B/16" in line for line in output.splitlines()) == 2


def test_prune_to_a_size(stored):
    assert run("prune").startswith("removed 0 B, kept 226.")
    limit = 100 * 1024 / 2**30
    assert "removed 225.1 KiB" in run("prune", "--max-gib", limit)
    assert 0 < total_bytes(feature_folder()) < 100 * 1024
    assert "train-view" in run() and "clip-test" not in run()


def test_prune_all(stored):
    assert "kept 0 B" in run("prune", "--all")
    assert "empty" in run()


@pytest.mark.parametrize("words", [("--all", "--max-gib", 1), ("--max-gib", -1), ("--max-gib", "nan")])
def test_bad_options(stored, words):
    with pytest.raises(InputError, match="--max-gib"):
        run("prune", *words)
    assert total_bytes(feature_folder()) > 0
