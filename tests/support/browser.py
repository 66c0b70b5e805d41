"""Drives the page in Chromium, as people do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support import patience

eventually = patience.eventually


class Browser:
    """A browser without a window.

    Args:
        width: width of the page in CSS pixels.
        height: height of the page.
        features: media features, such as {"prefers-color-scheme": "dark"}.
        flags: further flags of Chromium.
    """

    def __init__(
        self,
        width: int = 1280,
        height: int = 900,
        features: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", *flags):
            options.add_argument(each)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        self.size(width, height)
        self.media(features or {})

    def size(self, width: int, height: int) -> None:
        """Sets the size of the page, which may be smaller than the smallest window."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, features: Mapping[str, str]) -> None:
        """Sets media features, such as "prefers-color-scheme"."""
        named = [{"name": name, "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=named)

    def devtools(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(method, parameters)

    def open(self, address: str) -> None:
        self.driver.get(address)

    def run(self, script: str, *values: Any) -> Any:
        """Runs a script in the page, and returns its value."""
        return self.driver.execute_script(script, *values)

    def visit(self, path: str) -> None:
        """Shows another view of the open page, as a link does: a reload would end the session."""
        self.run("history.pushState(null, '', arguments[0])", path)
        self.run("dispatchEvent(new PopStateEvent('popstate'))")

    @property
    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def shows(self, *texts: str) -> None:
        """Waits until the page shows all of these."""
        try:
            eventually(lambda: all(text in self.text for text in texts), f"the page shows {texts}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{self.text}") from None

    def hides(self, text: str) -> None:
        """Waits until the page does not show a text."""
        eventually(lambda: text not in self.text, f"the page hides {text}")

    def has(self, selector: str) -> None:
        """Waits until an element is in the page."""
        script = "return document.querySelector(arguments[0]) !== null"
        eventually(lambda: self.run(script, selector), f"there is {selector}")

    def lacks(self, selector: str) -> None:
        """Waits until no such element is in the page. A dialog is hidden before the page removes
        it.
        """
        script = "return document.querySelector(arguments[0]) === null"
        eventually(lambda: self.run(script, selector), f"there is no {selector}")

    def click(self, tag: str, text: str) -> None:
        """Clicks the first element with this text."""
        script = (
            "const found = [...document.querySelectorAll(arguments[0])]"
            ".find((each) => each.innerText.trim() === arguments[1]);"
            "if (found) { found.focus(); found.click(); } return Boolean(found);"
        )
        eventually(lambda: self.run(script, tag, text), f"there is {tag} {text}")

    def press(self, *keys: str) -> None:
        """Presses keys, one after another, where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def errors(self) -> list[Any]:
        """Returns the messages in the browser's console, without failed requests."""
        lines: list[Any] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each for each in lines if "Failed to load resource" not in each["message"]]

    def screenshot(self) -> bytes:
        """The page as a PNG."""
        return bytes(self.driver.get_screenshot_as_png())


@contextmanager
def browsing(**options: Any) -> Iterator[Browser]:
    """Runs a browser; see `Browser`."""
    made = Browser(**options)
    try:
        yield made
    finally:
        made.driver.quit()
