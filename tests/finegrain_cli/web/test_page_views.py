"""The views of the page in a real browser, for a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, browsing
from tests.support.page_cluster import PageCluster
from tests.support.page_machine import host_id
from tests.support.page_serving import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as made:
        yield made


@pytest.fixture
def cluster() -> PageCluster:
    return PageCluster(hosts=5)


@pytest.fixture
def served(cluster: PageCluster) -> Iterator[Served]:
    with serving(cluster) as served:
        yield served


def shown_hosts(browser: Browser) -> list[str]:
    """The names of the hosts with a map, in order."""
    script = "return [...document.querySelectorAll('.host > a')].map((each) => each.innerText)"
    found: list[str] = browser.run(script)
    return found


def settings(browser: Browser) -> str:
    """The query of the address."""
    return str(browser.run("return location.search"))


def choose(browser: Browser, label: str, value: str) -> None:
    """Chooses a value in the list with this label."""
    script = """
        const label = [...document.querySelectorAll("label")]
          .find((each) => each.innerText.startsWith(arguments[0]));
        const select = label.querySelector("select");
        select.value = arguments[1];
        select.dispatchEvent(new Event("change", { bubbles: true }));
    """
    browser.run(script, label, value)


def test_a_small_cluster_is_a_map_of_hosts(browser: Browser, served: Served) -> None:
    browser.open(served.address())
    browser.shows("rack r000", "node 0 cpu", "node 1 memory", "gpu1", "reserved for the system")
    assert shown_hosts(browser)[0] == host_id(4)  # it is lost
    choose(browser, "Show first", "fullest")
    browser.shows("64 slots")
    assert shown_hosts(browser)[0] == host_id(0)
    choose(browser, "Color slots by", "group")
    assert settings(browser) == "?order=fullest&color=group"
    label = browser.run("return document.querySelector('.host canvas').ariaLabel")
    assert label.startswith("host-00000: 64 slots, cpu 44 allocated")
    assert browser.errors() == []


def test_a_large_cluster_is_groups_that_open(browser: Browser) -> None:
    with serving(PageCluster(hosts=120)) as served:
        browser.open(served.address())
        browser.shows("rack r000", "rack r002", "40 hosts", "1 lost", "host-00004 lost")
        assert shown_hosts(browser) == []
        browser.click("h2 button", "▸ rack r001")
        browser.shows("host-00041", "node 1 cpu")
        assert len(shown_hosts(browser)) == 40
        assert settings(browser) == "?open=r001"
        address = served.address("/?open=r002&find=00085&order=name")
        browser.open(address)
        browser.shows("host-00085", "node 1 cpu")
        assert shown_hosts(browser) == ["host-00085"]


def test_a_change_is_shown(browser: Browser, cluster: PageCluster, served: Served) -> None:
    browser.open(served.address())
    browser.shows("2 hosts need attention")
    served.change(cluster.drain, host_id(1))
    browser.shows("3 hosts need attention", "host-00001 draining")
