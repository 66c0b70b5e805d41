"""Administrators' calls about the limits of users: list, set, delete."""

from __future__ import annotations

from typing import Any

from finegrain.rpc.access import current_caller
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.users import user_view, user_views
from resource_manager.engine.model.events import UserLimitsDeleted
from resource_manager.service.audit import audited
from resource_manager.service.engine_driver import now
from resource_manager.service.runner import Runner
from resource_manager.service.wire.encoding import write
from resource_manager.service.wire.groups import user_limits_event

READ_ITEMS = 100
"""Reading all users and their jobs counts as this many items in the fair queues."""


class UserCalls:
    """The part of ClusterService about users."""

    _runner: Runner

    async def ListUsers(
        self, request: cluster_pb2.ListUsersRequest, context: Any
    ) -> cluster_pb2.ListUsersResponse:
        """See the protocol."""
        views = await self._runner.read(
            lambda state: user_views(state.flows.users, state.jobs),
            owner=current_caller().peer,
            items=READ_ITEMS,
        )
        return cluster_pb2.ListUsersResponse(users=write.each(cluster_pb2.UserStatus, views))

    @audited(lambda request: request.user)
    async def SetUserLimits(
        self, request: cluster_pb2.SetUserLimitsRequest, context: Any
    ) -> cluster_pb2.SetUserLimitsResponse:
        """See the protocol."""
        user_limits_event(request, now())  # rejects a malformed call before it is queued
        await self._runner.submit(lambda at: user_limits_event(request, at), lambda _none: None)
        view = await self._runner.read(
            lambda state: user_view(state.flows.users, state.jobs, request.user),
            owner=current_caller().peer,
        )
        return cluster_pb2.SetUserLimitsResponse(user=write(cluster_pb2.UserStatus, view))

    @audited(lambda request: request.user)
    async def DeleteUserLimits(
        self, request: cluster_pb2.DeleteUserLimitsRequest, context: Any
    ) -> cluster_pb2.DeleteUserLimitsResponse:
        """See the protocol."""
        await self._runner.submit(
            lambda at: UserLimitsDeleted(at, request.user), lambda _none: None
        )
        return cluster_pb2.DeleteUserLimitsResponse()
