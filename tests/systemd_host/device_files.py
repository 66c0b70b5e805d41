"""Device files of other slots are closed, also under systemd, which has separate device filters."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import finegrain_client as fg
from finegrain_client.blocking import Slot
from tests.systemd_host.installation import CONFIGURATION
from tests.systemd_host.machine import FRONT, HELPER, eventually, is_active, kill_now, sh
from tests.systemd_host.stories import ANSWER_S, SMALL, cluster, slot_of

FOLDER = Path("/dev/finegrain-story")  # most other file systems are mounted with nodev
TYPE = f'\n[devices.npu]\npaths = ["{FOLDER}/npu*"]\n'
OPEN = 'head -c 1 "$f" >/dev/null 2>&1 && r="$r opened" || r="$r refused"'
ATTEMPT = (
    f"r=; for f in {FOLDER}/npu0 {FOLDER}/npu1 /dev/null /dev/random; do {OPEN}; done; echo $r"
)


def a_task_opens_the_device_files_of_its_slot_only(_program: Path) -> None:
    """Uses two devices with the numbers of /dev/zero and /dev/full; tests before and after
    restarts.
    """
    shipped = CONFIGURATION.read_text()
    FOLDER.mkdir(exist_ok=True)
    for name, minor in (("npu0", 5), ("npu1", 7)):
        os.mknod(FOLDER / name, stat.S_IFCHR, os.makedev(1, minor))
        (FOLDER / name).chmod(0o666)
    try:
        with slot_of(SMALL) as older:
            assert _attempt(older) == "opened opened opened opened"
            CONFIGURATION.write_text(shipped + TYPE)
            sh("systemctl", "restart", FRONT)
            eventually(_are_offered, "the devices are offered")
            # This slot is older than the configuration of the devices.
            assert _attempt(older) == "refused refused opened opened"
        wish = fg.SlotSpec(cpu_milli=100, memory_bytes=64 * fg.MIB, devices={"npu": 100})
        with slot_of(wish) as slot:
            assert slot.isolation is not None
            assert slot.isolation.device_access == "cgroup", slot.isolation
            assert _attempt(slot) == "opened refused opened opened"
            slot.resize(memory_bytes=96 * fg.MIB)
            assert _attempt(slot) == "opened refused opened opened"
            for interrupt in (
                lambda: kill_now(HELPER),
                lambda: kill_now(FRONT, HELPER),
                lambda: sh("systemctl", "daemon-reload"),
                lambda: sh("systemctl", "daemon-reexec"),
            ):
                interrupt()
                eventually(lambda: is_active(FRONT) and is_active(HELPER), "both are active")
                assert _attempt(slot) == "opened refused opened opened"
            with slot_of(wish) as other:
                assert _attempt(other) == "refused opened opened opened"
        print(f"   kernel {os.uname().release}")
    finally:
        CONFIGURATION.write_text(shipped)
        for path in FOLDER.iterdir():
            path.unlink()
        FOLDER.rmdir()
        sh("systemctl", "restart", FRONT)
        eventually(lambda: not _are_offered(), "no devices are offered")


def _attempt(slot: Slot) -> str:
    """Returns whether a task can open each of the two devices and of two ordinary files."""
    return slot.run(["/bin/sh", "-c", ATTEMPT]).wait(ANSWER_S).check().stdout.decode().strip()


def _are_offered() -> bool:
    with cluster() as each:
        return bool(each.devices())


STORIES: tuple[Callable[[Path], None], ...] = (a_task_opens_the_device_files_of_its_slot_only,)
