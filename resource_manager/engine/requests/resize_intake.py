"""Accepts or rejects a requested resize, after checks of the slot, the size and the number of the
resize.

`lifecycle/resizes.py` carries out accepted resizes, and has an example.
"""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.cpu_policy import CpuPolicy, QosClass
from finegrain.devices.device import GPU
from finegrain.devices.levels import is_at_least
from finegrain.devices.parking import has_gpus, without_gpus
from finegrain.devices.request import DeviceRequest
from finegrain.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from finegrain.resources import DEVICE_PREFIX, shortfall
from finegrain.values.states import RequestState
from resource_manager.engine.devices.layout import NO_LAYOUT
from resource_manager.engine.hosts.allowed_cpus import MILLI_PER_CPU
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.growth import unsuited
from resource_manager.engine.lifecycle.known import active_job
from resource_manager.engine.lifecycle.resizes import (
    has_size,
    size_text,
)
from resource_manager.engine.model.entities import Job, Request, Resize, Slot
from resource_manager.engine.model.events import ResizeRequested
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.state_tables import ResizeInput
from resource_manager.engine.model.texts import amount_text, amounts_text
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State


def request_resize(state: State, event: ResizeRequested) -> Slot:
    """Accepts a resize of a slot. If a call is repeated, nothing changes.

    Returns:
        The slot. The resize is in its field `wanted` or `ordered`. If the slot already has the
        requested size, there is no resize.

    Raises:
        NotFound: the job does not exist, or it has no such allocation.
        FailedPrecondition: the job has ended, the slot is not granted, the slot has another
            generation, the number is not the next number, or the executor is too small even when it
            is empty.
        InvalidArgument: the size is below the minimum, slots of this QoS class cannot have this
            size, or the size is for other devices than the devices of the slot.
    """
    request, slot = _slot_to_resize(state.requests, state.slots, state.jobs, event)
    # Make all checks before the first change, because a rejected event must not change the state.
    target = _target_of(state.settings, event, request.spec.cpu_policy)
    if event.park and not has_gpus(_requested_devices(request)):
        raise InvalidArgument("park", True, "false, because the slot has no GPU to give up")
    # Check for a repetition before the check of the number, because a repetition has the last
    # number and not the next number.
    if _is_same_call(slot, event.resize_number, target):
        return slot
    _refuse_number(slot, event.resize_number)
    host = state.hosts.of(slot)
    _refuse_other_devices(host, slot, request, target, park=event.park)
    _refuse_too_large(host, slot, target)
    _refuse_unsuited(state.requests, host, slot, target)
    # The resize is accepted. If another resize waits, the new resize replaces it.
    number = slot.resize_number + 1
    replaced = slot.wanted
    state.resizes.withdraw(host, slot)
    slot.resize_number = number
    # A slot that already has this size needs no resize, unless an earlier resize (`ordered`) is on
    # its way to the executor. The earlier resize possibly changes the size, so the requested resize
    # must follow it.
    if slot.ordered is not None or not has_size(slot, target):
        with state.transitions.moving_resize(slot, ResizeInput.ASK):
            slot.wanted = Resize(
                number,
                target.profile,
                target.cpu_limit_milli,
                target.wait_for_use,
                state.numbers.next_arrival(),
            )
    instead = f", instead of the waiting resize {replaced.number}" if replaced is not None else ""
    # If no resize was needed, the number is used up nevertheless.
    nothing = "" if slot.wanted is not None else ", its present size"
    who = "an administrator" if event.job_id is None else f"job {request.job_id}"
    state.journal.slot_event(
        "slot_resize_asked",
        slot,
        message=f"resize {number} by {who}, to {size_text(target)}{nothing}{instead}",
    )
    # Record the change of the slot here, because `advance` possibly only queues the resize.
    state.changes.slot(slot)
    state.resizes.advance(slot)
    # Another caller possibly waits for the replaced resize, so report its end in an event.
    if replaced is not None:
        what = (
            f"{who} requested resize {number} instead"
            if slot.wanted or slot.ordered
            else f"withdrawn by {who}"
        )
        message = f"resize {replaced.number} to {size_text(replaced)}: {what}"
        state.journal.job_event(request, reason=Reason.RESIZE_REFUSED, message=message, slot=slot)
    return slot


def _slot_to_resize(
    requests: Requests, slots: Slots, jobs: dict[str, Job], event: ResizeRequested
) -> tuple[Request, Slot]:
    """Returns the granted slot that the call names, and its request.

    Raises:
        NotFound: the job does not exist, or it has no such allocation.
        FailedPrecondition: the job has ended, or the slot has another generation or is not granted.
    """
    allocation_id = event.allocation_id
    if event.job_id is not None:
        active_job(jobs, event.job_id)  # an administrator is allowed to resize slots of any job
    request = requests.named(allocation_id)
    if request is None or event.job_id not in (None, request.job_id):
        owner = "" if event.job_id is None else f" in job {event.job_id}"
        raise NotFound(
            f"allocation {allocation_id} is not known{owner}",
            reason=Reason.ALLOCATION_UNKNOWN,
            details={"allocation_id": allocation_id},
        )
    # The slot that the caller means has possibly been lost and replaced.
    if event.generation not in (0, request.generation):
        raise FailedPrecondition(
            f"generation {event.generation} of {allocation_id} is outdated; the current generation"
            f" is {request.generation}",
            reason=Reason.STALE_GENERATION,
            details={"generation": event.generation, "current": request.generation},
        )
    # A gang member that is carved but not granted also has a slot, but this slot must not be
    # resized yet.
    slot = slots.of(request)
    if slot is None or request.state is not RequestState.GRANTED:
        raise FailedPrecondition(
            f"allocation {allocation_id} is {request.state}, but only a granted slot can be"
            " resized; request the resize when it is GRANTED",
            reason=Reason.SLOT_NOT_READY,
            details={"allocation_id": allocation_id, "state": str(request.state)},
        )
    return request, slot


def _target_of(settings: EngineSettings, event: ResizeRequested, policy: CpuPolicy) -> Resize:
    """Returns the requested size, as a `Resize` without a number and an arrival number.

    Raises:
        InvalidArgument: the size is below the minimum, or slots of this QoS class cannot have this
            size.
    """
    profile = event.profile
    for field, value, least in (
        ("profile.cpu_milli", profile.cpu_milli, settings.cpu_milli_min),
        ("profile.memory_bytes", profile.memory_bytes, settings.memory_bytes_min),
    ):
        if value < least:
            raise InvalidArgument(field, value, f"at least {least}")
    limit = event.cpu_limit_milli
    if limit and limit < profile.cpu_milli:
        raise InvalidArgument(
            "cpu_limit_milli",
            limit,
            f"at least the profile's cpu_milli, {profile.cpu_milli}, or 0 for the same amount",
        )
    _check_class(profile.cpu_milli, limit, policy.qos)
    # Store the effective limit, so that equal sizes compare as equal.
    return Resize(0, profile, max(limit, profile.cpu_milli), event.wait_for_use)


def _check_class(cpu_milli: int, limit: int, qos: QosClass) -> None:
    """Checks that slots of a QoS class can have this cpu amount and limit.

    Raises:
        InvalidArgument: slots of this QoS class cannot have this amount or limit.
    """
    # A pinned slot has dedicated, whole cpus, so it cannot have a fraction of a cpu.
    if qos.is_pinned and (cpu_milli % MILLI_PER_CPU or not cpu_milli):
        expected = f"whole cpus, multiples of {MILLI_PER_CPU}, as for all {qos} slots"
        raise InvalidArgument("profile.cpu_milli", cpu_milli, expected)
    if limit > cpu_milli and qos is not QosClass.LS:
        expected = f"the profile's cpu_milli, {cpu_milli}, or 0: only LS slots have a higher limit"
        raise InvalidArgument("cpu_limit_milli", limit, expected)


def _is_same_call(slot: Slot, number: int, target: Resize) -> bool:
    """Returns whether the call repeats the latest resize of the slot, or requests the slot's
    current size.

    A number in the call must be the number of the latest resize. 0 means that the call has no
    number.
    """
    latest = slot.wanted or slot.ordered
    if latest is None:
        # There is no unfinished resize, so the call is a repetition if it requests the current
        # size.
        return number in (0, slot.resize_number) and has_size(slot, target)
    return (
        number in (0, latest.number)
        and (latest.profile, latest.cpu_limit_milli) == (target.profile, target.cpu_limit_milli)
        and latest.wait_for_use == target.wait_for_use
    )


def _refuse_number(slot: Slot, number: int) -> None:
    """Checks that the call contains the next number, or 0, which means no number.

    Raises:
        FailedPrecondition: the call contains another number.
    """
    if number in (0, slot.resize_number + 1):
        # A caller that sends the next number knows the last resize of the slot.
        return
    last = slot.resize_number
    if number == last:
        text = (
            f"resize {number} of slot {slot.allocation_id} exists with another size, or is finished"
        )
    else:
        text = f"resize {number} of slot {slot.allocation_id} is not the next resize"
    raise FailedPrecondition(
        f"{text}; the last number was {last}: check the slot, and send the number {last + 1}",
        reason=Reason.STALE_RESIZE,
        details={"resize_number": last, "asked": number},
    )


def _refuse_other_devices(
    host: Host, slot: Slot, request: Request, target: Resize, *, park: bool
) -> None:
    """Checks that the new size is for the same devices as the slot, or that the resize parks or
    unparks the slot.

    Raises:
        InvalidArgument: the new size is for other devices, or slots cannot share a device.
        FailedPrecondition: the executor cannot park the slot, because of the slot's GPUs.
    """
    original = _requested_devices(request)
    # Compare with the newest requested size, because the new resize replaces it.
    has, asked = (slot.wanted or slot.ordered or slot).profile.devices, target.profile.devices
    if asked in (has, slot.profile.devices):
        return
    if _are_resized(has, asked) or (not has_gpus(has) and _are_resized(original, asked)):
        _refuse_unsharable(host, slot, asked)
        return
    if not park or not _are_resized(without_gpus(original), asked):
        raise InvalidArgument(
            "profile.devices",
            _devices_text(asked),
            f"other amounts of the same devices ({_devices_text(has)}): a resize cannot change the"
            " number, the types or other properties of a slot's devices; release the slot and"
            " request a new one",
        )
    _refuse_unparkable(host, slot)


def _are_resized(ones: tuple[DeviceRequest, ...], others: tuple[DeviceRequest, ...]) -> bool:
    pairs = zip(ones, others, strict=False)
    return len(ones) == len(others) and all(one.is_resized(other) for one, other in pairs)


def _refuse_unsharable(host: Host, slot: Slot, asked: Iterable[DeviceRequest]) -> None:
    """Checks that slots can share the devices, and that the devices enforce the shares as required.

    Raises:
        InvalidArgument: slots cannot share a device, or a device does not enforce a share as
            required.
    """
    layout = host.cpus.devices.layout if host.cpus is not None else NO_LAYOUT
    requests = {each.type: each for each in asked}
    for share in slot.assignment.devices if slot.assignment is not None else ():
        at, request = layout.position.get((share.type, share.uuid)), requests.get(share.type)
        if at is None or request is None:
            continue
        device = layout.devices[at]
        if device.whole_only and request.is_shared:
            expected = f"all of {device.name}, which slots cannot share"
            raise InvalidArgument("profile.devices", _devices_text([request]), expected)
        for name, level in request.isolation:
            if not is_at_least(request.level_on(device, name), level):
                raise InvalidArgument(
                    "profile.devices",
                    _devices_text([request]),
                    f"amounts that {device.name} enforces by {level}, which the slot requires: this"
                    f" share would be enforced by {request.level_on(device, name)}",
                )


def _requested_devices(request: Request) -> tuple[DeviceRequest, ...]:
    return request.spec.profile.devices if request.spec.profile is not None else ()


def _refuse_unparkable(host: Host, slot: Slot) -> None:
    layout = host.cpus.devices.layout if host.cpus is not None else NO_LAYOUT
    for share in slot.assignment.devices if slot.assignment is not None else ():
        at = layout.position.get((share.type, share.uuid))
        if share.type == GPU and (at is None or not layout.devices[at].parking):
            raise FailedPrecondition(
                f"executor {host.host_id} does not park slots on its gpu{share.minor}; an "
                "administrator can allow it there (gpu_parking)",
                reason=Reason.PARK_FAILED,
                details={"device": share.uuid},
            )


def _devices_text(requests: Iterable[DeviceRequest]) -> str:
    totals = {f"{DEVICE_PREFIX}{name}": n for each in requests for name, n in each.totals}
    return amounts_text(totals) if totals else "no devices"


def _refuse_unsuited(requests: Requests, host: Host, slot: Slot, target: Resize) -> None:
    """Checks that the cpus and NUMA nodes of the host would be sufficient for a slot of this size
    if the host had no other slot.

    Raises:
        FailedPrecondition: the cpus and NUMA nodes would not be sufficient.
    """
    refusal = unsuited(requests, host, slot, target)
    if refusal is not None:
        raise FailedPrecondition(
            f"executor {host.host_id} cannot give slot {slot.allocation_id} that size, even without"
            f" other slots: {refusal.text}; request another size, or release the slot and request"
            " a new one",
            reason=Reason.INFEASIBLE_NEVER,
            details={"blocker": str(refusal.blocker), **dict(refusal.numbers)},
        )


def _refuse_too_large(host: Host, slot: Slot, target: Resize) -> None:
    """Checks that the new size of the slot is not above the total of the host.

    A dimension in which the slot does not grow is not checked, because the slot already has the
    amount.

    Raises:
        FailedPrecondition: the new size is above the total of the host.
    """
    total = host.total
    need = host.booking_of(target.profile, best_effort=slot.best_effort)
    # Compare with `booked`, which contains the larger of both sizes while a resize is on its way.
    grows = shortfall(need, slot.booked)
    beyond = {name: need[name] for name in grows if need[name] > total.get(name, 0)}
    if not beyond:
        return
    lacks = ", ".join(
        amount_text(name, asked, total.get(name, 0)) for name, asked in beyond.items()
    )
    raise FailedPrecondition(
        f"executor {host.host_id} is too small for slot {slot.allocation_id} of that size, even"
        f" without other slots ({lacks}); request less, or release the slot and request a new one",
        reason=Reason.INFEASIBLE_NEVER,
        details={
            detail: amount
            for name, asked in beyond.items()
            for detail, amount in ((f"{name}_asked", asked), (f"{name}_total", total.get(name, 0)))
        },
    )
