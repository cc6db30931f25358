"""`pbprompt look`, as a user runs it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import pbprompt
from pbprompt.apps.audit import audit
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.towers.loading.load import load_backbone

SAMPLE = Path(pbprompt.__file__).parent / "vision" / "images" / "sample" / "images" / "fluent"


@pytest.fixture
def photos(tmp_path) -> Path:
    root = tmp_path / "photos"
    for name in ("clock", "mammal"):
        (root / name).mkdir(parents=True)
        for file in sorted((SAMPLE / name).iterdir())[:6]:
            shutil.copy(file, root / name)
    shutil.copy(next((root / "mammal").iterdir()), root / "clock" / "[bold]odd.webp")
    return root


def test_a_table_that_fits_the_terminal(run, photos, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = run("look", photos, "--html", tmp_path / "look.html")
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 60
    assert "13 images" in out and "Duplicates: 1" in out and "[bold]odd.webp" in out
    assert "two labels: clock, mammal" in " ".join(out.split())
    assert "Unreadable files: none" in out
    assert (tmp_path / "look.html").stat().st_size > 5000 and "wrote" in err


def test_json_holds_it_all(run, photos):
    code, out, err = run("look", photos, "--json")
    assert code == 0 and not err
    said = json.loads(out)
    assert said["classes"] == {"clock": 7, "mammal": 6} and said["duplicates"][0]["across_classes"]


def test_of_several_backbones_the_first_is_asked(run, photos, monkeypatch):
    asked = []

    def judged(global_, *of, plain=audit.judge):
        asked.append(global_)
        return plain(global_, *of)

    monkeypatch.setattr(audit, "judge", judged)
    code, _, err = run("look", photos, "--json", "--backbone", "lite", "--backbone", "lite-vit")
    assert code == 0 and "looking by lite alone, the first of the backbones; lite-vit not asked" in err
    by_list = audit.look(photos, backbone=["lite", load_backbone("lite-vit")])
    lite = FeatureCache(load_backbone("lite"), progress=False)
    dataset = audit.open_images(photos)[0]
    expected = lite.encode(dataset.root, dataset.items).global_
    assert by_list.labelled and all(torch.equal(one, expected) for one in asked) and len(asked) == 2


def test_one_line_for_what_cannot_be_looked_at(run, tmp_path):
    for place, says in ((tmp_path, "holds no images"), (tmp_path / "absent", "does not exist")):
        code, out, err = run("look", place)
        assert code == 2 and says in err and not out and len(err.strip().splitlines()) == 1


def test_labels_of_one_name_are_reported(run, photos, tmp_path):
    shutil.copytree(photos / "clock", photos / "SKU-17")
    (photos / "clock").rename(photos / "SKU 17")
    code, out, err = run("look", photos, "--html", tmp_path / "look.html")
    says = "'SKU 17' and 'SKU-17' have one name, which `fit` refuses: make them one, or give --names."
    assert code == 0 and says in " ".join(out.split()), err
    code, _, err = run("fit", photos, "--out", tmp_path / "model")
    assert code == 2 and "are both named 'SKU 17'" in err


def test_the_next_command_names_no_table_that_is_not_there_yet(run, photos, tmp_path):
    page, table = tmp_path / "look.html", tmp_path / "decided.csv"
    _, _, err = run("look", photos, "--html", page)
    assert f"next: pbprompt fit {photos} --out model/   # with --corrections corrections.csv, once" in err
    _, _, err = run("look", photos, "--html", page, "--corrections", table)
    assert (
        err.endswith(f"next: pbprompt fit {photos} --corrections {table} --out model/\n") and table.exists()
    )


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf_8_are_shown_fitted_and_listed(run, photos, tmp_path):
    """Of images and of a class: `look`, `fit`, `next` and what reads its table go on."""
    (photos / "clock").rename(photos / "cl\udcffck")
    for file in (photos / "mammal").iterdir():
        file.rename(file.with_name(f"\udce9{file.name}"))
    code, _, err = run("look", photos, "--html", tmp_path / "look.html")
    assert code == 0 and "cl\\udcffck" in (tmp_path / "look.html").read_text(), err
    code, out, err = run("look", photos, "--json")
    assert code == 0 and "cl\\udcffck" in json.loads(out)["classes"], err
    code, _, err = run("fit", photos, "--shots", "1", "--out", tmp_path / "model")
    assert code == 0 and "mammal/\\\\udce9" in (tmp_path / "model" / "draw.jsonl").read_text(), err
    table = tmp_path / "next.csv"
    code, _, err = run("next", photos, "--model", tmp_path / "model", "-n", "12", "--out", table)
    assert code == 0 and "photos/mammal/\\udce9" in table.read_text(), err
    code, _, err = run("predict", table, "--model", tmp_path / "model", "--out", tmp_path / "a.csv")
    assert code == 0 and "with 12 answers" in err
    code, _, err = run("next", photos, "--model", tmp_path / "model", "-n", "1", "--out", table)
    assert code == 0 and len(set(table.read_text().splitlines())) == 14, "no image twice"
