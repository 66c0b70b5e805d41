"""Divides this host into explicit shares for executors that run on the host at the same time.

Each share has whole cores. If the host has too few cores, each share has single cpus. If the host
has fewer cpus than executors, a share is an amount of cpu time, and all executors use the same
cpus. Resources for the system are reserved once for the whole host, not once per executor.
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

    The executor gets exactly the cpus in `cpus`, at most `cpu_milli` of cpu time, and exactly
    `memory_bytes` of memory. If `cpus` is empty, the executor gets all cpus that this process is
    allowed to use. If `cpus` is empty and both amounts are None, the executor gets the whole host
    minus the reserve for the system.
    """

    executor_id: str
    cpus: str = ""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    labels: tuple[tuple[str, str], ...] = field(default=())


def divide_host(
    names: Sequence[str], *, cpus: str = "", memory_bytes: int | None = None
) -> list[ExecutorShare]:
    """Returns equal shares of this host, or of the given part of this host.

    Args:
        names: ids of the executors.
        cpus: the cpus to divide. If empty, all cpus of this host are divided.
        memory_bytes: the amount of memory to divide. If None, all memory of this host is divided.

    Raises:
        InvalidArgument: this host does not have the given part, or the part is too small for this
            number of executors.
    """
    if len(names) == 1:
        if cpus or memory_bytes is not None:
            # Check the given part here, because the executor would refuse a wrong part only after
            # other daemons have started.
            _host(cpus, memory_bytes)
        return [ExecutorShare(names[0], cpus=cpus, memory_bytes=memory_bytes)]
    return divide(names, *_host(cpus, memory_bytes))


def equal_parts(
    names: Sequence[str], *, cpus: str = "", memory_bytes: int | None = None
) -> list[ExecutorShare]:
    """Divides the host as `divide_host` does, but into shares of the same size. The shares have
    explicit amounts, even if there is only one share.

    If whole cores cannot be divided evenly, every executor gets the same amount of cpu time on the
    same cpus. Example: on 4 cores, each of 3 executors gets 1333 thousandths of a core, on all 4
    cores.

    Raises:
        InvalidArgument: this host does not have the given part, or the part is too small for this
            number of executors.
    """
    topology, capacity = _host(cpus, memory_bytes)
    shares = divide(names, topology, capacity)
    # All executors have the same executor shape, so all shares must have the same size.
    if len({cpu_milli_of(share) for share in shares}) == 1:
        return shares
    usable = str(capacity.cpus - capacity.isolated_cpus)
    cpu_milli = capacity.cpu_milli_total // len(names)
    return [replace(share, cpus=usable, cpu_milli=cpu_milli) for share in shares]


def cpu_milli_of(share: ExecutorShare) -> int:
    """Returns the cpu time of a share with explicit cpus, in thousandths of a core."""
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
    """Returns equal shares of `capacity` on a host with this topology, in order of the names.

    Raises:
        InvalidArgument: an executor would get less than 10 thousandths of a core or 4 MiB.
    """
    count = len(names)
    usable = capacity.cpus - capacity.isolated_cpus
    cpu_milli = capacity.cpu_milli_total // count
    # Round the amounts down, so that all shares together never exceed the host.
    memory_bytes = round_down(capacity.memory_bytes_total // count, MEMORY_GRAIN_BYTES)
    if cpu_milli < CPU_MILLI_MIN or memory_bytes < 64 * MEMORY_GRAIN_BYTES:
        raise InvalidArgument(
            "executors",
            count,
            f"fewer: this host has {capacity.cpu_milli_total} thousandths of a core and "
            f"{capacity.memory_bytes_total} bytes of memory in total",
        )
    parts = _parts(topology, usable, count)
    # If the host has a CPU quota, or fewer cpus than executors, the cpus of a share have more CPU
    # time than the share is allowed to use. In these two cases, also limit the CPU time of each
    # share.
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
    """Returns `count` disjoint sets of cpus, or an empty list if there are fewer cpus than `count`.

    If the host has at least `count` cores, each set has whole cores. Otherwise, each set has single
    cpus. The sizes of the sets differ by at most one core or cpu.
    """
    cores = [core.cpus & usable for core in topology.cores if not core.cpus.isdisjoint(usable)]
    # Split cores between executors only if there are too few cores.
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
