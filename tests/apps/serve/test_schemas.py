"""Bodies of requests: what is taken, and the one sentence for what is not."""

import base64

import pytest

from pbprompt.apps.serve.limits import Refused
from pbprompt.apps.serve.schemas import AddClasses, Explain, Predict, parsed_body, request_body

HELLO = base64.b64encode(b"hello").decode()


def test_base64_with_and_without_a_prefix_or_a_name():
    sent = [HELLO, f"data:image/png;base64,{HELLO}", {"name": "a\x00\ud800", "data": HELLO}]
    images = parsed_body(Predict, {"images": sent}).images
    assert [image.data for image in images] == [b"hello"] * 3
    assert [image.name for image in images] == ["", "", "a�?"]


def test_fields_of_a_form_are_text():
    form = {"image": {"name": "a", "data": b"bytes"}, "class": "cat", "samples": "2"}
    asked = parsed_body(Explain, form)
    assert (asked.image.data, asked.class_name, asked.samples, asked.format) == (b"bytes", "cat", 2, "json")


@pytest.mark.parametrize(
    ("kind", "sent", "says"),
    [
        (Predict, {}, "images: Field required"),
        (Predict, {"images": ["aGVsbG8"]}, "images.0.data: send valid base64"),
        (Predict, {"images": ["é"]}, "images.0.data: send valid base64"),
        (Predict, {"images": [{"data": 7}]}, "images.0.data"),
        (Predict, {"images": [None]}, "images.0"),
        (Predict, {"images": [HELLO], "top_k": -1}, "top_k"),
        (Predict, {"images": [HELLO], "reject_at": "nan"}, "reject_at"),
        (Predict, {"images": [HELLO], "reject_at": 10**400}, "reject_at"),
        (Predict, {"images": [HELLO], "coverage": 1}, "coverage"),
        (Predict, {"images": [HELLO], "topk": 1}, "topk: it is unknown: there are images, top_k, reject_at"),
        (Predict, {"images": [HELLO], "\x00" * 999: 1}, "it is unknown"),
        (Explain, {"image": HELLO, "class_name": "cat"}, "class"),
        (AddClasses, {"names": ["x"] * 1001}, "names"),
        (AddClasses, [], "send a JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(kind, sent, says):
    with pytest.raises(Refused) as refused:
        parsed_body(kind, sent)
    assert refused.value.status == 422 and says in refused.value.reason
    assert len(refused.value.reason.encode().splitlines()) == 1 and len(refused.value.reason) < 400


def test_the_schema_of_a_form_has_files_where_json_has_images():
    content = request_body(Predict, form="files")["requestBody"]["content"]
    sent, form = (content[kind]["schema"] for kind in ("application/json", "multipart/form-data"))
    assert sent["required"] == ["images"] and form["required"] == ["files"]
    assert set(sent["properties"]) - {"images"} == set(form["properties"]) - {"files"}
    assert sent["properties"]["images"]["minItems"] == form["properties"]["files"]["minItems"] == 1
    assert "$ref" not in str(content) and "multipart/form-data" not in str(request_body(AddClasses))
