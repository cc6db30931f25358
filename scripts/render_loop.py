"""Run the commands of docs/loop.md on folders made from the sample set, and write what comes out into it.

    python scripts/render_loop.py

The page is its own source, as in render_example.py. What a person does, this script does by what the sample
set gives as the truth: decide on what `look` found, and fill in the table of `next`. Pictures become
docs/images/loop-*. Needs the extra `serve`, selenium, and chromium (scripts/install_chromium.sh).
"""

import contextlib
import csv
import io
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from render_example import BLOCK, DOCS, run_commands

from pbprompt.model.predictor import predict_features
from pbprompt.model.scoring import score
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded

PAGE = DOCS / "loop.md"
FIGURES = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.S)
SEED, SHOTS, LABELS, RANDOM_DRAWS = 1, 2, 20, 10
WIDTH, HEIGHT = 1000, 900


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=DOCS, check=True, capture_output=True, text=True
    ).stdout.strip()

    figures = ""

    def then(truth: dict[str, str]) -> None:
        nonlocal figures
        figures = bought(truth, commit)
        with chromium() as browser:
            for page, heading in (("look", "Likely label errors"), ("report", "Most confused pairs")):
                browser.get(Path(f"{page}.html").resolve().as_uri())
                photograph(browser, f"loop-{page}", heading)
            photograph_labelling(browser)

    text = rendered(PAGE.read_text(encoding="utf-8"), then)
    PAGE.write_text(FIGURES.sub(lambda found: f"{found[1]}{figures}{found[2]}", text), encoding="utf-8")


def rendered(page: str, then: Callable[[dict[str, str]], None] | None = None) -> str:
    """The page with the outputs of its commands, run in a folder of their own; `then` is done there."""

    def block(found: re.Match[str]) -> str:
        kind, code = found.groups()
        if code.startswith("pbprompt serve"):  # which goes on until it is stopped
            return f"```{kind}\n{code}```\n"
        output = run_commands(re.sub("^pbprompt", f"{shlex.quote(sys.executable)} -m pbprompt", code))
        if "pbprompt look" in code:
            decide(truth)
        if "pbprompt next" in code:
            fill_in(truth)
        output = re.sub(r"^(encoding|comparing) images.*\n", "", output, flags=re.M)  # on a slow machine
        output = output.replace(f"{Path.cwd()}/", "")
        return f"```{kind}\n{code}```\n\n```text\n{output}\n```\n"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        truth = lay_out()
        text = BLOCK.sub(block, page)
        if then:
            then(truth)
        return text


def decide(truth: dict[str, str]) -> None:
    """The two planted faults, as the page's button writes what was decided."""
    (copied,), (astray,) = (list(Path("photos/train").glob(f"*/{name}.webp")) for name in ("copy", "astray"))
    rows = [("drop", "", copied), ("relabel", truth["astray.webp"], astray)]
    lines = [
        f"{path.relative_to('photos').as_posix()},{decision},{label},{path.parent.name},"
        for decision, label, path in rows
    ]
    Path("corrections.csv").write_text("\n".join(["image,decision,label,was,why", *lines, ""]))


def fill_in(truth: dict[str, str]) -> None:
    with Path("next.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    for row in rows:
        row["label"] = truth[Path(row["image"]).name]
    with Path("next.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0])
        writer.writeheader()
        writer.writerows(rows)


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
    truth = {"astray.webp": data.classes[wrong.label]}
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
def chromium() -> Iterator[Any]:
    from selenium import webdriver

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


def photograph(browser: Any, name: str, heading: str = "") -> None:
    """The part of the present page that begins with a heading, or its top."""
    if heading:
        found = browser.find_element("xpath", f"//h2[contains(., '{heading}')]")
        browser.execute_script("arguments[0].scrollIntoView()", found)
    shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    target = DOCS / "images" / f"{name}.webp"
    shot.save(target, quality=80, method=6)
    print(f"docs/images/{target.name}: {target.stat().st_size / 1024:.0f} KiB")


def photograph_labelling(browser: Any) -> None:
    """The page where images are labelled one after another, before the first."""
    from selenium.webdriver.support.ui import WebDriverWait

    command = [sys.executable, "-m", "pbprompt", "serve", "model", "--label", "unlabelled", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(m[0] for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
        browser.get(f"{address}/label")
        WebDriverWait(browser, 600).until(lambda page: page.find_element("id", "picture").is_displayed())
        photograph(browser, "loop-label")
    finally:
        server.terminate()
        server.communicate()


def bought(truth: dict[str, str], commit: str) -> str:
    """The table at the end of the page: test accuracy of the model before, after, and with as many labels of
    images taken at random, ten times."""
    model = TunedModel.load(Path("model"))
    bank = FeatureCache(model.backbone, progress=False)
    data = open_dataset("photos")
    test = bank.encode(data.root, data.test)
    names = sorted(path.name for path in Path("unlabelled").iterdir())
    pool = bank.encode(Path("unlabelled"), [Item(name, 0) for name in names])

    def right(one: TunedModel) -> float:
        return float(score(predict_features(one.predictor, test), test)["accuracy"])

    chance = []
    for draw in range(RANDOM_DRAWS):
        rows = random.Random(draw).sample(range(len(names)), LABELS)
        some = pool.subset(rows)
        labels = [truth[names[row]] for row in rows]
        chance.append(right(model.partial_fit(Encoded(some.global_, some.patches), labels)))
    lines = [
        ("before", f"{right(model):.1%}"),
        (f"{LABELS} images chosen by the model", f"{right(TunedModel.load(Path('model2'))):.1%}"),
        (f"{LABELS} at random, mean of {RANDOM_DRAWS} draws", f"{sum(chance) / len(chance):.1%}"),
        ("the worst and the best of these draws", f"{min(chance):.1%} and {max(chance):.1%}"),
    ]
    table = "\n".join(f"| {what} | {share} |" for what, share in lines)
    source = f"Seed {SEED}, {len(data.test)} test images, one run, commit {commit}."
    return f"| labels | right on the test split |\n|---|---|\n{table}\n\n{source}\n"


if __name__ == "__main__":
    main()
