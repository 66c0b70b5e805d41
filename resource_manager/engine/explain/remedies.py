"""Finds changes that would let a request fit now: smaller amounts, other labels, policies that give
way, or the end of a few slots.

Each change is the smallest of its kind that was found on one host, and only the hosts nearest to
fitting are tried. Where amounts alone do not decide, each change is tried out (`cpus.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    add,
    fits,
    round_down,
    shortfall,
    subtract,
    total_of,
)
from finegrain.values.explanations import Counterfactual, Dimension
from finegrain.values.states import SlotState
from resource_manager.engine.explain.cpus import (
    MILLI_PER_CPU,
    Relaxation,
    WithoutSlots,
    fits_smaller,
    relaxations,
)
from resource_manager.engine.model.entities import Request, Slot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.feasibility import Judgement
from resource_manager.engine.placement.survey import MILLION, Survey
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

COUNTERFACTUALS_MAX = 5
BLOCKING_SLOTS_MAX = 20

SCANNED_MAX = 100
"""How many executors, nearest first, are tried for smaller amounts."""

LOWERED_ON_MAX = 20
"""The same limit where each amount has to be tried out."""

LOWERED_TRIED_MAX = 4
"""How many numbers of cpus are tried on each."""

RELAXED_ON_MAX = 3
"""How many executors are tried with other policies. Each takes several tries."""


_Found = tuple[int, str, Counterfactual]
"""Size of the change in millionths, host id, and the change."""


def counterfactuals(
    settings: EngineSettings, request: Request, survey: Survey
) -> list[Counterfactual]:
    """Returns the smallest changes that help, smallest first, each about one host.

    Args:
        settings: for the minimum of a request.
        request: a queued request.
        survey: how the request compares with the hosts.
    """
    found: list[_Found] = []
    for host_id in heapq.nsmallest(RELAXED_ON_MAX, survey.misfits):
        if survey.is_for_others(survey.hosts[host_id]):
            continue
        one = survey.judge(host_id)
        found += [_relaxed(one, change) for change in relaxations(one.host, survey.shape)]
    if request.spec.profile is not None:
        most = LOWERED_ON_MAX if survey.shape.topology_constrained else SCANNED_MAX
        for _, _, host_id in heapq.nsmallest(most, survey.lacking):
            one = survey.judge(host_id)
            lowered = _lowered(settings, survey, one)
            if lowered:
                size = max((d.asked - d.free) * MILLION // d.asked for d in lowered)
                amounts = " and ".join(f"{d.dimension} <= {d.free}" for d in lowered)
                text = f"fits now on {host_id} if {amounts}"
                found.append((size, host_id, Counterfactual(host_id, lowered, text)))
    labels = ", ".join(f"{name}={value}" for name, value in request.spec.required_labels)
    for host_id in heapq.nsmallest(COUNTERFACTUALS_MAX, survey.unlabelled):
        text = f"fits now on {host_id} without the labels {labels}"
        found.append((MILLION, host_id, Counterfactual(host_id, (), text)))
    found.sort(key=lambda item: item[:2])
    return [counterfactual for _, _, counterfactual in found[:COUNTERFACTUALS_MAX]]


def _relaxed(one: Judgement, change: Relaxation) -> _Found:
    """Returns a policy change with its size. It counts as smaller than any change of amounts,
    except for the QoS class.
    """
    host_id = one.host.host_id
    at_most = tuple(
        Dimension(name, asked, amount, amount, one.total.get(name, 0))
        for name, asked, amount in change.at_most
    )
    if at_most:
        size = max((d.asked - d.free) * MILLION // d.asked for d in at_most)
    else:
        size = MILLION if "qos" in change.relaxed else len(change.relaxed)
    text = f"fits now on {host_id} if {change.text}"
    return size, host_id, Counterfactual(host_id, at_most, text, change.relaxed)


def _lowered(settings: EngineSettings, survey: Survey, one: Judgement) -> tuple[Dimension, ...]:
    """Returns the amounts to lower and the values that fit.

    Empty where those would be below the minimum of a request, or would not suit the host's cpus and
    NUMA nodes.
    """
    for_others = survey.is_for_others(one.host)
    spare = one.host.spare() if for_others else one.free
    if for_others and one.host.spare_slots() < 1:
        return ()
    left = dict(one.asked)
    for name in shortfall(one.asked, spare):
        free = spare.get(name, 0)
        left[name] = round_down(free, MEMORY_GRAIN_BYTES) if name.endswith("memory_bytes") else free
    # a profile has either one memory amount or separate parts
    memory = sum(left.get(name, 0) for name in (MEMORY_BYTES, *MEMORY_PARTS))
    cpu = BEST_EFFORT_CPU_MILLI if survey.shape.best_effort else CPU_MILLI
    for cpu_milli in _cpu_amounts_to_try(survey.shape, left.get(cpu, 0)):
        if cpu_milli < settings.cpu_milli_min or memory < settings.memory_bytes_min:
            return ()
        smaller = left | {cpu: cpu_milli}
        if fits_smaller(one.host, survey.shape, smaller):
            changed = (name for name in smaller if smaller[name] != one.asked.get(name))
            return tuple(_at_most(one, name, smaller[name]) for name in changed)
    return ()


def _at_most(one: Judgement, name: str, amount: int) -> Dimension:
    return Dimension(name, one.asked[name], amount, amount, one.total.get(name, 0))


def _cpu_amounts_to_try(scheduling_class: SchedulingClass, cpu_milli: int) -> list[int]:
    """Returns cpu amounts to try: all that is free; for dedicated cpus some smaller numbers,
    too.
    """
    if not scheduling_class.policy.qos.is_pinned:
        return [cpu_milli]
    cpus = cpu_milli // MILLI_PER_CPU
    return [count * MILLI_PER_CPU for count in range(cpus, max(cpus - LOWERED_TRIED_MAX, 0), -1)]


def blocking_slots(survey: Survey) -> list[Slot]:
    """Returns a few slots whose end would let the request fit on the nearest executor that is large
    enough.
    """
    if survey.promising is None:
        return []
    one = survey.judge(survey.promising[2])
    if one.fits:
        return []
    ends = WithoutSlots(one.host, survey.shape)
    slots = sorted(one.host.slots.values(), key=lambda slot: _helpfulness(one, slot))
    chosen = _enough(one, slots, ends)
    return _needed(one, chosen, ends)[:BLOCKING_SLOTS_MAX]


def _helpfulness(one: Judgement, slot: Slot) -> tuple[bool, int, int, int, str]:
    """Sort key: slots that are being freed first, then those with most of what is missing, then
    those with most dedicated cpus or NUMA nodes.
    """
    helps = sum(
        min(slot.booked.get(name, 0), missing) * MILLION // missing
        for name, missing in one.missing.items()
    )
    had = slot.assignment
    own, bound = (len(had.cpus), len(had.numa)) if had is not None else (0, 0)
    return slot.state is not SlotState.FREEING, -helps, -own, -bound, slot.allocation_id


def _fits_without(one: Judgement, ended: Sequence[Slot], ends: WithoutSlots) -> bool:
    if one.host.slots_left() + len(ended) < 1:
        return False
    free = add(_left_to_book(one), total_of(slot.booked for slot in ended))
    return fits(one.asked, free) and ends.fits_without(ended)


def _left_to_book(one: Judgement) -> dict[str, int]:
    """Returns what is free on the host.

    Includes best-effort cpu that cannot be used while the best-effort pool is empty: the end of
    slots may fill the pool, and `WithoutSlots` checks that.
    """
    return one.host.free(even_without_pool=True) if one.host.lacks_best_effort_pool else one.free


def _enough(one: Judgement, slots: Sequence[Slot], ends: WithoutSlots) -> Sequence[Slot]:
    """Returns the shortest prefix of `slots` without which the request would fit; empty if none
    helps.

    The binary search assumes that ending more slots never makes the request fit less.
    """
    if not _fits_without(one, slots, ends):
        return ()
    too_few, enough = 0, len(slots)  # as it is, the request does not fit
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if _fits_without(one, slots[:middle], ends):
            enough = middle
        else:
            too_few = middle
    return slots[:enough]


def _needed(one: Judgement, chosen: Sequence[Slot], ends: WithoutSlots) -> list[Slot]:
    """Drops slots from the chosen ones that are not needed."""
    free = add(_left_to_book(one), total_of(slot.booked for slot in chosen))
    slots_left = one.host.slots_left() + len(chosen)
    needed = dict.fromkeys(range(len(chosen)))
    for at, slot in enumerate(chosen):
        without = subtract(free, slot.booked)
        if slots_left < 2 or not fits(one.asked, without):
            continue
        if ends.fits_without(chosen[other] for other in needed if other != at):
            del needed[at]
            free = without
            slots_left -= 1
    return [chosen[at] for at in needed]
