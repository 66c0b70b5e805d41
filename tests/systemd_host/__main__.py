"""Tests finegrain under systemd: `python -m tests.systemd_host`, on a host that may be damaged.

It must run as root. It needs systemd (244 or newer on cgroup v2), Python and an installed
finegrain, and nothing else. It installs the units of a release, runs its tests ("stories"), and
removes everything again, unless `--keep` is given. To test a reboot, the caller runs it with
`--before-reboot`, reboots the host, and runs it with `--after-reboot`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.systemd_host import device_files, installation, reboot, sizes
from tests.systemd_host.machine import FRONT, HELPER, RM, journal, sh
from tests.systemd_host.stories import STORIES


def main() -> int:
    """Returns 0 if all stories succeed, 1 if one fails (it then prints the journals), 2 if this
    host is not suitable.
    """
    told = _arguments()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is a text file
    if not told.i_may_break_this_host:
        sys.stderr.write(
            "this installs and removes units, users, /etc/finegrain and /var/lib/finegrain, and "
            "kills what finegrain runs here; say --i-may-break-this-host on a machine for that\n"
        )
        return 2
    try:
        installation.check_host()
    except AssertionError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    program = Path(told.finegrain).absolute()
    failed = []
    for name, story in _plot(told, program):
        began, used = time.monotonic(), time.process_time()
        print(f"-- {name}", flush=True)
        try:
            story()
        except Exception:
            traceback.print_exc()
            failed.append(name)
            _show()
            if name == "install":
                break
        print(f"   {time.monotonic() - began:.1f} s ({time.process_time() - used:.1f} s of ours)")
    if not told.keep:
        installation.remove()
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "every story holds")
    return 1 if failed else 0


def _plot(told: argparse.Namespace, program: Path) -> list[tuple[str, Callable[[], None]]]:
    plot: list[tuple[str, Callable[[], None]]] = []
    if not told.installed:
        plot.append(("install", lambda: installation.install(program)))
    if told.before_reboot:
        return [*plot, ("before the reboot", reboot.before)]
    if told.after_reboot:
        return [*plot, ("after the reboot", reboot.after)]
    every = (*STORIES, *sizes.STORIES, *device_files.STORIES)
    wanted = [s for s in every if not told.stories or s.__name__ in told.stories]
    named = [(s.__name__.replace("_", " "), lambda s=s: s(program)) for s in wanted]
    return [*plot, *named]


def _arguments() -> argparse.Namespace:
    beside = shutil.which("finegrain", path=str(Path(sys.executable).parent))
    parser = argparse.ArgumentParser(prog="tests.systemd_host", description=__doc__)
    parser.add_argument("--i-may-break-this-host", action="store_true")
    parser.add_argument("--finegrain", default=beside or "/opt/finegrain/bin/finegrain")
    parser.add_argument("--installed", action="store_true", help="use the units that are there")
    parser.add_argument("--keep", action="store_true", help="leave everything installed")
    parser.add_argument("--before-reboot", action="store_true")
    parser.add_argument("--after-reboot", action="store_true")
    parser.add_argument("stories", nargs="*", help="names; default: all")
    return parser.parse_args()


def _show() -> None:
    for unit in (RM, HELPER, FRONT):
        print(f"   journal of {unit}:\n" + journal(unit)[-3000:])
    print(sh("systemctl", "status", "--no-pager", "--full", RM, HELPER, FRONT, check=False)[-6000:])
    print(sh("systemd-cgls", "--no-pager", "--xattr=no", check=False)[-3000:])


if __name__ == "__main__":
    sys.exit(main())
