"""Run the commands of docs/loop.md on folders made from the sample set, and write what comes out into it.

    python scripts/render_loop.py

The page is its own source, as in render_example.py; the step of labelling is done in a real browser, where
this script clicks the class that the sample set gives as the truth. Pictures become docs/images/loop-*.
Needs the extra `serve`, selenium, chromium and chromedriver (scripts/install_chromium.sh).
"""

import contextlib
import io
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from render_example import BLOCK, DOCS, run_commands, tidy
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import text_to_be_present_in_element
from selenium.webdriver.support.ui import WebDriverWait

from pbprompt.model.scoring import score
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded

PAGE = DOCS / "loop.md"
FIGURES = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.S)
SEED, SHOTS, LABELS, RANDOM_DRAWS = 1, 2, 20, 10
WIDTH, HEIGHT = 1000, 900


def main() -> None:
    source = PAGE.read_text(encoding="utf-8")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=DOCS, check=True, capture_output=True, text=True
    ).stdout.strip()
    for old in (DOCS / "images").glob("loop-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), chromium() as browser:
        truth = lay_out()
        before: list[float] = []

        def rendered(block: re.Match[str]) -> str:
            kind, code = block.groups()
            if "--label" in code:
                before.extend(random_labels(truth))
                output = label(browser, truth)
            elif kind == "python":
                output = tidy(
                    subprocess.run(
                        [sys.executable, "-c", code], check=True, capture_output=True, text=True
                    ).stdout
                )
            else:
                output = run_commands(code)
            shown = f"\n```text\n{output}\n```\n" if output else ""
            return f"```{kind}\n{code}```\n{shown}"

        text = BLOCK.sub(rendered, source)
        figures = compared(before, commit)
        for page, heading in (("look", "Likely label errors"), ("report", "Most confused pairs")):
            browser.get(Path(f"{page}.html").resolve().as_uri())
            photograph(browser, f"loop-{page}", heading)
    PAGE.write_text(FIGURES.sub(lambda found: f"{found[1]}{figures}{found[2]}", text), encoding="utf-8")


def lay_out() -> dict[str, str]:
    """photos/ with a few labelled images and a test split, unlabelled/ with the rest; gives the rest's truth.

    Two faults are planted: a test image is also a training image, and one training image is in another
    class's folder.
    """
    data, chance = open_dataset("sample"), random.Random(SEED)
    items = chance.sample(data.train, len(data.train))
    few = [item for c in range(len(data.classes)) for item in [i for i in items if i.label == c][:SHOTS]]
    for split, some in (("train", few), ("test", data.test)):
        for item in some:
            copy(data.root / item.path, Path("photos") / split / data.classes[item.label] / flat(item))
    leaked, (wrong, other) = data.test[0], chance.sample(few, 2)
    copy(data.root / leaked.path, Path("photos/train") / data.classes[leaked.label] / "copy.webp")
    home = Path("photos/train") / data.classes[wrong.label] / flat(wrong)
    home.rename(Path("photos/train") / data.classes[other.label] / "astray.webp")
    truth = {}
    for number, item in enumerate((item for item in items if item not in few), 1):
        truth[f"{number:03}.webp"] = data.classes[item.label]
        copy(data.root / item.path, Path("unlabelled") / f"{number:03}.webp")
    return truth


def flat(item: Item) -> str:
    return f"{item.domain}-{Path(item.path).name}"


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    settings = webdriver.ChromeOptions()
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        f"--window-size={WIDTH},{HEIGHT}",
    ):
        settings.add_argument(argument)
    browser = webdriver.Chrome(settings, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield browser
    finally:
        browser.quit()


def photograph(browser: webdriver.Chrome, name: str, heading: str | None = None) -> None:
    """The part of the present page that begins with a heading, or its top."""
    if heading:
        found = browser.find_element(By.XPATH, f"//h2[contains(., '{heading}')]")
        browser.execute_script("arguments[0].scrollIntoView()", found)
    else:
        browser.execute_script("scrollTo(0, 0)")
    shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    target = DOCS / "images" / f"{name}.webp"
    shot.save(target, quality=80, method=6)
    print(f"docs/images/{target.name}: {target.stat().st_size / 1024:.0f} KiB")


def label(browser: webdriver.Chrome, truth: dict[str, str]) -> str:
    """Label images on the page as a person would, by clicking; gives how the estimate moved."""
    command = [sys.executable, "-m", "pbprompt", "serve", "model", "--label", "unlabelled", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
        browser.get(f"{address}/label")
        lines = []
        for count in range(LABELS + 1):
            wait = WebDriverWait(browser, 120)
            wait.until(text_to_be_present_in_element((By.ID, "progress"), f"{count} labelled, "))
            wait.until(lambda page: page.find_element(By.ID, "picture").is_displayed())
            if count % 10 == 0:
                lines.append(f"{count:2} labelled: {browser.find_element(By.ID, 'estimate').text}")
            if count in (0, LABELS):
                photograph(browser, f"loop-label-{count}")
            if count < LABELS:
                name = browser.find_element(By.ID, "caption").text.split(". The model")[0]
                wanted = truth[name]
                buttons = browser.find_elements(By.CSS_SELECTOR, "#classes button")
                next(b for b in buttons if b.find_element(By.CLASS_NAME, "name").text == wanted).click()
        return "\n".join(lines)
    finally:
        server.terminate()
        server.communicate()


def random_labels(truth: dict[str, str]) -> list[float]:
    """Test accuracy of the model as it is, then with as many labels of images taken at random, ten times."""
    model = TunedModel.load(Path("model"))
    bank = FeatureBank(model.backbone, progress=False)
    data = open_dataset("photos")
    test = bank.encode(data.root, data.test)
    names = sorted(truth)
    pool = bank.encode(Path("unlabelled"), [Item(name, 0) for name in names])
    accuracies = [score(model.predictor, test)["accuracy"]]
    for draw in range(RANDOM_DRAWS):
        rows = random.Random(draw).sample(range(len(names)), LABELS)
        some = pool.subset(rows)
        taught = model.partial_fit(Encoded(some.global_, some.patches), [truth[names[row]] for row in rows])
        accuracies.append(score(taught.predictor, test)["accuracy"])
    return accuracies


def compared(before: list[float], commit: str) -> str:
    """The table at the end of the page."""
    model = TunedModel.load(Path("model2"))
    data = open_dataset("photos")
    test = FeatureBank(model.backbone, progress=False).encode(data.root, data.test)
    after = score(model.predictor, test)["accuracy"]
    first, *chance = before
    rows = [
        ("before", f"{first:.1%}"),
        (f"{LABELS} images chosen by the model", f"{after:.1%}"),
        (f"{LABELS} at random, mean of {RANDOM_DRAWS} draws", f"{sum(chance) / len(chance):.1%}"),
        ("the worst and the best of these draws", f"{min(chance):.1%} and {max(chance):.1%}"),
    ]
    table = "\n".join(f"| {what} | {share} |" for what, share in rows)
    source = f"Seed {SEED}, {len(data.test)} test images, one run, commit {commit}."
    return f"| labels | right on the test split |\n|---|---|\n{table}\n\n{source}\n"


if __name__ == "__main__":
    main()
