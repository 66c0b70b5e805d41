"""Administrators' calls that show and change the cpu policies of hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.access import current_caller
from finegrain.rpc.wire_cpus import (
    effective_policy_to_proto,
    host_policy_from_proto,
    host_policy_to_proto,
)
from finegrain.v1 import cluster_pb2
from resource_manager.engine.executors.host_settings import SETTINGS, host_policy_view, policy_of
from resource_manager.engine.model.entities import HostSetting, Instant
from resource_manager.engine.model.events import HostPolicySet
from resource_manager.engine.state import State
from resource_manager.service.audit import audited
from resource_manager.service.engine_driver import now
from resource_manager.service.runner import Runner
from resource_manager.service.wire.encoding import write

T = TypeVar("T")


class HostPolicyCalls:
    """The part of ClusterService about host policies."""

    _runner: Runner

    async def GetHostPolicy(
        self, request: cluster_pb2.GetHostPolicyRequest, context: Any
    ) -> cluster_pb2.GetHostPolicyResponse:
        """See the protocol."""
        executor_id = _name(request.executor_id)
        view = await self._read(
            lambda state: host_policy_view(state.hosts, state.host_settings, executor_id)
        )
        return write(cluster_pb2.GetHostPolicyResponse, view)

    @audited(lambda request: request.executor_id or "all executors")
    async def SetHostPolicy(
        self, request: cluster_pb2.SetHostPolicyRequest, context: Any
    ) -> cluster_pb2.SetHostPolicyResponse:
        """See the protocol."""
        executor_id = host_policy_event(request, now()).executor_id  # rejects a malformed call
        answer = await self._runner.submit(lambda at: host_policy_event(request, at), _set_response)
        # The effective policy is read after the change, because settings of the host can have
        # priority.
        effective = await self._read(
            lambda state: policy_of(state.hosts, state.host_settings, executor_id)
        )
        answer.effective.CopyFrom(effective_policy_to_proto(effective))
        return answer

    async def _read(self, read: Callable[[State], T]) -> T:
        return await self._runner.read(read, owner=current_caller().peer, items=1)


def host_policy_event(request: cluster_pb2.SetHostPolicyRequest, at: Instant) -> HostPolicySet:
    """Decodes a SetHostPolicy request. The engine makes the semantic checks.

    Raises:
        InvalidArgument: a field is malformed.
    """
    executor_id = _name(request.executor_id)
    policy = host_policy_from_proto(request.policy, "policy")
    if len(request.clear) > len(SETTINGS):
        expected = f"at most {len(SETTINGS)} of {', '.join(SETTINGS)}"
        raise InvalidArgument("clear", f"{len(request.clear)} names", expected)
    return HostPolicySet(at, executor_id, policy, tuple(request.clear))


def _set_response(setting: HostSetting) -> cluster_pb2.SetHostPolicyResponse:
    return cluster_pb2.SetHostPolicyResponse(
        set=host_policy_to_proto(setting.policy), number=setting.number
    )


def _name(executor_id: str) -> str:
    """Checks the executor's id; empty means the whole cluster."""
    return executor_id and check_id("executor_id", executor_id)
