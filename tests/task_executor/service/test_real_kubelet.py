"""A real executor and the files of a kubelet: spinning tasks leave the cpus that the kubelet
assigns to containers, and return when it takes these cpus back. The tests read the cpus of tasks
from the kernel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import CpuSet
from finegrain.rpc.wire_cpus import assignment_to_proto
from finegrain.v1 import task_executor_pb2 as te
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    ScriptedRM,
    allocation,
    eventually,
    free,
)

pytestmark = [
    pytest.mark.needs("root", "cgroup-v1", "two-cpus"),
]

ALL = CpuSet(os.sched_getaffinity(0))
GIVEN = CpuSet.of(ALL.max())


def write_state(folder: Path, given: CpuSet) -> None:
    """Writes the file as a kubelet does: it replaces the whole file in one step, and only root may
    read it.
    """
    entries = f',"entries":{{"pod":{{"main":"{given}"}}}}' if given else ""
    fresh = folder / ".cpu_manager_state123"
    fresh.write_text(f'{{"policyName":"static","defaultCpuSet":"{ALL - given}"{entries}}}')
    fresh.chmod(0o600)
    fresh.replace(folder / "cpu_manager_state")


def wants_given() -> te.SlotAllocation:
    """Returns an order for which the executor reads the kubelet's files at once."""
    wanted = assignment_to_proto(CpuAssignment(QosClass.LSE, GIVEN))
    return allocation("own", cpu_milli=1000, assignment=wanted)


def where(pid: int) -> CpuSet:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return CpuSet.parse(next(x.split()[1] for x in lines if x.startswith("Cpus_allowed_list")))


async def test_spinning_tasks_leave_what_a_kubelet_gives_away(
    rm: ScriptedRM, process: ExecutorProcess
) -> None:
    kubelet = process.folder / "kubelet"
    kubelet.mkdir()
    (kubelet / "config.yaml").write_text("cpuManagerPolicy: static\n")
    write_state(kubelet, CpuSet())
    process.start(kubelet_dir=str(kubelet))
    await eventually(lambda: rm.reports or process.exit_code is not None, "it reports")
    job_master = rm.job_master()
    await rm.allocate(allocation("plain", cpu_milli=100))
    spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    pid = (await job_master.submit(*spin, task_id="spin", allocation_id="plain")).pid
    assert where(pid) == ALL

    write_state(kubelet, GIVEN)
    answer = await rm.allocate(wants_given())
    assert answer.results[0].error.reason == "CPUS_UNAVAILABLE"
    assert where(pid) == ALL - GIVEN
    told = answer.report.cpu_state.kubelet
    assert [(each.container, each.cpus) for each in told.containers] == [("main", str(GIVEN))]

    (kubelet / "cpu_manager_state").write_text('{"policyName":"static","defa')
    await rm.allocate(wants_given())
    assert where(pid) == ALL - GIVEN  # what it said last holds

    write_state(kubelet, CpuSet())
    assert not (await rm.allocate(wants_given())).results[0].HasField("error")
    await rm.free(free("own"))
    await eventually(lambda: where(pid) == ALL, "everything is shared again")
