"""A slot changes its size: booked, on disk, in the kernel, on disk again, and only then told.

Decides what holds after a failure or a crash between any two of these steps. What was intended is
carried out when front and helper are back (a size below what tasks use by then is not); until the
helper has said what is enforced, both sizes stay booked and the old one is told. Refuses to know
who asks, and how a limit is enforced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import EMPTY
from finegrain.errors import FinegrainError, Unavailable
from finegrain.logs import get_logger
from finegrain.resources import ResourceProfile
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.slot_table import Outcome
from task_executor.engine.slots import CarveState, Slot, SlotKey, SlotSpec
from task_executor.host.helper_messages import IsolationReport, SlotLimits
from task_executor.service.failures import size_kept, size_unknown, slot_removed
from task_executor.service.isolation import isolation_of
from task_executor.service.limits import limits_of
from task_executor.service.slot_keeper import SlotKeeper

_SIZE_FIELDS = ("cpu_milli", "cpu_limit_milli", "memory_bytes", "best_effort", "hugepages")

log = get_logger(__name__)


async def resize_slot(
    keeper: SlotKeeper,
    key: SlotKey,
    number: int,
    profile: ResourceProfile,
    cpu_limit_milli: int,
    *,
    assignment: CpuAssignment | None = None,
) -> Outcome:
    """All limits of the new size are enforced and durable when the outcome has a slot; with an
    error the slot is as it was, unless that is UNREACHABLE: then it is not known yet, and the same
    change may be asked for again.

    Errors: those of `SlotTable.resize`; BELOW_USE (details asked and used, bytes of memory);
    CARVE_FAILED; UNREACHABLE.
    """
    async with keeper.resize_lock:
        before = keeper.table.get(key)
        outcome = keeper.table.resize(key, number, profile, cpu_limit_milli, assignment)
        if outcome.slot is None or outcome.slot.becoming is None:
            return outcome
        if outcome.slot is not before:  # else it is on disk, and its outcome is not known
            try:
                await keeper.save()
            except OSError as error:
                log.error("checkpoint_not_written", error=str(error))
                if keeper.table.get(key) is not None:
                    keeper.table.resize_failed(key)
                return Outcome(key, error=size_kept(outcome.slot.becoming, error))
        return await _enforce(keeper, key, again=outcome.slot is before)


async def finish_resizes(
    keeper: SlotKeeper, on_host: Iterable[SlotLimits], before: Mapping[SlotKey, SlotSpec]
) -> None:
    """Carries out what an earlier front, or a helper that was away, has left unsettled, and has
    the sizes in the books enforced where the host has others.

    Args:
        keeper: whose slots.
        on_host: limits of the slots that the helper has, as it told them a moment ago.
        before: what the books said before it was asked.
    """
    async with keeper.resize_lock:
        unsettled = [
            slot.key
            for slot in keeper.table
            if slot.becoming is not None and slot.state is CarveState.ALLOCATED
        ]
        await asyncio.gather(*(_enforce(keeper, key, again=True) for key in unsettled))
        for limits in on_host:
            key = SlotKey(limits.allocation_id, limits.generation)
            slot = keeper.table.get(key)
            if slot is not None and slot.spec is before.get(key):  # else the host has changed, too
                await _correct_limits(keeper, slot, limits)


async def _enforce(keeper: SlotKeeper, key: SlotKey, *, again: bool) -> Outcome:
    """What a slot is becoming, on the host and then in the books."""
    slot = keeper.table.get(key)
    wanted = slot.becoming if slot is not None else None
    if slot is None or wanted is None:
        return Outcome(key, error=slot_removed(key))
    begun = time.monotonic()
    async with keeper.cpu_bindings.lock:
        try:
            binding, found = await _apply(keeper, slot.spec, wanted, again=again)
        except (Unavailable, OSError) as error:
            keeper.cpu_bindings.forget(key)
            log.error("resize_not_settled", allocation_id=key.allocation_id, error=str(error))
            return Outcome(key, error=size_unknown(wanted, error))
        now = keeper.table.get(key)
        if now is None or now.becoming != wanted:
            return Outcome(key, error=slot_removed(key))
        failure = found if isinstance(found, FinegrainError) else None
        if isinstance(found, IsolationReport):
            outcome = Outcome(key, slot=keeper.table.resized(key, isolation_of(found, wanted)))
        else:
            outcome = Outcome(key, error=failure)
            keeper.table.resize_failed(key)
        keeper.cpu_bindings.applied(key, binding)
    await keeper.cpu_bindings.sync_or_log()  # what it has left is for the others
    keeper.on_resize(time.monotonic() - begun, failure)
    await keeper.save_or_log()  # until then the intent is there, and leads to the same
    keeper.on_change()
    _log_result(wanted, failure)
    return outcome


async def _apply(
    keeper: SlotKeeper, current: SlotSpec, wanted: SlotSpec, *, again: bool
) -> tuple[CpuBinding, IsolationReport | FinegrainError]:
    """Others leave the cpus that it grows into, then all its limits change. Where it runs then, and
    what is enforced now, or why its limits are those of before.

    Args:
        again: an earlier attempt may have reached the host. A refusal says only that nothing has
            changed since, so the limits of before are told, too.

    Raises:
        Unavailable, OSError: it is not known which limits hold.
    """
    failure: FinegrainError | None = None
    try:
        await keeper.cpu_bindings.sync()
    except Unavailable:
        raise
    except FinegrainError as error:
        log.error("slots_not_moved", allocation_id=wanted.allocation_id, error=str(error))
        failure = size_kept(wanted, error) if wanted.is_pinned else None
    if failure is None:
        binding = keeper.table.cpus.binding_of(wanted)
        try:
            return binding, await keeper.helper.resize_slot(limits_of(wanted, binding))
        except Unavailable:
            raise
        except FinegrainError as error:
            failure = size_kept(wanted, error)
    binding = keeper.table.cpus.binding_of(current)
    if again:
        try:
            await keeper.helper.resize_slot(limits_of(current, binding))
        except FinegrainError as error:
            raise Unavailable(f"{failure.message}; nor the size of before: {error}") from None
    return binding, failure


async def _correct_limits(keeper: SlotKeeper, slot: Slot, limits: SlotLimits) -> None:
    """The books say who was promised what: a host that enforces another size is put right."""
    if slot.state is not CarveState.ALLOCATED or slot.becoming is not None:
        return
    expected = limits_of(slot.spec, CpuBinding(EMPTY))
    if all(getattr(expected, name) == getattr(limits, name) for name in _SIZE_FIELDS):
        return
    log.warning("size_differs", allocation_id=slot.spec.allocation_id, enforced=repr(limits))
    try:
        async with keeper.cpu_bindings.lock:
            binding = keeper.table.cpus.binding_of(slot.spec)
            corrected = replace(limits_of(slot.spec, binding), pids_max=limits.pids_max)
            await keeper.helper.resize_slot(corrected)
            keeper.cpu_bindings.applied(slot.key, binding)
    except (FinegrainError, OSError) as error:
        log.error("size_not_corrected", allocation_id=slot.spec.allocation_id, error=str(error))


def _log_result(wanted: SlotSpec, failure: FinegrainError | None) -> None:
    details = {
        "allocation_id": wanted.allocation_id,
        "generation": wanted.generation,
        "resize_number": wanted.resize_number,
        "cpu_milli": wanted.profile.cpu_milli,
        "memory_bytes": wanted.memory_bytes,
    }
    if failure is None:
        log.info("slot_resized", **details)
    else:
        log.warning(
            "slot_not_resized", **details, reason=failure.reason.value, error=failure.message
        )
