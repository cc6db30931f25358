"""What a run rests on is hashed: code, not comments, and whatever is imported from where."""

import sys

import pytest

from pbprompt import registry
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.prompts.rivals.coop import CoOp
from pbprompt.research import provenance
from pbprompt.research.provenance import ALWAYS, PACKAGE, closure, code_of, code_revision, machine

PLUGIN = '''
import torch
from pbprompt import MethodConfig, register
from pbprompt.prompts.rivals.coop import CoOp
import beside_it

@register("twice")
class Twice(CoOp):
    """CoOp, louder."""

    def prompt_vectors(self, samples, generator):
        return beside_it.FACTOR * self.context[None, None]
'''


def places(*files):
    return {str(file.relative_to(PACKAGE)) for file in closure((*files, *ALWAYS))}


def test_the_closure_holds_method_equations_loop_and_engine():
    found = places(PACKAGE / "prompts/pbprompt/model.py")
    equations = {f"prompts/pbprompt/{name}.py" for name in ("elbo", "generator", "transport", "variational")}
    assert equations | {"prompts/loop/loop.py", "prompts/loop/step.py", "vision/towers/engine.py"} <= found
    assert "vision/towers/kernels/transport.py" in found  # which a function imports
    figures = {
        "model/scoring.py",
        "model/metrics/evaluation.py",
        "evidence/temperature.py",
        "evidence/series.py",
    }
    assert figures | {"vision/images/fewshot.py"} <= found
    assert not {file for file in found if file.startswith(("apps/", "research/", "prompts/rivals/ship"))}
    assert not equations & places(PACKAGE / "prompts/rivals/plot.py") - {"prompts/pbprompt/transport.py"}


def test_it_comes_behind_the_revision():
    assert code_of(PBPrompt).startswith(f"{code_revision(PBPrompt)}, code ")
    assert code_of(PBPrompt).split()[-1] != code_of(CoOp).split()[-1]


def hash_of(tmp_path, text):
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    provenance._parsed.cache_clear()
    provenance._hash.cache_clear()
    return provenance._hash((tmp_path / "own.py",))


def test_comments_blank_lines_and_docstrings_are_no_code(tmp_path):
    plain = 'def f(x):\n    """Doubles."""\n    return 2 * x\n'
    first = hash_of(tmp_path, plain)
    assert hash_of(tmp_path, "# why\n\n" + plain.replace("2 * x", "2 * x  # not 3")) == first
    assert hash_of(tmp_path, plain.replace("Doubles.", "Twice\n\n    as much.")) == first
    assert hash_of(tmp_path, plain.replace("2 * x", "3 * x")) != first
    assert hash_of(tmp_path, plain.replace("2 * x", "'# 2'")) != hash_of(
        tmp_path, plain.replace("2 * x", "'# 3'")
    )


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_it.py").write_text("FACTOR = 2\n", encoding="utf-8")
    (tmp_path / "twice.py").write_text(PLUGIN, encoding="utf-8")
    monkeypatch.setattr(registry, "_methods", registry.methods())
    monkeypatch.setenv(registry.PLUGINS, str(tmp_path / "twice.py"))
    yield registry.methods()["twice"]
    for name in ("pbprompt_plugin_twice", "beside_it"):
        sys.modules.pop(name, None)


def test_a_plugin_and_what_lies_beside_it_count(plugin, tmp_path):
    def now():
        provenance._parsed.cache_clear()
        provenance._hash.cache_clear()
        return code_of(plugin)

    first = now()
    (tmp_path / "beside_it.py").write_text("FACTOR = 2  # as before\n", encoding="utf-8")
    assert now() == first
    (tmp_path / "beside_it.py").write_text("FACTOR = 3\n", encoding="utf-8")
    assert now() != first


@pytest.mark.parametrize("file", ["research/protocol.py", "model/tuned.py", "model/metrics/evaluation.py"])
def test_what_makes_the_figures_counts(monkeypatch, file):
    parsed, path = provenance._parsed, PACKAGE / file

    def changed(other):
        text, imports = parsed(other)
        return (text + "\nx = 1" if other == path else text), imports

    provenance._hash.cache_clear()
    first = code_of(CoOp)
    monkeypatch.setattr(provenance, "_parsed", changed)
    provenance._hash.cache_clear()
    assert code_of(CoOp) != first
    provenance._hash.cache_clear()


@pytest.mark.parametrize(
    "line",
    [
        "from mypack.equations import FACTOR",
        "from mypack.sub import inner",
        "from mypack.sub.inner import FACTOR",
        "import mypack.sub.inner as inner",
        "from .equations import FACTOR",
        "from . import equations",
        "from .sub.inner import FACTOR",
        "from .sub import up",
    ],
)
@pytest.mark.parametrize("regular", [True, False], ids=["package", "namespace"])
def test_a_plugins_own_package_is_followed(tmp_path, line, regular):
    pack = tmp_path / "mypack"
    (pack / "sub").mkdir(parents=True)
    if regular:
        (pack / "__init__.py").touch()
        (pack / "sub" / "__init__.py").touch()
    (pack / "equations.py").write_text("FACTOR = 2\n", encoding="utf-8")
    (pack / "sub" / "inner.py").write_text("from mypack.equations import FACTOR\n", encoding="utf-8")
    (pack / "sub" / "up.py").write_text("from ..equations import FACTOR\n", encoding="utf-8")
    method = pack / "method.py"
    method.write_text(f"import torch\n{line}\n", encoding="utf-8")
    assert pack / "equations.py" in closure((method,))
    assert all(file.is_relative_to(pack) for file in closure((method,)))


def test_code_is_named_by_revisions(monkeypatch):
    assert code_revision(CoOp) == "coop 1, loop 1"
    monkeypatch.setattr(CoOp, "revision", 2)
    assert code_revision(CoOp) == "coop 2, loop 1"


def test_the_machine_is_named():
    here = machine("cpu")
    assert here["kind"] == "cpu" and here["device"] == here["cpu"] and here["cores"] >= 1
