"""What to run for an extra: something that works where the package is."""

import json
from pathlib import Path

from pbprompt import errors
from pbprompt.errors import install_command


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
