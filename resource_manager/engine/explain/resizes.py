"""Explains why a resize waits, and names changes with which the resize would fit.

An explanation uses the checks that the engine makes before it sends a resize to an executor
(`lifecycle/resizes.py`). An explanation describes one moment, and reserves no capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finegrain.errors import Reason
from finegrain.resources import Amounts, add, fits, shortfall, total_of
from finegrain.values.explanations import Dimension
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.devices.refusals import DeviceBlocker
from resource_manager.engine.explain.remedies import slots_in_the_way
from resource_manager.engine.fairness.flows import GROUP
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import ResizeBackoff
from resource_manager.engine.lifecycle.growth import assignment_for, growth, growth_obstacles
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks
from resource_manager.engine.model.entities import Resize, Slot
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.texts import amount_text, number_text
from resource_manager.engine.placement.constraint import Blocker
from resource_manager.engine.placement.fit import AMOUNTS, AVAILABLE
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State

SLOTS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class ResizeExplanation:
    """The explanation of a resize. This class mirrors the message of the same name in the protocol.

    Attributes:
        ordered: True if the resize was sent to the executor, and False if it still waits.
        dimensions: the growth in each dimension that grows, with the free and the total amount of
            the executor.
        summary: a sentence that describes the state of the resize.
    """

    resize: Resize
    ordered: bool
    dimensions: tuple[Dimension, ...]
    summary: str


def explain_resizes(state: State, slot: Slot) -> list[ResizeExplanation]:
    """Explains the unfinished resizes of a slot. The resize that was sent to the executor comes
    first, then the resize that waits.
    """
    host = state.hosts[slot.executor_id]
    found = []
    if slot.ordered is not None:
        found.append(ResizeExplanation(slot.ordered, True, (), _ordered(host, slot)))
    if slot.wanted is not None:
        growth_needed = growth(host, slot)
        free, total = host.free(), host.total
        dimensions = tuple(
            Dimension(name, more, free.get(name, 0), free.get(name, 0), total.get(name, 0))
            for name, more in growth_needed.items()
        )
        summary = _waiting(
            state.reservations,
            state.quotas,
            state.requests,
            host,
            slot,
            growth_needed=growth_needed,
        )
        found.append(ResizeExplanation(slot.wanted, False, dimensions, summary))
    return found


def _ordered(host: Host, slot: Slot) -> str:
    backoff = host.resize_backoffs.get((slot.allocation_id, slot.generation))
    if backoff is not None and backoff.reason == Reason.IN_PROGRESS and not _unavailable_text(host):
        return f"{host.host_id} is carrying it out ({backoff.message})"
    return f"sent to {host.host_id}, which has not confirmed it yet{_unavailable_text(host)}"


def _waiting(
    reservations: Reservations,
    quotas: QuotaChecks,
    requests: Requests,
    host: Host,
    slot: Slot,
    *,
    growth_needed: Amounts,
) -> str:
    """Describes why a waiting resize has not been sent to the executor yet. The checks are in the
    same order as in the engine.
    """
    if slot.state is not SlotState.ALLOCATED:
        return "the slot is being freed, or its state on the executor is unknown"
    # While another resize is in flight, the engine checks no other condition.
    if slot.ordered is not None:
        return f"waits for resize {slot.ordered.number}, which was sent to the executor"
    backoff = host.resize_backoffs.get((slot.allocation_id, slot.generation))
    if backoff is not None and backoff.active:
        return _backoff_text(backoff)
    obstacles = {each.blocker: each for each in growth_obstacles(host, slot)}
    total, need = host.total, add(slot.booked, growth_needed)
    if Blocker.TOTAL_TOO_SMALL in obstacles:
        beyond = [name for name in growth_needed if need[name] > total.get(name, 0)]
        lacks = ", ".join(amount_text(name, need[name], total.get(name, 0)) for name in beyond)
        return f"{host.host_id} has become too small for it, even when empty ({lacks})"
    # This check comes before the check of AMOUNTS: if a host is not available, the amounts can be
    # insufficient, too.
    if any(each.constraint is AVAILABLE for each in obstacles.values()):
        return f"no slot can grow on {host.host_id} now{_unavailable_text(host)}"
    if any(each.constraint is AMOUNTS for each in obstacles.values()):
        return _lacking(host, slot, growth_needed)
    block = quotas.growth_block(slot.job_id, growth_needed)
    if block is not None:
        group, name = block.group_id.removeprefix(GROUP), block.dimension
        has = amount_text(name, block.used, block.maximum, of=" of at most ")
        return f"group {group} has {has}, and the slot grows by {amount_text(name, block.need)}"
    found = assignment_for(requests, host, slot)
    if isinstance(found, HostRefusal) and isinstance(found.blocker, DeviceBlocker):
        return f"{host.host_id}: {found.text}"
    if isinstance(found, HostRefusal):
        return f"{Reason.WAITING_TOPOLOGY}: {host.host_id} has the amounts, but {found.text}"
    # A reservation is the reason only if all other checks have passed, so it is checked last.
    if Blocker.HELD in obstacles:
        owner = reservations.on_host[host.host_id].owner.title
        return f"there is room on {host.host_id}, but it is reserved for {owner}"
    return "has not been considered yet"


def _backoff_text(backoff: ResizeBackoff) -> str:
    if backoff.reason == Reason.BELOW_USE:
        return f"{backoff.message}; it is tried again after a short pause"
    return f"the executor refused it ({backoff.message}); it is tried again later"


def _unavailable_text(host: Host) -> str:
    executor = host.executor
    if executor.state is not ExecutorState.ACTIVE:
        return f": it is {executor.state}"
    if host.reach.unreachable:
        return f": the resource manager cannot connect to it: {host.reach.cause}"
    if executor.draining:
        return f": it is draining: {executor.drain_reason or 'no reason given'}"
    return ""


def _lacking(host: Host, slot: Slot, growth_needed: Amounts) -> str:
    free = host.free()
    missing = shortfall(growth_needed, free)
    lacks = ", ".join(
        f"the slot grows by {amount_text(name, growth_needed[name])},"
        f" free {number_text(name, free.get(name, 0))}"
        for name in missing
    )
    fitting = " and ".join(
        amount_text(name, slot.booked.get(name, 0) + free.get(name, 0)) for name in missing
    )
    text = f"{lacks} on {host.host_id}; it fits now with at most {fitting}"

    def fits_without(ended: Sequence[Slot]) -> bool:
        return fits(growth_needed, add(free, total_of(other.booked for other in ended)))

    # The end of the slot itself would not help, so the slot is left out.
    others = (other for other in host.slots.values() if other is not slot)
    blocking = slots_in_the_way(others, missing, fits_without)
    names = [f"{other.allocation_id}/{other.generation}" for other in blocking]
    if not names:
        return text
    more = f" and {len(names) - SLOTS_NAMED_MAX} more" if len(names) > SLOTS_NAMED_MAX else ""
    return f"{text}, or without {', '.join(names[:SLOTS_NAMED_MAX])}{more}"
