"""Methods by name: the package's own, and those that other packages bring."""

import sys
from importlib.metadata import EntryPoint

import pytest

from pbprompt import registry
from pbprompt.errors import InputError
from pbprompt.registry import find_method, methods, register


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is forgotten after it, and the plugins that it has."""
    monkeypatch.setattr(registry, "_methods", dict(methods()))
    yield
    registry.plugins.cache_clear()


def test_the_packages_methods_are_found():
    assert {"pbprompt", "zeroshot"} <= set(methods())
    assert list(methods()) == sorted(methods())
    assert find_method("pbprompt").name == "pbprompt"


def test_one_of_the_packages_own_is_found_without_the_others(monkeypatch):
    known = registry._methods.pop("nearest-mean")

    def imported(module):
        assert module == "pbprompt.evidence.rivals.nearest"
        register("nearest-mean")(known)

    monkeypatch.setattr(registry, "import_module", imported)
    assert find_method("nearest-mean") is known


def test_one_line_makes_a_method_known():
    @register("mine")
    class Mine:
        pass

    assert find_method("mine") is Mine and Mine.name == "mine"


def test_a_name_is_given_once():
    @register("mine")
    class Mine:
        pass

    register("mine")(Mine)  # the same class again, as a reload does
    with pytest.raises(ValueError, match="'mine' is registered twice"):

        @register("mine")
        class Other:
            pass

    assert find_method("mine") is Mine


@pytest.mark.parametrize(
    ("name", "says"),
    [("pbpromt", "did you mean 'pbprompt'?"), ("", "known are "), ("qqqq", "known are ")],
)
def test_unknown_names(name, says):
    with pytest.raises(InputError) as error:
        find_method(name)
    assert repr(name) in str(error.value) and says in str(error.value)


def plugin(tmp_path, monkeypatch, source):
    (tmp_path / "their_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("theirs", "their_plugin", registry.ENTRY_POINT)
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [entry] if group == "pbprompt.methods" else []
    )
    registry.plugins.cache_clear()
    monkeypatch.delitem(sys.modules, "their_plugin", raising=False)


def test_an_entry_point_brings_a_method(tmp_path, monkeypatch):
    source = "from pbprompt.registry import register\n\n@register('theirs')\nclass Theirs:\n    pass\n"
    plugin(tmp_path, monkeypatch, source)
    assert find_method("theirs").__name__ == "Theirs"
    assert "theirs" in methods()


def test_a_broken_plugin_is_named(tmp_path, monkeypatch):
    plugin(tmp_path, monkeypatch, "import a_module_that_is_not_there\n")
    with pytest.raises(InputError, match=r"'theirs' \(their_plugin\).*a_module_that_is_not_there.*uninstall"):
        methods()


def test_each_own_method_is_found_in_the_file_that_its_name_says():
    for name, kind in methods().items():
        *_, parent, file = kind.__module__.split(".")
        if kind.__module__.startswith("pbprompt."):
            assert registry.FILES.get(name, name.replace("-", "_")) in (file, parent), name
