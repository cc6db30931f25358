"""The web page in a real browser, by keyboard and pointer."""

import base64
import io
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from pbprompt.apps.labelling.next_images import read_table
from pbprompt.apps.serve.images import decode_image
from pbprompt.apps.serve.labelling import Labelling
from pbprompt.apps.serve.limits import Limits
from pbprompt.apps.serve.samples import open_tour
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.folder import describe_model
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.vision.images.catalog import SAMPLE


@pytest.fixture
def photo(cat: bytes, tmp_path: Path) -> Path:
    """The cat in the middle of a wide picture."""
    image = Image.new("RGB", (256, 128), "white")
    image.paste(Image.open(io.BytesIO(cat)).convert("RGB"), (64, 0))
    path = tmp_path / "<b>cat.png"
    image.save(path)
    return path


def until(browser, condition):
    return WebDriverWait(browser, 3600).until(lambda _: condition())


def by_id(browser, name):
    return browser.find_element(By.ID, name)


def rows_of(browser):
    return browser.find_elements(By.CSS_SELECTOR, "#scores button")


def share_of(row) -> float:
    return float(row.find_element(By.CLASS_NAME, "value").text.split(" %")[0]) / 100


def upload(browser, photo):
    by_id(browser, "file").send_keys(str(photo))
    until(browser, lambda: rows_of(browser))


def requested_hosts(browser) -> set[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme in ("http", "https", "ws", "wss")}


def test_from_an_image_to_its_heat_map_and_a_new_class(browser, running, model, photo):
    browser.get(running)
    until(browser, lambda: "5 classes" in by_id(browser, "model").text)
    upload(browser, photo)
    assert by_id(browser, "status").text.startswith("cat, ")
    unsure = model.calibration.threshold(0.9) > share_of(rows_of(browser)[0])
    assert by_id(browser, "unsure").is_displayed() is unsure
    rows = rows_of(browser)
    assert len(rows) == 5 and "%" in rows[0].text and "±" in rows[0].text
    bar, fill = (rows[0].find_element(By.CLASS_NAME, name) for name in ("bar", "fill"))
    assert fill.size["width"] == pytest.approx(share_of(rows[0]) * bar.size["width"], abs=2)
    assert sorted(map(share_of, rows), reverse=True) == [share_of(row) for row in rows]
    spread = float(rows[0].text.split("±")[1].split()[0]) / 100
    line = rows[0].find_element(By.CLASS_NAME, "spread")
    widest = min(1, share_of(rows[0]) + spread) - max(0, share_of(rows[0]) - spread)
    assert line.size["width"] == pytest.approx(widest * bar.size["width"], abs=4)
    assert by_id(browser, "set").is_displayed()

    # by keyboard: from the file field, tab to the first class
    assert not by_id(browser, "heat").is_displayed()
    browser.execute_script("document.getElementById('file').focus()")
    ActionChains(browser).send_keys(Keys.TAB).perform()
    assert browser.switch_to.active_element == rows[0]
    until(browser, lambda: by_id(browser, "heat").is_displayed())
    assert "cat" in by_id(browser, "caption").text
    until(browser, lambda: by_id(browser, "heat").get_property("naturalWidth") == 128)
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not by_id(browser, "heat").is_displayed()

    # by pointer
    ActionChains(browser).move_to_element(rows[1]).perform()
    until(browser, lambda: by_id(browser, "heat").is_displayed())
    assert rows[1].find_element(By.CLASS_NAME, "name").text in by_id(browser, "caption").text

    by_id(browser, "name").send_keys("kitten", Keys.ENTER)
    until(browser, lambda: "6 classes" in by_id(browser, "model").text)
    until(browser, lambda: "kitten" in by_id(browser, "scores").text)
    assert "no validation image is of an added class" in by_id(browser, "set").text
    assert by_id(browser, "unjudged").is_displayed() and "Remove the added" in by_id(browser, "set").text
    assert "nobody else sees them" in by_id(browser, "whose").text
    by_id(browser, "name").send_keys("Kitten", Keys.ENTER)
    until(browser, lambda: "there already" in by_id(browser, "problem").text)
    until(browser, lambda: by_id(browser, "names").text == "kitten ×")
    browser.find_element(By.CSS_SELECTOR, "#names button").click()
    until(browser, lambda: len(rows_of(browser)) == 5)
    assert not by_id(browser, "unjudged").is_displayed() and not by_id(browser, "added").is_displayed()
    assert "nine times in ten" in by_id(browser, "set").text

    assert requested_hosts(browser) == {running.removeprefix("http://")}
    refused = [entry for entry in browser.get_log("browser") if "409" not in entry["message"]]
    assert not refused


# The ratio of every shown text to what lies behind it, as WCAG counts it; those below 4.5 to 1 come back.
CONTRAST = """
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = numbers(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
let seen = 0;
const low = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
  seen += 1;
  const pair = [numbers(getComputedStyle(node).color), behind(node)].map(luminance);
  const [dark, light] = pair.sort((one, other) => one - other);
  if ((light + 0.05) / (dark + 0.05) < 4.5) low.push(walker.currentNode.data);
}
return [seen, low];
"""


def test_an_empty_page_offers_samples_and_what_is_written_can_be_read(browser, running):
    browser.get(running)
    until(browser, lambda: by_id(browser, "samples").is_displayed())
    samples = browser.find_elements(By.CSS_SELECTOR, "#samples button")
    assert len(samples) == 6 and not by_id(browser, "shown").is_displayed()
    images = browser.find_elements(By.CSS_SELECTOR, "#samples img")
    until(browser, lambda: all(image.get_property("naturalWidth") == 128 for image in images))
    samples[0].click()
    until(browser, lambda: by_id(browser, "status").text.startswith("cat, "))
    assert by_id(browser, "shown").is_displayed() and not by_id(browser, "samples").is_displayed()
    assert by_id(browser, "doubt").text.startswith("The model is as undecided as between ")
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        seen, low = browser.execute_script(CONTRAST)
        assert seen > 10 and not low, scheme


# a file as if a person had brought it: browsers let no script drag from, or paste from, elsewhere
BRING = """
const [bytes, how] = arguments;
const data = new DataTransfer();
data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], "brought.webp"));
const options = { bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data };
if (how === "paste") document.dispatchEvent(new ClipboardEvent("paste", options));
else return document.getElementById("drop").dispatchEvent(new DragEvent("drop", options));
"""


def test_images_are_dropped_and_pasted_and_a_bad_one_leaves_nothing_broken(browser, running, cat, guitar):
    browser.get(running)
    until(browser, lambda: "5 classes" in by_id(browser, "model").text)
    bring = lambda data, how: browser.execute_script(BRING, base64.b64encode(data).decode(), how)  # noqa: E731
    assert bring(cat, "drop") is False  # the browser itself would open the file and leave the page
    until(browser, lambda: by_id(browser, "status").text.startswith("cat, "))
    bring(guitar, "paste")
    until(browser, lambda: by_id(browser, "status").text.startswith("guitar, "))
    until(browser, lambda: by_id(browser, "preview").is_displayed())
    bring(b"no image", "paste")
    until(browser, lambda: "no image of these types" in by_id(browser, "problem").text)
    assert not by_id(browser, "preview").is_displayed()


def test_nothing_is_drawn_for_zero(browser, running, photo):
    browser.get(running)
    upload(browser, photo)
    zero = "const one = row('none', 0, 0, []); document.getElementById('scores').append(one);"
    browser.execute_script(zero)
    bar = rows_of(browser)[-1].find_element(By.CLASS_NAME, "bar")
    assert [part.size["width"] for part in bar.find_elements(By.TAG_NAME, "span")] == [0]


def test_on_a_phone_the_heat_map_stays_in_view(browser, running, photo):
    metrics = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(running)
    upload(browser, photo)
    last = rows_of(browser)[-1]
    browser.execute_script("arguments[0].scrollIntoView({ block: 'end' })", last)
    last.click()
    until(browser, lambda: by_id(browser, "heat").is_displayed())
    place = "const { top, bottom } = arguments[0].getBoundingClientRect(); return [top, bottom];"
    assert browser.execute_script("return scrollY") > 0
    top, bottom = browser.execute_script(place, by_id(browser, "heat"))
    assert top >= 0 and bottom <= browser.execute_script(place, last)[0]
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= 360


def test_a_refused_image_says_why_and_the_docs_page_opens(browser, running, tmp_path):
    browser.get(running)
    (tmp_path / "notes.png").write_text("no image")
    by_id(browser, "file").send_keys(str(tmp_path / "notes.png"))
    until(browser, lambda: "no image of these types" in by_id(browser, "problem").text)
    assert not by_id(browser, "result").is_displayed()
    browser.find_element(By.LINK_TEXT, "Endpoints").click()
    until(browser, lambda: "POST /predict" in browser.find_element(By.TAG_NAME, "body").text)
    assert requested_hosts(browser) == {running.removeprefix("http://")}


def test_everything_has_a_name_for_screen_readers(browser, running, photo):
    browser.get(running)
    upload(browser, photo)
    for element in browser.find_elements(By.CSS_SELECTOR, "input, button, img, section, ol"):
        if element.is_displayed():
            assert element.accessible_name, element.get_attribute("outerHTML")
    assert browser.find_element(By.XPATH, "//*[@id='status']/..").aria_role == "status"
    assert browser.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"


def test_the_key_is_asked_for_and_used(browser, model, photo, serve_at):
    browser.get(serve_at(model, api_key="open-it"))
    until(browser, lambda: by_id(browser, "key").is_displayed())
    by_id(browser, "key").send_keys("wrong", Keys.ENTER)
    by_id(browser, "file").send_keys(str(photo))
    until(browser, lambda: "API key" in by_id(browser, "problem").text)
    assert not browser.find_elements(By.CSS_SELECTOR, "#samples img")
    by_id(browser, "key").clear()
    by_id(browser, "key").send_keys("open-it", Keys.ENTER)
    until(browser, lambda: by_id(browser, "status").text.startswith("cat, "))


def test_shared_classes_are_everybodys_until_somebody_removes_them(browser, model, photo, serve_at):
    address = serve_at(model, shared_classes=True)
    browser.get(address)
    until(browser, lambda: "5 classes" in by_id(browser, "model").text)
    by_id(browser, "name").send_keys("kitten", Keys.ENTER)
    until(browser, lambda: "6 classes" in by_id(browser, "model").text)
    browser.get(address)  # another visit
    until(browser, lambda: "for everybody" in by_id(browser, "whose").text)
    browser.find_element(By.CSS_SELECTOR, "#names button").click()
    until(browser, lambda: "5 classes" in by_id(browser, "model").text)
    assert not by_id(browser, "added").is_displayed()


def test_labelling_by_key_by_pointer_and_by_a_new_name(browser, lite, cat, guitar, serve_at, tmp_path):
    learner = taught(lite, cat, guitar)
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, data in (("cat", cat), ("guitar", guitar)):
        for angle in (5, 10, 15):
            image = Image.open(io.BytesIO(data)).convert("RGB").rotate(angle, fillcolor="white")
            image.save(folder / f"{name}-{angle}.png")
    address = serve_at(learner, labelling=Labelling.open(learner, folder, progress=False))
    browser.get(address)
    until(browser, lambda: by_id(browser, "to-label").is_displayed())
    by_id(browser, "to-label").click()

    def labelled(count: int) -> None:
        until(browser, lambda: by_id(browser, "progress").text.startswith(f"{count} labelled"))
        until(browser, lambda: by_id(browser, "picture").is_displayed())

    labelled(0)
    assert by_id(browser, "picture").get_property("naturalWidth") == 128
    assert by_id(browser, "estimate").text == "Not known yet."
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("1")
    labelled(1)
    browser.find_elements(By.CSS_SELECTOR, "#classes button")[1].click()
    labelled(2)
    assert "Right on" in by_id(browser, "estimate").text
    by_id(browser, "name").send_keys("banjo 1", Keys.ENTER)  # digits typed into the field label nothing
    labelled(3)
    assert [row.label for row in read_table(folder / "labels.csv")] == ["cat", "guitar", "banjo 1"]
    assert "banjo 1" in by_id(browser, "classes").text
    by_id(browser, "undo").click()
    labelled(2)
    for count in (3, 4, 5):
        browser.find_element(By.TAG_NAME, "body").send_keys("2")
        labelled(count)
    body.send_keys("s")
    until(browser, lambda: by_id(browser, "done").is_displayed())
    assert not by_id(browser, "picture").is_displayed() and len(read_table(folder / "labels.csv")) == 5
    assert not browser.get_log("browser")


@pytest.fixture(scope="module")
def learner(lite, cat, guitar):
    return taught(lite, cat, guitar).with_classes(["mammal", "fruit"])


@pytest.fixture(scope="module")
def tour(learner, tmp_path_factory):
    """What the tour shows, and the folder of its images to label."""
    folder = tmp_path_factory.mktemp("tour")
    return open_tour(learner, folder), folder


@pytest.mark.parametrize("width", [1280, 390])
def test_the_tour_leads_through_five_steps_at_a_desk_and_on_a_telephone(
    browser, learner, tour, serve_at, tmp_path, width
):
    shown, folder = tour
    table = tmp_path / "labels.csv"
    labelling = Labelling.open(learner, folder, table, progress=False)
    address = serve_at(learner, labelling=labelling, tour=shown, photographs=SAMPLE)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def fits() -> bool:
        return browser.execute_script("return document.documentElement.scrollWidth") <= width

    def back() -> None:
        browser.find_element(By.PARTIAL_LINK_TEXT, "Back to the tour").click()
        until(browser, lambda: by_id(browser, "labelled").text)

    try:
        browser.get(f"{address}/tour")
        until(browser, lambda: by_id(browser, "labelled").text == "0 of 3 labelled.")
        assert by_id(browser, "change").text == "Label an image first." and fits()

        browser.find_element(By.LINK_TEXT, "Look").click()
        until(browser, lambda: browser.find_elements(By.XPATH, "//h2[.='Likely label errors']"))
        browser.find_element(By.XPATH, "//button[starts-with(., 'Accept all')]").click()
        assert not by_id(browser, "decided").text.startswith("0") and fits()
        browser.back()

        until(browser, lambda: browser.find_elements(By.LINK_TEXT, "Label three images"))
        browser.find_element(By.LINK_TEXT, "Label three images").click()
        for count in (1, 2, 3):
            until(browser, lambda: by_id(browser, "picture").is_displayed())
            browser.find_element(By.TAG_NAME, "body").send_keys("3")
            until(
                browser, lambda count=count: by_id(browser, "progress").text.startswith(f"{count} labelled")
            )
        assert fits()
        back()
        until(browser, lambda: by_id(browser, "labelled").text == "3 labelled: done.")
        assert by_id(browser, "change").text.startswith("Right on ")

        browser.find_element(By.LINK_TEXT, "Try a photograph").click()
        until(browser, lambda: by_id(browser, "samples").is_displayed())
        back()
        browser.find_element(By.LINK_TEXT, "See its cases").click()
        until(browser, lambda: by_id(browser, "samples").is_displayed())
        browser.find_elements(By.CSS_SELECTOR, "#samples button")[0].click()
        until(browser, lambda: rows_of(browser))
        name = "return arguments[0].querySelector('.name').textContent"
        names = {browser.execute_script(name, row): row for row in rows_of(browser)}
        browser.execute_script("arguments[0].focus()", names["mammal"])
        until(browser, lambda: by_id(browser, "parts").is_displayed())
        assert "of the logit: this part looks like that part of" in by_id(browser, "parts").text
        last = rows_of(browser)[-1]
        browser.execute_script("arguments[0].scrollIntoView({ block: 'end' })", last)
        bottom = "return document.getElementById('shown').getBoundingClientRect().bottom"
        top = browser.execute_script("return arguments[0].getBoundingClientRect().top", last)
        assert fits() and (width > 1000 or browser.execute_script(bottom) <= top)  # no part covers a class
        browser.execute_script("arguments[0].focus()", names["cat"])  # which the second model does not know
        until(browser, lambda: "“cat”" in by_id(browser, "caption").text)
        assert not by_id(browser, "parts").is_displayed()
        assert not browser.get_log("browser")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_model_that_compares_patches_is_not_labelled_with(tour):
    (_, comparing), folder = tour
    with pytest.raises(InputError, match="fit it without `--set patches=true`"):
        Labelling.open(comparing, folder, progress=False)


def taught(lite, cat, guitar) -> TunedModel:
    """A model that can learn on, with one image of each class."""
    kind = find_method("conjugate")
    method = build_method(kind, make_config(kind), lite, seed=1)
    method.prepare(("cat", "guitar"), "a photo of a {}.")
    start, see = TunedModel(method, describe_model(method)), lite.preprocess
    images = [see.normalised(decode_image(data, Limits(), see.cropper)) for data in (cat, guitar)]
    return start.partial_fit(start.encode(images), ["cat", "guitar"])
