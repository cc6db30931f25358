"""Public names say what they take, and their examples run as they are printed."""

import doctest
import inspect
from dataclasses import dataclass, is_dataclass, replace

import pytest
import torch

import pbprompt
from pbprompt import registry

NAMES = [name for name in pbprompt.__all__ if not name.startswith("_")]
AS_IMPORTED = {"torch": torch, "dataclass": dataclass, "replace": replace}
AS_IMPORTED |= {name: getattr(pbprompt, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_named(name):
    thing = getattr(pbprompt, name)
    if isinstance(thing, type) and (is_dataclass(thing) or issubclass(thing, Exception)):
        return  # fields have their own words
    named = inspect.getdoc(thing).partition("Args:")[2].split()
    assert {f"{argument}:" for argument in inspect.signature(thing).parameters} <= set(named)


@pytest.mark.usefixtures("plain_exports")
@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    registry.methods()  # all of our own are known before, and stay
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))  # one example registers a method
    found = doctest.DocTestFinder().find(getattr(pbprompt, name), name, globs=AS_IMPORTED)
    examples = [test for test in found if test.examples]
    assert name in {test.name for test in examples}
    runner, said = doctest.DocTestRunner(), []
    for test in examples:
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
