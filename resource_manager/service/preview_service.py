"""Serves the call that returns what an action of an administrator would change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.access import current_caller
from finegrain.texts import check_text
from finegrain.v1 import cluster_pb2, slots_pb2
from resource_manager.engine.explain import preview
from resource_manager.engine.model.texts import dimension_text
from resource_manager.engine.state import State
from resource_manager.service.engine_driver import now
from resource_manager.service.host_policy_service import host_policy_event
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.runner import Runner
from resource_manager.service.wire import decoding
from resource_manager.service.wire.encoding import write
from resource_manager.service.wire.groups import group_set_event

NAME_LENGTH_MAX = 256
IDS_MAX = 1_000
READ_ITEMS = 1_000
"""A preview counts as this many items in the fair queues, because it can examine many executors."""

DRAIN = cluster_pb2.PREVIEWED_ACTION_DRAIN
CORDON = cluster_pb2.PREVIEWED_ACTION_CORDON
RELEASE = cluster_pb2.PREVIEWED_ACTION_RELEASE
END_JOB = cluster_pb2.PREVIEWED_ACTION_END_JOB
SET_GROUP = cluster_pb2.PREVIEWED_ACTION_SET_GROUP
SET_HOST_POLICY = cluster_pb2.PREVIEWED_ACTION_SET_HOST_POLICY

FIELDS = {
    DRAIN: ("executor_id",),
    CORDON: ("executor_id", "device"),
    RELEASE: ("allocation_ids",),
    END_JOB: ("job_id",),
    SET_GROUP: ("group", "weight", "maximum", "minimum"),
    SET_HOST_POLICY: ("executor_id", "policy", "clear"),
}
"""The fields that each action needs."""

Reads = Callable[[State], preview.Preview]


class PreviewCalls:
    """The part of ClusterService about previews."""

    _runner: Runner
    _measured: MeasuredUse

    async def PreviewAction(
        self, request: cluster_pb2.PreviewActionRequest, context: Any
    ) -> cluster_pb2.PreviewActionResponse:
        """See the protocol."""
        reads = _reads(request)

        def read(state: State) -> cluster_pb2.PreviewActionResponse:
            return self._answer(request.action, reads(state))

        return await self._runner.read(read, owner=current_caller().peer, items=READ_ITEMS)

    def _answer(self, action: int, found: preview.Preview) -> cluster_pb2.PreviewActionResponse:
        measured = [
            slots_pb2.SlotStatus(
                allocation_id=each.slot.allocation_id,
                generation=each.slot.generation,
                executor_id=each.slot.executor_id,
            )
            for each in found.slots
        ]
        self._measured.add_to_slots(measured)
        return cluster_pb2.PreviewActionResponse(
            slots=[
                write(cluster_pb2.PreviewedSlot, each, pids=status.used.pids)
                for each, status in zip(found.slots, measured, strict=True)
            ],
            slots_total=found.slots_total,
            jobs=found.jobs,
            waiting=found.waiting,
            moving=found.moving,
            shares=write.each(cluster_pb2.PreviewedShare, found.shares),
            summary=_summary(action, found),
            on_other_devices=found.on_other_devices,
            without_devices=found.without_devices,
            settings=write.each(cluster_pb2.PreviewedSetting, found.settings),
            executors=found.executors,
        )


def _reads(request: cluster_pb2.PreviewActionRequest) -> Reads:
    """Returns the read for an action.

    Raises:
        InvalidArgument: the action is unknown, or a field is missing, malformed, or of another
            action.
    """
    action = request.action
    fields = FIELDS.get(action)
    if fields is None:
        expected = "DRAIN, CORDON, RELEASE, END_JOB, SET_GROUP or SET_HOST_POLICY"
        raise InvalidArgument("action", action, expected)
    for field, value in request.ListFields():
        if field.name not in ("action", *fields):
            raise InvalidArgument(field.name, str(value), f"only {' and '.join(fields)}")
    if action == DRAIN:
        executor_id = check_id("executor_id", request.executor_id)
        return lambda state: preview.Previews(state).drain(executor_id)
    if action == CORDON:
        executor_id = check_id("executor_id", request.executor_id)
        device = check_text("device", request.device, longest=NAME_LENGTH_MAX)
        return lambda state: preview.Previews(state).cordon(executor_id, device)
    if action == RELEASE:
        if not 1 <= len(request.allocation_ids) <= IDS_MAX:
            given = f"{len(request.allocation_ids)} ids"
            raise InvalidArgument("allocation_ids", given, f"1 to {IDS_MAX}")
        ids = decoding.allocation_ids(request.allocation_ids)
        return lambda state: preview.Previews(state).release(ids)
    if action == END_JOB:
        job_id = check_id("job_id", request.job_id)
        return lambda state: preview.Previews(state).end_job(job_id)
    return _reads_policy(request) if action == SET_HOST_POLICY else _reads_group(request)


def _reads_policy(request: cluster_pb2.PreviewActionRequest) -> Reads:
    if not request.policy.ListFields() and not request.clear:
        raise InvalidArgument("policy", "absent", "settings to change, or names in clear")
    wanted = cluster_pb2.SetHostPolicyRequest(
        executor_id=request.executor_id, policy=request.policy, clear=request.clear
    )
    event = host_policy_event(wanted, now())
    return lambda state: preview.Previews(state).host_policy(event)


def _reads_group(request: cluster_pb2.PreviewActionRequest) -> Reads:
    wanted = cluster_pb2.SetGroupRequest(
        name=request.group, maximum=request.maximum, minimum=request.minimum
    )
    if request.HasField("weight"):
        wanted.weight = request.weight
    elif not request.maximum and not request.minimum:
        raise InvalidArgument("weight", "absent", "weight, maximum or minimum")
    event = group_set_event(wanted, now())

    def read_group(state: State) -> preview.Preview:
        state.flows.advance(now().monotonic_ms)  # shares change with time
        return preview.Previews(state).group(event)

    return read_group


def _summary(action: int, found: preview.Preview) -> str:
    slots, jobs = _counted(found.slots_total, "slot"), _counted(found.jobs, "job")
    if action == SET_GROUP:
        changes = [
            f"{each.group} {each.before:.1%} to {each.after:.1%}"
            for each in found.shares
            if abs(each.before - each.after) >= 0.0005
        ]
        text = f"shares: {', '.join(changes)}" if changes else "no share changes now"
        if exceeded := _dimensions(name for each in found.shares for name in each.exceeded):
            text += f"; already above the new maximum: {exceeded}"
        if below := _dimensions(name for each in found.shares for name in each.below_minimum):
            text += f"; below the new minimum: {below}"
        return text
    if action == SET_HOST_POLICY:
        if not found.settings:
            return "no setting in effect changes now"
        changes = [
            f"{each.name} {_shown(each.before)} to {_shown(each.after)}" for each in found.settings
        ]
        text = f"on {_counted(found.executors, 'executor')}: {', '.join(changes)}"
        if found.slots_total:
            text += f"; {slots} of {jobs} keep reserved cpus until they end"
        return text
    if action in (DRAIN, CORDON):
        text = f"{slots} of {jobs} stay until they end"
        if found.slots:
            text += f"; another executor has room now for {found.moving} of {len(found.slots)}"
        if action == CORDON:
            others = _counted(found.on_other_devices, "slot")
            text += (
                f"; the cordon does not concern {others} on other devices of this executor and"
                f" {_counted(found.without_devices, 'slot')} without devices"
            )
        return text
    waiting = _counted(found.waiting, "queued request")
    return f"{slots} of {jobs} end with their tasks, {waiting} cancelled"


def _dimensions(names: Iterable[str]) -> str:
    return ", ".join(sorted({dimension_text(name) for name in names}))


def _shown(value: str) -> str:
    return value or "none"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
