"""The endpoints, one by one."""

import base64
import io
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops
from real_server import RealServer
from typer.testing import CliRunner

from pbprompt.apps.cli.predict import predict
from pbprompt.apps.explain.drawing import overlay, seen
from pbprompt.apps.explain.heat_maps import heat_maps
from pbprompt.apps.serve.app import create_app
from pbprompt.apps.serve.limits import Limits
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.images import open_image

SMALL = Limits(image_bytes=100_000, request_bytes=200_000, image_pixels=500_000, images=3, classes=7)


def file(data: bytes, name: str = "photo.jpg") -> tuple[str, tuple[str, bytes]]:
    return ("files", (name, data))


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def small(model, shared_decoders):
    with RealServer(create_app(model, limits=SMALL, shared_classes=True), "http://localhost") as client:
        yield client


def test_files_and_base64_say_the_same(client, cat, guitar):
    sent = client.post("/predict", files=[file(cat, "a.webp"), file(guitar, "b.webp")])
    assert sent.status_code == 200
    first, second = sent.json()["predictions"]
    assert (first["image"], first["label"], second["label"]) == ("a.webp", "cat", "guitar")
    images = [{"name": "a.webp", "data": text(cat)}, {"name": "b.webp", "data": text(guitar)}]
    assert client.post("/predict", json={"images": images}).json() == sent.json()
    for said in (first, second):
        assert sum(said["scores"].values()) == pytest.approx(1, abs=1e-4)
        assert said["score"] == max(said["scores"].values()) and 0 <= said["epistemic"] <= said["entropy"]


def test_it_says_what_the_command_line_says(client, model_folder, tmp_path, cat):
    (tmp_path / "cat.webp").write_bytes(cat)
    sent = [str(tmp_path / "cat.webp"), "--model", str(model_folder), "--coverage", "0.9", "--json"]
    command = typer.Typer()
    command.command()(predict)
    printed = json.loads(CliRunner().invoke(command, sent).stdout)
    (said,) = client.post("/predict", files=[file(cat, sent[0])]).json()["predictions"]
    assert list(said) == list(printed) and list(said["scores"]) == list(printed["scores"])
    for key, value in printed.items():
        assert said[key] == (
            value if isinstance(value, str | list | None) else pytest.approx(value, abs=1e-5)
        )


def test_groups_costs_and_the_mix_of_classes(model, cat, shared_decoders):
    calibration = model.calibration
    grouped = replace(
        calibration,
        group_confidence=tuple((score,) for score in calibration.confidence),
        group_right=((True,),) * len(calibration),
    )
    info = replace(model.info, hierarchy={model.classes[0]: "animal", model.classes[1]: "animal"})
    made = replace(model, info=info, calibration=grouped)
    with RealServer(create_app(made), "http://localhost") as client:
        (said,) = client.post("/predict", files=[file(cat)]).json()["predictions"]
        assert said["answer"] in ("animal", "cat", None) and said["answer_score"] >= 0
        (said,) = client.post("/predict", files=[file(cat)], data={"back_off": "0.5"}).json()["predictions"]
        assert said["answer"] in ("animal", "cat")
        assert client.get("/classes").json()["class_mix"] == "as-trained"
    with RealServer(create_app(model.for_costs({("*", "unsure"): 0})), "http://localhost") as client:
        (said,) = client.post("/predict", files=[file(cat)]).json()["predictions"]
        assert said["answer"] is None and said["nothing"] is None


def test_a_batch_says_what_single_requests_say(client, cat, guitar, jpeg):
    batch = client.post("/predict", files=[file(data) for data in (cat, guitar, jpeg)]).json()["predictions"]
    for data, said in zip((cat, guitar, jpeg), batch, strict=True):
        (alone,) = client.post("/predict", files=[file(data)]).json()["predictions"]
        for key in ("score", "scores", "spreads", "entropy", "epistemic"):
            assert alone[key] == pytest.approx(said[key], abs=1e-4)


def test_top_k_the_unsure_mark_and_the_prediction_set(client, model, cat):
    calibration = model.calibration

    def ask(**fields):
        return client.post("/predict", files=[file(cat)], data=fields).json()["predictions"][0]

    said = ask(top_k="2")
    values = list(ask()["scores"].values())
    assert list(said["scores"].values()) == sorted(values, reverse=True)[:2]
    assert list(said["spreads"]) == list(said["scores"]) and said["unsure"] is (
        said["score"] < calibration.threshold(0.9)
    )
    full = ask(coverage="0.5", reject_at="0.5")
    quantile = calibration.quantile(0.5)
    within = {name for name, score in full["scores"].items() if 1 - score <= quantile(full["score"])}
    assert set(full["prediction_set"]) == (within or {full["label"]})
    wide = ask(coverage="0.99")["prediction_set"]  # twenty images cannot promise it: every class
    assert set(wide) == set(model.classes)


def test_names_are_only_text(client, cat):
    name = '../../etc/passwd\x00<script>"'
    said = client.post("/predict", json={"images": [{"name": name, "data": text(cat)}]})
    assert said.headers["content-type"] == "application/json"
    assert said.json()["predictions"][0]["image"] == '../../etc/passwd�<script>"'
    # with its escapes written out, since a lone surrogate has no bytes of its own
    odd = json.dumps({"images": [{"name": "\ud800" * 500, "data": text(cat)}]})
    said = client.post("/predict", content=odd, headers={"content-type": "application/json"})
    assert said.json()["predictions"][0]["image"] == "?" * 200


def test_nothing_of_a_client_is_written_to_disk(client, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a temporary file was made")

    plain = Path.open

    def only_read(path, mode="r", *rest, **options):
        return plain(path, mode, *rest, **options) if mode in ("r", "rb") else refuse()

    for name in ("SpooledTemporaryFile", "NamedTemporaryFile", "TemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, refuse)
    monkeypatch.setattr(Path, "open", only_read)
    buffer = io.BytesIO()
    Image.effect_noise((1500, 1500), 90).save(buffer, "PNG")  # above what a framework would keep in memory
    assert len(buffer.getvalue()) > 1 << 20
    assert client.post("/predict", files=[file(buffer.getvalue())]).status_code == 200


def same_picture(sent: str, expected: Image.Image) -> bool:
    difference = ImageChops.difference(Image.open(io.BytesIO(base64.b64decode(sent))), expected)
    return max(high for _, high in difference.getextrema()) <= 1


def test_explain(client, model, cat):
    said = client.post("/explain", files=[file(cat)], data={"class": "dog", "samples": "2"})
    assert said.status_code == 200 and said.json()["class"] == "dog"
    assert 0 <= said.json()["score"] <= 1 and len(said.json()["samples"]) == 2
    picture = Image.open(io.BytesIO(base64.b64decode(said.json()["mean"])))
    assert (picture.format, picture.size) == ("PNG", Image.open(io.BytesIO(cat)).size)
    same = client.post("/explain", json={"image": text(cat), "class": "dog", "samples": 2})
    assert same.json() == said.json()
    predicted = client.post("/predict", files=[file(cat)]).json()["predictions"][0]["scores"]
    assert said.json()["score"] == pytest.approx(predicted["dog"], abs=1e-5)
    # the evidence of all classes on one scale; a plan on its own
    image = open_image(io.BytesIO(cat))
    square = seen(image)
    maps = heat_maps(model.predictor, image, model.classes, samples=2)
    expected = overlay(square, maps.contribution[1, model.classes.index("dog")], maps.contribution.max())
    assert same_picture(said.json()["samples"][1], expected)
    plan = client.post(
        "/explain", json={"image": text(cat), "class": "dog", "samples": 2, "reading": "prompt-to-patch"}
    )
    mean = maps.prompt_to_patch[:, model.classes.index("dog")].mean(0)
    assert plan.json()["range"] == pytest.approx([mean.min(), mean.max()], abs=1e-6)
    expected = overlay(square, mean)
    assert same_picture(plan.json()["mean"], expected)
    drawn = client.post("/explain", json={"image": text(cat), "class": "dog", "format": "png"})
    assert drawn.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(drawn.content)).format == "PNG"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 422),
        ({"class": "wolf"}, 404),
        ({"class": "\ud800" * 999}, 404),
        ({"class": 3}, 422),
        ({"class": "cat", "samples": 99}, 422),
        ({"class": "cat", "samples": "many"}, 422),
        ({"class": "cat", "format": "svg"}, 422),
        ({"class": "cat", "reading": []}, 422),
        ({"class": "cat", "colour": "red"}, 422),
        ({"class": "cat", "image": "@"}, 422),
        ({"class": "cat", "image": text(b"none")}, 415),
    ],
)
def test_explain_refuses(client, cat, fields, status):
    # with its escapes written out, since a lone surrogate has no bytes of its own
    body = json.dumps({"image": text(cat)} | fields)
    answer = client.post("/explain", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status and answer.json()["error"]


def test_classes_are_listed_and_added(small, cat):
    before = small.get("/classes").json()
    assert before["calibrated"] is True and len(before["classes"]) == 5
    after = small.post("/classes", json={"names": ["red panda"]}).json()
    added = {
        "classes": [*before["classes"], "red panda"],
        "added": ["red panda"],
        "calibrated": False,
        "class_mix": "as-trained",
        "thresholds": None,
    }
    assert after == added
    assert small.post("/classes", json={"names": ["red  panda"]}).json() == added
    answer = small.post("/predict", files=[file(cat)]).json()
    assert answer["note"] == "no validation image is of an added class"
    (said,) = answer["predictions"]
    assert "red panda" in said["scores"]
    assert said["unsure"] is None and said["prediction_set"] is None
    assert small.post("/classes", json={"names": ["otter"]}).status_code == 200
    assert small.post("/classes", json={"names": ["wolf"]}).status_code == 422  # the eighth of seven


def test_a_request_brings_its_own_classes_and_nobody_else_has_them(client, cat):
    before = client.post("/predict", files=[file(cat)]).json()
    kept = client.get("/classes").json()
    form = client.post("/predict", files=[file(cat)], data={"classes": ["red panda", "otter"]}).json()
    assert list(form["predictions"][0]["scores"])[5:] == ["red panda", "otter"]
    assert form["note"] == "no validation image is of an added class"
    body = {"images": [{"name": "photo.jpg", "data": text(cat)}], "classes": ["red panda", "otter"]}
    assert client.post("/predict", json=body).json() == form
    assert client.post("/predict", files=[file(cat)]).json() == before
    assert client.get("/classes").json() == kept and not kept["added"]
    among = form["predictions"][0]["scores"]  # the former classes among themselves are as they were
    rest = sum(score for name, score in among.items() if name in before["predictions"][0]["scores"])
    for name, score in before["predictions"][0]["scores"].items():
        assert among[name] / rest == pytest.approx(score, abs=0.02)
    seen = client.post("/explain", files=[file(cat)], data={"class": "otter", "classes": ["otter"]})
    assert seen.status_code == 200 and seen.json()["class"] == "otter"
    assert client.post("/explain", files=[file(cat)], data={"class": "otter"}).status_code == 404
    for names, status in ((["Cat"], 409), ([" "], 422), (["a", "A"], 409)):
        answer = client.post("/predict", json={"images": [text(cat)], "classes": names})
        assert answer.status_code == status and answer.json()["error"]


def test_a_server_that_shares_no_classes_says_what_to_send(client):
    assert client.get("/healthz").json()["shared_classes"] is False
    added = client.post("/classes", json={"names": ["otter"]})
    removed = client.delete("/classes", params={"name": "otter"})
    for answer in (added, removed):
        assert answer.status_code == 403 and "with each request" in answer.json()["error"]
    assert "otter" not in client.get("/classes").json()["classes"]


def test_an_added_class_can_be_removed_and_all_is_as_before(sharing, cat):
    assert sharing.get("/healthz").json()["shared_classes"] is True
    first, before = sharing.post("/predict", files=[file(cat)]).json(), sharing.get("/classes").json()
    sharing.post("/classes", json={"names": ["red / panda", "otter"]})
    assert sharing.get("/classes").json()["added"] == ["red / panda", "otter"]
    assert sharing.post("/predict", files=[file(cat)]).json()["note"]
    for name in ("otter", "red / panda", "otter"):  # once more is no error
        assert sharing.delete("/classes", params={"name": name}).status_code == 200
    assert sharing.get("/classes").json() == before
    assert sharing.post("/predict", files=[file(cat)]).json() == first
    own = sharing.delete("/classes", params={"name": "cat"})
    assert own.status_code == 409 and "the model's own" in own.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"names": []}, 422),
        ({"names": "otter"}, 422),
        ({"names": [3]}, 422),
        ({"names": [""]}, 422),
        ({"names": ["\N{UNICORN FACE}" * 100]}, 422),  # more than the tokeniser takes
        ({"names": ["Dog"]}, 409),
        ({"names": ["\ud800"]}, 422),
        ({"names": [f"x{n}" for n in range(9)]}, 422),
        ({}, 422),
        ([], 422),
    ],
)
def test_bad_class_names(small, body, status):
    answer = small.post("/classes", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == status and answer.json()["error"]


def test_a_form_of_another_site_cannot_add_classes(small):
    body = json.dumps({"names": ["otter"]})
    assert small.post("/classes", content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert small.post("/classes", files=[file(b"x")], data={"names": "otter"}).status_code == 415
    for elsewhere in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another port of this machine
        {"origin": "http://localhost:81"},
        {"origin": "null"},
    ):
        assert small.post("/classes", json={"names": ["otter"]}, headers=elsewhere).status_code == 403
    assert len(small.get("/classes").json()["classes"]) == 5
    ours = {"sec-fetch-site": "same-origin", "origin": "https://behind.a.proxy"}
    for headers in (ours, {"origin": "http://localhost"}):
        assert small.post("/classes", json={"names": ["otter"]}, headers=headers).status_code == 200


def test_the_host_must_be_ours_unless_there_is_a_key(model, client):
    for host, status in (
        ("rebound.example", 421),
        ("localhost.example:8000", 421),
        ("[", 421),
        ("", 421),
        ("LOCALHOST:9", 200),
        ("127.0.0.1:8000", 200),
        ("192.168.1.5", 200),
        ("[::1]:8000", 200),
    ):
        assert client.get("/classes", headers={"host": host}).status_code == status, host
    with RealServer(create_app(model, host="cats.local"), "http://cats.local") as named:
        assert named.get("/").status_code == 200
    with RealServer(create_app(model, api_key="k"), "http://public.example") as keyed:
        assert keyed.get("/classes", headers={"x-api-key": "k"}).status_code == 200


def test_a_refused_change_is_not_made_and_a_repeated_one_is_no_error(model, monkeypatch):
    import threading

    go_on, with_classes = threading.Event(), TunedModel.with_classes

    def slowly(model, names):
        go_on.wait()
        return with_classes(model, names)

    monkeypatch.setattr(TunedModel, "with_classes", slowly)
    impatient = create_app(model, limits=Limits(answer_seconds=0.1), shared_classes=True)
    with RealServer(impatient, "http://localhost") as client:
        try:
            assert client.post("/classes", json={"names": ["otter"]}).status_code == 503
        finally:
            go_on.set()  # the end of the server waits for it
        assert "otter" not in client.get("/classes").json()["classes"]
    with RealServer(create_app(model, shared_classes=True), "http://localhost") as client:
        for _ in range(2):
            added = client.post("/classes", json={"names": ["otter"]})
            assert added.status_code == 200 and added.json()["classes"].count("otter") == 1


def test_weights_that_are_no_numbers_are_a_500_that_says_so(model_folder, lite, cat):
    model = TunedModel.load(model_folder, lite)
    model.predictor.bank.fill_(float("nan"))
    with RealServer(create_app(model), "http://localhost") as client:
        for path, name, fields in (("/predict", "files", {}), ("/explain", "file", {"class": "cat"})):
            answer = client.post(path, files={name: cat}, data=fields)
            assert answer.status_code == 500 and answer.json()["error"].endswith("or fit the model again")


def noise(pixels: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("1", pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"files": [file(b"")]}, 400, "empty"),
        ({"files": [file(b"text")]}, 415, "JPEG"),
        ({"files": [file(noise((1000, 501)))]}, 413, "pixels"),
        ({"files": [file(noise((1, 201)))]}, 422, "sides"),
        ({"files": [file(bytes(100_001))]}, 413, "larger"),
        ({"files": [file(bytes(90_000))] * 3}, 413, "request"),
        ({"files": [file(b"x")] * 4}, 413, "3 images"),
        ({"data": {"top_k": "1"}}, 415, "send"),
        ({"files": [("top_k", (None, "1"))]}, 422, "images"),
        ({"files": [file(b"x"), ("top_k", (None, "0"))]}, 422, "top_k"),
        ({"files": [file(b"x"), ("reject_at", (None, "nan"))]}, 422, "reject_at"),
        ({"files": [file(b"x"), ("coverage", (None, "1"))]}, 422, "coverage"),
        ({"files": [file(b"x"), ("path", (None, "/etc"))]}, 422, "unknown"),
        ({"json": {"images": []}}, 422, "images"),
        ({"json": {"images": "x"}}, 422, "list"),
        ({"json": {"images": [1]}}, 422, "images.0"),
        ({"json": {"images": [{"name": 1, "data": ""}]}}, 422, "name"),
        ({"json": {"images": ["@"]}}, 422, "base64"),
        ({"json": {"images": [""] * 4}}, 413, "3 images"),
        ({"json": {"images": ["x"], "top_k": True}}, 422, "base64"),
        ({"json": {"images": [""], "top_k": 10**40}}, 422, "top_k"),
        ({"json": [1]}, 422, "object"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"content": b"[" * 9_000, "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"content": b"[" + b"[]," * 60_000, "headers": {"content-type": "application/json"}}, 413, "values"),
        ({"content": b"\xff", "headers": {"content-type": "application/json"}}, 400, "JSON"),
        ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "send"),
        ({"content": b""}, 415, "send"),
        ({"files": [file(b"x")], "headers": {"x-long": "x" * 20_000}}, 431, "headers"),
    ],
)
def test_bad_uploads_are_refused_with_a_reason(small, request_, status, says):
    answer = small.post("/predict", **request_)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]


def test_limits_hold_without_a_declared_length(small):
    body = (b"x" * 10_000 for _ in range(30))
    answer = small.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413 and "request" in answer.json()["error"]


def test_class_names_may_not_be_as_large_as_images(client):
    body = b'{"names": ["' + b"x" * (1 << 20) + b'"]}'
    answer = client.post("/classes", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413 and "1 MiB" in answer.json()["error"]


def test_slow_requests_end(model):
    import asyncio

    from starlette.requests import Request

    from pbprompt.apps.serve.fairness import Shares
    from pbprompt.apps.serve.limits import Refused
    from pbprompt.apps.serve.schemas import Predict
    from pbprompt.apps.serve.uploads import receive

    async def never():
        await asyncio.sleep(60)

    async def read():
        scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
        limits = Limits(receive_seconds=0.05)
        async with receive(Request(scope, never), Predict, limits, Shares(9, "full")):
            pass

    with pytest.raises(Refused) as refused:
        asyncio.run(read())
    assert refused.value.status == 408


def test_uploads_that_fill_the_memory_are_a_429_and_are_forgotten_afterwards(model, cat):
    with RealServer(create_app(model, limits=Limits(held_bytes=10_000)), "http://localhost") as client:
        refused = client.post("/predict", files=[file(bytes(20_000))])
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        for _ in range(5):
            assert client.post("/predict", files=[file(cat[:5000])]).status_code in (200, 422)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=400), st.binary(max_size=60).map(b"\xff\xd8\xff\xe0".__add__)))
def test_random_bytes_are_always_the_clients_fault(client, data):
    for request in (
        {"files": [file(data)]},
        {"json": {"images": [text(data)]}},
        {"content": data, "headers": {"content-type": "application/json"}},
        {"content": data, "headers": {"content-type": "multipart/form-data; boundary=x"}},
    ):
        answer = client.post("/predict", **request)
        assert 400 <= answer.status_code < 500 and answer.json()["error"]


def test_a_full_queue_is_a_429(model, cat):
    with RealServer(create_app(model, limits=Limits(queue=2)), "http://localhost") as client:
        answer = client.post("/predict", files=[file(cat)] * 3)
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        assert "busy" in answer.json()["error"]
        assert client.post("/predict", files=[file(cat)] * 2).status_code == 200


def test_the_key_guards_all_but_the_page_and_health(model, cat):
    with RealServer(create_app(model, api_key="open-it"), "http://localhost") as client:
        for path in ("/", "/healthz", "/docs", "/openapi.json", "/style.css", "/app.js"):
            assert client.get(path).status_code == 200
        assert client.get("/healthz").json()["needs_key"] is True
        guarded = [("GET", "/classes"), ("POST", "/classes"), ("DELETE", "/classes?name=otter")]
        guarded += [("GET", "/samples"), ("GET", "/metrics")]
        for method, path in [*guarded, ("POST", "/explain"), ("POST", "/predict")]:
            for headers in ({}, {"x-api-key": "open-it2"}, {"authorization": "Basic open-it"}):
                answer = client.request(method, path, headers=headers)
                assert answer.status_code == 401 and answer.json()["error"]
        for headers in ({"x-api-key": "open-it"}, {"authorization": "Bearer open-it"}):
            assert client.post("/predict", files=[file(cat)], headers=headers).status_code == 200


def test_a_failure_of_ours_is_a_500_that_tells_nothing(model, monkeypatch, cat):
    monkeypatch.setattr(TunedModel, "predict", lambda *given: 1 / 0)
    with RealServer(create_app(model), "http://localhost") as client:
        answer = client.post("/predict", files=[file(cat)])
        assert answer.status_code == 500 and "zero" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert client.get("/healthz").status_code == 200


def test_metrics_count_this_app_alone(client, model, cat):
    client.post("/predict", files=[file(cat), file(cat)])
    client.post("/predict", files=[file(b"x")])
    client.get("/no/such/page")
    page = client.get("/metrics").text
    assert 'pbprompt_requests_total{endpoint="/predict",status="200"} 1.0' in page
    assert 'pbprompt_requests_total{endpoint="/predict",status="415"} 1.0' in page
    assert 'pbprompt_requests_total{endpoint="other",status="404"} 1.0' in page
    assert "pbprompt_batch_images_sum 2.0" in page
    assert "pbprompt_waiting_images 0.0" in page and "pbprompt_classes 5.0" in page
    with RealServer(create_app(model), "http://localhost") as other:
        assert 'endpoint="/predict"' not in other.get("/metrics").text


def test_metrics_tell_answers_beside_those_at_fit(model, cat, shared_decoders):
    judged = model.calibration
    kept = replace(judged, predicted=(*["cat"] * 45, *[model.classes[1]] * 15))
    with RealServer(create_app(replace(model, calibration=kept)), "http://localhost") as client:
        client.post("/predict", files=[file(cat)], data={"classes": "a cat drawn in two colours"})
        client.post("/predict", files=[file(cat), file(cat)])
        page = client.get("/metrics").text
    counted = dict(re.findall(r'pbprompt_answers_total\{label="([^"]+)"\} (.*)', page))
    assert counted.keys() <= {*model.classes, "(added)"} and "two colours" not in page
    assert sum(map(float, counted.values())) == 3
    at_fit = dict(re.findall(r"pbprompt_(class_at_fit\{.*\}|unsure_at_fit) (.*)", page))
    assert float(at_fit['class_at_fit{label="cat"}']) == pytest.approx(0.75)
    unsure = sum(one < judged.promised(0.9).threshold for one in judged.confidence) / len(judged)
    assert float(at_fit["unsure_at_fit"]) == pytest.approx(unsure)
    assert "pbprompt_familiarity_count 0.0" in page  # which this method does not tell


def test_headers_and_errors(client):
    for path in ("/", "/docs", "/healthz", "/no"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    assert client.get("/no").json() == {"error": "Not Found"}
    assert client.get("/predict").status_code == 405
    assert client.put("/classes").headers["allow"] == "DELETE, GET, POST"
    assert client.get("/../../etc/passwd").status_code == 404


def test_pages_name_nothing_outside(client):
    for path in ("/", "/docs", "/style.css", "/app.js", "/common.js"):
        answer = client.get(path)
        assert answer.status_code == 200 and "//" not in re.sub(r"(?m)(^|\s)// .*$", "", answer.text)


def test_the_schema_describes_every_endpoint(client):
    schema = client.get("/openapi.json").json()
    paths = {(path, verb) for path, verbs in schema["paths"].items() for verb in verbs}
    assert paths == {
        ("/predict", "post"),
        ("/explain", "post"),
        ("/classes", "get"),
        ("/classes", "post"),
        ("/classes", "delete"),
        ("/healthz", "get"),
        ("/metrics", "get"),
        ("/samples", "get"),
    }
    assert set(schema["paths"]["/predict"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data",
        "application/json",
    }
    assert set(schema["paths"]["/explain"]["post"]["responses"]["200"]["content"]) == {
        "application/json",
        "image/png",
    }
    open_to_all = {("/healthz", "get")}
    for path, verb in paths - open_to_all:
        assert "401" in schema["paths"][path][verb]["responses"], (path, verb)
    docs = client.get("/docs").text
    assert all(f"{verb.upper()} {path}" in docs for path, verb in paths)


def test_a_charset_that_nobody_knows_is_the_clients_fault(client):
    for charset in ("undefined", "no-such-thing"):
        body = b'--b\r\nContent-Disposition: form-data; name="top_k"\r\n\r\n1\r\n--b--\r\n'
        kind = {"content-type": f"multipart/form-data; boundary=b; charset={charset}"}
        assert client.post("/predict", content=body, headers=kind).status_code in (400, 422)


def test_health_does_not_tell_where_a_backbone_lies(model, tmp_path):
    (tmp_path / "weights.pt").touch()
    towers = {**model.info.backbone, "name": str(tmp_path / "weights.pt")}
    moved = replace(model, info=replace(model.info, backbone=towers))
    with RealServer(create_app(moved), "http://localhost") as other:
        assert other.get("/healthz").json()["backbone"] == "weights.pt"
