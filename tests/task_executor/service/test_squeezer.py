"""Best-effort slots get fewer cpus while other slots are busy: tested with a simulated load, and
with the counters of the real host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import HostPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED
from task_executor.engine.cpu_ledger import HostCpus
from task_executor.engine.slot_table import HostShare, SlotTable
from task_executor.engine.slots import SlotKey, SlotSpec
from task_executor.engine.squeeze import CpuLocation
from task_executor.host.cpu_times import busy_usec
from task_executor.host.helper_messages import SlotUsage, Usage
from task_executor.service.squeezer import Squeezer, SqueezeRule

SECOND_USEC = 1_000_000
PLACES = tuple(CpuLocation(cpu, cpu % 8, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16))
BE = CpuAssignment(QosClass.BE)


def a_table() -> SlotTable:
    """Returns a table with two NUMA nodes of four cores with two threads; cpus 0 and 8 are
    reserved, but shared.
    """
    host = HostCpus(
        slot_cpus=CpuSet.parse("1-7,9-15"),
        reserved=CpuSet.parse("0,8"),
        pools=(
            (PoolName(0, 0), CpuSet.parse("0-3,8-11")),
            (PoolName(1, 1), CpuSet.parse("4-7,12-15")),
        ),
        policy=HostPolicy(reserved_cpus=CpuSet.parse("0,8"), reserved_strict=False),
    )
    total = {"cpu_milli": 14_000, "best_effort_cpu_milli": 14_000, "memory_bytes": 1024 * MIB}
    return SlotTable(HostShare(total, host.slot_cpus, 0, host))


@dataclass
class Host:
    """A host with the cpu time that slots and others have used; `work` simulates a second."""

    table: SlotTable = field(default_factory=a_table)
    now: float = 0.0
    used: dict[SlotKey, int | None] = field(default_factory=dict)
    others: int = 0
    rule: SqueezeRule = field(default_factory=SqueezeRule)
    moves: int = 0
    quotas: dict[str, int] = field(default_factory=dict)
    squeezer: Squeezer = field(init=False)

    def __post_init__(self) -> None:
        self.squeezer = Squeezer(
            self.table,
            PLACES,
            self.rule,
            usage=self.usage,
            limit_cpu=self.limit_cpu,
            update_conditions=self.update_conditions,
            cpu_times=self.cpu_times,
            clock=lambda: self.now,
        )

    async def usage(self) -> Usage:
        return Usage([SlotUsage(*key, cpu_usec=usec) for key, usec in self.used.items()], [])

    def cpu_times(self) -> Mapping[int, int]:
        together = self.others + sum(usec or 0 for usec in self.used.values())
        return dict.fromkeys(range(16), together // 16)

    async def limit_cpu(self, quotas: Mapping[SlotKey, int]) -> None:
        self.quotas = {key.allocation_id: milli for key, milli in quotas.items()}

    async def update_conditions(self, **conditions: object) -> None:
        self.moves += self.table.update_conditions(**conditions)

    def slot(self, name: str, assignment: CpuAssignment | None, cpu: int = 500) -> SlotKey:
        if assignment and assignment.cpus:
            cpu = 1000 * len(assignment.cpus)
        spec = SlotSpec(
            name,
            1,
            "job",
            ResourceProfile(cpu, task_heap_memory_bytes=MIB),
            cpu_limit_milli=cpu,
            pids_max=10,
            cpus=str(assignment.cpus) if assignment else "",
            assignment=assignment,
        )
        (outcome,) = self.table.allocate([spec])
        assert outcome.error is None
        self.table.carved(spec.key, NOTHING_REPORTED, 1)
        self.used[spec.key] = 0
        return spec.key

    async def work(self, *, others: float = 0.0, **slots: float) -> str:
        """Simulates a second with this many busy cpus; returns the cpus of best-effort slots
        afterwards.
        """
        self.now += 1.0
        self.others += round(others * SECOND_USEC)
        for key, usec in self.used.items():
            if usec is not None:
                self.used[key] = usec + round(slots.get(key.allocation_id, 0.0) * SECOND_USEC)
        await self.squeezer.step()
        squeezed = self.table.cpus.conditions.squeezed
        return "all" if squeezed is None else str(squeezed)


@pytest.fixture
def host() -> Host:
    return Host()


async def test_on_an_idle_host_it_keeps_what_may_be_busy(host: Host) -> None:
    host.slot("batch", BE)
    await host.work()
    assert len(CpuSet.parse(await host.work(batch=8.0))) == 9  # 65 % of 16, less the reserve
    assert len(CpuSet.parse(await host.work(batch=0.0))) == 9
    assert host.moves == 1


async def test_what_others_use_is_taken_from_it(host: Host) -> None:
    """65 % of 16 cpus may be busy; latency-sensitive slots use 6, and 2 are reserved for the
    system.
    """
    host.slot("batch", BE)
    host.slot("web", None)
    await host.work()
    assert len(CpuSet.parse(await host.work(web=6.0, batch=8.0))) == 3  # 10.4 - 6 - 2, rounded up
    assert len(CpuSet.parse(await host.work(web=8.0, batch=3.0))) == 2  # never fewer
    assert host.moves == 2


async def test_the_system_counts_as_soon_as_it_uses_more_than_is_kept_for_it(host: Host) -> None:
    host.slot("batch", BE)
    await host.work()
    assert len(CpuSet.parse(await host.work(others=5.4, batch=9.0))) == 5


async def test_it_gets_its_cpus_back_by_and_by(host: Host) -> None:
    host.slot("batch", BE)
    host.slot("web", None)
    await host.work()
    load = (9.0, 0, 9.0, 0, 0, 0, 0, 0)  # one idle second changes nothing
    sizes = [len(CpuSet.parse(await host.work(web=busy))) for busy in load]
    assert sizes == [2, 2, 2, 2, 4, 6, 8, 9]


async def test_it_takes_from_lsr_slots_in_proportion_and_never_from_lse(host: Host) -> None:
    host.slot("batch", BE)
    host.slot("lent", CpuAssignment(QosClass.LSR, CpuSet.parse("1-3,9-11")))
    host.slot("own", CpuAssignment(QosClass.LSE, CpuSet.parse("4-5,12-13")))
    await host.work()
    taken = CpuSet.parse(await host.work(lent=2.0, batch=4.0))
    assert len(taken) == 7  # 10.4 - 2 - 2
    assert not taken & CpuSet.parse("4-5,12-13")
    assert len(taken & CpuSet.parse("1-3,9-11")) == 7 * 6 // 12


async def test_a_floor_can_be_set(host: Host) -> None:
    host = Host(rule=SqueezeRule(minimum_percent=50))
    host.slot("batch", BE)
    host.slot("web", None)
    await host.work()
    assert len(CpuSet.parse(await host.work(web=14.0, batch=1.0))) == 8


async def test_when_the_last_of_them_has_gone_nothing_is_squeezed(host: Host) -> None:
    key = host.slot("batch", BE)
    host.slot("web", None)
    await host.work()
    assert await host.work(web=9.0) != "all"
    host.table.begin_free(key)
    host.table.freed(key)
    del host.used[key]
    assert await host.work(web=9.0) == "all"


async def test_what_is_not_counted_is_not_squeezed(host: Host) -> None:
    key = host.slot("batch", BE)
    host.used[key] = None
    for _ in range(3):
        assert await host.work(others=14.0) == "all"


async def test_offline_cpus_are_neither_counted_nor_given(host: Host) -> None:
    host.slot("batch", BE)
    host.table.cpus.update_conditions(offline=CpuSet.parse("8-15"))
    await host.work()
    taken = CpuSet.parse(await host.work(batch=2.0))
    assert taken <= CpuSet.parse("0-7")
    assert len(taken) == 5  # 65 % of 8, less 1 reserved, rounded up


BY_QUOTA = SqueezeRule(by_quota=True)


async def test_a_quota_takes_cpu_time_in_proportion_and_moves_no_slot() -> None:
    host = Host(rule=BY_QUOTA)
    host.slot("large", BE, 8_000)
    host.slot("small", BE, 4_000)
    host.slot("web", None)
    await host.work()
    assert await host.work(web=5.0, large=8.0, small=4.0) == "all"
    assert host.quotas == {"large": 2_266, "small": 1_133}  # 65 % of 16 cpus - 5 - 2 = 3.4
    assert host.moves == 0


async def test_a_quota_grows_step_by_step_and_ends() -> None:
    host = Host(rule=BY_QUOTA)
    host.slot("batch", BE, 8_000)
    host.slot("web", None)
    await host.work()
    found = []
    for busy in (9.0, 0, 9.0, *(0,) * 8):
        await host.work(web=busy)
        found.append(host.quotas.get("batch"))
    # Never less than the kernel accepts; one idle second changes nothing; then a tenth of the
    # host's cpus in each step.
    assert found == [10, 10, 10, 10, 1_600, 3_200, 4_800, 6_400, None, None, None]


async def test_a_small_change_of_the_budget_changes_no_quota() -> None:
    host = Host(rule=BY_QUOTA)
    host.slot("batch", BE, 8_000)
    host.slot("web", None)
    await host.work()
    await host.work(web=5.0)
    assert host.quotas == {"batch": 3_400}
    await host.work(web=5.1)
    assert host.quotas == {"batch": 3_400}
    await host.work(web=5.5)
    assert host.quotas == {"batch": 2_900}


async def test_a_quota_has_a_floor_and_new_slots_share_it() -> None:
    host = Host(rule=SqueezeRule(minimum_percent=25, by_quota=True))
    host.slot("batch", BE, 6_000)
    host.slot("web", None)
    await host.work()
    await host.work(web=12.0)
    assert host.quotas == {"batch": 4_000}
    host.slot("more", BE, 2_000)
    await host.work(web=12.0)
    assert host.quotas == {"batch": 3_000, "more": 1_000}


def test_the_real_host_is_busy_while_somebody_works() -> None:
    before = busy_usec()
    end = sum(before.values()) + 50_000
    while sum(busy_usec().values()) < end:  # this process is busy
        sum(range(10_000))
    assert before.keys() == busy_usec().keys()
