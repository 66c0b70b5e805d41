"""The page in a real browser, on real daemons."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.driving import Daemons, eventually, finish, read_until
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]

MARKUP = "<img src=x onerror=document.title='hacked'>"


class Browser:
    """A browser without a window."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(each)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))

    def open(self, address: str) -> None:
        self.driver.get(address)

    @property
    def text(self) -> str:
        return str(self.driver.execute_script("return document.body.innerText"))

    def shows(self, *texts: str) -> None:
        """Waits until the page shows all of these."""
        try:
            eventually(lambda: all(text in self.text for text in texts), f"the page shows {texts}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{self.text}") from None

    def click(self, tag: str, text: str) -> None:
        """Clicks the first element with this text."""
        script = (
            "const found = [...document.querySelectorAll(arguments[0])]"
            ".find((each) => each.innerText.trim() === arguments[1]);"
            "if (found) found.click(); return Boolean(found);"
        )
        eventually(lambda: self.driver.execute_script(script, tag, text), f"there is {tag} {text}")

    def errors(self) -> list[Any]:
        """What the browser's console has, without failed requests."""
        lines: list[Any] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each for each in lines if "Failed to load resource" not in each["message"]]


@pytest.fixture
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.driver.quit()


def test_from_a_waiting_request_to_its_reason_and_a_drained_host(
    daemons: Daemons, browser: Browser
) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor("web-a").start()
    daemons.await_executors("web-a")
    run = daemons.cli.start("run", "--cpu", "0.8", "--", "sleep", "600")
    eventually(lambda: daemons.cli.items("slots"), "the first command has its slot")
    waits = daemons.cli.start("run", "--cpu", "0.8", "--name", MARKUP, "--", "true")
    page = daemons.cli.start("web", "--no-browser")
    address = read_until(page, b"\n").decode().strip()

    browser.open(address)
    browser.shows("operator/root", "web-a", "1 slot of 2 jobs", "WAITING_CAPACITY")
    browser.click("nav a", "Requests")
    browser.shows(MARKUP, "WAITING_CAPACITY")
    request = daemons.cli.items("requests")[1]["allocation_id"]
    browser.click("td a", request[-8:])
    browser.shows("Request", "asked 0.8, free 0.2")

    browser.click("nav a", "Cluster")
    browser.click("a", "web-a")
    browser.click("button", "Drain")
    browser.click("button.danger", "Drain")
    browser.shows("draining: drained on the web page")
    (executor,) = daemons.cli.items("executors")
    assert executor["draining"]

    daemons.manager.kill()
    browser.shows("Not up to date")
    daemons.manager.start()
    daemons.manager.endpoint()
    eventually(lambda: "Not up to date" not in browser.text, "the page is up to date again")
    browser.click("button", "Undrain")
    browser.click("button.danger", "Undrain")
    eventually(lambda: not daemons.cli.items("executors")[0]["draining"], "it is undrained")

    assert browser.driver.title == "finegrain"
    assert browser.errors() == []
    for process in (run, waits, page):
        process.send_signal(signal.SIGINT)
    assert finish(page).code == 0
    for process in (run, waits):
        process.wait(PATIENCE_S)
