"""A researcher's lone file: `--plugin FILE`, before or behind any verb."""

import re
import sys
from pathlib import Path

import pytest

from pbprompt import registry

PAGE = (Path(__file__).parents[3] / "docs" / "add-a-method.md").read_text(encoding="utf-8")
TOWER = re.findall(r"```python\n(.*?)```", PAGE, re.S)[2]
PHOTOS = Path(__file__).parents[3] / "src" / "pbprompt" / "vision" / "images" / "sample" / "images" / "fluent"


@pytest.fixture
def forgotten(monkeypatch):
    """A call that forgets what a command has loaded, as another process would."""
    registry.methods()
    known = dict(registry._methods)

    def forget() -> None:
        monkeypatch.setattr(registry, "_methods", dict(known))
        monkeypatch.setenv(registry.PLUGINS, "")
        for name in [name for name in sys.modules if name.startswith("pbprompt_plugin_")]:
            del sys.modules[name]

    forget()
    yield forget
    forget()


def test_it_is_fitted_and_predicts(run, forgotten, tmp_path):
    file, model, photos = tmp_path / "block_adapter.py", tmp_path / "model", tmp_path / "photos"
    file.write_text(TOWER, encoding="utf-8")
    for name in ("clock", "heart"):
        (photos / name).mkdir(parents=True)
        for image in sorted((PHOTOS / name).iterdir())[:3]:
            (photos / name / image.name).write_bytes(image.read_bytes())
    fit = ["fit", photos, "--method", "block-adapter", "--shots", "1", "--set", "epochs=1"]
    fit += ["--backbone", "lite-vit", "--out", model]
    code, _, err = run(*fit)
    assert code == 2 and "unknown method 'block-adapter'" in err and err.strip().endswith("--plugin FILE")
    code, _, err = run(*fit, "--plugin", file)
    assert code == 0 and "block-adapter: " in err, err
    forgotten()
    code, _, err = run("predict", photos, "--model", model)
    assert code == 2 and "--plugin FILE" in err
    code, out, err = run(f"--plugin={file}", "predict", photos, "--model", model)
    assert code == 0 and out.count("\n") >= 6, err
    forgotten()
    code, out, _ = run("methods", "--plugin", file, "block-adapter")
    assert code == 0 and "how many of the last blocks have one" in out


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, "no Python file is there: give one such as my_method.py"),
        ("import a_module_that_is_not_there", "does not load (ModuleNotFoundError: No module named"),
        ("x = 1", 'brings no method: put @register("my-method") above its class'),
        ("def", "does not load (SyntaxError: "),
    ],
)
def test_a_file_that_will_not_do_is_told_in_a_sentence(run, forgotten, tmp_path, source, says):
    file = tmp_path / "mine.py"
    if source is not None:
        file.write_text(source, encoding="utf-8")
    code, out, err = run("methods", "--plugin", file)
    assert code == 2 and not out
    assert f"plugin {file}: {says}" in err and err.count("\n") == 1


def test_a_name_that_is_taken_is_told(run, forgotten, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from pbprompt.prompts.rivals.coop import CoOp\nfrom pbprompt.registry import register\n"
        "@register('coop')\nclass Mine(CoOp):\n    pass\n",
        encoding="utf-8",
    )
    code, _, err = run("methods", "--plugin", file)
    assert code == 2 and "method 'coop' is registered twice" in err
