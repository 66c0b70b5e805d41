"""Every view of the page: axe finds nothing, it fits a phone, and texts never become markup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.browser import Browser, browsing
from tests.support.components import AXE
from tests.support.page_cluster import PageCluster
from tests.support.page_serving import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]

HOSTILE = (
    "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
    "</td>\x1b[31m\x1b]0;hacked\x07\u202egnp.exe &amp; ${hacked} {{hacked}} javascript:hacked"
)

VIEWS = {
    "/": "rack",
    "/?by=note&color=group&order=name": "note plain",
    "/executors/host-00000?slot=slot-0-1&task=task-slot-0-1": "step 3",
    "/requests": "WAITING_CAPACITY",
    "/requests?explain=request-1": "no executor has 32 cpus free",
    "/requests/request-1": "no executor has 32 cpus free",
    "/jobs": "user/alice",
    "/jobs/job-0001": "Solid: has a slot",
    "/jobs/job-0001?chain=sink": "The graph as a table",
    "/groups": "entitled to",
    "/events": "executor_registered",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as made:
        yield made


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(PageCluster(hosts=5)) as served:
        yield served


def shown(text: str) -> str:
    """Returns a text as the page shows it: hidden characters are replaced."""
    return text.replace("\x1b", "\u241b").replace("\x07", "\u2407").replace("\u202e", "\ufffd")


def problems(browser: Browser) -> list[str]:
    """Returns the problems that axe finds in the page: each with its rule and the first element."""
    browser.run(AXE.read_text())
    script = "const done = arguments[0]; axe.run().then((found) => done(found.violations))"
    found: list[dict[str, Any]] = browser.driver.execute_async_script(script)
    return [f"{each['id']}: {each['nodes'][0]['html'][:300]}" for each in found]


@pytest.mark.needs("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(browser: Browser, served: Served, scheme: str) -> None:
    browser.media({"prefers-color-scheme": scheme})
    browser.open(served.address())
    browser.shows("rack")
    for path, text in {**VIEWS, "/groups?group=vision": "minimum (reserved)"}.items():
        browser.visit(path)
        browser.shows(text)
        assert (path, problems(browser)) == (path, [])
    browser.visit("/executors/host-00001")
    browser.click("button", "Drain")
    browser.shows("concerns 48 slots")
    assert problems(browser) == []


def test_every_view_fits_a_phone(served: Served) -> None:
    with browsing(width=360, height=700) as phone:
        phone.open(served.address())
        phone.shows("rack")
        for path, text in VIEWS.items():
            phone.visit(path)
            phone.shows(text)
            width = phone.run("return document.documentElement.scrollWidth")
            assert (path, width <= 360) == (path, True)


def test_texts_never_become_markup(browser: Browser) -> None:
    with serving(PageCluster(hosts=5, texts=HOSTILE)) as served:
        browser.open(served.address())
        browser.shows("rack")
        chain = f"/jobs/job-0001?chain={quote(f'sink {HOSTILE}')}"
        for path, text in {**VIEWS, chain: "Chain sink"}.items():
            browser.visit(path)
            browser.shows(text)
            if path not in ("/", "/requests/request-1"):
                browser.shows("<img src=x onerror=")
            found = browser.run(
                "return [document.title, document.querySelectorAll('img, main script').length,"
                " document.body.innerText + [...document.querySelectorAll('*')].map((each) =>"
                " [...each.attributes].map((one) => one.value).join()).join()]"
            )
            title, elements, texts = found
            assert (path, title, elements) == (path, "finegrain", 0)
            assert not {"\x1b", "\x07", "\u202e"} & set(texts), path
        browser.visit("/groups")
        browser.click("button.plain", f"▸ vision {shown(HOSTILE)}")
        browser.shows("Minimum (reserved)")
        browser.run("document.querySelector('fieldset input').focus()")
        browser.press("5")
        browser.click("button", "Change")
        browser.shows("Change group vision <img", "expected printable text")
        assert browser.run("return document.querySelectorAll('img, main script').length") == 0
        browser.visit("/executors/host-00000")
        browser.shows("Set for this host")
        browser.run(
            "const one = document.querySelector('fieldset select'); one.value = 'NONE';"
            "one.dispatchEvent(new Event('change', { bubbles: true }))"
        )
        browser.click("button", "Change policy")
        browser.shows(f"Restricted {shown(HOSTILE)}")
        assert browser.run("return document.querySelectorAll('img, main script').length") == 0
        assert browser.errors() == []


def test_nothing_moves_if_the_user_wants_no_motion(browser: Browser, served: Served) -> None:
    browser.media({"prefers-reduced-motion": "reduce"})
    browser.open(served.address())
    browser.shows("rack")
    moving = browser.run("return document.getAnimations().length")
    assert moving == 0


def test_a_link_restores_the_view(browser: Browser, served: Served) -> None:
    path = "/?by=note&order=drained&find=host-0000&color=group"
    browser.open(served.address(path))
    browser.shows("note plain", "host-00003")
    assert browser.run("return location.pathname + location.search") == path
    chosen = "return [...document.querySelectorAll('select')].map((each) => each.value)"
    assert browser.run(chosen) == ["note", "drained", "group"]
    assert browser.run("return document.querySelector('input').value") == "host-0000"


def test_the_keyboard_reaches_everything_in_order(browser: Browser, served: Served) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(served.address())
    browser.shows("rack r000", "host-00003")
    reached = []
    for _ in range(40):
        browser.press(Keys.TAB)
        reached.append(browser.run("return document.activeElement.innerText.split('\\n')[0]"))
    places = [reached.index(each) for each in ("Skip to content", "Cluster", "▾ rack r000")]
    assert places == sorted(places)
    assert {"host-00000", "host-00004"} <= set(reached)
    browser.run("[...document.querySelectorAll('h2 button')][0].focus()")
    browser.press(Keys.ENTER)
    browser.shows("▸ rack r000")
