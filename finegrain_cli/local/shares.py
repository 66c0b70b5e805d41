"""Divides this host among executors that run on it side by side.

Decides explicit, disjoint shares: whole cores each, or single cpus, or where there are fewer cpus
than executors, amounts of cpu time on the same cpus. One reserve is kept for the host as a whole.
Refuses to know processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.resources import MEMORY_GRAIN_BYTES, round_down

if TYPE_CHECKING:
    from finegrain.capacity import Capacity
    from finegrain.topology import HostTopology

CPU_MILLI_MIN = 10


@dataclass(frozen=True, slots=True)
class ExecutorShare:
    """One executor and its part of the host.

    `cpus`: exactly these (empty: all that this process may use); `cpu_milli`: no more cpu time than
    this; `memory_bytes`: exactly this much. None, and no cpus: all of the host, minus the reserve.
    """

    executor_id: str
    cpus: str = ""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    labels: tuple[tuple[str, str], ...] = field(default=())


def divide_host(
    names: Sequence[str], *, cpus: str = "", memory_bytes: int | None = None
) -> list[ExecutorShare]:
    """Equal shares of this host, or of the given part of it; one executor alone needs none.

    Raises:
        InvalidArgument: the part does not exist here, or there are too many executors for it.
    """
    if len(names) == 1:
        return [ExecutorShare(names[0], cpus=cpus, memory_bytes=memory_bytes)]
    return divide(names, *_host(cpus, memory_bytes))


def equal_parts(
    names: Sequence[str], *, cpus: str = "", memory_bytes: int | None = None
) -> list[ExecutorShare]:
    """The same with explicit parts of one size, also for one executor alone: where whole cores do
    not divide evenly, all get the same amount of cpu time on the same cpus.

    Raises:
        InvalidArgument: as `divide_host`.
    """
    topology, capacity = _host(cpus, memory_bytes)
    shares = divide(names, topology, capacity)
    if len({cpu_milli_of(share) for share in shares}) == 1:
        return shares
    usable = str(capacity.cpus - capacity.isolated_cpus)
    cpu_milli = capacity.cpu_milli_total // len(names)
    return [replace(share, cpus=usable, cpu_milli=cpu_milli) for share in shares]


def cpu_milli_of(share: ExecutorShare) -> int:
    """The cpu time of a share with explicit cpus, in thousandths of a core."""
    return 1000 * len(CpuSet.parse(share.cpus)) if share.cpu_milli is None else share.cpu_milli


def _host(cpus: str, memory_bytes: int | None) -> tuple[HostTopology, Capacity]:
    from pathlib import Path

    from task_executor.host.capacity import CapacityOptions, plan_capacity
    from task_executor.host.detection import detect

    topology = detect(Path("/"))
    wanted = CapacityOptions(
        share_cpus=CpuSet.parse(cpus, "cpus") if cpus else None, share_memory_bytes=memory_bytes
    )
    return topology, plan_capacity(topology, wanted)


def divide(names: Sequence[str], topology: HostTopology, capacity: Capacity) -> list[ExecutorShare]:
    """Equal shares of a capacity of this topology, in order of the names.

    Raises:
        InvalidArgument: an executor would get less than 10 thousandths of a core or 4 MiB.
    """
    count = len(names)
    usable = capacity.cpus - capacity.isolated_cpus
    cpu_milli = capacity.cpu_milli_total // count
    memory_bytes = round_down(capacity.memory_bytes_total // count, MEMORY_GRAIN_BYTES)
    if cpu_milli < CPU_MILLI_MIN or memory_bytes < 64 * MEMORY_GRAIN_BYTES:
        raise InvalidArgument(
            "executors",
            count,
            f"fewer: this host gives {capacity.cpu_milli_total} thousandths of a core and "
            f"{capacity.memory_bytes_total} bytes of memory in all",
        )
    parts = _parts(topology, usable, count)
    capped = capacity.cpu_milli_total < 1000 * len(usable) or not parts
    return [
        ExecutorShare(
            name,
            cpus=str(parts[index]) if parts else str(usable),
            cpu_milli=min(cpu_milli, 1000 * len(parts[index] if parts else usable))
            if capped
            else None,
            memory_bytes=memory_bytes,
        )
        for index, name in enumerate(names)
    ]


def _parts(topology: HostTopology, usable: CpuSet, count: int) -> list[CpuSet]:
    """`count` disjoint sets of cpus, whole cores where there are enough; empty: too few cpus."""
    cores = [core.cpus & usable for core in topology.cores if not core.cpus.isdisjoint(usable)]
    if len(cores) < count:
        cores = [CpuSet([cpu]) for cpu in usable]
    if len(cores) < count:
        return []
    bounds = [len(cores) * index // count for index in range(count + 1)]
    parts = []
    for first, last in pairwise(bounds):
        part = CpuSet()
        for core in cores[first:last]:
            part |= core
        parts.append(part)
    return parts
