"""A folder with everything in it that can be found."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

import pbprompt
from pbprompt.apps.audit.audit import Audit, look

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"
CLASSES = ("building", "clock", "mammal")


def fill(root: Path) -> None:
    """train/ and test/ of three classes: a wrong label, copies across splits and classes, broken files."""
    for name in CLASSES:
        files = sorted((SAMPLE / name).iterdir())[:10]
        for split, some in (("train", files[:7]), ("test", files[7:])):
            folder = root / split / name
            folder.mkdir(parents=True)
            for file in some:
                shutil.copy(file, folder)
    train, test = root / "train", root / "test"
    wrong = sorted((SAMPLE / "mammal").iterdir())[15]
    shutil.copy(wrong, train / "clock" / "wrong.webp")
    shutil.copy(next((train / "mammal").iterdir()), train / "building" / "conflict.webp")
    first = min((train / "building").glob("1*.webp"))
    Image.open(first).convert("RGB").save(test / "building" / "leak.jpg", quality=80)
    (train / "clock" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 torn")
    (train / "clock" / "notes.txt").write_text("no image")


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("look") / "photos"
    fill(root)
    return root


@pytest.fixture(scope="session")
def found(photos, lite) -> Audit:
    return look(photos, backbone=lite)
