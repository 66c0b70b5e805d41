"""The order in which hosts are candidates for a scheduling class.

Hosts are divided into tiers by columns of the capacity index. Hosts in the tiers of one level are
compared with each other. The next level is tried if no host of the earlier levels has room.

- A class where amounts decide: first the hosts without GPUs, then those with GPUs. Hosts that align
  every slot to NUMA nodes come last. Other slots need these hosts.
- A class with devices: all hosts with room, in order of the GPU capacity that a slot would strand
  there (`stranding.py`).
- A topology-constrained class: first the hosts that can meet all its preferred policies, then those
  that miss one, and so on. So a preference ranks all hosts, not only the first ones with room.

Example: a request prefers "SpreadByPCPUs". 1,000 hosts demand whole cores, and one host does not.
The first level needs the column `pin.cores`, which only that one host has, so it is found at once.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, combinations
from typing import NamedTuple

from resource_manager.engine.model.scheduling_key import (
    ALIGNING,
    EMPTY,
    IN_USE,
    WITH_GPUS,
    WITHOUT_GPUS,
)
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

KNOWN_MAX = 16_384


class Tier(NamedTuple):
    """Some of the hosts.

    Attributes:
        columns: index columns with the least value that these hosts must have, in addition to the
            needs of the class.
        in_use: True: only hosts with slots; False: only empty ones; None: both.
        unmet_max: number of preferred policies that a host may miss; None: any.
        aligning: only hosts that align every slot to NUMA nodes.
        ranked: the host that strands least GPU capacity comes first (`stranding.py`).
    """

    columns: tuple[tuple[str, int], ...] = ()
    in_use: bool | None = None
    unmet_max: int | None = None
    aligning: bool = False
    ranked: bool = False


Level = tuple[Tier, ...]
"""Tiers whose hosts are compared with each other, in the order in which they are searched."""


def levels(
    scheduling_class: SchedulingClass, *, use_first: bool, aligning: bool, gpus: bool
) -> tuple[Level, ...]:
    """Returns the levels of a scheduling class, in the order in which they are tried.

    Args:
        scheduling_class: the class.
        use_first: hosts in use come before empty ones.
        aligning: some hosts align every slot.
        gpus: some hosts have GPUs.
    """
    if scheduling_class.topology_constrained:
        needs = needs_of(scheduling_class)
        profile = scheduling_class.profile
        if gpus and use_first and profile is not None and profile.devices:
            found = _by_preferences(needs.preferred, needs.never_met, use_first=False)
            return tuple(tuple(tier._replace(ranked=True) for tier in level) for level in found)
        return _by_preferences(needs.preferred, needs.never_met, use_first)
    plain, aligned = _BY_COUNT[use_first]
    first = _APART_FROM_GPUS if gpus and use_first else (plain,)
    return (*first, aligned) if aligning else first


@lru_cache(KNOWN_MAX)
def _by_preferences(
    needs: tuple[tuple[tuple[str, int], ...], ...], never_met: int, use_first: bool
) -> tuple[Level, ...]:
    told = [need for need in needs if need]  # the index has columns for these
    found: list[Level] = []
    for missed in range(len(needs)):
        # An index search can demand only preferences that have columns. Each combination of met
        # preferences is one tier. Other preferences are compared when a host's cpus are checked.
        some = combinations(told, max(0, len(told) - missed))
        most = missed + never_met
        found.append(tuple(Tier(tuple(chain(*each)), unmet_max=most) for each in some))
    # The last level takes any host with room.
    found.append((Tier(),))
    return tuple(map(_use_first, found)) if use_first else tuple(found)


def _use_first(level: Level) -> Level:
    return (
        *(tier._replace(in_use=True, columns=((IN_USE, 1), *tier.columns)) for tier in level),
        *(tier._replace(in_use=False, columns=((EMPTY, 1), *tier.columns)) for tier in level),
    )


_ANY: tuple[Level, ...] = ((Tier(),), (Tier(((ALIGNING, 1),), aligning=True),))
_APART_FROM_GPUS: tuple[Level, ...] = (
    _use_first((Tier(((WITHOUT_GPUS, 1),)),)),
    (Tier(((WITH_GPUS, 1),), ranked=True),),
)
_BY_COUNT = {False: _ANY, True: tuple(map(_use_first, _ANY))}
