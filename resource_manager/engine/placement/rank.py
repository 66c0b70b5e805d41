"""Which of the hosts with room is best. Knows shares, not requests or queues."""

from __future__ import annotations

from collections.abc import Sequence

from resource_manager.engine.host import Host
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.queue import Shape

HOSTS_PER_CANDIDATE = 8
"""One more candidate is compared for so many hosts in use: what alignment may leave half empty
stays a small part.
"""

_SHARE = 1 << 14
_COSINE_BITS = 30


def candidates_compared(most: int, hosts_in_use: int) -> int:
    """How many hosts with room are compared for one slot."""
    return min(most, 1 + hosts_in_use // HOSTS_PER_CANDIDATE)


def best_aligned(hosts: Sequence[Host], shape: Shape, index: CapacityIndex) -> Host | None:
    """The host whose free capacity has the proportions most like the request's; the first among
    equals.

    What a host has left then stays in proportion, and less of one dimension is stranded because
    another ran out. Alignment after R. Grandl et al., "Multi-resource packing for cluster
    schedulers" (Tetris, SIGCOMM 2014), here as the cosine of the angle between the two vectors of
    shares, so that size does not count.
    """
    if len(hosts) <= 1:
        return hosts[0] if hosts else None
    return max(hosts, key=lambda host: _alignment(host, shape, index))


def _alignment(host: Host, shape: Shape, index: CapacityIndex) -> int:
    """Square of the cosine, scaled; integers, so that the answer is the same everywhere."""
    need = host.default_booking if shape.profile is None else host.need_of(shape)
    position = index.position[host.host_id]
    columns = index.columns
    product = free_square = need_square = 0
    for name, total in host.dimensions:
        column = columns.get(name)  # none: nobody has any of it left
        free_share = column[0][position] * _SHARE // total if column else 0
        free_square += free_share * free_share
        if amount := need.get(name, 0):
            need_share = amount * _SHARE // total
            product += free_share * need_share
            need_square += need_share * need_share
    if not product:
        return 0
    return (product * product << _COSINE_BITS) // (free_square * need_square)
