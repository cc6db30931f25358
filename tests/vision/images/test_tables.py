"""CSV, TSV and JSONL: what is written is read back, what is wrong is named by file and line."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pbprompt.errors import InputError
from pbprompt.vision.images.build_dataset import Listed
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.images.tables import read_rows


def table(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


PLAIN = [Listed("a/1.jpg", "cat", "train"), Listed("b, c/2.jpg", 'say "dog"', "test")]


@pytest.mark.parametrize(
    "text",
    [
        'image,label,split\na/1.jpg,cat,train\n"b, c/2.jpg","say ""dog""",test\n',
        '\ufeffimage,label,split\r\na/1.jpg,cat,train\r\n"b, c/2.jpg","say ""dog""",test\r\n',
        'Split;Class; PATH \nTRAIN;cat;a/1.jpg\n\nTest;"say ""dog""";b, c/2.jpg\n',
        'image\tlabel\tsplit\tweight\na/1.jpg\tcat\ttraining\t1\nb, c\\2.jpg\t"say ""dog"""\ttesting\t2',
        '"image","label","split"\r"a/1.jpg","cat","train"\r"b, c/2.jpg","say ""dog""","test"\r',
    ],
)
def test_the_same_rows_in_every_dialect(tmp_path, text):
    assert list(read_rows(table(tmp_path, text))) == PLAIN


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
parts = names.filter(
    lambda name: name.strip() == name and not set(name) & set("/\\:") and name not in (".", "..")
)
rows = st.builds(
    Listed,
    st.lists(parts, min_size=1, max_size=3).map("/".join),
    names.map(str.strip).filter(bool),
    st.sampled_from(["", "train", "val", "test"]),
    names.map(str.strip),
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(rows, max_size=6),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_csv_round_trip(tmp_path_factory, listed, delimiter, newline, mark):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=newline)
    writer.writerow(["image", "label", "split", "domain"])
    writer.writerows([row.path, row.key, row.split, row.domain] for row in listed)
    path = table(tmp_path_factory.mktemp("csv"), ("\ufeff" if mark else "") + buffer.getvalue())
    assert list(read_rows(path)) == listed


@settings(deadline=None, max_examples=60)
@given(st.lists(rows, max_size=6), st.booleans(), st.booleans())
def test_jsonl_round_trip(tmp_path_factory, listed, ascii_only, mark):
    lines = [
        json.dumps(
            {"image": row.path, "label": row.key, "split": row.split or None, "domain": row.domain},
            ensure_ascii=ascii_only,
        )
        for row in listed
    ]
    path = table(tmp_path_factory.mktemp("jsonl"), ("\ufeff" if mark else "") + "\r\n".join(lines), "t.jsonl")
    assert list(read_rows(path)) == listed


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from([".csv", ".tsv", ".jsonl"]),
    st.one_of(st.binary(), st.text().map(str.encode)),
    st.booleans(),
)
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, suffix, content, header):
    content = (b"image,label\n" if header else b"") + content
    path = table(tmp_path_factory.mktemp("any"), content, f"t{suffix}")
    try:
        list(read_rows(path))
    except InputError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: columns 'image' and 'label' not found"),
        ("a/1.jpg,cat\n", "line 1: columns 'image' and 'label' not found"),
        ("image,text\na,b\n", "line 1: columns"),
        ("image,label\na/1.jpg\n", "line 2: 1 fields where the header has 2"),
        ("image,label\na,b,c.jpg,cat\n", "line 2: 4 fields"),
        ('image,label\n"a/1.jpg,cat\n', "correct the quotes"),
        ('image,label\n"a"b,cat\n', "line 2: .*correct the quotes"),
        ("image,label\n,cat\n", "line 2: the image path is empty"),
        ("image,label,split\na/1.jpg,cat,holdout\n", "line 2: split 'holdout'"),
        ("image,label\n../1.jpg,cat\n", "line 2: .*outside"),
        ("image,label\n\nC:\\\\x.jpg,cat\n", "line 3: .*absolute"),
        (b"image,label\ncaf\xe9.jpg,cat\n", "UTF-8"),
    ],
)
def test_bad_csv(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        list(read_rows(table(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"image": "a.jpg", "label": "cat"}\n{', "line 2: not JSON"),
        ("[1]", "line 1: not an object"),
        ('{"image": "a.jpg"}', "field 'label' is null"),
        ('{"label": "cat"}', "field 'image' is null"),
        ('{"image": 3, "label": "cat"}', "field 'image' is 3"),
        ('{"image": "a.jpg", "label": true}', "field 'label' is true"),
        ('{"image": "a.jpg", "label": "cat", "split": 1}', "field 'split' is 1"),
        ('{"image": "a.jpg", "label": "cat", "description": 5}', "field 'description' is 5: give it as text"),
        ('{"image": "a/../../b", "label": "cat"}', "outside"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_jsonl(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        list(read_rows(table(tmp_path, text, "t.jsonl")))


@pytest.mark.parametrize("image", ["image", "file_name", "path"])
def test_jsonl_may_use_the_words_of_a_header(tmp_path, image):
    path = table(tmp_path, json.dumps({image: "a.jpg", "class": "cat", "subset": "dev"}), "t.jsonl")
    assert list(read_rows(path)) == [Listed("a.jpg", "cat", "val")]


def test_numbers_as_labels(tmp_path):
    path = table(tmp_path, '{"image": "a.jpg", "label": 7, "other": {}}', "t.jsonl")
    assert list(read_rows(path)) == [Listed("a.jpg", "7")]


@pytest.fixture
def photos(tmp_path):
    for name in ("a", "b", "c", "d"):
        Image.new("RGB", (2, 2)).save(tmp_path / f"{name}.png")
    return tmp_path


def test_sentences_of_a_class_are_those_of_its_rows(photos):
    """Each once, under the class's label; of rows without an image too, but not of those without a label."""
    text = "image,label,description\na.png,s_1,a  cat\nb.png,s_2,\nc.png,s_2,a dog\nd.png,s_2,a dog\n"
    text += "gone.png,s_2,a puppy\ne.png,,a bird\ngone.png,s_3,a fish\n"
    data = open_dataset(table(photos, text.replace("gone.png,s_3", "also-gone.png,s_3")))
    assert data.descriptions == (("s_1", "a cat"), ("s_2", "a dog", "a puppy"))
    several = table(photos, "image,labels,description\na.png,cat|dog,a cat\nb.png,cat,a dog\n", "several.csv")
    assert open_dataset(several).descriptions == ()


def test_a_table_becomes_a_dataset(photos):
    path = table(
        photos,
        "image,label,split,domain\nb.png,big_dog,test,photo\na.png,cat,train,sketch\n"
        "a.png,cat,train,sketch\nmissing.png,cat,train,photo\nt.csv,cat,train,photo\n",
    )
    data = open_dataset(path)
    assert data.name == "t" and data.classes == ("big_dog", "cat")
    assert [(item.path, item.label, item.domain) for item in data.items] == [
        ("a.png", 1, "sketch"),
        ("b.png", 0, "photo"),
    ]
    assert data.skipped == (("missing.png", "not found"), ("t.csv", "not an image"))


def test_items_are_sorted_by_path(photos):
    rows = "d.png,x,train\nb.png,y,train\nc.png,x,test\na.png,y,train\n"
    data = open_dataset(table(photos, "image,label,split\n" + rows))
    assert [(item.path, item.label) for item in data.train] == [("a.png", 1), ("b.png", 1), ("d.png", 0)]


def test_images_may_lie_elsewhere(photos, tmp_path):
    (tmp_path / "lists").mkdir()
    path = table(tmp_path / "lists", "image,label\na.png,x\nb.png,y\nc.png,x\nd.png,y\n")
    with pytest.raises(InputError, match=r"no images in it.*a\.png is not found"):
        open_dataset(path)
    data = open_dataset(path, root=photos)
    assert len(data.items) == 4 and data.file(data.items[0]).is_file()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a.png,x,train\na.png,y,train\n", "listed twice with a different label"),
        ("a.png,x,train\na.png,x,test\n", "listed twice with a different split"),
        ("a.png,x,train\nb.png,y,\n", "b.png has no split"),
    ],
)
def test_contradictions(photos, body, why):
    with pytest.raises(InputError, match=why):
        open_dataset(table(photos, "image,label,split\n" + body))


def test_absolute_paths_of_ones_own(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("1.png", "2.png"):
        Image.new("RGB", (8, 8)).save(elsewhere / name)
    table = tmp_path / "tables" / "own.csv"
    table.parent.mkdir()
    table.write_text(f"image,label,split\n{elsewhere}/1.png,cat,train\n{elsewhere}/2.png,dog,train\n")
    dataset = open_dataset(table)
    assert [dataset.file(item) for item in dataset.train] == [elsewhere / "1.png", elsewhere / "2.png"]
    (said,) = [note for note in dataset.notes if "outside" in note]
    assert said.startswith("2 images lie outside") and str(elsewhere / "1.png") in said
    inside = open_dataset(table, root=tmp_path)
    assert not [note for note in inside.notes if "outside" in note]


def test_a_path_that_is_not_there_is_called_so_first():
    with pytest.raises(InputError, match=r"^nothere: no such folder or file here, and no benchmark"):
        open_dataset("nothere")


def test_rows_without_a_label_are_left_out_and_offered(tmp_path):
    for number in range(6):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,{label}" for number, label in enumerate(("cat", "cat", "dog", "dog", "", ""))]
    (tmp_path / "table.csv").write_text("\n".join(["image,label", *lines]))
    dataset = open_dataset(tmp_path / "table.csv")
    assert len(dataset.items) == 4 and {reason for _, reason in dataset.skipped} == {"without a label"}
    assert "learns from the images without a label" in dataset.describe()
