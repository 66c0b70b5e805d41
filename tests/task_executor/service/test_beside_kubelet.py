"""An executor on a host where a kubelet has cpus, or an administrator switches cpus off."""

from __future__ import annotations

from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import CpuSet
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import task_executor_pb2 as te
from task_executor.host.helper_messages import KubeletFiles
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, eventually


def pinned(name: str, own: str, qos: QosClass = QosClass.LSR) -> te.SlotAllocation:
    cpus = CpuSet.parse(own)
    return allocation(
        name,
        cpu_milli=1000 * len(cpus),
        assignment=assignment_to_proto(CpuAssignment(qos, cpus)),
        cpus=own,
    )


def gives(*pinned_cpus: str, mark: str) -> KubeletFiles:
    """Returns the files of a kubelet that has assigned each of these cpu sets to a container."""
    entries = ",".join(f'"c{at}":"{cpus}"' for at, cpus in enumerate(pinned_cpus))
    state = f'{{"policyName":"static","defaultCpuSet":"0","entries":{{"pod":{{{entries}}}}}}}'
    config = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    return KubeletFiles(mark, True, (), {"cpu_manager_state": state, "config": config}, {})


def reasons(answer: te.AllocateSlotsResponse) -> list[str]:
    return [each.error.reason for each in answer.results]


async def test_what_a_kubelet_gives_away_is_told_and_left(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    executor.helper.kubelet_files = gives("2", mark="one")
    answer = await rm.allocate(pinned("own", "2-3"))
    assert reasons(answer) == ["CPUS_UNAVAILABLE"]
    assert executor.helper.slots["plain", 1].cpus == "0-1,3"

    await eventually(lambda: rm.full_reports()[-1].cpu_state.HasField("kubelet"), "it is told")
    report = rm.full_reports()[-1].cpu_state.kubelet
    assert (report.cpu_manager_policy, report.reserved_cpus) == ("static", "0")
    assert [(each.pod_uid, each.container, each.cpus) for each in report.containers] == [
        ("pod", "c0", "2")
    ]

    executor.helper.kubelet_files = gives(mark="two")
    assert reasons(await rm.allocate(pinned("own", "2-3"))) == [""]


async def test_its_reserve_is_shared_and_nobodys_own(rm: ScriptedRM, executor: Executor) -> None:
    executor.helper.kubelet_files = gives(mark="one")
    assert reasons(await rm.allocate(pinned("own", "0-1"))) == ["CPUS_UNAVAILABLE"]
    await rm.allocate(allocation("plain"))
    assert executor.helper.slots["plain", 1].cpus == "0-3"


async def test_a_cpu_that_both_gave_away_is_named_and_its_slot_lives(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(pinned("own", "2-3"))
    executor.helper.kubelet_files = gives("3", mark="one")
    await executor.front.watch.refresh()
    await eventually(lambda: rm.full_reports()[-1].cpu_state.notes, "it is told")
    note = rm.full_reports()[-1].cpu_state.notes[-1]  # other notes depend on this machine's cpus
    assert note == "slot own has dedicated cpus 3, which the kubelet has assigned to pod/c0"
    assert ("own", 1) in executor.helper.slots


async def test_a_cpu_that_was_just_switched_off_is_no_slots_own(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation("plain"))
    executor.online("0-2")
    assert reasons(await rm.allocate(pinned("own", "2-3"))) == ["CPUS_UNAVAILABLE"]
    assert executor.helper.slots["plain", 1].cpus == "0-2"
    executor.online("0-3")
    assert reasons(await rm.allocate(pinned("other", "2-3"))) == [""]
    assert executor.helper.slots["plain", 1].cpus == "0-1"


async def test_a_slot_runs_on_what_it_has_left_and_gets_it_back(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(pinned("own", "2-3"))
    executor.online("0-2")
    await executor.front.watch.refresh()
    assert executor.helper.slots["own", 1].cpus == "2"
    await eventually(lambda: rm.full_reports()[-1].cpu_state.offline_cpus == "3", "it is told")
    executor.online("0-3")
    await executor.front.watch.refresh()
    assert executor.helper.slots["own", 1].cpus == "2-3"


async def test_huge_pages_are_limited_and_it_is_said_where_they_are_not(
    rm: ScriptedRM, executor: Executor
) -> None:
    share = executor.front.keeper.table.share
    total = {**share.total, "extended.hugepages-2Mi": 100}
    executor.front.keeper.table.share = replace(share, total=total)
    order = allocation("huge")
    order.slot.profile.extended["hugepages-2Mi"] = 10
    answer = await rm.allocate(order)
    assert reasons(answer) == [""]
    assert dict(executor.helper.slots["huge", 1].hugepages) == {"2MB": 20 << 20}
    assert any("hugetlb" in note for note in answer.report.slots[0].isolation.notes)
