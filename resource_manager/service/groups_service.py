"""Administrators' calls about resource groups: list, set, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from finegrain.rpc.access import current_caller
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.groups import GroupView, group_views
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.explain.reservations import reservation_views
from resource_manager.engine.explain.waiting_reasons import groups_waiting_since
from resource_manager.engine.jobs.groups import known_group
from resource_manager.engine.model.entities import Group, Instant
from resource_manager.engine.model.events import GroupDeleted
from resource_manager.engine.state import State
from resource_manager.service.audit import audited
from resource_manager.service.engine_driver import now
from resource_manager.service.group_use import GroupUse
from resource_manager.service.runner import Runner
from resource_manager.service.wire.encoding import group_message, groups_message
from resource_manager.service.wire.groups import (
    group_rules_event,
    group_set_event,
    group_users_event,
)

T = TypeVar("T")

READ_ITEMS = 100
"""Reading all groups and their pending requests counts as this many items in the fair queues."""


class GroupCalls:
    """The part of ClusterService about resource groups."""

    _runner: Runner
    _group_use: GroupUse

    async def ListGroups(
        self, request: cluster_pb2.ListGroupsRequest, context: Any
    ) -> cluster_pb2.ListGroupsResponse:
        """See the protocol."""

        def read(state: State) -> Paused[cluster_pb2.ListGroupsResponse]:
            views = yield from views_at(state, now)
            return groups_message(
                views, reservation_views(state), state.settings.fairness, self._group_use
            )

        return await self._read_groups(read)

    @audited(lambda request: request.name)
    async def SetGroup(
        self, request: cluster_pb2.SetGroupRequest, context: Any
    ) -> cluster_pb2.SetGroupResponse:
        """See the protocol."""
        group_set_event(request, now())  # rejects a malformed call before it is queued
        await self._runner.submit(lambda at: group_set_event(request, at), _nothing)
        return cluster_pb2.SetGroupResponse(group=await self._group(request.name))

    @audited(lambda request: request.name)
    async def ChangeGroupUsers(
        self, request: cluster_pb2.ChangeGroupUsersRequest, context: Any
    ) -> cluster_pb2.ChangeGroupUsersResponse:
        """See the protocol."""
        group_users_event(request, now())  # rejects a malformed call before it is queued
        await self._runner.submit(lambda at: group_users_event(request, at), _nothing)
        return cluster_pb2.ChangeGroupUsersResponse(group=await self._group(request.name))

    @audited(lambda request: request.name)
    async def ChangeGroupRules(
        self, request: cluster_pb2.ChangeGroupRulesRequest, context: Any
    ) -> cluster_pb2.ChangeGroupRulesResponse:
        """See the protocol."""
        group_rules_event(request, now())  # rejects a malformed call before it is queued
        await self._runner.submit(lambda at: group_rules_event(request, at), _nothing)
        return cluster_pb2.ChangeGroupRulesResponse(group=await self._group(request.name))

    @audited(lambda request: request.name)
    async def DeleteGroup(
        self, request: cluster_pb2.DeleteGroupRequest, context: Any
    ) -> cluster_pb2.DeleteGroupResponse:
        """See the protocol."""
        await self._runner.submit(lambda at: GroupDeleted(at, request.name), _nothing)
        return cluster_pb2.DeleteGroupResponse()

    async def _group(self, name: str) -> cluster_pb2.GroupStatus:
        def read(state: State) -> Paused[cluster_pb2.GroupStatus]:
            views = yield from views_at(state, now)
            known_group(state.groups, name)  # raises if the group was deleted in the meantime
            return next(
                group_message(view, self._group_use) for view in views if view.group.name == name
            )

        return await self._read_groups(read)

    async def _read_groups(self, read: Callable[[State], Paused[T]]) -> T:
        owner = current_caller().peer
        return await self._runner.read_in_slices(read, owner=owner, items=READ_ITEMS)


def views_at(state: State, clock: Callable[[], Instant]) -> Paused[list[GroupView]]:
    """Advances the fairness tree to the present time, and returns all groups. The function pauses
    only before it reads this time.
    """
    since = yield from groups_waiting_since(state)
    state.flows.advance(clock().monotonic_ms)
    return group_views(state.flows, state.groups, since)


def _nothing(_answer: Group | None) -> None:
    """Ignores the group: the answer of the call is empty.

    The engine's answer is a part of the state, which later batches change. So callers read the
    state again instead.
    """
