"""Names -> classes: a method registers itself in one line, in this package, in a file that is named in
$PBPROMPT_PLUGINS (which `--plugin FILE` of the command line sets), or through an entry point."""

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

from pbprompt.errors import InputError, suggest

ENTRY_POINT = "pbprompt.methods"
PLUGINS = "PBPROMPT_PLUGINS"  # files, as PATH has them: processes that are started find it too
HOMES = (  # of the package's own methods, each in a file (or a folder) of its name, but for those below
    "pbprompt.learners",
    "pbprompt.evidence",
    "pbprompt.evidence.rivals",
    "pbprompt.prompts",
    "pbprompt.prompts.rivals",
    "pbprompt.prompts.rivals.towers",
)
FILES = {
    "kgcoop": "coop", "prograd": "coop", "coplot": "plot", "maple": "ivlp", "promptsrc": "ivlp",
    "taskres": "adapters", "clap": "adapters", "clip-adapter": "adapters",
    "gda": "linear", "lp++": "linear", "linear-probe": "linear",
    "nearest-mean": "nearest", "nearest-neighbours": "nearest",
}  # fmt: skip
T = TypeVar("T", bound=type)

_methods: dict[str, type] = {}


def register(name: str) -> Callable[[T], T]:
    """Class decorator: make a method known by `name`; a name is given once.

    Args:
        name: what `fit --method` and `PromptClassifier` call it.

    Example:
        >>> @register("my-names")
        ... class MyNames(Method):
        ...     paper = "this page"
        >>> MyNames.name
        'my-names'
    """

    def keep(kind: T) -> T:
        known = _methods.get(name)
        if known is not None and repr(known) != repr(kind):  # its module may be run again
            raise ValueError(f"method {name!r} is registered twice: {known} and {kind}")
        kind.name = name  # type: ignore[attr-defined]
        _methods[name] = kind
        return kind

    return keep


def methods() -> dict[str, Any]:
    """All methods by name: the package's own and those of installed plugins."""
    _import_own()
    for plugin in plugins():
        try:
            plugin.load()
        except Exception as error:
            raise InputError(
                f"plugin {plugin.name!r} ({plugin.value}) does not load ({error}): update or uninstall it"
            ) from error
    for file in filter(None, os.environ.get(PLUGINS, "").split(os.pathsep)):
        _run_file(Path(file).expanduser().resolve())
    return dict(sorted(_methods.items()))


@cache
def _import_own() -> None:
    for home in HOMES:
        for module in iter_modules(import_module(home).__path__):
            import_module(f"{home}.{module.name}")


def _run_file(file: Path) -> None:
    """Run a plugin's file, once."""
    name = f"pbprompt_plugin_{file.stem}"
    if getattr(sys.modules.get(name), "__file__", None) == str(file):
        return
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"plugin {file}: no Python file is there: give one such as my_method.py")
    before, module = set(_methods), module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(
            f"plugin {file}: does not load ({type(error).__name__}: {error}): mend it"
        ) from error
    if not set(_methods) - before:
        raise InputError(f'plugin {file}: brings no method: put @register("my-method") above its class')


@cache
def plugins() -> tuple[EntryPoint, ...]:
    """What installed packages bring, looked for once: a file of every package there is has to be read."""
    return tuple(entry_points(group=ENTRY_POINT))


def find_method(name: str) -> Any:
    """The method of that name."""
    file = FILES.get(name, name.replace("-", "_"))
    if name not in _methods and file.isidentifier():
        for found in filter(find_spec, (f"{home}.{file}" for home in HOMES)):
            import_module(found)
    if name in _methods:  # no need to look at all the others, and for plugins
        return _methods[name]
    known = methods()
    if name not in known:
        raise InputError(f"unknown method {name!r}: {suggest(name, known)}; one of your own: --plugin FILE")
    return known[name]
