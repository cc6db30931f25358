"""What to run for an extra: something that works where the package is; what a wrong word may have meant."""

import json
from pathlib import Path

from pbprompt import errors
from pbprompt.errors import SHOWN, install_command, nearest, suggest


def test_from_a_checkout_the_checkout_is_named():
    checkout = Path(errors.__file__).parents[2]
    assert (checkout / "pyproject.toml").is_file()
    assert install_command("serve") == f"pip install -e '{checkout}[serve]'"


def test_an_installed_wheel_is_named_by_the_file_it_came_from(monkeypatch, tmp_path):
    class Installed:
        url: str | None = None

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.url and json.dumps({"url": self.url})

    package = tmp_path / "lib" / "site-packages" / "pbprompt" / "errors.py"
    monkeypatch.setattr(errors, "__file__", str(package))
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert install_command("onnx") == "pip install 'pbprompt[onnx] @ file:///PATH/TO/THE.whl'"
    Installed.url = "file:///tmp/pbprompt-1.0-py3-none-any.whl"
    assert install_command("onnx") == f"pip install 'pbprompt[onnx] @ {Installed.url}'"


def test_no_message_or_page_names_a_package_on_an_index():
    """The package is on none: `pip install 'pbprompt[…]'` alone finds nothing, or somebody else's."""
    root = Path(errors.__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "src").rglob("*.py")]
    said = [path for path in pages if "install 'pbprompt[" in path.read_text(encoding="utf-8")]
    assert said == [Path(errors.__file__)]  # which says where from


def test_the_nearest_word_is_suggested_in_its_own_spelling():
    assert suggest("caltech", ["caltech101", "dtd"]) == "did you mean 'caltech101'?"
    assert nearest("vit-b/16", ["RN50", "ViT-B/16"]) == "ViT-B/16"


def test_what_is_known_is_listed_where_nothing_is_near():
    assert suggest("xyz", iter("ab")) == "known are a, b"
    assert suggest("xyz", [f"word {n}" for n in range(SHOWN + 1)]).endswith(f", word {SHOWN - 1}, …")
    assert nearest("xyz", ["a"]) is None
