"""Files of answers, and one of several."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbprompt.apps.batch import formats
from pbprompt.apps.batch.formats import WRITERS, Written, check_suffix, encode, join, read
from pbprompt.errors import InputError

ROW = st.fixed_dictionaries(
    {
        "image": st.text(st.characters(codec="utf-8", exclude_characters="\r\x00"), max_size=6),
        "label": st.sampled_from(["cat", 'a "dog", and\nmore']),
        "scores": st.floats(0, 1).map(lambda p: {"cat": p, "dog": 1 - p}),
        "unsure": st.sampled_from([None, True, False]),
        "prediction_set": st.sampled_from([None, ["cat"], []]),
        "features": st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3),
    }
).map(lambda row: dict(sorted(row.items())))


def parsed(content: bytes, suffix: str) -> list:
    if suffix == ".jsonl":
        return [json.loads(line) for line in content.decode().split("\n") if line]
    if suffix == ".csv":
        return list(csv.DictReader(io.StringIO(content.decode(), newline="")))
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(io.BytesIO(content)).to_pylist()


@pytest.mark.parametrize("suffix", sorted(WRITERS))
@settings(max_examples=10, deadline=None)
@given(parts=st.lists(st.lists(ROW, max_size=3), max_size=4))
def test_parts_joined_are_what_one_file_would_be(suffix, parts):
    rows = [row for part in parts for row in part]
    whole = b"".join(join((encode(part, suffix) for part in parts), suffix))
    if not rows:
        assert whole == b""
    else:
        assert parsed(whole, suffix) == parsed(encode(rows, suffix), suffix)


def test_features_are_a_list_of_one_size_in_parquet():
    parquet = pytest.importorskip("pyarrow.parquet")
    content = encode([{"image": "a", "features": [1.0, 2.0]}], ".parquet")
    kind = parquet.read_table(io.BytesIO(content)).schema.field("features").type
    assert str(kind) == "fixed_size_list<element: float>[2]"
    assert encode([], ".parquet") == b""


RECORD = {
    "image": 'a "b",é.jpg',
    "label": "cat",
    "score": 0.75,
    "scores": {"cat": 0.75, "dog": 0.25},
    "unsure": None,
    "prediction_set": ["cat", "dog"],
    "familiarity": None,
    "unknown": False,
}


def test_the_fields_of_an_answer():
    assert parsed(encode([RECORD] * 2, ".jsonl"), ".jsonl") == [RECORD] * 2
    first, second = parsed(encode([RECORD] * 2, ".csv"), ".csv")
    assert list(first) == list(RECORD) and first == second
    assert first["image"] == RECORD["image"] and float(first["score"]) == 0.75
    assert json.loads(first["scores"]) == RECORD["scores"]
    assert json.loads(first["prediction_set"]) == ["cat", "dog"]
    assert (first["unsure"], first["unknown"]) == ("", "false")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(encode([RECORD] * 2, ".parquet")))
    assert table.to_pylist() == [RECORD] * 2
    assert str(table.schema.field("unsure").type) == "bool"
    assert str(table.schema.field("familiarity").type) == "double"


def test_what_cannot_be_written_is_told_before(monkeypatch):
    with pytest.raises(InputError, match=r"a\.txt: give a name that ends in \.csv, \.jsonl, \.parquet"):
        check_suffix("a.txt", ".txt")
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Parquet needs pyarrow: pip install .*\[parquet\]"):
        check_suffix("a.parquet", ".parquet")
    check_suffix("a.csv", ".csv")


@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_answers_are_read_back(suffix, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    one = {"image": "=a,\u2028.jpg", "label": "=cat", "score": 0.75, "scores": {"=cat": 0.75, "dog": 0.25}}
    two = one | {"image": "b.jpg", "score": 1.0}
    told = [one | {"familiarity": 0.05, "unsure": None}, two | {"familiarity": None, "unsure": True}]
    path = tmp_path / f"answers{suffix}"
    path.write_bytes(encode(told, suffix))
    wanted = [Written(**one, familiarity=0.05), Written(**two)]
    assert [*read(path)] == wanted
    assert next(read(path, ("image", "label"))) == Written("=a,\u2028.jpg", "=cat")
    folder = tmp_path / f"parts{suffix}"
    folder.mkdir()
    for number, row in enumerate(told):
        (folder / f"part-0000000{number}-00000000{suffix}").write_bytes(encode([row], suffix))
    (folder / f"_failed-00000000-00000000{suffix}").write_bytes(b"no answer")
    assert [*read(folder)] == wanted
    labelled = [{"image": "a", "labels": of, "scores": {"cat": 0.5, "dog": 1.0}} for of in (["cat"], [])]
    path.write_bytes(encode(labelled, suffix))
    assert [one.labels for one in read(path)] == [("cat",), ()]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.txt", "", "a.txt: no answers: give what `pbprompt predict --out` wrote"),
        ("gone.csv", None, "gone.csv: No such file"),
        ("a.csv", "image,label\na.jpg,\n", "a.csv answer 1: there is no label: give what"),
        ("a.csv", "image,label,score\na.jpg,cat,2\n", "answer 1: a probability is not between 0 and 1"),
        ("a.csv", "image,label,score\na.jpg,cat,nan\n", "answer 1: a probability is not between"),
        ("a.csv", "image,label,score\na.jpg,cat,?\n", "answer 1: field 'score' is '\\?': it takes float"),
        ("a.csv", "image,labels,scores\na.jpg,cat,{}\n", "answer 1: a label has no probability"),
        ("a.csv", "image,label,scores\na.jpg,cat,{\n", "a.csv: Expecting"),
        ("a.csv", "label\ncat\n", "answer 1: field 'image' is missing"),
        ("a.jsonl", '{"image": 3, "label": "cat"}', "answer 1: field 'image' is 3: it takes str"),
        ("a.jsonl", "[]\n", "a.jsonl: a line is no object"),
        ("a.jsonl", "{\n", "a.jsonl: Expecting"),
        ("a.parquet", "PAR1", "a.parquet: "),
    ],
)
def test_what_is_no_answer_is_named(tmp_path, name, content, why):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=why):
        list(read(tmp_path / name))
