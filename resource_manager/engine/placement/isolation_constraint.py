"""Checks whether a host enforces the limits of cpu and memory that a request requires.

The required level of enforcement for a device is a condition on each device
(`finegrain/devices/request.py`), which `DevicesSuit` checks.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.devices.levels import CPU, KERNEL, MEMORY, NONE
from finegrain.resources import Amounts
from finegrain.values.isolation import Isolation
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.constraint import (
    MILLION,
    Blocker,
    Constraint,
    HostView,
    Obstacle,
    Remedy,
)

_COLUMNS = {CPU: "enforces.cpu", MEMORY: "enforces.memory"}
_BY_KERNEL = {CPU: ("quota",), MEMORY: ("hard",)}
"""Values in an isolation report which mean that the kernel enforces the limit of a dimension."""


class EnforcesLimits(Constraint):
    """The host enforces the limits that the request requires."""

    of_size = True
    equal_in_group = True
    has_columns = True
    columns = tuple(_COLUMNS.values())
    remedies_sought_on = 3

    def applies(self, request: ResourceRequest) -> bool:
        """See `Constraint`."""
        return request.profile is not None and bool(request.profile.isolation)

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """See `Constraint`."""
        return {_COLUMNS[name]: 1 for name in _required(request)}

    def offers(self, at: HostView) -> dict[str, int]:
        """See `Constraint`."""
        return {_COLUMNS[name]: 1 for name in _enforced(at.host)}

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        enforced = _enforced(at.host)
        return tuple(
            Obstacle(self, Blocker.ISOLATION, dimension=name)
            for name in _required(request)
            if name not in enforced
        )

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        name = obstacle.dimension
        return f"cannot enforce the limit of {name} ({name}: {NONE}, but {KERNEL} is required)"

    def remedies(
        self, request: ResourceRequest, at: HostView, settings: EngineSettings
    ) -> Iterator[Remedy]:
        """See `Constraint`."""
        names = " and ".join(name for name in _required(request) if name not in _enforced(at.host))
        yield Remedy(MILLION, f"without enforced limits of {names}", relaxed=("isolation",))


ISOLATION = EnforcesLimits()


def _required(request: ResourceRequest) -> list[str]:
    profile = request.profile
    return [name for name, _ in profile.isolation] if profile is not None else []


def _enforced(host: Host) -> list[str]:
    report: Isolation = host.executor.registration.isolation
    return [name for name, words in _BY_KERNEL.items() if getattr(report, name) in words]
