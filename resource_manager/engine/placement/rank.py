"""Which of the hosts with room is best. Knows shares, not requests or queues."""

from __future__ import annotations

from collections.abc import Sequence

from resource_manager.engine.host import SHARE_UNIT, Host
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.queue import Shape, amounts_of


def tightest(hosts: Sequence[Host], shape: Shape, index: CapacityIndex) -> Host | None:
    """The host that the slot leaves with the smallest free share in its freest dimension; the first
    among equals.
    """
    if len(hosts) <= 1:
        return hosts[0] if hosts else None
    return min(hosts, key=lambda host: _left_over(host, shape, index))


def _left_over(host: Host, shape: Shape, index: CapacityIndex) -> int:
    need = host.default_booking if shape.profile is None else amounts_of(host.need_of(shape))
    total = host.executor.registration.total
    return max(
        (index.value(host.host_id, name) - need.get(name, 0)) * SHARE_UNIT // amount
        for name, amount in total.items()
        if amount
    )
