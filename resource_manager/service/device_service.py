"""Administrators' calls about devices: list, cordon and uncordon devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id, check_text
from finegrain.rpc.access import current_caller
from finegrain.rpc.wire_devices import (
    condition_to_proto,
    device_to_proto,
    link_to_proto,
)
from finegrain.v1 import cluster_pb2, devices_pb2, slots_pb2
from resource_manager.engine.explain.devices import DeviceView, ExecutorDevices, list_devices
from resource_manager.engine.model.entities import Cordon
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned
from resource_manager.engine.state import State
from resource_manager.service.audit import audited
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.paging import key_of, page_size, token_of
from resource_manager.service.runner import Runner

REASON_LENGTH_MAX = 300
NAME_LENGTH_MAX = 256


class DeviceCalls:
    """The part of ClusterService about devices."""

    _runner: Runner
    _measured: MeasuredUse

    async def ListDevices(
        self, request: cluster_pb2.ListDevicesRequest, context: Any
    ) -> cluster_pb2.ListDevicesResponse:
        """See the protocol."""
        executor_id = request.executor_id and check_id("executor_id", request.executor_id)
        limit = page_size(request.page_size)
        (after,) = key_of(request.page_token, ("",))

        def read(state: State) -> cluster_pb2.ListDevicesResponse:
            page = list_devices(state, executor_id=executor_id, after=str(after), limit=limit)
            return cluster_pb2.ListDevicesResponse(
                executors=[
                    _devices_to_proto(each, self._measured.whole_report(each.executor_id))
                    for each in page.items
                ],
                next_page_token=token_of((page.next_key,) if page.next_key is not None else None),
            )

        return await self._runner.read(read, owner=current_caller().peer, items=limit)

    @audited(lambda request: f"{request.executor_id} {request.device}")
    async def CordonDevice(
        self, request: cluster_pb2.CordonDeviceRequest, context: Any
    ) -> cluster_pb2.CordonDeviceResponse:
        """See the protocol."""
        executor_id, device = check_id("executor_id", request.executor_id), _name(request.device)
        reason = check_text("reason", request.reason, longest=REASON_LENGTH_MAX, empty_ok=True)
        return await self._runner.submit(
            lambda at: DeviceCordoned(at, executor_id, device, reason), _cordoned
        )

    @audited(lambda request: f"{request.executor_id} {request.device}")
    async def UncordonDevice(
        self, request: cluster_pb2.UncordonDeviceRequest, context: Any
    ) -> cluster_pb2.UncordonDeviceResponse:
        """See the protocol."""
        executor_id, device = check_id("executor_id", request.executor_id), _name(request.device)
        return await self._runner.submit(
            lambda at: DeviceUncordoned(at, executor_id, device),
            lambda _: cluster_pb2.UncordonDeviceResponse(),
        )


def _cordoned(cordon: Cordon) -> cluster_pb2.CordonDeviceResponse:
    return cluster_pb2.CordonDeviceResponse(uuid=cordon.uuid)


def _name(device: str) -> str:
    if not device:
        raise InvalidArgument("device", device, "the name of a device, such as gpu3, or its UUID")
    return check_text("device", device, longest=NAME_LENGTH_MAX)


def _devices_to_proto(
    one: ExecutorDevices, measured: slots_pb2.UsageReport
) -> cluster_pb2.ExecutorDevices:
    usages = {(each.type, each.uuid): each for each in measured.devices}
    return cluster_pb2.ExecutorDevices(
        executor_id=one.executor_id,
        devices=[_device_to_proto(each, usages) for each in one.devices],
        links=[link_to_proto(each) for each in one.links],
        fake=one.fake,
    )


def _device_to_proto(
    one: DeviceView, usages: Mapping[tuple[str, str], devices_pb2.DeviceUsage]
) -> cluster_pb2.DeviceStatus:
    return cluster_pb2.DeviceStatus(
        device=device_to_proto(one.device),
        problem=one.problem,
        cordoned=one.cordoned,
        allocated=one.allocated,
        available=one.available,
        uses=[
            cluster_pb2.DeviceUse(
                allocation_id=each.slot.allocation_id,
                generation=each.slot.generation,
                job_id=each.slot.job_id,
                amounts=dict(each.share.amounts),
            )
            for each in one.uses
        ],
        condition=None if one.condition is None else condition_to_proto(one.condition),
        usage=usages.get((one.device.type, one.device.uuid)),
    )
