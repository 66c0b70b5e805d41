"""Measures the web page in Chromium, for a large simulated cluster: `python -m bench.web_page`.

The real server of the page answers in this process, from a simulated cluster without daemons. So
the figures are those of the page and its server, and not of a resource manager.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from tests.support.browser import Browser, browsing
from tests.support.page_cluster import PageCluster
from tests.support.page_machine import HOSTS_PER_RACK, host_id
from tests.support.page_serving import Served, serving

OBSERVE = """
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) {
        window.longest = Math.max(window.longest, duration);
      }
    }).observe({ type: "longtask", buffered: true });
    window.when = (test) => new Promise((resolve) => {
      const look = () => {
        requestAnimationFrame(test() ? () => resolve(Date.now()) : look);
      };
      look();
    });
"""
MIB = 2**20
CHANGES = 20


@dataclass(frozen=True)
class Figures:
    """What was measured, in milliseconds and bytes."""

    first_paint_ms: float
    map_ms: float
    opened_ms: float
    changes_ms: list[float]
    longest_task_ms: float
    heap_bytes: int
    tab_bytes: int


def measure(hosts: int, slots: int) -> Figures:
    """Opens the page, opens a group, and changes hosts."""
    cluster = PageCluster(hosts, slots, all_full=True)
    for number in range(hosts):
        cluster.executor(number)
    with serving(cluster) as served, browsing(flags=("--enable-precise-memory-info",)) as browser:
        browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=OBSERVE)
        browser.open(served.address())
        # Open the page twice: the first time, the browser also compiles the scripts.
        browser.open("about:blank")
        browser.open(served.address())
        shown = _when(browser, "document.body.innerText.includes(arguments[0])", _last_rack(hosts))
        first_paint = browser.run(
            "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        map_ms = shown - browser.run("return performance.timeOrigin")
        began = browser.run(
            "const before = Date.now(); document.querySelector('h2 button').click(); return before"
        )
        opened = _when(browser, "document.querySelectorAll('.host canvas').length >= 6") - began
        changes = [_change(browser, served, cluster, number) for number in range(CHANGES)]
        browser.devtools("HeapProfiler.collectGarbage")
        return Figures(
            first_paint,
            map_ms,
            opened,
            changes,
            browser.run("return window.longest"),
            browser.run("return performance.memory.usedJSHeapSize"),
            _tab_bytes(browser),
        )


def _last_rack(hosts: int) -> str:
    return f"rack r{(hosts - 1) // HOSTS_PER_RACK:03d}"


def _when(browser: Browser, test: str, *values: Any) -> float:
    """Returns the time of the first frame in which a test is true, in ms since 1970."""
    script = (
        "const done = arguments[arguments.length - 1], values = [...arguments];"
        f"window.when(function () {{ return {test}; }}.bind(null, ...values)).then(done)"
    )
    return float(browser.driver.execute_async_script(script, *values))


def _change(browser: Browser, served: Served, cluster: PageCluster, number: int) -> float:
    """Drains a host, and returns the time until the page shows it."""
    drained = number + 10
    count = f"{number + 3} hosts need attention"  # two hosts need it before
    at: list[float] = []

    def drain(call: Callable[[str], None]) -> None:
        at.append(time.time() * 1000)
        call(host_id(drained))

    served.change(drain, cluster.drain)
    return _when(browser, "document.body.innerText.includes(arguments[0])", count) - at[0]


def _tab_bytes(browser: Browser) -> int:
    """Returns the memory of the renderer of the page, including its part of shared memory."""
    service = psutil.Process(browser.driver.service.process.pid)
    renderers = [
        each for each in service.children(recursive=True) if "--type=renderer" in each.cmdline()
    ]
    return max(int(each.memory_full_info().pss) for each in renderers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=64, help="slots on each host")
    chosen = parser.parse_args()
    found = measure(chosen.hosts, chosen.slots)
    changes = sorted(found.changes_ms)
    print(f"{chosen.hosts} hosts with {chosen.slots} slots each")
    print(f"first paint                {found.first_paint_ms:8.0f} ms")
    print(f"map with all hosts         {found.map_ms:8.0f} ms")
    print(f"a rack of hosts opened     {found.opened_ms:8.0f} ms")
    print(f"a change is visible        {changes[len(changes) // 2]:8.0f} ms (median)")
    print(f"                           {changes[-1]:8.0f} ms (longest of {len(changes)})")
    print(f"longest task of the page   {found.longest_task_ms:8.0f} ms")
    print(f"heap of the page           {found.heap_bytes / MIB:8.0f} MiB")
    print(f"memory of the tab          {found.tab_bytes / MIB:8.0f} MiB")


if __name__ == "__main__":
    main()
