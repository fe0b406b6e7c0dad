"""A real browser on the page of a real server over tiny models.

Where there is no Chromium with its driver, these tests are skipped and say so.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path

import pytest

# For what a page shows after an answer, on a machine that others use as well.
PATIENCE_S = 60.0
PICTURES = Path(os.environ.get("TRIWIRE_SCREENSHOTS", "runs/screenshots"))
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--window-size=1200,1400",
)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    from tests.service import tiny

    root = tmp_path_factory.mktemp("browsed")
    tiny.save(root)
    return root


@pytest.fixture(scope="session")
def serving(checkpoints, shared_executables):
    """Gives the address of a server with these settings, once it is ready."""
    from service.app import create_app
    from service.settings import Settings
    from tests.service.fakes import listening

    @contextlib.contextmanager
    def serving(**settings):
        app = create_app(
            Settings(checkpoints=checkpoints, protected=(), **settings), kept=shared_executables
        )
        with listening(app) as client:
            yield str(client.base_url).rstrip("/")

    return serving


@pytest.fixture(scope="session")
def address(serving):
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def address_with_key(serving):
    with serving(api_keys="sesame", models="reversal") as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    program, driver = (
        next(filter(None, map(shutil.which, PROGRAMS)), None),
        shutil.which("chromedriver"),
    )
    if not (program and driver):
        pytest.skip("needs Chromium and its driver: make browser")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, address):
    """A page at any view, from a fresh start, which must leave no error in the console."""
    page = Page(browser, address)
    browser.get("about:blank")
    browser.get_log("browser")
    yield page
    page.require_no_errors()


class Page:
    """What the tests do with the page."""

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address
        self.expected_errors = ()

    def open(self, hash_=""):
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}/{hash_}")

    def find(self, selector):
        from selenium.webdriver.common.by import By

        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        """The one element, as soon as it is there and to be seen."""
        return self.wait(lambda: next((e for e in self.find(selector) if e.is_displayed()), None))

    def wait(self, condition):
        """What the condition gives once it is true, asked again where the page changed under it."""
        from selenium.common.exceptions import StaleElementReferenceException

        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                if found := condition():
                    return found
            assert time.monotonic() < deadline, self.one("main").text
            time.sleep(0.05)

    def type(self, selector, text):
        """Writes ``text`` in place of what is there."""
        from selenium.webdriver.common.keys import Keys

        field = self.one(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def hash(self):
        return self.run("return location.hash")

    def picture(self, name):
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(str(PICTURES / f"{name}.png"))

    def dark(self, *, is_dark):
        value = "dark" if is_dark else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def require_no_errors(self):
        entries = self.browser.get_log("browser")
        wrong = [
            entry["message"]
            for entry in entries
            if entry["level"] == "SEVERE"
            and not any(expected in entry["message"] for expected in self.expected_errors)
        ]
        assert not wrong, wrong
