"""Resizes slots while their tasks run.

A resize has these steps: book the new size, save the checkpoint, enforce the size in the kernel,
save the checkpoint again, and report the size. If the front or the helper crashes during a resize,
the executor completes the resize when both run again. If tasks then use more than the new size, the
executor does not complete the resize. Until the helper has confirmed the limits, both sizes stay
booked and reports contain the old size.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import EMPTY
from finegrain.errors import FailedPrecondition, FinegrainError, Reason, Unavailable
from finegrain.logs import get_logger
from finegrain.resources import ResourceProfile
from task_executor.engine.cpu_ledger import CpuBinding
from task_executor.engine.slot_table import Outcome
from task_executor.engine.slots import CarveState, Slot, SlotKey, SlotSpec
from task_executor.host.helper_messages import IsolationReport, SlotLimits
from task_executor.service.device_shares import shares_of
from task_executor.service.failures import size_kept, size_unknown, slot_removed
from task_executor.service.slot_keeper import SlotKeeper

_SIZE_FIELDS = (
    "cpu_milli",
    "cpu_limit_milli",
    "memory_bytes",
    "best_effort",
    "hugepages",
    "devices_open",
    "devices_closed",
)

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
    """Resizes a slot.

    If the outcome contains a slot, all limits of the new size are enforced and durable. If the
    outcome contains an error other than UNREACHABLE, the slot is unchanged. After UNREACHABLE, the
    result is unknown, and the caller can request the same resize again.

    Args:
        keeper: the slots of this executor.
        key: the slot.
        number: the number of the resize.
        profile: the new resource profile of the slot.
        cpu_limit_milli: the new limit of CPU time, in thousandths of a cpu.
        assignment: the new cpus, NUMA nodes and pools; None: the slot keeps its assignment.

    Returns:
        The outcome. Its error is an error of `SlotTable.resize`, or CARVE_FAILED, UNREACHABLE or
        BELOW_USE. The details of BELOW_USE have the requested and the used bytes of memory. A
        resize that parks or unparks the slot continues in the background. The error of such a
        resize is IN_PROGRESS until the resize is done, and PARK_FAILED if it fails.
    """
    # Step 1: book both sizes. Step 2: save the new size in the checkpoint, so that the resize is
    # completed after a crash. Step 3: enforce the new size (`_enforce`).
    async with keeper.resize_lock:
        if known := keeper.mover.outcome(key, number):
            return Outcome(key, error=known)
        before = keeper.table.get(key)
        outcome = keeper.table.resize(key, number, profile, cpu_limit_milli, assignment)
        if outcome.slot is None or outcome.slot.becoming is None:
            return outcome
        # if the slot is unchanged, this is a retry of a resize that is already saved
        if outcome.slot is not before:
            try:
                await keeper.save()
            except OSError as error:
                log.error("checkpoint_not_written", error=str(error))
                # The slot can be freed while the save waits for the disk.
                if keeper.table.get(key) is not None:
                    keeper.table.resize_failed(key)
                return Outcome(key, error=size_kept(outcome.slot.becoming, error))
        if outcome.slot.is_moving:
            return Outcome(key, error=keeper.mover.begin(outcome.slot))
        return await _enforce(keeper, key, again=outcome.slot is before)


async def finish_resizes(
    keeper: SlotKeeper, on_host: Iterable[SlotLimits], before: Mapping[SlotKey, SlotSpec]
) -> None:
    """Completes interrupted resizes, and corrects limits that differ from the slot table.

    Args:
        keeper: the slots of this executor.
        on_host: the limits of the slots on the host, from the helper's last report.
        before: the specs in the slot table before the call to the helper.
    """
    async with keeper.resize_lock:
        unsettled = [
            slot
            for slot in keeper.table
            if slot.becoming is not None and slot.state is CarveState.ALLOCATED
        ]
        for moving in unsettled:
            if moving.is_moving:
                keeper.mover.begin(moving)
        await asyncio.gather(
            *(_enforce(keeper, each.key, again=True) for each in unsettled if not each.is_moving)
        )
        for limits in on_host:
            key = SlotKey(limits.allocation_id, limits.generation)
            slot = keeper.table.get(key)
            # If this condition is false, the slot was resized during the call.
            if slot is not None and slot.spec is before.get(key):
                await _correct_limits(keeper, slot, limits)


async def finish_resize(keeper: SlotKeeper, key: SlotKey) -> Outcome:
    """Enforces the new size of a slot, after the slot was parked or unparked."""
    async with keeper.resize_lock:
        return await _enforce(keeper, key, again=True)


async def _enforce(keeper: SlotKeeper, key: SlotKey, *, again: bool) -> Outcome:
    """Enforces the new size of a slot, and records the result in the slot table."""
    slot = keeper.table.get(key)
    wanted = slot.becoming if slot is not None else None
    if slot is None or wanted is None:
        return Outcome(key, error=slot_removed(key))
    begun = time.monotonic()
    # Quotas of operators must shrink before the limits, so that operators can return memory in
    # time.
    keeper.operators.size_changed(key)
    await keeper.before_shrink(key)
    # If an earlier attempt has possibly changed the limits on the host, continue in spite of this
    # error. The limits are known only after the attempt below.
    if (refused := await _limit_tasks(keeper, key)) and not again:
        return await keep_size(keeper, key, wanted, size_kept(wanted, refused))
    async with keeper.cpu_bindings.lock:
        try:
            binding, found = await _apply(keeper, slot.spec, wanted, again=again)
        except (Unavailable, OSError) as error:
            # It is not known whether the helper has changed the limits. So both sizes stay booked.
            keeper.cpu_bindings.forget(key)
            log.error("resize_not_settled", allocation_id=key.allocation_id, error=str(error))
            return Outcome(key, error=size_unknown(wanted, error))
        # The slot can be freed, or can vanish from the host, during the call to the helper.
        now = keeper.table.get(key)
        if now is None or now.becoming != wanted:
            return Outcome(key, error=slot_removed(key))
        failure = found if isinstance(found, FinegrainError) else None
        if isinstance(found, IsolationReport):
            # The growth is booked, so ports are missing only if other programs use them. In this
            # case the slot has fewer ports, and reports their numbers.
            keeper.give_ports(wanted)
            outcome = Outcome(
                key,
                slot=keeper.table.resized(key, keeper.isolation_of(found, wanted)),
            )
        else:
            outcome = Outcome(key, error=failure)
            # If the slot was parked or unparked, its processes have already moved. Both sizes stay
            # booked until `Parking` has moved the processes back.
            if not now.is_moving:
                keeper.table.resize_failed(key)
        keeper.cpu_bindings.applied(key, binding)
    if failure is not None and now.is_moving:
        return outcome
    keeper.operators.size_changed(key)
    if refused := await _limit_tasks(keeper, key):
        log.error("task_limit_not_set", allocation_id=key.allocation_id, error=str(refused))
    # Give the cpus that the slot no longer has back to the pools.
    await keeper.cpu_bindings.sync_or_log()
    keeper.on_resize(time.monotonic() - begun, failure)
    await keeper.save_or_log()  # after a crash before this line, the resize is repeated
    keeper.on_change()
    _log_result(wanted, failure)
    return outcome


async def _limit_tasks(keeper: SlotKeeper, key: SlotKey) -> FinegrainError | None:
    """Sets the memory limits of tasks to the quotas of their operators.

    Returns:
        The first error, or None. Limits that were set before the error stay set.
    """
    for task_id, limit in keeper.operators.task_limits(key).items():
        try:
            await keeper.helper.limit_task(task_id, limit)
        except FinegrainError as error:
            if error.reason is not Reason.TASK_UNKNOWN:
                return error
    return None


async def keep_size(
    keeper: SlotKeeper, key: SlotKey, wanted: SlotSpec, error: FinegrainError
) -> Outcome:
    """Ends a resize that has no effect: the host still has the limits of the old size.

    Args:
        keeper: the slots.
        key: the slot.
        wanted: the size that the slot does not get.
        error: the reason.

    Returns:
        The outcome, with this error; or with ALLOCATION_UNKNOWN, if the slot was removed.
    """
    slot = keeper.table.get(key)
    if slot is None or slot.becoming != wanted:
        return Outcome(key, error=slot_removed(key))
    keeper.table.resize_failed(key)
    keeper.operators.size_changed(key)
    if left := await _limit_tasks(keeper, key):
        log.error("task_limit_not_set", allocation_id=key.allocation_id, error=str(left))
    keeper.on_resize(0.0, error)
    await keeper.save_or_log()
    _log_result(wanted, error)
    return Outcome(key, error=error)


async def _apply(
    keeper: SlotKeeper, current: SlotSpec, wanted: SlotSpec, *, again: bool
) -> tuple[CpuBinding, IsolationReport | FinegrainError]:
    """Moves other slots off the cpus that the slot gets, then changes all limits of the slot.

    Args:
        keeper: the slots.
        current: the old size.
        wanted: the new size.
        again: True if an earlier attempt has possibly changed the limits on the host. If the helper
            then rejects this attempt, the function writes the old limits again.

    Returns:
        The cpus and memory nodes on which the slot runs now, and the helper's isolation report. If
        an error prevents the new size, this error replaces the report.

    Raises:
        Unavailable, OSError: it is unknown which limits are enforced.
    """
    failure: FinegrainError | None = None
    other_shares = shares_of(current) != shares_of(wanted)
    try:
        await keeper.cpu_bindings.sync()
    except Unavailable:
        raise
    except FinegrainError as error:
        log.error("slots_not_moved", allocation_id=wanted.allocation_id, error=str(error))
        # Even if other slots could not be moved, a slot without dedicated cpus can be resized.
        failure = size_kept(wanted, error) if wanted.is_pinned else None
    if refused := keeper.refuse_shares(current, wanted):
        failure = size_kept(wanted, refused)
    if failure is None:
        binding = keeper.table.cpus.binding_of(wanted)
        try:
            if other_shares:
                await keeper.prepare_devices([wanted])
            report = await keeper.helper.resize_slot(keeper.limits_of(wanted, binding))
            await keeper.limit_devices([wanted])
            if not (unmet := keeper.unmet_levels(wanted, keeper.isolation_of(report, wanted))):
                return binding, report
            failure, again = size_kept(wanted, FailedPrecondition(unmet)), True
        except Unavailable:
            raise
        except FinegrainError as error:
            failure = size_kept(wanted, error)
    binding = keeper.table.cpus.binding_of(current)
    # An earlier attempt has possibly set the new limits, so write the old limits again.
    if again:
        try:
            if other_shares:
                await keeper.prepare_devices([current])
            await keeper.helper.resize_slot(keeper.limits_of(current, binding))
            await keeper.limit_devices([current])
        except FinegrainError as error:
            raise Unavailable(
                f"{failure.message}; the old size could not be restored either: {error}"
            ) from None
    return binding, failure


async def limit_cpu(keeper: SlotKeeper, quotas: Mapping[SlotKey, int]) -> None:
    """Limits the CPU time of slots, without a change of their sizes.

    Args:
        keeper: the slots.
        quotas: the CPU time of each slot, in thousandths of a cpu. Other slots get the limit of
            their size again.

    Raises:
        FinegrainError: a quota could not be set. The next call sets it again.
    """
    for slot in list(keeper.table):
        before, quota = keeper.cpu_quotas.get(slot.key), quotas.get(slot.key)
        # A resize in progress can write the old or the new quota. The next call corrects the quota.
        if before == quota or slot.state is not CarveState.ALLOCATED or slot.becoming is not None:
            continue
        async with keeper.cpu_bindings.lock:
            if keeper.table.get(slot.key) is not slot or slot.becoming is not None:
                continue
            keeper.set_cpu_quota(slot.key, quota)
            try:
                binding = keeper.table.cpus.binding_of(slot.spec)
                await keeper.helper.resize_slot(keeper.limits_of(slot.spec, binding))
            except FinegrainError:
                keeper.set_cpu_quota(slot.key, before)
                raise
    for key in [key for key in keeper.cpu_quotas if keeper.table.get(key) is None]:
        keeper.set_cpu_quota(key, None)


async def _correct_limits(keeper: SlotKeeper, slot: Slot, limits: SlotLimits) -> None:
    """Writes the slot's limits again if the limits on the host differ from the slot table."""
    if slot.state is not CarveState.ALLOCATED or slot.becoming is not None:
        return
    # Compare only sizes and device files, because `CpuBindings` corrects cpus.
    expected = keeper.limits_of(slot.spec, CpuBinding(EMPTY))
    if all(getattr(expected, name) == getattr(limits, name) for name in _SIZE_FIELDS):
        return
    log.warning("size_differs", allocation_id=slot.spec.allocation_id, enforced=repr(limits))
    try:
        async with keeper.cpu_bindings.lock:
            binding = keeper.table.cpus.binding_of(slot.spec)
            # A resize never changes the limit of processes, so keep the limit on the host.
            corrected = replace(keeper.limits_of(slot.spec, binding), pids_max=limits.pids_max)
            report = await keeper.helper.resize_slot(corrected)
            keeper.cpu_bindings.applied(slot.key, binding)
            # If this condition is false, the slot was freed during the call.
            if keeper.table.get(slot.key) is not None:
                keeper.table.resized(slot.key, keeper.isolation_of(report, slot.spec))
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
