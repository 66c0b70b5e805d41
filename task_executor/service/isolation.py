"""Converts the helper's isolation report into what users see.

Notes say in plain sentences what is not enforced.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.hugepages import kernel_limits, page_bytes
from finegrain.values.isolation import Isolation
from task_executor.engine.slots import SlotSpec
from task_executor.host.helper_messages import IsolationReport

_MEANING = {
    "cpu": "cpu time is booked, but the kernel does not cap it",
    "cpuset": "tasks may run on any cpu",
    "memory": "memory is booked, but a task can take more than its slot",
    "pids": "the number of processes is not capped",
}
NO_HUGETLB = (
    "huge pages are booked, but a task can take more than its slot: the kernel has no hugetlb "
    "controller here"
)
DECLARED_ONLY = (
    "countable resources ({names}) are booked, but no devices are assigned to tasks or hidden "
    "from them: a task must find and choose its devices itself"
)
_AFFINITY = (
    "tasks start on their cpus, but could change them, and their memory may be on any NUMA node"
)
DECLARED = "declared"
"""Isolation of countable resources that are booked but not enforced on the host."""
DEDICATED_CPUS = "cpus"
"""CPU isolation of a pinned slot: its dedicated cpus are the limit, and there is no quota."""


def isolation_of(report: IsolationReport, slot: SlotSpec | None = None) -> Isolation:
    """Returns the isolation of one slot or, without `slot`, of the host."""
    # Dedicated cpus are a limit only if a cgroup enforces them. A task can change its affinity.
    if slot is not None and slot.is_pinned and report.cpuset == "cgroup":
        report = replace(report, cpu=DEDICATED_CPUS)
    notes = notes_of(report)
    countable = ""
    if slot is not None and slot.profile.extended:
        unenforced = kernel_limits(slot.profile.extended) and report.hugepages == "none"
        notes += [NO_HUGETLB] if unenforced else []
        # The kernel limits only huge pages. Every other countable resource is only declared.
        names = [name for name, _ in slot.profile.extended if page_bytes(name) is None]
        notes += [DECLARED_ONLY.format(names=", ".join(names))] if names else []
        countable = DECLARED if names or unenforced else "hard"
    return Isolation(
        cpu=report.cpu,
        cpuset=report.cpuset,
        memory=report.memory,
        pids=report.pids,
        kill=report.kill,
        driver=report.driver,
        notes=tuple(notes),
        countable=countable,
    )


def notes_of(report: IsolationReport) -> list[str]:
    """Returns one sentence for each dimension that is not enforced, with the reason and the fix."""
    why = f" ({report.reason})" if report.reason else ""
    fix = f"; {report.fix}" if report.fix else ""
    notes = [
        f"{meaning}{why}{fix}"
        for name, meaning in _MEANING.items()
        if getattr(report, name) == "none"
    ]
    if report.cpuset == "affinity":
        notes.append(f"{_AFFINITY}{why}{fix}")
    return notes
