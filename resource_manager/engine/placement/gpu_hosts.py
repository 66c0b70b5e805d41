"""Keeps the set of hosts with GPUs, and the sums of their GPUs, cpu and memory."""

from __future__ import annotations

from finegrain.devices.device import GPU
from finegrain.resources import CPU_MILLI
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.scores import MEMORY

Sums = tuple[int, int, int]
"""The number of GPUs, the cpu in thousandths of a core, and the memory in grains."""


class GpuHosts:
    """The hosts that have GPUs.

    Attributes:
        sums: the totals over all hosts that have GPUs.
    """

    def __init__(self) -> None:
        self.sums: Sums = (0, 0, 0)
        self._known: dict[str, Sums] = {}

    def __contains__(self, host_id: str) -> bool:
        return host_id in self._known

    def update(self, host: Host) -> None:
        """Adds or removes a host, according to its present GPUs, and corrects the sums for its
        capacity.
        """
        gpus = gpu_count(host)
        has = host.dimensions
        sums = (gpus, has.get(CPU_MILLI, 0), sum(has.get(name, 0) for name in MEMORY))
        self._replace(host.host_id, sums if gpus else None)

    def remove(self, host_id: str) -> None:
        """Removes a host."""
        self._replace(host_id, None)

    def _replace(self, host_id: str, new: Sums | None) -> None:
        old = self._known.get(host_id)
        if old == new:
            return
        if new is None:
            del self._known[host_id]
        else:
            self._known[host_id] = new
        gpus, cpu_milli, memory = (
            whole - before + after
            for whole, before, after in zip(self.sums, old or _NONE, new or _NONE, strict=True)
        )
        self.sums = gpus, cpu_milli, memory


_NONE: Sums = (0, 0, 0)


def gpu_count(host: Host) -> int:
    """Returns the number of GPUs that a host offers to slots."""
    return len(host.cpus.devices.layout.of_type.get(GPU, ())) if host.cpus is not None else 0
