"""What one slot needs of a host's cpus, NUMA nodes and devices, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_policy import CpuPolicy
from finegrain.devices.request import DeviceRequest
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, Amounts
from resource_manager.engine.cpus.numa import aligned_amounts


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """What one slot needs of a host's cpus, NUMA nodes and devices."""

    policy: CpuPolicy
    amounts: tuple[tuple[str, int], ...]  # what it books, sorted; memory parts added up
    cpu_limit_milli: int = 0  # 0: it may use no more than it books
    devices: tuple[DeviceRequest, ...] = ()

    @classmethod
    def of(
        cls,
        policy: CpuPolicy,
        booking: Amounts,
        cpu_limit_milli: int = 0,
        devices: tuple[DeviceRequest, ...] = (),
    ) -> CpuRequest:
        """Makes the request of a slot.

        Args:
            policy: its CPU policy.
            booking: what it books on the host, see `finegrain.resources.booking`.
            cpu_limit_milli: thousandths of a cpu that it may use; 0: no more than it books.
            devices: what it requests of them.
        """
        amounts = tuple(sorted(aligned_amounts(booking).items()))
        return cls(policy, amounts, cpu_limit_milli, devices)

    @property
    def cpu_milli(self) -> int:
        """Cpu that it books, best-effort or not."""
        # Best-effort slots book their cpu in a dimension that guarantees nothing.
        name = BEST_EFFORT_CPU_MILLI if self.policy.best_effort else CPU_MILLI
        return dict(self.amounts).get(name, 0)
