"""Finds changes that would let a request fit now: a change of the request, or the end of a few
slots.

Changes of the request are searched only on hosts where a single constraint blocks the request. Of
these hosts, only the nearest are searched.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from finegrain.resources import Amounts
from finegrain.values.explanations import Counterfactual
from finegrain.values.states import SlotState
from resource_manager.engine.explain.survey import Survey
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.constraint import MILLION, HostView

COUNTERFACTUALS_MAX = 5
BLOCKING_SLOTS_MAX = 20

COSTLY_TRIES_MAX = 64
"""At most this many sets of slots are tried if each try must check a costly constraint."""

DROPPED_TRIED_MAX = 100
"""At most this many slots of the found set are checked for whether they could stay."""

_Found = tuple[int, str, Counterfactual]
"""Size of the change in millionths, host id, and the change."""


def counterfactuals(settings: EngineSettings, survey: Survey) -> list[Counterfactual]:
    """Returns the smallest changes of a request with which it would fit, smallest first. Each
    change names one host.

    Args:
        settings: settings of the engine, for the smallest amounts that a request may have.
        survey: comparison of the request with all hosts.
    """
    found: list[_Found] = []
    for constraint, distances in survey.blocked_only_by.items():
        # On these hosts, this constraint is the only obstacle. On other hosts, a change for this
        # constraint alone would not be sufficient.
        for _, _, host_id in heapq.nsmallest(constraint.remedies_sought_on, distances):
            at = survey.view(host_id)
            for one in constraint.remedies(survey.fit.request, at, settings):
                text = f"fits now on {host_id} {one.text}"
                change = Counterfactual(host_id, one.at_most, text, one.relaxed)
                found.append((one.size, host_id, change))
    found.sort(key=lambda item: item[:2])  # by size and host, because changes cannot be compared
    return [counterfactual for _, _, counterfactual in found[:COUNTERFACTUALS_MAX]]


def blocking_slots(survey: Survey) -> list[Slot]:
    """Returns a few slots on the nearest executor that is large enough. Without these slots, the
    request would fit there.
    """
    if survey.promising is None:
        return []
    verdict = survey.verdict(survey.promising[2])
    # The request fits there now, so nothing blocks it.
    if verdict.fits:
        return []
    # The number of tries is limited only if cpus must be chosen for each try.
    tries_left = COSTLY_TRIES_MAX if survey.fit.has_costly_checks(verdict.host) else None

    def fits_without(ended: Sequence[Slot]) -> bool:
        nonlocal tries_left
        at = HostView.without(verdict.host, ended, owns_reservation=verdict.at.owns_reservation)
        # The cheap checks come first, because most tries fail there.
        if survey.fit.cheap_obstacles(at):
            return False
        if tries_left is None:
            return True
        tries_left -= 1
        return tries_left >= 0 and not survey.fit.costly_obstacles(at)

    # A bisection finds how many slots must end. Then slots that could stay are removed from the
    # list one by one.
    slots = verdict.host.slots.values()
    return slots_in_the_way(slots, verdict.missing(), fits_without)[:BLOCKING_SLOTS_MAX]


def slots_in_the_way(
    slots: Iterable[Slot], missing: Amounts, fits_without: Callable[[Sequence[Slot]], bool]
) -> list[Slot]:
    """Returns a few slots whose end would be sufficient for the request. The list is empty if even
    the end of all slots would not be sufficient.

    Example: 3 cpus are missing. Slot a has 2 cpus, b has 2, and c has 1. The slots are sorted by
    how much they help: a, b, c. The end of a alone is not sufficient, but the end of a and b is
    sufficient. Neither a nor b could stay, so the result is a and b.

    Args:
        slots: the slots that may end, all on one host.
        missing: amounts that are missing on the host for the request.
        fits_without: returns True if the request would fit without the given slots; False for an
            empty list.
    """
    ordered = sorted(slots, key=lambda slot: _helpfulness(slot, missing))
    # If the end of all slots does not help, no slot blocks the request.
    if not fits_without(ordered):
        return []
    # The bisection assumes: if the end of some slots is sufficient, the end of more slots is
    # sufficient, too.
    count = bisect_left(range(len(ordered)), True, 1, key=lambda n: fits_without(ordered[:n]))
    needed = ordered[:count]
    for slot in needed[:DROPPED_TRIED_MAX]:
        others = [other for other in needed if other is not slot]
        if others and fits_without(others):
            needed = others
    return needed


def _helpfulness(slot: Slot, missing: Amounts) -> tuple[bool, int, int, int, str]:
    """Returns a sort key. Slots that are being freed come first, then slots that have most of the
    missing amounts, then slots with most dedicated cpus or NUMA nodes.
    """
    # Each amount counts as a part of the missing amount, in millionths. So parts of cpu and memory
    # can be added up.
    helps = sum(
        min(slot.booked.get(name, 0), lack) * MILLION // lack for name, lack in missing.items()
    )
    had = slot.assignment
    own, bound = (len(had.cpus), len(had.numa)) if had is not None else (0, 0)
    return slot.state is not SlotState.FREEING, -helps, -own, -bound, slot.allocation_id
