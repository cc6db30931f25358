"""Draw docs/images/serve.webp: the web page of `pbprompt serve` with an image, its bars and a heat map.

    python scripts/screenshot.py MODEL IMAGE [--class NAME] [--out docs/images/serve.webp]

`scripts/render_readme.py` draws the one that is there, of a photograph.

Needs the extra `serve`, selenium, chromium and chromedriver (scripts/install_chromium.sh).
"""

import argparse
import io
import threading
import time
from pathlib import Path

import uvicorn
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pbprompt.apps.serve.app import create_app, server_config
from pbprompt.model.tuned import TunedModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("image", type=Path)
    parser.add_argument("--class", dest="name", help="class whose heat map to show; default: the likeliest")
    parser.add_argument("--out", type=Path, default=Path("docs/images/serve.webp"))
    options = parser.parse_args()
    draw_page(options.model, options.image, options.name, options.out)


def draw_page(model: Path, image: Path, name: str | None, out: Path) -> None:
    """Serve the model, and write a picture of its page with the image to a WebP file."""
    server = uvicorn.Server(server_config(create_app(TunedModel.load(model)), "127.0.0.1", 0))
    thread = threading.Thread(target=server.run)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.05)
    try:
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        shot = photograph(address, image.resolve(), name)
    finally:
        server.should_exit = True
        thread.join()
    out.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(shot)).convert("RGB").save(out, quality=80, method=6)
    print(f"{out}: {out.stat().st_size / 1024:.0f} KiB")


def photograph(address: str, image: Path, name: str | None) -> bytes:
    """A PNG of the page after the image was uploaded and a class focused."""
    settings = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1040,1060"):
        settings.add_argument(argument)
    browser = webdriver.Chrome(settings)
    try:
        wait = WebDriverWait(browser, 60)
        browser.get(address)
        browser.find_element(By.ID, "file").send_keys(str(image))
        rows = wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#scores button"))
        wanted = [row for row in rows if name in (None, row.find_element(By.CLASS_NAME, "name").text)]
        browser.execute_script("arguments[0].focus({ focusVisible: true })", wanted[0])
        wait.until(lambda page: page.find_element(By.ID, "heat").is_displayed())
        time.sleep(0.5)  # the last transition
        return browser.get_screenshot_as_png()
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
