"""`pbprompt serve`, as a user runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
import typer
from typer.testing import CliRunner

from pbprompt.apps.cli.serve import serve
from pbprompt.errors import InputError, install_command

RUN = """import typer; from pbprompt.apps.cli.serve import serve
app = typer.Typer(); app.command()(serve); app()"""


def run(*arguments: str):
    app = typer.Typer()
    app.command()(serve)
    return CliRunner().invoke(app, list(arguments))


def test_a_folder_without_a_model(tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    error = run(str(tmp_path)).exception
    assert isinstance(error, InputError) and str(tmp_path) in str(error)


def test_a_missing_extra_names_its_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = run(str(tmp_path)).exception
    assert isinstance(error, InputError) and install_command("serve") in str(error)


def test_a_key_that_no_header_can_carry(tmp_path):
    error = run(str(tmp_path), "--api-key", "sésame").exception
    assert isinstance(error, InputError) and "--api-key" in str(error)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--label-out", "labels.csv"), "with --label"),
        (("--label", ".", "--examples"), "leave out --examples"),
        (("--label", ".", "--shared-classes"), "leave out --examples and --shared-classes"),
        (("--demo", "--label", "."), "leave out --label"),
        (("--demo", "--photographs", "."), "and --photographs"),
    ],
)
def test_options_of_labelling_that_do_not_go_together(tmp_path, options, says):
    error = run(str(tmp_path), *options).exception
    assert isinstance(error, InputError) and says in str(error)


def test_it_serves_with_the_key_of_the_environment_and_stops_on_ctrl_c(lite, child, tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from pbprompt.learners.method import build_method, make_config
    from pbprompt.model.folder import describe_model
    from pbprompt.model.tuned import TunedModel
    from pbprompt.registry import find_method

    kind = find_method("pbprompt")
    method = build_method(kind, make_config(kind), lite, seed=1)
    method.prepare(("cat", "dog"), "a photo of a {}.")
    info = describe_model(method, seed=1, shots=1)
    TunedModel(method, info).save(tmp_path / "model")
    server = child(
        [sys.executable, "-c", RUN, str(tmp_path / "model"), "--port", "0", "--examples"],
        stderr=subprocess.PIPE,
        env=os.environ | {"PBPROMPT_API_KEY": "open-it"},
    )
    assert server.stderr is not None
    address = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
    with urllib.request.urlopen(f"{address}/healthz") as answer:
        assert json.load(answer)["needs_key"] is True
    request = urllib.request.Request(f"{address}/classes", headers={"X-API-Key": "open-it"})
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["classes"] == ["cat", "dog"]
    with urllib.request.urlopen(f"{address}/openapi.json") as answer:
        assert "/examples" in json.load(answer)["paths"]
    server.send_signal(signal.SIGINT)
    log = server.communicate()[1]
    assert "shutdown complete" in log and "Traceback" not in log


def test_labels_outlive_ctrl_c_and_a_method_that_cannot_learn_is_refused(lite, child, tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    import torch
    from PIL import Image

    from pbprompt.learners.fitted import PartialFit
    from pbprompt.learners.method import build_method, make_config
    from pbprompt.model.folder import describe_model
    from pbprompt.model.tuned import TunedModel
    from pbprompt.registry import find_method
    from pbprompt.vision.towers.backbone import Encoded

    photos = tmp_path / "photos"
    photos.mkdir()
    for colour in ("red", "blue", "green"):
        Image.new("RGB", (64, 64), colour).save(photos / f"{colour}.png")
    for name in ("conjugate", "pbprompt"):
        kind = find_method(name)
        method = build_method(kind, make_config(kind), lite, seed=1)
        method.prepare(("cat", "dog"), "a photo of a {}.")
        model = TunedModel(method, describe_model(method, seed=1, shots=1))
        if isinstance(model.method, PartialFit):
            images = torch.randn(2, lite.embed_dim, generator=torch.Generator().manual_seed(0))
            model = model.partial_fit(Encoded(images, images.unsqueeze(1)), ["cat", "dog"])
        model.save(tmp_path / name)
    error = run(str(tmp_path / "pbprompt"), "--label", str(photos)).exception
    assert isinstance(error, InputError) and "cannot learn while images are labelled" in str(error)

    command = [sys.executable, "-c", RUN, str(tmp_path / "conjugate"), "--port", "0", "--label", str(photos)]
    for labelled in (0, 1):
        server = child(command, stderr=subprocess.PIPE)
        address = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
        with urllib.request.urlopen(f"{address}/labelling") as answer:
            state = json.load(answer)
        assert (state["labelled"], state["left"]) == (labelled, 3 - labelled)
        body = json.dumps({"image": state["image"], "label": "dog"}).encode()
        sent = urllib.request.Request(f"{address}/labelling", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(sent).close()
        server.send_signal(signal.SIGINT)
        assert "Traceback" not in server.communicate()[1]
        assert (photos / "labels.csv").read_text().count(",dog,") == labelled + 1


def test_a_tour_needs_the_samples_classes_and_leaves_nothing_behind(lite, child, tmp_path):
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    import torch

    from pbprompt.learners.method import build_method, make_config
    from pbprompt.model.folder import describe_model
    from pbprompt.model.tuned import TunedModel
    from pbprompt.registry import find_method
    from pbprompt.vision.towers.backbone import Encoded

    kind, images = find_method("conjugate"), torch.eye(2, lite.embed_dim)
    for place, names in (("other", ("cat", "dog")), ("sample", ("mammal", "fruit"))):
        method = build_method(kind, make_config(kind), lite, seed=1)
        method.prepare(names, "a photo of a {}.")
        model = TunedModel(method, describe_model(method, seed=1, shots=1))
        model.partial_fit(Encoded(images, images.unsqueeze(1)), list(names)).save(tmp_path / place)
    command = [sys.executable, "-c", RUN, str(tmp_path / "other"), "--port", "0", "--demo"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode and "pbprompt fit sample --shots 1" in refused.stderr
    command[3] = str(tmp_path / "sample")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    server = child(command, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)})
    address = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
    with urllib.request.urlopen(f"{address}/tour") as answer:
        assert b"A tour in five steps" in answer.read()
    assert len(list(scratch.glob("pbprompt-tour-*/*.webp"))) == 6
    server.terminate()
    server.communicate()
    assert not list(scratch.glob("pbprompt-tour-*"))


def test_an_empty_key_is_no_key(tmp_path, monkeypatch):
    """Or a variable that was to hold one would leave the server open to all."""
    error = run(str(tmp_path), "--api-key", "").exception
    assert isinstance(error, InputError) and "is empty: give a key, or unset it" in str(error)
    monkeypatch.setenv("PBPROMPT_API_KEY", "")
    error = run(str(tmp_path), "--host", "0.0.0.0").exception
    assert isinstance(error, InputError) and "is empty: give a key, or unset it" in str(error)


@pytest.mark.parametrize("option", ["--max-upload-mb", "--max-megapixels"])
@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_sizes_that_are_no_numbers_are_refused(run, option, value):
    code, _, err = run("serve", "model", option, value)
    assert code == 2 and "Traceback" not in err and option in err
