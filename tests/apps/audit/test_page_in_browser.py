"""The page of `look` in a real browser: decide, download the table, and the dataset is as decided."""

import shutil
import time
from dataclasses import replace

import pytest

pytest.importorskip("selenium", reason="the page's buttons need a browser")
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from pbprompt.apps.audit.audit import look
from pbprompt.apps.audit.corrections import corrected
from pbprompt.apps.audit.leave_one_out import Overlap
from pbprompt.apps.audit.page import write_page
from pbprompt.vision.images.sources import open_dataset


def listed(browser, part):
    """The boxes of a part of the page, by image."""
    section = browser.find_element(By.XPATH, f"//section[h2[.='{part}']]")
    return {
        box.get_attribute("data-image"): box for box in section.find_elements(By.CSS_SELECTOR, "[data-image]")
    }


def press(browser, part, words):
    browser.find_element(By.XPATH, f"//section[h2[.='{part}']]//button[starts-with(., '{words}')]").click()


def download(browser, folder):
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    browser.find_element(By.ID, "download").click()
    for _ in range(600):
        if (folder / "corrections.csv").exists():
            return folder / "corrections.csv"
        time.sleep(0.1)
    raise AssertionError("nothing was downloaded")


def labels(dataset):
    return {item.path: dataset.classes[item.label] for item in dataset.items}


@pytest.fixture
def many(found, photos, lite, tmp_path):
    """The folder, where each class holds thirty copies more than the page shows large."""
    root = shutil.copytree(photos, tmp_path / "photos")
    file = min((root / "train" / "clock").glob("*.webp"))
    for number in range(30):
        shutil.copy(file, file.with_name(f"copy-{number:02}.webp"))
    return look(root, backbone=lite)


def test_all_that_is_listed_is_decided_a_kind_at_a_time(many, browser, tmp_path):
    write_page(many, tmp_path / "look.html")
    browser.get((tmp_path / "look.html").as_uri())
    copies = listed(browser, "Duplicates")
    assert set(copies) == {many.images[row].path for group in many.duplicates for row in group.rows}
    broken = listed(browser, "Unreadable files")
    assert set(broken) == {path for path, _ in many.unreadable}
    assert all(box.find_elements(By.TAG_NAME, "select") for box in (*copies.values(), *broken.values()))
    for part in ("Likely label errors", "Duplicates", "Unreadable files"):
        press(browser, part, "Accept all")
    dataset = open_dataset(many.root)
    done, _ = corrected(dataset, download(browser, tmp_path))
    before, after = labels(dataset), labels(done)
    for error in many.label_errors:
        path = many.images[error.row].path
        assert path not in after or after[path] == many.suggested(error)
    for group in many.duplicates:
        left = [many.images[row] for row in group.rows if many.images[row].path in after]
        assert len(left) == len(group.rows) if many.across_classes(group) else len(left) == 1
        if many.across_splits(group) and not many.across_classes(group):
            assert left[0].split == "test"
    assert not {path for path, _ in many.unreadable} & {*after} and len(after) < len(before)
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_choice_of_ones_own_and_two_classes_made_one(found, browser, tmp_path):
    first, second = found.classes.index("building"), found.classes.index("mammal")
    with_pair = replace(found, overlaps=(Overlap(first, second, 3, 20),))
    write_page(with_pair, tmp_path / "look.html")
    browser.get((tmp_path / "look.html").as_uri())
    path, box = next(iter(listed(browser, "Likely label errors").items()))
    select = box.find_element(By.TAG_NAME, "select")
    select.click()  # where somebody is about to choose, all classes are there
    Select(select).select_by_value("relabel building")
    pair = browser.find_element(By.CSS_SELECTOR, "[data-first] select")
    [way] = [one.text for one in Select(pair).options if one.text.endswith("building: mammal")]
    Select(pair).select_by_visible_text(way)
    assert "decided" in browser.find_element(By.ID, "decided").text
    dataset = open_dataset(found.root)
    done, words = corrected(dataset, download(browser, tmp_path))
    assert done.classes == ("clock", "mammal") and "no image is left of building" in words
    assert labels(done)[path] == "mammal"  # through building, which is mammal by now
    assert len(done.items) == len(dataset.items)
