"""A full disk loses output, but never a task or its exit status. A task that cannot start is
refused with the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.errors import FinegrainError, Reason
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import HelperClient
from tests.task_executor.helper.conftest import Host

pytestmark = [pytest.mark.needs("root")]


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


async def start_many(host: Host, count: int, argument: str) -> None:
    for number in range(count):
        await host.start(f"true # {argument}", f"long-{number}")


async def test_a_task_on_a_full_disk(config: HelperConfig, small_disk: Path) -> None:
    config = replace(config, state_dir=str(small_disk / "state"))
    host = Host(config, start_helper(config), await HelperClient.connect(config.socket_path))
    try:
        await host.slot()
        await host.start("read go; echo lost; exit 5", stdin=True)
        fill(small_disk)
        await host.client.write_input("task", 0, b"go\n")
        record = await host.exit_of()
        assert (record.exit_code, record.stdout_bytes, record.stdout_dropped_bytes) == (5, 0, 5)
        # The supervisor has reserved space for some tasks. Each of these needs 16 KiB.
        with pytest.raises(FinegrainError) as caught:
            await start_many(host, 20, argument="x" * 16_000)
        assert caught.value.reason in (Reason.DISK_FULL, Reason.START_FAILED)
        assert "No space left" in caught.value.message
        with pytest.raises(FinegrainError, match="No space left"):
            await host.slot("late")
        (small_disk / "filler").unlink()
        await host.start("exit 6", "late")
        assert (await host.exit_of("late")).exit_code == 6
    finally:
        (small_disk / "filler").unlink(missing_ok=True)
        left = await host.clean_up()
        await host.client.close()
    assert (left.slots, left.tasks) == ([], [])
