"""A slot changes its size: booked, on disk, in the kernel, on disk again, and only then told.

Decides what holds after a failure or a crash between any two of these steps. What was intended is
carried out when front and helper are back (a size below what tasks use by then is not); until the
helper has said what is enforced, both sizes stay booked and the old one is told. Refuses to know
who asks, and how a limit is enforced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason, Unavailable
from finegrain.logs import get_logger
from finegrain.resources import ResourceProfile
from task_executor.engine.slot_table import Outcome
from task_executor.engine.slots import Slot, SlotKey, SlotSpec, SlotState
from task_executor.host.helper_messages import SlotLimits
from task_executor.service.keeper import SlotKeeper

log = get_logger(__name__)


async def change_size(
    keeper: SlotKeeper,
    key: SlotKey,
    number: int,
    profile: ResourceProfile,
    cpu_limit_milli: int,
) -> Outcome:
    """All limits of the new size are enforced and durable when the outcome has a slot; with an
    error the slot is as it was, unless that is UNREACHABLE: then it is not known yet, and the same
    change may be asked for again.

    Errors: those of `SlotTable.resize`; BELOW_USE (details asked and used, bytes of memory);
    CARVE_FAILED; UNREACHABLE.
    """
    async with keeper.sizes:
        before = keeper.table.get(key)
        outcome = keeper.table.resize(key, number, profile, cpu_limit_milli)
        if outcome.slot is None or outcome.slot.becoming is None:
            return outcome
        if outcome.slot is not before:  # else it is on disk, and its outcome is not known
            try:
                await keeper.save()
            except OSError as error:
                log.error("checkpoint_not_written", error=str(error))
                if keeper.table.get(key) is not None:
                    keeper.table.resize_failed(key)
                return Outcome(key, error=_failure(outcome.slot.becoming, error))
        return await _enforce(keeper, key)


async def settle_sizes(keeper: SlotKeeper, on_host: Iterable[SlotLimits]) -> None:
    """Carries out what an earlier front, or a helper that was away, has left unsettled, and has
    the sizes in the books enforced where the host has others.

    Args:
        keeper: whose slots.
        on_host: limits of the slots that the helper has, as it told them a moment ago.
    """
    as_told = {slot.key: slot.spec for slot in keeper.table}
    async with keeper.sizes:
        unsettled = [
            slot.key
            for slot in keeper.table
            if slot.becoming is not None and slot.state is SlotState.ALLOCATED
        ]
        await asyncio.gather(*(_enforce(keeper, key) for key in unsettled))
        for limits in on_host:
            key = SlotKey(limits.allocation_id, limits.generation)
            slot = keeper.table.get(key)
            if slot is not None and slot.spec is as_told.get(key):  # else the host has changed, too
                await _align(keeper, slot, limits)


async def _enforce(keeper: SlotKeeper, key: SlotKey) -> Outcome:
    """What a slot is becoming, on the host and then in the books."""
    slot = keeper.table.get(key)
    wanted = slot.becoming if slot is not None else None
    if wanted is None:
        return Outcome(key, error=_gone(key))
    begun = time.monotonic()
    failure: FinegrainError | None = None
    try:
        await keeper.helper.resize_slot(keeper.limits_of(wanted))
    except (Unavailable, OSError) as error:
        log.error("resize_not_settled", allocation_id=key.allocation_id, error=str(error))
        return Outcome(key, error=_unknown(wanted, error))
    except FinegrainError as error:
        failure = _failure(wanted, error)
    now = keeper.table.get(key)
    if now is None or now.becoming != wanted:
        return Outcome(key, error=_gone(key))
    outcome = Outcome(key, error=failure)
    if failure is None:
        outcome = Outcome(key, slot=keeper.table.resized(key))
    else:
        keeper.table.resize_failed(key)
    keeper.on_resize(time.monotonic() - begun, failure)
    await keeper.save_or_log()  # until then the intent is there, and leads to the same
    keeper.on_change()
    _tell(wanted, failure)
    return outcome


async def _align(keeper: SlotKeeper, slot: Slot, limits: SlotLimits) -> None:
    """The books say who was promised what: a host that enforces another size is put right."""
    if slot.state is not SlotState.ALLOCATED or slot.becoming is not None:
        return
    promised = keeper.limits_of(slot.spec)
    sizes = {
        name: getattr(promised, name) for name in ("cpu_milli", "cpu_limit_milli", "memory_bytes")
    }
    if replace(limits, **sizes) == limits:
        return
    log.warning("size_differs", allocation_id=slot.spec.allocation_id, enforced=repr(limits))
    try:
        await keeper.helper.resize_slot(replace(limits, **sizes))
    except (FinegrainError, OSError) as error:
        log.error("size_not_put_right", allocation_id=slot.spec.allocation_id, error=str(error))


def _tell(wanted: SlotSpec, failure: FinegrainError | None) -> None:
    what = {
        "allocation_id": wanted.allocation_id,
        "generation": wanted.generation,
        "resize_number": wanted.resize_number,
        "cpu_milli": wanted.profile.cpu_milli,
        "memory_bytes": wanted.memory_bytes,
    }
    if failure is None:
        log.info("slot_resized", **what)
    else:
        log.warning("slot_not_resized", **what, reason=failure.reason.value, error=failure.message)


def _failure(wanted: SlotSpec, error: Exception) -> FinegrainError:
    details: dict[str, object] = {"allocation_id": wanted.allocation_id, "cause": str(error)}
    reason = Reason.CARVE_FAILED
    if isinstance(error, FinegrainError):
        details |= {"cause_reason": error.reason.value, **error.details}
        reason = error.reason if error.reason is Reason.BELOW_USE else reason
    return FailedPrecondition(
        f"slot {wanted.allocation_id} keeps its size: {error}", reason=reason, details=details
    )


def _unknown(wanted: SlotSpec, error: Exception) -> FinegrainError:
    return Unavailable(
        f"whether slot {wanted.allocation_id} has its new size is not known yet ({error}); "
        "a report will tell",
        details={"allocation_id": wanted.allocation_id, "resize_number": wanted.resize_number},
    )


def _gone(key: SlotKey) -> FinegrainError:
    return NotFound(
        f"slot {key.allocation_id} generation {key.generation} went meanwhile",
        details={"allocation_id": key.allocation_id, "generation": key.generation},
    )
