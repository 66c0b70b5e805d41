"""Finds changes that would let a request fit now: of the request itself, or the end of a few slots.

A change of the request is one of a constraint that alone blocks it on a host, and only the hosts
nearest to fitting are tried.
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
"""How often the end of slots is tried where a costly constraint has to be checked."""

DROPPED_TRIED_MAX = 100
"""How many slots are tried for whether the request would also fit with them."""

_Found = tuple[int, str, Counterfactual]
"""Size of the change in millionths, host id, and the change."""


def counterfactuals(settings: EngineSettings, survey: Survey) -> list[Counterfactual]:
    """Returns the smallest changes of a request that help, smallest first, each about one host.

    Args:
        settings: for the least that a request may ask for.
        survey: how the request compares with the hosts.
    """
    found: list[_Found] = []
    for constraint, distances in survey.blocked_only_by.items():
        # Only hosts where this one constraint is the obstacle: elsewhere its removal would not
        # help.
        for _, _, host_id in heapq.nsmallest(constraint.remedies_sought_on, distances):
            at = survey.view(host_id)
            for one in constraint.remedies(survey.fit.request, at, settings):
                text = f"fits now on {host_id} {one.text}"
                change = Counterfactual(host_id, one.at_most, text, one.relaxed)
                found.append((one.size, host_id, change))
    found.sort(key=lambda item: item[:2])  # a change has no order of its own
    return [counterfactual for _, _, counterfactual in found[:COUNTERFACTUALS_MAX]]


def blocking_slots(survey: Survey) -> list[Slot]:
    """Returns a few slots whose end would let the request fit on the nearest executor that is large
    enough.
    """
    if survey.promising is None:
        return []
    verdict = survey.verdict(survey.promising[2])
    # The request fits there by now, so nothing blocks it.
    if verdict.fits:
        return []
    # Amounts are compared quickly; a choice of cpus for each try is not.
    tries_left = COSTLY_TRIES_MAX if survey.fit.has_costly_checks(verdict.host) else None

    def fits_without(ended: Sequence[Slot]) -> bool:
        nonlocal tries_left
        at = HostView.without(verdict.host, ended, owns_reservation=verdict.at.owns_reservation)
        # Cheap checks first: most tries fail there.
        if survey.fit.cheap_obstacles(at):
            return False
        if tries_left is None:
            return True
        tries_left -= 1
        return tries_left >= 0 and not survey.fit.costly_obstacles(at)

    # Bisection finds how many slots must end. Then each that turns out not to be needed is dropped.
    slots = verdict.host.slots.values()
    return slots_in_the_way(slots, verdict.missing(), fits_without)[:BLOCKING_SLOTS_MAX]


def slots_in_the_way(
    slots: Iterable[Slot], missing: Amounts, fits_without: Callable[[Sequence[Slot]], bool]
) -> list[Slot]:
    """Returns a few slots whose end would be enough; none if the end of all would not.

    Args:
        slots: those that may end, all on one host.
        missing: amounts that are not free there.
        fits_without: whether it would be enough if these had ended; False for none of them.
    """
    ordered = sorted(slots, key=lambda slot: _helpfulness(slot, missing))
    # If even the end of all slots does not help, none of them is in the way.
    if not fits_without(ordered):
        return []
    # The search assumes that ending more slots never makes anything fit less.
    count = bisect_left(range(len(ordered)), True, 1, key=lambda n: fits_without(ordered[:n]))
    needed = ordered[:count]
    for slot in needed[:DROPPED_TRIED_MAX]:
        others = [other for other in needed if other is not slot]
        if others and fits_without(others):
            needed = others
    return needed


def _helpfulness(slot: Slot, missing: Amounts) -> tuple[bool, int, int, int, str]:
    """Sort key: slots that are being freed first, then those with most of what is missing, then
    those with most dedicated cpus or NUMA nodes.
    """
    # In millionths of what is missing, so that cpu and memory can be added up.
    helps = sum(
        min(slot.booked.get(name, 0), lack) * MILLION // lack for name, lack in missing.items()
    )
    had = slot.assignment
    own, bound = (len(had.cpus), len(had.numa)) if had is not None else (0, 0)
    return slot.state is not SlotState.FREEING, -helps, -own, -bound, slot.allocation_id
