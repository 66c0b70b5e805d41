"""`python -m tests.gpu_host`: finegrain on a host with NVIDIA GPUs and their driver.

Runs as root with an installed finegrain, on either version of cgroups. Starts a resource manager
and an executor that has the whole host, runs the tests, and removes everything again. It changes
nothing on the GPUs, and needs them unused.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from datetime import UTC, datetime

from tests.gpu_host import work
from tests.gpu_host.stories import STORIES as OF_FILES
from tests.gpu_host.stories import listed
from tests.numa_host.daemons import Host
from tests.systemd_host.machine import on_v2

STORIES = (*OF_FILES, *work.STORIES)
LOG_SHOWN = 4_000


def main() -> int:
    """Returns 0 if all stories succeed, 1 if one fails, 2 if this host is not suitable."""
    parser = argparse.ArgumentParser(prog="tests.gpu_host", description=__doc__)
    known = [story.__name__ for story in STORIES]
    parser.add_argument("stories", nargs="*", choices=[[], *known], help="default: all")
    told = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is a text file
    gpus = listed("name", "driver_version")
    if os.geteuid() or not gpus:
        sys.stderr.write("run as root on a host where nvidia-smi lists GPUs\n")
        return 2
    print(f"{datetime.now(UTC):%Y-%m-%d}, kernel {os.uname().release}, {len(gpus)} GPUs")
    print(f"{', '.join(gpus[0])}, cgroups {'v2' if on_v2() else 'v1'}")
    host, failed = Host(), list[str]()
    try:
        host.start()
        for story in STORIES:
            if told.stories and story.__name__ not in told.stories:
                continue
            began = time.monotonic()
            print(f"-- {story.__name__.replace('_', ' ')}")
            try:
                story(host)
                host.settled()
            except Exception:
                traceback.print_exc()
                failed.append(story.__name__)
            print(f"   {time.monotonic() - began:.1f} s")
    finally:
        if failed:
            for daemon in (host.manager, host.executor):
                print(f"   log of {daemon.state.name}:\n" + daemon.log.read_text()[-LOG_SHOWN:])
        host.stop()
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "every story holds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
