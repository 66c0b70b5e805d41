"""Cpus are switched off, or assigned by a kubelet, while slots run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import HostBindPolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import Unavailable
from finegrain.resources import MIB, ResourceProfile
from finegrain.topology import HostTopology
from finegrain.v1 import cpus_pb2
from task_executor.engine.cpu_ledger import CpuLedger, HostCpus
from task_executor.engine.slots import Slot, SlotSpec
from task_executor.host.helper_messages import KubeletFiles
from task_executor.service.encoding import write
from task_executor.service.host_watch import HostWatch, KubeletWatch
from tests.task_executor.host.kubelet.conftest import host, kubelet

__all__ = ["host"]

OWN = CpuSet.parse("0-15")
NO_KUBELET = KubeletFiles("none", False, (), {}, {})


@dataclass
class Machine:
    """A directory that looks like a machine, the helper's answers, and the ledger that is
    updated.
    """

    root: Path
    topology: HostTopology
    books: CpuLedger = field(default_factory=lambda: CpuLedger(HostCpus(OWN)))
    slots: list[Slot] = field(default_factory=list)
    files: KubeletFiles = NO_KUBELET
    away: Exception | None = None
    asked: list[str] = field(default_factory=list)
    news: bool = False
    watch: HostWatch = field(init=False)

    def __post_init__(self) -> None:
        self.online("0-15")
        self.watch = HostWatch(
            KubeletWatch(self.ask, self.topology),
            OWN,
            update_conditions=self.update_conditions,
            slots=lambda: self.slots,
            root=self.root,
        )

    def online(self, cpus: str) -> None:
        path = self.root / "sys/devices/system/cpu/online"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{cpus}\n")

    async def update_conditions(self, **conditions: Any) -> None:
        self.news = self.books.update_conditions(**conditions)

    async def refresh(self) -> bool:
        """Refreshes the watch; returns True if it found anything new."""
        await self.watch.refresh()
        return self.news

    async def ask(self, seen: str) -> KubeletFiles | None:
        self.asked.append(seen)
        if self.away is not None:
            raise self.away
        return None if self.files.mark == seen else self.files

    def kubelet(self, version: str, mark: str, **changes: str | None) -> None:
        """Sets the files of the machine to those of a kubelet of this version, with some
        changes.
        """
        found = kubelet(version)
        texts = {
            name: text for name, text in ({**found.texts, **changes}).items() if text is not None
        }
        self.files = KubeletFiles(mark, True, found.command, texts, {})

    def slot(self, name: str, own: str) -> None:
        cpus = CpuSet.parse(own)
        spec = SlotSpec(
            name,
            1,
            "job",
            ResourceProfile(1000 * len(cpus), task_heap_memory_bytes=MIB),
            cpu_limit_milli=0,
            pids_max=1,
            assignment=CpuAssignment(QosClass.LSR, cpus),
        )
        self.slots.append(Slot(spec))

    @property
    def now(self) -> Any:
        return self.books.conditions


@pytest.fixture
def machine(tmp_path: Path, host: HostTopology) -> Machine:
    return Machine(tmp_path, host)


async def test_nothing_is_new_on_a_host_like_any_other(machine: Machine) -> None:
    assert not await machine.refresh()
    assert not await machine.refresh()
    assert machine.asked == ["", "none"]


async def test_cpus_go_offline_and_come_back(machine: Machine) -> None:
    machine.slot("a", "2-3")
    machine.online("0-2,4-15")
    assert await machine.refresh()
    assert machine.now.offline == CpuSet.of(3)
    assert machine.now.notes == ("slot a has dedicated cpus 3, which are no longer online",)
    assert not await machine.refresh()
    machine.online("0-15")
    assert await machine.refresh()
    assert machine.now.offline == EMPTY
    assert machine.now.notes == ()


async def test_where_no_cpu_can_be_seen_nothing_is_believed(machine: Machine) -> None:
    (machine.root / "sys/devices/system/cpu/online").unlink()
    assert not await machine.refresh()
    machine.online("garbage")
    assert not await machine.refresh()
    assert machine.now.offline == EMPTY


async def test_cpus_that_leave_our_cpuset_are_as_good_as_offline(machine: Machine) -> None:
    files = {
        "proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu\n",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-7\n",
    }
    for name, text in files.items():
        path = machine.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert await machine.refresh()
    assert machine.now.offline == CpuSet.parse("8-15")


async def test_a_kubelet_gives_cpus_away_and_takes_them_back(machine: Machine) -> None:
    machine.kubelet("v1.23", "first")
    assert await machine.refresh()
    assert machine.now.kubelet_cpus == CpuSet.parse("4-5,12-13")
    assert machine.now.kubelet_policy == HostPolicy(
        bind=HostBindPolicy.FULL_PCPUS_ONLY,
        alignment=NumaPolicy.SINGLE_NUMA_NODE,
        reserved_cpus=CpuSet.parse("0-1,8-9"),
        reserved_strict=False,
    )
    assert not await machine.refresh()
    emptied = '{"policyName":"static","defaultCpuSet":"0-15","checksum":1}'
    machine.kubelet("v1.23", "second", cpu_manager_state=emptied, memory_manager_state=None)
    assert await machine.refresh()
    assert machine.now.kubelet_cpus == EMPTY
    assert machine.asked == ["", "first", "first"]


async def test_cpus_given_away_that_a_slot_has_are_named_and_left(machine: Machine) -> None:
    machine.slot("a", "5-6,13-14")
    machine.kubelet("v1.23", "first")
    assert await machine.refresh()
    (note,) = machine.now.notes
    assert note.startswith(
        "slot a has dedicated cpus 5,13, which the kubelet has assigned to 0d3c2b6e"
    )
    assert note.endswith("/server")


async def test_many_of_them_are_counted(machine: Machine) -> None:
    for number in range(12):
        machine.slot(f"s{number}", "4")
    machine.kubelet("v1.23", "first")
    await machine.refresh()
    assert len(machine.now.notes) == 8
    assert machine.now.notes[-1] == "5 more cases of lost dedicated cpus"


async def test_a_helper_that_is_away_changes_nothing(machine: Machine) -> None:
    machine.kubelet("v1.23", "first")
    await machine.refresh()
    machine.away = Unavailable("no helper answers")
    assert not await machine.refresh()
    assert machine.now.kubelet_cpus == CpuSet.parse("4-5,12-13")


async def test_a_damaged_state_changes_only_the_notes(machine: Machine) -> None:
    machine.kubelet("v1.23", "first")
    await machine.refresh()
    version = machine.books.version
    machine.kubelet("v1.23", "second", cpu_manager_state='{"policyName":"static","def')
    assert await machine.refresh()
    assert machine.now.kubelet_cpus == CpuSet.parse("4-5,12-13")
    assert "damaged" in machine.now.notes[0]
    assert machine.books.version == version


async def test_a_kubelet_that_was_removed_leaves_its_cpus(machine: Machine) -> None:
    machine.kubelet("v1.23", "first")
    await machine.refresh()
    machine.files = NO_KUBELET
    assert await machine.refresh()
    assert machine.now.kubelet_cpus == EMPTY
    assert machine.now.kubelet_policy == HostPolicy()
    assert machine.now.kubelet is None


async def test_an_empty_directory_is_no_kubelet(machine: Machine) -> None:
    machine.files = KubeletFiles("first", True, (), {}, {})
    assert not await machine.refresh()
    assert machine.watch.kubelet.state is None


async def test_what_is_reported_of_a_kubelet(machine: Machine) -> None:
    machine.kubelet("v1.23", "first")
    state = await machine.watch.kubelet.refresh()
    assert state is not None
    report = write(cpus_pb2.KubeletReport, state)
    assert report.cpu_manager_policy == "static"
    assert dict(report.cpu_manager_options) == {"full-pcpus-only": "true"}
    assert report.topology_manager_scope == "pod"
    assert report.reserved_cpus == "0-1,8-9"
    (container,) = report.containers
    assert container.cpus == "4-5,12-13"
    assert dict(container.memory_bytes) == {1: 8 << 30}


async def test_names_from_its_files_are_cut_to_what_a_report_may_hold(machine: Machine) -> None:
    name = "x\\u0000" + "y" * 2_000
    text = f'{{"policyName":"static","defaultCpuSet":"","entries":{{"p":{{"{name}":"3"}}}}}}'
    machine.kubelet("v1.23", "first", cpu_manager_state=text, memory_manager_state=None)
    state = await machine.watch.kubelet.refresh()
    assert state is not None
    (container,) = write(cpus_pb2.KubeletReport, state).containers
    assert container.container == "x " + "y" * 298
    assert container.cpus == "3"
