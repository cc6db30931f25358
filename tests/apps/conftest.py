"""A real browser, for the pages."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip("chromium and chromedriver are not there: scripts/install_chromium.sh")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1100,900",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """A tab of its own; each test's server has a port of its own, so nothing stored is shared."""
    former = chromium.current_window_handle
    chromium.switch_to.new_window("tab")
    fresh = chromium.current_window_handle
    chromium.switch_to.window(former)
    chromium.close()
    chromium.switch_to.window(fresh)
    for kind in ("performance", "browser"):
        chromium.get_log(kind)  # what former tests left
    return chromium
