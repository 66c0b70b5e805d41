"""Implements the calls of `Cluster` that change the cluster. All these calls need the role
`operator`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from finegrain.errors import (
    InvalidArgument,
)
from finegrain.v1 import cluster_pb2 as pb
from finegrain.values.bounds import AMOUNT_MAX
from finegrain.values.group_rules import GroupRule
from finegrain.values.outcomes import ItemOutcome
from finegrain_client.call_limits import id_batches
from finegrain_client.connection import Connection
from finegrain_client.decoding import read
from finegrain_client.durations import duration, grace
from finegrain_client.types import status as types

if TYPE_CHECKING:
    from finegrain.cpu_policy import (
        BindPolicy,
        ExclusivePolicy,
        HostBindPolicy,
        NumaPolicy,
        NumaStrategy,
    )
    from finegrain_client.types.groups import GroupStatus, UserStatus
    from finegrain_client.types.host_policy import HostPolicyStatus

NO_LIMIT = -1
"""The protocol's value for "remove this limit"."""


class Operations:
    """The part of `Cluster` that changes the cluster."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def drain(
        self, executor_id: str, *, reason: str = "", deadline_s: float | None = None
    ) -> types.ExecutorStatus:
        """Stops the placement of new slots on an executor. Running slots continue.

        Args:
            executor_id: the executor.
            reason: text for people.
            deadline_s: after this time in seconds, the resource manager releases the remaining
                slots; None means that it does not release them.
        """
        message = pb.DrainExecutorRequest(
            executor_id=executor_id,
            reason=reason,
            deadline=duration(deadline_s),
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.DrainExecutor(message, timeout=timeout_s)
        )
        return read(types.ExecutorStatus, answer.executor)

    async def undrain(self, executor_id: str) -> types.ExecutorStatus:
        """Allows the placement of new slots on an executor again."""
        message = pb.UndrainExecutorRequest(executor_id=executor_id)
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.UndrainExecutor(message, timeout=timeout_s)
        )
        return read(types.ExecutorStatus, answer.executor)

    async def cordon(self, executor_id: str, device: str, *, reason: str = "") -> str:
        """Prevents that new slots get a device. Slots that already have the device keep it.

        Args:
            executor_id: the executor.
            device: name of the device ("gpu3") or its UUID.
            reason: text for people.

        Returns:
            The device's UUID.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: the executor does not exist, or it has no such device.
        """
        message = pb.CordonDeviceRequest(executor_id=executor_id, device=device, reason=reason)
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.CordonDevice(message, timeout=timeout_s)
        )
        return str(answer.uuid)

    async def uncordon(self, executor_id: str, device: str) -> None:
        """Lets new slots get a device again. Does nothing if the device is not cordoned.

        Args:
            executor_id: the executor.
            device: name of the device ("gpu3") or its UUID.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: the executor does not exist, or it has no such device.
        """
        message = pb.UncordonDeviceRequest(executor_id=executor_id, device=device)
        await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.UncordonDevice(message, timeout=timeout_s)
        )

    async def forget(self, executor_id: str) -> None:
        """Deletes a lost executor from the resource manager's state.

        Raises:
            FailedPrecondition: EXECUTOR_NOT_LOST: only lost executors can be forgotten.
        """
        message = pb.ForgetExecutorRequest(executor_id=executor_id)
        await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ForgetExecutor(message, timeout=timeout_s)
        )

    async def check_operator(self) -> None:
        """Checks that this client may change the cluster. The call does not change the cluster.

        Raises:
            PermissionDenied: the caller does not have the role `operator`.
        """
        # Send an invalid request: the server checks the caller before the fields of the request.
        try:
            await self._connection.call_cluster(
                lambda cluster, timeout_s: cluster.ReleaseAllocations(
                    pb.ReleaseAllocationsRequest(), timeout=timeout_s
                )
            )
        except InvalidArgument:
            return

    async def release(
        self, allocation_ids: Sequence[str], *, grace_s: float | None = None
    ) -> list[ItemOutcome]:
        """Releases slots, or cancels requests, of any job. Returns one outcome per id, in order."""
        outcomes: list[ItemOutcome] = []
        for ids in id_batches(allocation_ids):
            message = pb.ReleaseAllocationsRequest(allocation_ids=ids, grace=grace(grace_s))
            answer = await self._connection.call_cluster(
                lambda cluster, timeout_s, message=message: cluster.ReleaseAllocations(  # type: ignore[misc]
                    message, timeout=timeout_s
                )
            )
            outcomes += read.each(ItemOutcome, answer.results)
        return outcomes

    async def terminate_job(self, job_id: str, *, grace_s: float | None = None) -> None:
        """Ends a job, even if the job belongs to another job master.

        Raises:
            NotFound: JOB_UNKNOWN: there is no such job.
        """
        message = pb.TerminateJobRequest(job_id=job_id, grace=grace(grace_s))
        await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.TerminateJob(message, timeout=timeout_s)
        )

    async def set_group(
        self,
        name: str,
        *,
        weight: float | None = None,
        parent: str | None = None,
        description: str | None = None,
        minimum: Mapping[str, int | None] | None = None,
        maximum: Mapping[str, int | None] | None = None,
    ) -> GroupStatus:
        """Creates a resource group, or changes the given settings of an existing group.

        The settings apply from the next scheduling decision on. The settings never stop a slot that
        runs.

        Args:
            name: name of the group: 1 to 63 characters (a-z 0-9 . _ -). The first is a letter or a
                digit.
            weight: weight of the group, 0.001 to 1,000,000. A group of weight 4 gets four times the
                share of a group of weight 1.
            parent: the parent group; an empty value means no parent. The parent can change only
                while the group has no jobs.
            description: text for people.
            minimum: guaranteed minimum by dimension ("cpu_milli", "memory_bytes", or "extended."
                and a name). None removes the minimum of a dimension.
            maximum: limit for all slots of the group together, by dimension. With 0, no more slots
                start. None removes the limit of this dimension.

        Raises:
            InvalidArgument: an argument is out of range.
            NotFound: GROUP_UNKNOWN: the parent does not exist.
            FailedPrecondition: GROUP_IN_USE: the group has jobs, so its parent cannot change.
        """
        message = pb.SetGroupRequest(
            name=name,
            weight=weight,
            parent=parent,
            description=description,
            minimum=_limits(minimum),
            maximum=_limits(maximum),
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.SetGroup(message, timeout=timeout_s)
        )
        from finegrain_client.types.groups import GroupStatus

        return read(GroupStatus, answer.group)

    async def change_group_rules(
        self, name: str, *, add: Sequence[GroupRule] = (), remove: Sequence[int] = ()
    ) -> GroupStatus:
        """Adds or removes rules that put jobs into a resource group.

        The resource manager compares the rules with each new job that names no group. Of the rules
        of all groups, the first rule that matches decides. Jobs that are already registered stay in
        their group.

        Args:
            name: name of the group.
            add: rules to add. A rule whose `order` is 0 comes after all other rules.
            remove: the rules of this group to remove, each by the value of its `order`.

        Raises:
            InvalidArgument: a rule has no pattern, or its order is not allowed.
            AlreadyExists: another rule has this order.
            NotFound: there is no such group, or no such rule.
        """
        from finegrain_client.types.groups import GroupStatus

        message = pb.ChangeGroupRulesRequest(
            name=name,
            add=[
                pb.GroupRule(
                    order=each.order, job=each.job, user=each.user, labels=dict(each.labels)
                )
                for each in add
            ],
            remove=remove,
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ChangeGroupRules(message, timeout=timeout_s)
        )
        return read(GroupStatus, answer.group)

    async def change_group_users(
        self, name: str, *, allow: Sequence[str] = (), revoke: Sequence[str] = ()
    ) -> GroupStatus:
        """Changes which users may register jobs in a resource group and in the groups below it.

        Jobs that are already registered stay in their group. Administrators may use every group.

        Args:
            name: name of the group.
            allow: users to allow, such as "user/alice". "*" means all users.
            revoke: users that lose the right. Name each user in the same form in which the user was
                allowed.

        Raises:
            InvalidArgument: an entry is not a user.
            NotFound: GROUP_UNKNOWN: there is no such group.
        """
        message = pb.ChangeGroupUsersRequest(name=name, allow=allow, revoke=revoke)
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ChangeGroupUsers(message, timeout=timeout_s)
        )
        from finegrain_client.types.groups import GroupStatus

        return read(GroupStatus, answer.group)

    async def set_user_limits(
        self, user: str, maximum: Mapping[str, int | None] | None = None
    ) -> UserStatus:
        """Sets limits for all jobs of a user together. The limits stop no slot and end no job.

        The limits of "*" do not apply to a user with separate limits.

        Args:
            user: identity such as "user/alice". "*" means all users that have no separate limits,
                except administrators.
            maximum: limits by dimension: "jobs", "requests", "slots", "cpu_milli", "memory_bytes",
                and the dimensions of `set_group`. None removes the limit of a dimension. Limits
                that are not named stay unchanged.

        Raises:
            InvalidArgument: an argument is out of range.
        """
        message = pb.SetUserLimitsRequest(user=user, maximum=_limits(maximum))
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.SetUserLimits(message, timeout=timeout_s)
        )
        from finegrain_client.types.groups import UserStatus

        return read(UserStatus, answer.user)

    async def delete_user_limits(self, user: str) -> None:
        """Deletes the separate limits of a user, so that the limits of "*" apply to this user.

        Raises:
            NotFound: IDENTITY_UNKNOWN: the user has no separate limits.
        """
        message = pb.DeleteUserLimitsRequest(user=user)
        await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.DeleteUserLimits(message, timeout=timeout_s)
        )

    async def delete_group(self, name: str) -> None:
        """Deletes a resource group. The group must have no jobs and no child groups.

        Raises:
            NotFound: GROUP_UNKNOWN: there is no such group.
            FailedPrecondition: GROUP_IN_USE: the group has jobs or child groups.
        """
        message = pb.DeleteGroupRequest(name=name)
        await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.DeleteGroup(message, timeout=timeout_s)
        )

    async def set_host_policy(
        self,
        executor_id: str | None,
        *,
        bind: HostBindPolicy | str | None = None,
        numa_strategy: NumaStrategy | str | None = None,
        alignment: NumaPolicy | str | None = None,
        reserved_cpus: str | None = None,
        reserved_strict: bool | None = None,
        default_bind: BindPolicy | str | None = None,
        default_exclusive: ExclusivePolicy | str | None = None,
        clear: Collection[str] = (),
    ) -> HostPolicyStatus:
        """Changes policy settings of an executor's host, or of the whole cluster.

        Settings that are not named stay unchanged. The changed settings apply to new slots from the
        next scheduling decision on. The settings survive restarts, and have priority over the
        executor's configuration.

        Args:
            executor_id: the executor; None means the settings for the whole cluster.
            bind: rule for slots with dedicated cpus: "FullPCPUsOnly", "SpreadByPCPUs" or "None".
            numa_strategy: the NUMA node that is filled first: "MostAllocated", "LeastAllocated" or
                "DistributeEvenly".
            alignment: placement of every slot on NUMA nodes: "None", "BestEffort", "Restricted" or
                "SingleNUMANode".
            reserved_cpus: cpus that are never dedicated to a slot, as a list ("0-1"; an empty value
                means no cpus). These cpus are added to the cpus that the host's configuration
                reserves.
            reserved_strict: True if the shared pools must not contain the reserved cpus.
            default_bind: "FullPCPUs", "SpreadByPCPUs" or "None", for requests that name no bind
                policy.
            default_exclusive: "PCPULevel", "NUMANodeLevel" or "None", for requests that name no
                exclusive policy.
            clear: names of the settings to remove. The names are those of the arguments above.

        Raises:
            InvalidArgument: an argument has a value that is not allowed.
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        words = {
            "bind": bind,
            "numa_strategy": numa_strategy,
            "alignment": alignment,
            "default_bind": default_bind,
            "default_exclusive": default_exclusive,
        }
        from finegrain_client.admin.host_policy import policy_message
        from finegrain_client.decoding_hosts import read
        from finegrain_client.types.host_policy import HostPolicyStatus

        message = pb.SetHostPolicyRequest(
            executor_id=executor_id or "",
            policy=policy_message(words, reserved_cpus, reserved_strict),
            clear=clear,
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.SetHostPolicy(message, timeout=timeout_s)
        )
        return read(HostPolicyStatus, answer, executor_id=executor_id or "", followed_number=None)

    async def resize(
        self,
        allocation_id: str,
        *,
        cpu_milli: int | None = None,
        memory_bytes: int | None = None,
        task_off_heap_memory_bytes: int | None = None,
        managed_memory_bytes: int | None = None,
        network_memory_bytes: int | None = None,
        extended: Mapping[str, int] | None = None,
        devices: Mapping[str, int] | None = None,
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> types.SlotStatus:
        """Changes the resources of a slot of any job. The tasks of the slot continue; see
        `Slot.resize`.

        Args:
            allocation_id: the slot.
            wait_for_use: see `Slot.resize`.
            wait: if true, the call returns when the slot has the new size. If false, the call
                returns at once, and `SlotStatus.resizes` has the pending change.
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            NotFound: ALLOCATION_UNKNOWN: there is no such slot or request, or the slot or request
                has ended.
            FailedPrecondition: SLOT_NOT_READY: the request has no slot yet; INFEASIBLE_NEVER: the
                new size is more than the executor has in total.
            ResizeRefused, StillResizing, SlotLost, InvalidArgument: see `Slot.resize`.
        """
        from finegrain_client.admin.resizing import Resizing
        from finegrain_client.slot.resizing import SizeChange

        change = SizeChange(
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            task_off_heap_memory_bytes=task_off_heap_memory_bytes,
            managed_memory_bytes=managed_memory_bytes,
            network_memory_bytes=network_memory_bytes,
            extended=extended,
            devices=devices,
            cpu_limit_milli=cpu_limit_milli,
        )
        return await Resizing(self._connection, allocation_id).change(
            change, wait_for_use=wait_for_use, wait=wait, timeout_s=timeout_s
        )

    async def park(
        self, allocation_id: str, *, wait: bool = True, timeout_s: float | None = None
    ) -> types.SlotStatus:
        """Frees the GPUs of a slot of any job. The slot's processes stay; see `Slot.park`.

        Args:
            allocation_id: the slot.
            wait: see `resize`.
            timeout_s: see `resize`.

        Raises:
            NotFound: ALLOCATION_UNKNOWN: there is no such slot or request, or the slot or request
                has ended.
            FailedPrecondition: SLOT_NOT_READY: the request has no slot yet; PARK_FAILED: the
                executor does not park slots on these GPUs.
            ResizeRefused, StillResizing, SlotLost, InvalidArgument: see `Slot.park`.
        """
        from finegrain_client.admin.resizing import Resizing
        from finegrain_client.slot.resizing import parking_change

        change = await parking_change(self._connection, allocation_id, park=True)
        return await Resizing(self._connection, allocation_id).change(
            change, wait_for_use=False, wait=wait, timeout_s=timeout_s
        )

    async def unpark(
        self, allocation_id: str, *, wait: bool = True, timeout_s: float | None = None
    ) -> types.SlotStatus:
        """Gives GPUs back to a parked slot of any job; see `Slot.unpark`.

        Args:
            allocation_id: the slot.
            wait: see `resize`.
            timeout_s: see `resize`.

        Raises:
            NotFound: ALLOCATION_UNKNOWN: there is no such slot or request, or the slot or request
                has ended.
            FailedPrecondition: SLOT_NOT_READY: the request has no slot yet.
            ResizeRefused, StillResizing, SlotLost, InvalidArgument: see `Slot.unpark`.
        """
        from finegrain_client.admin.resizing import Resizing
        from finegrain_client.slot.resizing import parking_change

        change = await parking_change(self._connection, allocation_id, park=False)
        return await Resizing(self._connection, allocation_id).change(
            change, wait_for_use=False, wait=wait, timeout_s=timeout_s
        )

    async def withdraw_resize(self, allocation_id: str) -> types.SlotStatus:
        """Withdraws all pending changes of a slot.

        If the executor is already carrying out a change, the executor then resizes the slot back to
        the old size.

        Raises:
            NotFound: ALLOCATION_UNKNOWN: there is no such slot or request, or the slot or request
                has ended.
            FailedPrecondition: SLOT_NOT_READY: the request has no slot yet.
        """
        from finegrain_client.admin.resizing import Resizing

        return await Resizing(self._connection, allocation_id).withdraw()


def _limits(amounts: Mapping[str, int | None] | None) -> dict[str, int]:
    """Returns limits in the form of the protocol: `NO_LIMIT` stands for None."""
    for name, amount in (amounts or {}).items():
        if amount is not None and not 0 <= amount <= AMOUNT_MAX:
            expected = f"an amount from 0 to {AMOUNT_MAX}, or None for no limit"
            raise InvalidArgument(name, amount, expected)
    return {name: NO_LIMIT if each is None else each for name, each in (amounts or {}).items()}
