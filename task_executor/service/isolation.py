"""What is really enforced, said so that nobody is misled.

Decides the sentences. Refuses to know how anything is enforced.
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
    "huge pages are booked, but a task can take others than its slot's: the kernel has no hugetlb "
    "controller here"
)
DECLARED_ONLY = (
    "countable resources ({names}) are booked, but tasks are given no device and kept from none: "
    "a task has to find and choose its devices itself"
)
_AFFINITY = "tasks are put on their cpus, but could change them, and memory may be of any NUMA node"
DECLARED = "declared"
"""Of countable resources: booked, and nothing on the host holds anybody to it."""
DEDICATED_CPUS = "cpus"
"""Instead of a quota: no more cpu time than the cpus that it has to itself can give."""


def isolation_of(report: IsolationReport, slot: SlotSpec | None = None) -> Isolation:
    """Returns what the helper reports as everyone else reads it, with notes: of one slot, or of the
    whole host.
    """
    if slot is not None and slot.is_pinned and report.cpuset == "cgroup":
        report = replace(report, cpu=DEDICATED_CPUS)
    notes = notes_of(report)
    countable = ""
    if slot is not None and slot.profile.extended:
        unenforced = kernel_limits(slot.profile.extended) and report.hugepages == "none"
        notes += [NO_HUGETLB] if unenforced else []
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
    """One sentence for each dimension that is not enforced, with the reason and the fix."""
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
