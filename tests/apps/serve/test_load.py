"""Good and hostile requests at once, against a real server."""

import importlib.util
import sys
from pathlib import Path

import pytest

from pbprompt.apps.serve import protocol
from pbprompt.apps.serve.limits import Limits

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "serve_load.py"


@pytest.fixture
def load(monkeypatch):
    if not SCRIPT.exists():
        pytest.skip("benchmarks/ is not here")
    spec = importlib.util.spec_from_file_location("serve_load", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "serve_load", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def patient(load, model, serve_at, monkeypatch) -> str:
    """A server whose limits of time no busy machine reaches, and clients that wait as long."""
    for module, name in ((protocol, "HEADER_SECONDS"), (protocol, "REQUEST_SECONDS"), (load, "PATIENCE")):
        monkeypatch.setattr(module, name, 36_000.0)
    times = dict.fromkeys(("decode_seconds", "receive_seconds", "answer_seconds"), 36_000.0)
    return serve_at(model, limits=Limits(**times))


def test_every_good_request_is_answered_and_every_bad_one_refused_with_a_reason(load, patient):
    kinds = len(load.cases())
    outcomes = load.send_all(patient, 60)
    assert len(outcomes) == 60 and kinds <= 60
    wrong = [(case.name, answer.status, answer.reason) for case, answer in outcomes if not answer.right]
    assert not wrong
    assert {case.name for case, _ in outcomes} == {case.name for case in load.cases()}
    assert load.healthy(patient)


def test_the_judge_can_say_no(load):
    good, bad = load.cases()[0], load.cases()[-1]
    judged = load._judged
    said, refused = b'{"predictions": [{}]}', b'{"error": "too large"}'
    assert judged(good, 200, said, 0, 1).right and judged(bad, 413, refused, 0, 1).right
    for case, status, body in (
        (good, 429, refused),
        (good, 200, b'{"predictions": []}'),
        (bad, 200, said),
        (bad, 400, b""),
        (bad, 500, refused),
    ):
        assert not judged(case, status, body, 0, 1).right
