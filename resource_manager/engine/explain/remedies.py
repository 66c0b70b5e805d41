"""Finds changes with which a request would fit now: a change of the request, or the end of a few
slots.

The code looks for changes of the request only on hosts where a single constraint blocks the
request, and only on the nearest of these hosts.
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
"""The largest number of sets of slots that are tried if each try must check a costly constraint."""

DROPPED_TRIED_MAX = 100
"""The largest number of found slots for which the code checks whether the request would fit even if
the slot stayed.
"""

_Found = tuple[int, str, Counterfactual]
"""The size of the change in millionths, the id of the host, and the change."""


def counterfactuals(settings: EngineSettings, survey: Survey) -> list[Counterfactual]:
    """Returns the smallest changes of a request with which it would fit, the smallest change first.
    Each change names one host.

    Args:
        settings: the settings of the engine, which contain the minimum amounts of a request.
        survey: the comparison of the request with all hosts.
    """
    found: list[_Found] = []
    for constraint, distances in survey.blocked_only_by.items():
        # On these hosts, this constraint is the only obstacle. On a host with other obstacles, a
        # change for this constraint alone would not be sufficient.
        for _, _, host_id in heapq.nsmallest(constraint.remedies_sought_on, distances):
            at = survey.view(host_id)
            for one in constraint.remedies(survey.fit.request, at, settings):
                text = f"fits now on {host_id} {one.text}"
                change = Counterfactual(host_id, one.at_most, text, one.relaxed)
                found.append((one.size, host_id, change))
    # sorted by size and host, because changes cannot be compared
    found.sort(key=lambda item: item[:2])
    return [counterfactual for _, _, counterfactual in found[:COUNTERFACTUALS_MAX]]


def blocking_slots(survey: Survey) -> list[Slot]:
    """Returns a few slots on the nearest executor that is large enough. If these slots ended, the
    request would fit on the executor.
    """
    if survey.promising is None:
        return []
    verdict = survey.verdict(survey.promising[2])
    # The request fits on the executor now, so no slot blocks it.
    if verdict.fits:
        return []
    # The number of tries is limited only if each try must make costly checks.
    tries_left = COSTLY_TRIES_MAX if survey.fit.has_costly_checks(verdict.host) else None

    def fits_without(ended: Sequence[Slot]) -> bool:
        nonlocal tries_left
        at = HostView.without(verdict.host, ended, owns_reservation=verdict.at.owns_reservation)
        # The cheap checks are made first, because most tries fail a cheap check.
        if survey.fit.cheap_obstacles(at):
            return False
        if tries_left is None:
            return True
        tries_left -= 1
        return tries_left >= 0 and not survey.fit.costly_obstacles(at)

    # `slots_in_the_way` finds the number of slots that must end by bisection. Then it removes slots
    # that could stay, one by one.
    slots = verdict.host.slots.values()
    return slots_in_the_way(slots, verdict.missing(), fits_without)[:BLOCKING_SLOTS_MAX]


def slots_in_the_way(
    slots: Iterable[Slot], missing: Amounts, fits_without: Callable[[Sequence[Slot]], bool]
) -> list[Slot]:
    """Returns a few slots such that the request would fit if these slots ended. The result is empty
    if the request would not fit even if all slots ended.

    Example: 3 cpus are missing. Slot a has 2 cpus, b has 2, and c has 1. The slots are sorted, the
    most helpful slot first: a, b, c. The end of a alone is not sufficient, but the end of a and b
    is sufficient. Neither a nor b could stay, so the result is a and b.

    Args:
        slots: the slots whose end is considered, all on one host.
        missing: the amounts that the host lacks for the request.
        fits_without: a function that returns True if the request would fit without the given slots.
            It returns False for an empty list.
    """
    ordered = sorted(slots, key=lambda slot: _helpfulness(slot, missing))
    # If even the end of all slots does not help, no slots block the request.
    if not fits_without(ordered):
        return []
    # The bisection assumes that if the end of some slots is sufficient, the end of more slots is
    # also sufficient.
    count = bisect_left(range(len(ordered)), True, 1, key=lambda n: fits_without(ordered[:n]))
    needed = ordered[:count]
    for slot in needed[:DROPPED_TRIED_MAX]:
        others = [other for other in needed if other is not slot]
        if others and fits_without(others):
            needed = others
    return needed


def _helpfulness(slot: Slot, missing: Amounts) -> tuple[bool, int, int, int, str]:
    """Returns a sort key. Slots that are being freed come first. Then come the slots that have the
    most of the missing amounts, and then the slots with the most dedicated cpus or NUMA nodes.
    """
    # Each amount counts in millionths of the missing amount, so that the values of cpu and memory
    # can be added up.
    helps = sum(
        min(slot.booked.get(name, 0), lack) * MILLION // lack for name, lack in missing.items()
    )
    had = slot.assignment
    own, bound = (len(had.cpus), len(had.numa)) if had is not None else (0, 0)
    return slot.state is not SlotState.FREEING, -helps, -own, -bound, slot.allocation_id
