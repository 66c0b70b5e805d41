"""The views of the page in a real browser, for a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from finegrain.identity import Role
from tests.support.browser import Browser, browsing, eventually
from tests.support.page_cluster import PageCluster
from tests.support.page_machine import host_id
from tests.support.page_pictures import FOLDER, PICTURES, write
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


def labels(browser: Browser) -> list[str]:
    """The texts of the boxes of a graph for screen readers, in the order of the Tab key."""
    browser.has(".graph a")
    script = "return [...document.querySelectorAll('.graph a')].map((each) => each.ariaLabel)"
    found: list[str] = browser.run(script)
    return found


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


DRAWN = """
    const blank = document.createElement("canvas");
    return [...document.querySelectorAll(".group canvas")].map((canvas) => {
      blank.width = canvas.width, blank.height = canvas.height;
      return canvas.toDataURL() !== blank.toDataURL();
    });
"""


def test_only_visible_parts_of_a_large_map_are_drawn(browser: Browser) -> None:
    cluster = PageCluster(hosts=1200)
    with serving(cluster) as served:
        browser.open(served.address("/?order=name"))
        browser.shows("rack r029", "2 hosts need attention")
        eventually(lambda: browser.run(DRAWN)[0], "the first group is drawn")
        assert not browser.run(DRAWN)[-1]
        served.change(cluster.drain, host_id(1199))
        browser.shows("3 hosts need attention")
        assert not browser.run(DRAWN)[-1]
        browser.run("document.querySelector('.group:last-child').scrollIntoView()")
        eventually(lambda: browser.run(DRAWN)[-1], "the last group is drawn")
        browser.shows("1 draining")
    assert browser.errors() == []


def test_a_change_is_shown(browser: Browser, cluster: PageCluster, served: Served) -> None:
    browser.open(served.address())
    browser.shows("2 hosts need attention")
    served.change(cluster.drain, host_id(1))
    browser.shows("3 hosts need attention", "host-00001 draining")


def test_a_host_shows_its_slots_in_their_places(browser: Browser, served: Served) -> None:
    browser.open(served.address("/executors/host-00000"))
    browser.shows(
        "node 0: 32 cpus, 8 of single slots, shared pool 10-31",
        "unhealthy: cordoned: fan",
        "NV12 gpu1",
        "cpu quota, memory hard",
    )
    label = browser.run("return document.querySelector('.rows canvas').ariaLabel")
    assert label.startswith("node 0 cpu: 32 slots, 69 % allocated; node 0 memory: 32 slots")
    browser.click("td button", "slot-0-1")
    browser.shows("34-35, class LSR", "task heap memory 2Gi", "Tasks of this slot", "train.py")
    assert settings(browser) == "?slot=slot-0-1"


def test_the_output_of_a_task_is_shown_as_it_is_written(browser: Browser, served: Served) -> None:
    browser.open(served.address("/executors/host-00000?slot=slot-0-1&task=task-slot-0-1"))
    browser.shows("Output of task", "step 3: loss 0.5", "RUNNING")
    browser.shows("step 30: loss 0.5")
    kinds = browser.run("return document.querySelectorAll('pre .stderr').length")
    assert kinds > 0
    browser.visit("/events")
    browser.shows("executor_registered")
    assert browser.errors() == []


def test_a_reason_opens_the_whole_explanation(browser: Browser, served: Served) -> None:
    browser.open(served.address("/requests"))
    browser.shows("8 WAITING_CAPACITY", "4 BEHIND_QUEUE")
    browser.click("p button", "4 BEHIND_QUEUE")
    browser.shows("4 requests that have not ended")
    browser.click("td button", "BEHIND_QUEUE")
    browser.shows(
        "no executor has 32 cpus free",
        "3 more slots of this size fit now",
        "cpu at most 9",
        "served next",
        "cpu 32, task heap memory 8Gi, licence 1",
    )
    assert settings(browser) == "?reason=BEHIND_QUEUE&explain=request-0"
    browser.press(Keys.ESCAPE)
    browser.hides("no executor has 32 cpus free")
    assert settings(browser) == "?reason=BEHIND_QUEUE"
    assert browser.run("return document.activeElement.innerText") == "BEHIND_QUEUE"


def test_a_drain_shows_first_what_it_concerns(
    browser: Browser, cluster: PageCluster, served: Served
) -> None:
    browser.open(served.address("/executors/host-00001"))
    browser.click("button", "Drain")
    browser.shows("concerns 48 slots", "The first 20 of 48 slots", "slot-1-19", "host-00002")
    browser.press(Keys.ESCAPE)
    browser.hides("concerns 48 slots")
    browser.lacks("dialog")
    browser.click("button", "Drain")
    browser.click("button.danger", "Drain")
    browser.shows("ACTIVE, draining")
    assert host_id(1) in cluster.drained


def test_a_dialog_keeps_the_focus(browser: Browser, served: Served) -> None:
    browser.open(served.address("/requests?explain=request-1"))
    browser.shows("no executor has 32 cpus free")
    inside = (
        "return document.activeElement === document.body ||"
        " document.querySelector('dialog').contains(document.activeElement)"
    )
    for _ in range(60):
        browser.press(Keys.TAB)
        assert browser.run(inside)


def test_a_job_has_slots_a_graph_and_a_timeline(browser: Browser, served: Served) -> None:
    browser.open(served.address("/jobs"))
    browser.click("td a", "train-1")
    browser.shows(
        "Job train-1",
        "user/alice",
        "Solid: has a slot",
        "2 tasks, 2 running",
        "slot-0-1",
        "Requests that wait",
    )
    assert labels(browser) == [
        "source+map, 1 of 2 running, group default; gives data to sink",
        "sink, 1 of 2 running, group default; gets data from source+map; gives data to report",
        "report, planned, 1 subtask, group not known; gets data from sink",
    ]
    assert browser.run("return document.querySelectorAll('.graph .edge.blocking').length") == 1
    browser.run("document.querySelectorAll('.graph a')[0].focus()")
    browser.press(Keys.ENTER)
    browser.shows("source: managed memory 512Mi used of 1Gi", "python train.py --name=first")
    assert settings(browser) == "?chain=source%2Bmap"
    browser.click("summary", "The graph as a table")
    browser.click("td button", "sink")
    browser.hides("source: managed memory")
    browser.click("td a", "lot-0-11")
    browser.shows("Output of task", "step 3")


def test_a_large_graph_is_drawn_within_its_frame(browser: Browser) -> None:
    with serving(PageCluster(hosts=5, chains=200)) as served:
        browser.open(served.address("/jobs/job-0001"))
        browser.shows("200 tasks")
        found = labels(browser)
        assert len(found) == 200
        assert any(each.startswith("chain-9, failed, 1 of 2 ended, group") for each in found)
        browser.run("[...document.querySelectorAll('.graph a')].at(-1).focus()")
        inside = """
            const frame = document.querySelector(".graph").parentElement.getBoundingClientRect();
            const box = document.activeElement.getBoundingClientRect();
            return box.left >= frame.left && box.right <= frame.right;
        """
        eventually(lambda: browser.run(inside), "the box with the focus is scrolled into view")
        overlap = """
            const boxes = [...document.querySelectorAll(".graph .frame")]
              .map((each) => each.getBoundingClientRect());
            return boxes.some((one, at) => boxes.slice(at + 1).some((two) =>
              one.left < two.right && two.left < one.right &&
              one.top < two.bottom && two.top < one.bottom));
        """
        assert not browser.run(overlap)
        assert browser.errors() == []


def test_a_group_shows_its_use_over_time(browser: Browser, served: Served) -> None:
    browser.open(served.address("/groups"))
    browser.click("button", "▸ vision")
    browser.shows("entitled to 20.0 %", "uses cpu 18, memory 60Gi", "requests that wait")
    browser.shows(
        "cpu: used 14.85", "allocated 27.8", "share by weight 62", "minimum (reserved) 12"
    )
    browser.shows("memory: used 48Gi", "allocated 69Gi")
    browser.has(".chart canvas")
    browser.click("summary", "Values of share")
    browser.shows("time", "17.8 %")
    assert settings(browser) == "?group=vision"


def test_a_new_weight_shows_the_shares_before_and_after(browser: Browser, served: Served) -> None:
    browser.open(served.address("/groups?group=vision"))
    browser.has("input[type=number]")
    browser.run("document.querySelector('input[type=number]').focus()")
    browser.press(Keys.BACKSPACE, "3")
    browser.click("button", "Change")
    browser.shows("Change group vision?", "changes one share", "20.0 %", "30.0 %")
    browser.press(Keys.ESCAPE)
    browser.lacks("dialog")
    browser.run("document.querySelectorAll('fieldset input')[0].focus()")
    browser.press(Keys.BACKSPACE, "5")
    browser.click("button", "Change")
    browser.shows("less than the new minimum", "cpu, slots")


def test_a_new_policy_shows_the_settings_before_and_after(browser: Browser, served: Served) -> None:
    browser.open(served.address("/executors/host-00000"))
    browser.shows("Settings for new slots", "LeastAllocated", "Set for this host")
    assert browser.run("return document.querySelector('fieldset input').value") == "0-1"
    rows = browser.run(
        "return [...document.querySelectorAll('[aria-label^=Settings] tbody tr')]"
        ".map((each) => each.innerText)"
    )
    assert rows[:1] == ["bind\tNone\tbuilt-in"]
    assert rows[3:5] == ["reserved cpus\t0-1\toperator", "strictly reserved cpus\tnone\toperator"]
    choose(browser, "alignment", "RESTRICTED")
    browser.click("button", "Change policy")
    browser.shows("Change the cpu policy of host-00000?", "Settings in effect", "Restricted")


def test_a_device_can_be_cordoned(browser: Browser, served: Served) -> None:
    browser.open(served.address("/executors/host-00001"))
    browser.click("td button", "Cordon")
    browser.shows("Let no new slot get gpu0?", "concerns 48 slots")
    browser.open(served.address("/executors/host-00000"))
    browser.click("td button", "Uncordon")
    browser.shows("Let new slots get gpu1?")


def test_a_viewer_sees_no_buttons_that_change(browser: Browser) -> None:
    with serving(PageCluster(hosts=5), Role.VIEWER) as served:
        browser.open(served.address("/executors/host-00001"))
        browser.shows("viewer/root", "shared pool")
        assert browser.run("return document.querySelectorAll('[aria-haspopup=dialog]').length") == 0


def test_events_are_filtered_in_the_address(browser: Browser, served: Served) -> None:
    browser.open(served.address("/events?kind=executor_draining&find=kernel"))
    browser.shows("1 of the last 3 events", "drained for a new kernel")


def test_the_pictures_of_the_documentation_can_be_made(tmp_path: Path) -> None:
    write(tmp_path / "pictures", PICTURES[-1:])
    (made,) = (tmp_path / "pictures").iterdir()
    assert made.name == "web-group.png"
    assert made.read_bytes().startswith(b"\x89PNG")


def test_the_documentation_has_each_picture_once() -> None:
    text = (FOLDER.parent / "web.md").read_text()
    assert sorted(each.stem for each in FOLDER.iterdir()) == sorted(each.name for each in PICTURES)
    assert [text.count(f"](pictures/{each.name}.png)") for each in PICTURES] == [1] * len(PICTURES)
