"""`finegrain resize`: the kernel enforces the new size, and the task in the slot runs on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.e2e.driving import Small, eventually, read_until, slot_groups, small_cluster, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.needs("cgroup-v1")

HOLDER = """
import sys
held = bytearray({megabytes} << 20)
for i in range(0, len(held), 4096): held[i] = 1
print("up", flush=True)
for line in sys.stdin:
    del held
    print("free", flush=True)
"""


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Small]:
    """One executor with a core and 512 MiB."""
    with small_cluster(home, executors=1) as small:
        yield small


@dataclass
class Running:
    """A command in a separate slot, seen from outside."""

    small: Small
    process: subprocess.Popen[bytes]
    slot_id: str

    @property
    def slot(self) -> dict[str, Any]:
        """Returns the slot as the resource manager lists it."""
        (slot,) = self.small.cli.items("slots", self.slot_id)
        return slot

    def kernel(self, file: str) -> int:
        """Returns the limits that the kernel enforces for the slot."""
        (name,) = self.small.names
        (path,) = [
            group / file
            for group in slot_groups(name)
            if group.name.startswith(self.slot_id) and (group / file).exists()
        ]
        return int(path.read_text())

    @property
    def quota(self) -> float:
        """Cores."""
        return self.kernel("cpu.cfs_quota_us") / self.kernel("cpu.cfs_period_us")

    @property
    def limit(self) -> int:
        """Bytes of memory."""
        return self.kernel("memory.limit_in_bytes")

    @property
    def processes(self) -> list[tuple[int, str]]:
        """Returns all processes of the slot with their start times. A pid and a start time together
        identify a process.
        """
        (name,) = self.small.names
        pids = {
            int(pid)
            for group in slot_groups(name)
            if group.name.startswith(self.slot_id)
            for procs in group.rglob("cgroup.procs")
            for pid in procs.read_text().split()
        }
        return sorted(
            (pid, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            for pid in pids
        )

    def resize(self, *flags: str, **options: Any) -> Any:
        return self.small.cli("resize", self.slot_id[:-3], *flags, **options)


@contextmanager
def running(small: Small, megabytes: int = 1) -> Iterator[Running]:
    """A task that holds some memory until it must free it."""
    before = {each["allocation_id"] for each in small.cli.items("slots")}
    process = small.cli.start(
        "run", "-i", "--cpu", "0.2", "--memory", "128M", "--", sys.executable, "-c",
        HOLDER.format(megabytes=megabytes), stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        read_until(process, b"up\n")
        after = {each["allocation_id"] for each in small.cli.items("slots")}
        (slot_id,) = after - before
        yield Running(small, process, slot_id)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@contextmanager
def neighbour(small: Small, cpu_milli: int) -> Iterator[fg.blocking.Slot]:
    """A slot of another job."""
    with small.cli.client() as cluster, cluster.job("neighbour") as job:
        (request,) = job.request_slots(fg.SlotSpec(cpu_milli=cpu_milli, memory_bytes=32 * fg.MIB))
        yield request.granted(PATIENCE_S)


def test_a_slot_grows_and_shrinks_under_its_task(small: Small) -> None:
    with running(small) as it:
        before = it.processes
        assert (it.quota, it.limit) == (0.2, 128 * fg.MIB)
        grown = it.resize("--cpu", "0.7", "--memory", "256M")
        assert grown.code == 0, grown.stderr
        assert (it.quota, it.limit) == (0.7, 256 * fg.MIB)
        assert it.slot["profile"]["cpu_milli"] == 700
        (host,) = small.cli.items("executors")
        assert host["available"]["cpu_milli"] == 300
        assert it.resize("--memory", "64M").code == 0  # the cpu stays
        assert (it.quota, it.limit) == (0.7, 64 * fg.MIB)
        assert it.resize("--cpu", "0.1", "--cpu-limit", "0.5").code == 0
        assert it.quota == 0.5
        assert it.processes == before
        (host,) = small.cli.items("executors")
        assert host["available"]["cpu_milli"] == 900
        kinds = [each["kind"] for each in small.cli.items("events", it.slot_id)]
        assert kinds.count("slot_resized") == 3
        process = it.process
        assert process.poll() is None


def test_growth_waits_for_room_and_is_done_then(small: Small) -> None:
    with neighbour(small, 600) as other, running(small) as it:
        asked = it.resize("--cpu", "0.9", "--no-wait")
        assert asked.code == 0
        assert "-> cpu 0.9" in asked.text
        assert it.slot["resizes"][0]["state"] == "WAITING"
        assert it.quota == 0.2
        explained = small.cli("explain", it.slot_id).text
        assert "resize 1 to cpu 0.9, memory 128Mi waits" in explained
        assert "cpu 0.7 more, free 0.2 of 1" in explained
        late = it.resize("--cpu", "0.9", "--timeout", "2500ms")
        assert late.code == 5
        assert "the resize waits" in late.stderr
        other.release()
        eventually(lambda: it.quota == 0.9, "it is done once there is room")
        assert not it.slot["resizes"]


def test_a_change_that_waits_is_withdrawn(small: Small) -> None:
    with neighbour(small, 600), running(small) as it:
        assert it.resize("--cpu", "0.9", "--no-wait").code == 0
        assert it.resize("--withdraw").code == 0
        assert not it.slot["resizes"]
    eventually(lambda: not small.cli.items("slots"), "its slot has gone")


def test_more_than_the_executor_has_is_refused_at_once(small: Small) -> None:
    with running(small) as it:
        outcome = it.resize("--cpu", "2")
        assert outcome.code == 6
        assert "[INFEASIBLE_NEVER]" in small.cli.error(outcome)
        assert it.quota == 0.2


def test_a_slot_does_not_shrink_below_what_it_uses(small: Small) -> None:
    with running(small, megabytes=90) as it:
        before = it.processes
        outcome = it.resize("--memory", "32M")
        assert outcome.code == 4
        assert "finegrain: slot" in outcome.stderr
        assert it.limit == 128 * fg.MIB
        assert it.slot["profile"]["task_heap_memory_bytes"] == 128 * fg.MIB
        assert it.processes == before


def test_it_shrinks_once_the_task_uses_less(small: Small) -> None:
    with running(small, megabytes=90) as it:
        waiting = small.cli.start("resize", it.slot_id, "--memory", "48M", "--wait-for-use")
        assert waiting.stderr is not None
        assert b"the resize waits" in waiting.stderr.readline()
        assert it.process.stdin is not None
        it.process.stdin.write(b"now\n")
        it.process.stdin.flush()
        assert waiting.wait(PATIENCE_S) == 0
        assert it.limit == 48 * fg.MIB
        waiting.communicate()


def test_resizing_needs_an_operator_and_a_slot(small: Small) -> None:
    with running(small) as it:
        weak = ("--credentials", str(small.log_in("user/eve")))
        outcome = it.resize("--cpu", "0.3", *weak)
        assert outcome.code == 8
        assert "[ROLE_MISSING]" in small.cli.error(outcome)
    outcome = small.cli("resize", unique("no-such-slot"), "--cpu", "1")
    assert outcome.code == 3
