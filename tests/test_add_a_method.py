"""The tutorial's method works as printed: it trains, predicts, saves and loads, as a plugin would."""

import re
import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from pbprompt import registry
from pbprompt.errors import InputError
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import build_method
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.loop.loop import Run, train
from pbprompt.testing import behaviours, method_checks
from pbprompt.vision.features.cache import Features
from pbprompt.vision.towers.backbone import Encoded

PAGE = (Path(__file__).parents[1] / "docs" / "add-a-method.md").read_text(encoding="utf-8")
CODE, CONTEXT, TOWER, CHECK, TESTS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def plugin(monkeypatch):
    """The printed module, found through its entry point."""
    module = types.ModuleType("my_package_task_residual")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registry.methods()  # the package's own are loaded once, for good
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    source = compile(CODE, "add-a-method.md", "exec")

    def load(self):
        if "TaskResidual" not in vars(module):  # an import runs a module once
            exec(source, module.__dict__)

    monkeypatch.setattr(EntryPoint, "load", load)
    entry = EntryPoint("task-residual", module.__name__, registry.ENTRY_POINT)
    monkeypatch.setattr(registry, "plugins", lambda: (entry,))
    return registry.find_method("task-residual")


@pytest.mark.parametrize("code", [CODE, CONTEXT, TOWER])
def test_under_sixty_lines(code):
    assert len(code.strip().splitlines()) <= 60


def test_it_is_a_method_like_any_other(plugin, tiny_vit, tmp_path):
    assert "task-residual" in registry.methods()
    torch.manual_seed(0)
    features = Features(torch.randn(8, 32), torch.randn(8, 16, 32).half(), torch.arange(8) % 2)
    method = build_method(plugin, plugin.Config(learning_rate=0.1), tiny_vit, seed=0)
    method.prepare(("cat", "dog"), "a {}.")
    images = Encoded(features.global_, features.patches)
    before = predictive(method)(images).probabilities
    train(
        method,
        lambda epoch: features,
        len(features),
        Run(options=FitOptions(seed=1, progress=False), epochs=30),
    )
    after = predictive(method)(images).probabilities
    rows = torch.arange(8)
    assert after[rows, features.labels].mean() > before[rows, features.labels].mean()
    TunedModel(method, describe_model(method, seed=0, shots=4)).save(tmp_path)
    loaded = TunedModel.load(tmp_path, backbone=tiny_vit).method
    assert torch.equal(predictive(loaded)(images).probabilities, after)
    loaded.prepare(("cat", "dog"), "a {}.")
    assert torch.equal(predictive(loaded)(images).probabilities, after)
    with pytest.raises(InputError, match="no new class names"):
        method.prepare(("cat", "dog", "car"), "a {}.")


def test_it_passes_the_checks_as_printed(plugin):
    exec(CHECK, {})
    names: dict[str, object] = {"TaskResidual": plugin}
    exec(TESTS, names)
    names["test_task_residual"](method_checks()[0])


@pytest.fixture
def lone_file(tmp_path, monkeypatch):
    """Makes a printed module a file that an environment variable names; returns its method."""
    file = tmp_path / "printed.py"
    registry.methods()
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setenv(registry.PLUGINS, str(file))

    def found(code, name):
        file.write_text(code, encoding="utf-8")
        return registry.find_method(name)

    yield found
    sys.modules.pop("pbprompt_plugin_printed", None)


@pytest.mark.parametrize("check", method_checks(), ids=lambda check: check.__name__)
@pytest.mark.parametrize(("code", "name"), [(CONTEXT, "own-context"), (TOWER, "block-adapter")])
def test_the_others_pass_the_checks_as_printed(lone_file, code, name, check, monkeypatch):
    monkeypatch.setattr(behaviours, "STEPS", 20)
    check(lone_file(code, name), learning_rate=0.1)
