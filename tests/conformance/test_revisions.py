"""A method whose results change takes another revision, so that finished runs of the former do not count."""

import importlib.util
import json
from pathlib import Path

import pytest

from pbprompt.prompts.loop.loop import LOOP_REVISION

SCRIPT = Path(__file__).parents[2] / "scripts" / "record_revisions.py"
spec = importlib.util.spec_from_file_location("record_revisions", SCRIPT)
recording = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recording)

KEPT = json.loads(Path(__file__).with_name("revisions.json").read_text(encoding="utf-8"))
RECORD = "run python scripts/record_revisions.py"


@pytest.mark.parametrize("name", recording.own_methods())
def test_results_change_with_the_revision_alone(name):
    found, kept = recording.state(recording.own_methods()[name]), KEPT.get(name)
    assert kept, f"{name} is new: {RECORD}"
    assert (found["revision"], LOOP_REVISION) == (kept["revision"], KEPT["loop"]), (
        f"another revision: {RECORD}"
    )
    assert found["figures"] == pytest.approx(kept["figures"], rel=2e-3, abs=2e-3), (
        f"results of {name} changed: raise its revision and {RECORD}"
    )


def test_what_is_kept_is_still_there():
    assert set(KEPT) == {"loop", *recording.own_methods()}, RECORD


def test_a_change_shows(monkeypatch):
    kind = recording.own_methods()["pbprompt"]
    before = recording.state(kind)["figures"]
    plain = kind.loss

    def other(self, *arguments):
        terms = plain(self, *arguments)
        return {**terms, "total": 1.1 * terms["total"]}

    monkeypatch.setattr(kind, "loss", other)
    assert recording.state(kind)["figures"] != pytest.approx(before, rel=2e-3, abs=2e-3)
