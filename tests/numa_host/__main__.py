"""`python -m tests.numa_host`: slots with dedicated cpus on a kernel with NUMA nodes.

Runs as root on a host with at least two NUMA nodes and an installed finegrain, on either version of
cgroups. Starts a resource manager and an executor that has the whole host, runs the tests, takes
cpus offline and back, sets huge pages, and removes everything again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping

from tests.numa_host import kernel
from tests.numa_host.daemons import Host
from tests.numa_host.stories import STORIES
from tests.systemd_host.machine import on_v2

LOG_SHOWN = 4_000


def main() -> int:
    """Returns 0 if all stories succeed, 1 if one fails, 2 if this host is not suitable."""
    parser = argparse.ArgumentParser(prog="tests.numa_host", description=__doc__)
    parser.add_argument("--i-may-break-this-host", action="store_true")
    known = [story.__name__ for story in STORIES]
    parser.add_argument("stories", nargs="*", choices=[[], *known], help="default: all")
    told = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is a text file
    if not told.i_may_break_this_host:
        sys.stderr.write(
            "this takes cpus offline, sets huge pages, and runs tasks as root; say "
            "--i-may-break-this-host on a machine for that\n"
        )
        return 2
    nodes = kernel.nodes()
    if os.geteuid() or len([cpus for cpus in nodes.values() if cpus]) < 2:
        sys.stderr.write("run as root on a host with two NUMA nodes or more\n")
        return 2
    print(f"cgroups {'v2' if on_v2() else 'v1'}, cpus {kernel.online()}, by node {_text(nodes)}")
    host, failed = Host(), list[str]()
    try:
        began = time.monotonic()
        host.start()
        print(f"-- started in {time.monotonic() - began:.1f} s")
        for story in STORIES:
            if not told.stories or story.__name__ in told.stories:
                failed += _tell(story.__name__, story, host)
    finally:
        if failed:
            _show(host)
        host.stop()
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "every story holds")
    return 1 if failed else 0


def _tell(name: str, story: Callable[[Host], None], host: Host) -> list[str]:
    began = time.monotonic()
    print(f"-- {name.replace('_', ' ')}")
    try:
        story(host)
        host.settled()
    except Exception:
        traceback.print_exc()
        host.forget_settings()
        return [name]
    finally:
        print(f"   {time.monotonic() - began:.1f} s")
    return []


def _show(host: Host) -> None:
    for daemon in (host.manager, host.executor):
        print(f"   log of {daemon.state.name}:\n" + daemon.log.read_text()[-LOG_SHOWN:])


def _text(nodes: Mapping[int, object]) -> str:
    return ", ".join(f"{node}: {cpus}" for node, cpus in sorted(nodes.items()))


if __name__ == "__main__":
    sys.exit(main())
