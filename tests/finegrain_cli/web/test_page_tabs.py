"""Several tabs of one browser: they share one live stream, and hidden tabs cost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from finegrain_cli.web.live import Live
from tests.support.browser import Browser, browsing, eventually
from tests.support.page_cluster import PageCluster
from tests.support.page_machine import host_id
from tests.support.page_serving import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]


class Streams:
    """Counts the live streams that the server of the page has opened, and that are open now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self._live: set[Live] = set()
        plain = Live.open

        async def counted(live: Live, *given: Any) -> Any:
            self.opened += 1
            self._live.add(live)
            return await plain(live, *given)

        monkeypatch.setattr(Live, "open", counted)

    @property
    def open(self) -> int:
        return sum(len(each._readers) for each in self._live)

    def settle(self, count: int) -> None:
        """Waits until this number of streams is open."""
        eventually(lambda: self.open == count, f"{count} streams are open")


class Reads(PageCluster):
    """A cluster that counts the reads of its lists."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counts: Counter[str] = Counter()

    async def ListRequests(self, request: Any, **more: Any) -> Any:
        self.counts["requests"] += 1
        return await super().ListRequests(request, **more)

    async def ListGroups(self, request: Any, **more: Any) -> Any:
        self.counts["groups"] += 1
        return await super().ListGroups(request, **more)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


@pytest.fixture
def cluster() -> Reads:
    return Reads(hosts=5)


@pytest.fixture
def served(cluster: Reads, streams: Streams) -> Iterator[Served]:
    with serving(cluster) as served:
        yield served


@pytest.fixture
def browser() -> Iterator[Browser]:
    with browsing() as made:
        yield made


def new_tab(browser: Browser) -> str:
    """Opens a tab in front of the other tabs, and returns its handle."""
    browser.driver.switch_to.new_window("tab")
    return str(browser.driver.current_window_handle)


def show(browser: Browser, tab: str) -> None:
    """Brings a tab to the front, as a click on the tab does."""
    browser.driver.switch_to.window(tab)
    browser.devtools("Page.bringToFront")
    eventually(lambda: not browser.run("return document.hidden"), "the tab is shown")


def test_all_tabs_share_one_stream(
    browser: Browser, cluster: Reads, served: Served, streams: Streams
) -> None:
    first = browser.driver.current_window_handle
    browser.open(served.address())
    browser.shows("2 hosts need attention")
    second = new_tab(browser)
    browser.open(served.address())
    browser.shows("2 hosts need attention")
    served.change(cluster.drain, host_id(1))
    for tab in (second, first):
        show(browser, tab)
        browser.shows("3 hosts need attention")
    assert (streams.opened, streams.open) == (1, 1)

    browser.open("about:blank")  # the first tab leaves, and the stream stays for the second
    show(browser, second)
    served.change(cluster.drain, host_id(2))
    browser.shows("4 hosts need attention")
    assert (streams.opened, streams.open) == (1, 1)

    browser.open("about:blank")
    streams.settle(0)


def test_a_hidden_tab_reads_nothing_and_catches_up(
    browser: Browser, cluster: Reads, served: Served, streams: Streams
) -> None:
    first = browser.driver.current_window_handle
    browser.open(served.address("/requests"))
    browser.shows("12 requests")
    new_tab(browser)
    browser.open(served.address("/groups"))
    browser.shows("research")
    requests, groups = cluster.counts["requests"], cluster.counts["groups"]
    cluster.waiting = 7
    served.change(cluster.drain, host_id(1))
    eventually(lambda: cluster.counts["groups"] >= groups + 3, "the visible tab reads again")
    assert cluster.counts["requests"] == requests
    show(browser, first)
    browser.shows("7 requests")
    assert cluster.counts["requests"] > requests
    assert (streams.opened, streams.open) == (1, 1)


def test_without_shared_workers_a_hidden_tab_closes_its_stream(
    browser: Browser, cluster: Reads, served: Served, streams: Streams
) -> None:
    without = "delete globalThis.SharedWorker"
    first = browser.driver.current_window_handle
    browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=without)
    browser.open(served.address())
    browser.shows("2 hosts need attention")
    new_tab(browser)
    streams.settle(0)
    browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=without)
    browser.open(served.address())
    served.change(cluster.drain, host_id(1))
    browser.shows("3 hosts need attention")
    assert (streams.opened, streams.open) == (2, 1)
    show(browser, first)
    browser.shows("3 hosts need attention")
    streams.settle(1)
    assert streams.opened == 3
