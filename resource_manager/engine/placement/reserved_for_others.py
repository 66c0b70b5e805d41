"""Who would fit if nothing were held for others. Knows hosts and what is held on them; whether that
is right, `reservations.py` decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import fits
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved import Reservation, Reservations
from resource_manager.engine.queue.scheduling_classes import SchedulingClass


def is_held_from(host: Host, shape: SchedulingClass) -> bool:
    """True if one of a shape would fit on a host but for what is held there."""
    if host.held is None:
        return False
    need = host.booking_for(shape)
    if not need or host.slots_left() < 1 or not fits(need, host.free()):
        return False
    if host.exactly(shape):  # there for nobody else, as long as anything is held
        return host.suits(shape)
    return host.spare_slots() < 1 or not fits(need, host.spare())


def held_from(
    hosts: Hosts, reservations: Reservations, shape: SchedulingClass
) -> Iterator[Reservation]:
    """Reservations without which one of a shape would fit somewhere."""
    for each in reservations.all():
        holding = (hosts.get(name) for name in each.place.held)
        if any(
            host is not None
            and host.eligible
            and carries(host, shape.labels)
            and not host.refuses(shape)
            and is_held_from(host, shape)
            for host in holding
        ):
            yield each
