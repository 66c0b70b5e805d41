"""Defines the entry point of the client: `connect` returns a `Cluster`, which creates jobs and
lists state.

`Cluster` converts pages and long polls of the protocol to plain lists and iterators. Calls that
change the cluster are for administrators, and are in `admin/operations.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from finegrain.credentials import Credentials
from finegrain.errors import InvalidArgument
from finegrain.ids import check_id, check_text
from finegrain.targets import resolve_target
from finegrain.v1 import cluster_pb2 as pb
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.states import RequestState
from finegrain_client.admin.identities import Identities
from finegrain_client.admin.operations import Operations
from finegrain_client.connection import Connection
from finegrain_client.decoding import read
from finegrain_client.durations import duration
from finegrain_client.job.context import LEASE_DEFAULT_S
from finegrain_client.retry import BUDGET_DEFAULT_S, RetryPolicy
from finegrain_client.types import status as types

if TYPE_CHECKING:
    from finegrain.values.dependencies import JobDependency
    from finegrain_client.job.job import Job
    from finegrain_client.types.advice import ThreadAdvice
    from finegrain_client.types.devices import ExecutorDevices
    from finegrain_client.types.explain import Explanation
    from finegrain_client.types.groups import Groups, UserStatus
    from finegrain_client.types.host_policy import HostPolicyStatus
    from finegrain_client.types.preview import Preview, PreviewedAction
    from finegrain_client.types.providers import Providers
    from finegrain_client.types.topology import TopologyReport

PAGE_SIZE = 1000
DEVICES_PAGE_SIZE = 100  # executors on one page, each of which may have many devices
EVENTS_PAGE_SIZE = 1000
EVENTS_WAIT_S = 20.0

ResponseT = TypeVar("ResponseT")
ItemT = TypeVar("ItemT")


def connect(
    address: str | Sequence[str] | None = None,
    *,
    credentials: str | os.PathLike[str] | Credentials | None = None,
    budget_s: float = BUDGET_DEFAULT_S,
) -> Cluster:
    """Returns a client of one cluster. The client opens no connection before the first call.

    Args:
        address: "host:port" of the resource manager, or several addresses if there are standbys.
            Default: the environment variable FINEGRAIN_MANAGER (several addresses are separated by
            commas), otherwise the addresses in the credentials.
        credentials: the credentials file of the identity to use, or its content. Default: the file
            that FINEGRAIN_CREDENTIALS names. If this variable is not set, the default is the
            credentials of the cluster that this user runs on this host (`finegrain up`). If there
            is no such cluster, the default is ~/.config/finegrain/credentials.
        budget_s: longest time in seconds that one call may take, including all its retries.

    Raises:
        InvalidArgument: an address is malformed.
        Unauthenticated: there are no credentials.
        ConfigurationError: the credentials cannot be read.
    """
    target = resolve_target(address, credentials)
    policy = RetryPolicy(budget_s=budget_s)
    return Cluster(
        Connection(target.addresses, target.credentials, file=target.file, policy=policy)
    )


class Cluster(Operations, Identities):
    """A client of one cluster. Use it as an async context manager, on one event loop."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections and cancels the calls in flight."""
        await self._connection.close()

    @property
    def address(self) -> str:
        """Address of the resource manager that the client currently calls."""
        return self._connection.manager_address

    # For job masters.

    def job(
        self,
        name: str,
        *,
        group: str = "",
        lease_s: float = LEASE_DEFAULT_S,
        detached: bool = False,
        after: Iterable[JobDependency | str] = (),
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Job:
        """Returns a new job. `async with` registers it on entry and ends it on exit.

        Args:
            name: name for people to read, 1 to 200 printable characters.
            group: resource group of the job. If it is empty, the rules of the groups choose the
                group; if no rule matches, the group is "default".
            lease_s: time in seconds without contact after which the resource manager ends the job,
                1 s to 1 day.
            detached: if true, the job has no lease, and leaving `async with` does not end the job.
                Only `Job.end` ends the job.
            after: jobs that must end before this job gets its first slot. A `JobDependency` says
                how the other job must end. The id of a job alone means that the job must succeed.
                If a job ends in another way, this job ends, too (DEPENDENCY_FAILED).
            labels: labels of the job, which the rules of the groups can use.
            priority: order of the job within its group, -100 to 100; the highest is served first.

        Raises:
            InvalidArgument: the name, the lease, the priority or an id is not allowed.
        """
        from finegrain_client.dependencies import dependencies
        from finegrain_client.job.job import Job
        from finegrain_client.specs import check_priority

        check_text("name", name, longest=200)
        if not detached and not 1 <= lease_s <= 86_400:
            raise InvalidArgument("lease_s", lease_s, "1 to 86400 seconds")
        check_priority("priority", priority)
        return Job(
            self._connection,
            name,
            group=group,
            lease_s=lease_s,
            detached=detached,
            after=dependencies(after),
            labels=labels or {},
            priority=priority,
        )

    def attach_job(self, job_id: str, *, lease_s: float = LEASE_DEFAULT_S) -> Job:
        """Returns a handle of an existing job of this client's identity.

        Inside `async with`, `Job.requests` has the requests and slots of the job. Leaving the
        context does not end the job. Only `Job.end` ends the job.

        Args:
            job_id: id of the job (`Job.job_id`).
            lease_s: lease of the job in seconds; the client renews it three times within a lease,
                and at least every 10 s.

        Raises:
            InvalidArgument: the id is malformed.
        """
        from finegrain_client.job.job import Job

        check_id("job_id", job_id)
        return Job(self._connection, job_id, lease_s=lease_s, detached=True, job_id=job_id)

    # The next methods are read-only calls, which every identity may use.

    async def info(self) -> types.ClusterInfo:
        """Returns facts about the resource manager and the totals of the cluster."""
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.GetCluster(pb.GetClusterRequest(), timeout=timeout_s)
        )
        return read(types.ClusterInfo, answer)

    async def executors(self) -> list[types.ExecutorStatus]:
        """Returns all executors, ordered by id."""
        return await self._pages(
            lambda cluster, token, timeout_s: cluster.ListExecutors(
                pb.ListExecutorsRequest(page_size=PAGE_SIZE, page_token=token), timeout=timeout_s
            ),
            lambda page: read.each(types.ExecutorStatus, page.executors),
        )

    async def executor(self, executor_id: str) -> types.ExecutorStatus:
        """Returns one executor with its topology and slots.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        message = pb.GetExecutorRequest(executor_id=executor_id)
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.GetExecutor(message, timeout=timeout_s)
        )
        return read(
            types.ExecutorStatus,
            answer.executor,
            slot_list=tuple(read(types.SlotStatus, each) for each in answer.slots),
        )

    async def devices(self, executor_id: str = "") -> list[ExecutorDevices]:
        """Returns the devices of all executors with devices, or of one executor, ordered by id.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        from finegrain_client.types.devices import ExecutorDevices

        return await self._pages(
            lambda cluster, token, timeout_s: cluster.ListDevices(
                pb.ListDevicesRequest(
                    executor_id=executor_id, page_size=DEVICES_PAGE_SIZE, page_token=token
                ),
                timeout=timeout_s,
            ),
            lambda page: read.each(ExecutorDevices, page.executors),
        )

    async def topology(self, executor_id: str) -> TopologyReport:
        """Returns the cpus and NUMA nodes of one executor.

        The report has their layout, the slots that use them, and the settings in effect.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        message = pb.GetTopologyRequest(executor_id=executor_id)
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.GetTopology(message, timeout=timeout_s)
        )
        from finegrain_client.decoding_hosts import read
        from finegrain_client.types.topology import TopologyReport

        return read(TopologyReport, answer)

    async def usage(
        self, *, executor_id: str = "", allocation_id: str = "", group: str = ""
    ) -> types.UsageHistory:
        """Returns the measured use of an executor or a slot, or the allocated amounts of a group,
        over the last hour.

        Args:
            executor_id: the executor.
            allocation_id: the slot.
            group: the resource group.

        Raises:
            NotFound: EXECUTOR_UNKNOWN, ALLOCATION_UNKNOWN, GROUP_UNKNOWN: there is no such
                executor, request or group.
            InvalidArgument: none of the three arguments is set, or more than one is set.
        """
        message = pb.GetUsageRequest(
            executor_id=executor_id, allocation_id=allocation_id, group=group
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.GetUsage(message, timeout=timeout_s)
        )
        return read(types.UsageHistory, answer)

    async def host_policy(self, executor_id: str | None) -> HostPolicyStatus:
        """Returns the policy settings of an executor's host.

        The result has the settings that administrators made at runtime, and each setting in effect
        with its origin.

        Args:
            executor_id: the executor; None means the settings for the whole cluster. If a host does
                not have a setting itself, the cluster's setting applies.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        message = pb.GetHostPolicyRequest(executor_id=executor_id or "")
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.GetHostPolicy(message, timeout=timeout_s)
        )
        from finegrain_client.decoding_hosts import read
        from finegrain_client.types.host_policy import HostPolicyStatus

        return read(HostPolicyStatus, answer, executor_id=executor_id or "")

    async def slots(self, *, executor_id: str = "", job_id: str = "") -> list[types.SlotStatus]:
        """Returns existing slots, ordered by executor and allocation id.

        Args:
            executor_id: return only slots on this executor. If empty, return the slots on all
                executors.
            job_id: return only slots of this job. If empty, return the slots of all jobs.
        """
        return await self._pages(
            lambda cluster, token, timeout_s: cluster.ListSlots(
                pb.ListSlotsRequest(
                    executor_id=executor_id, job_id=job_id, page_size=PAGE_SIZE, page_token=token
                ),
                timeout=timeout_s,
            ),
            lambda page: read.each(types.SlotStatus, page.slots),
        )

    async def requests(
        self,
        *,
        job_id: str = "",
        states: Iterable[RequestState | str] = (),
        allocation_ids: Sequence[str] = (),
    ) -> list[types.RequestStatus]:
        """Returns requests in queue order.

        Args:
            job_id: return only requests of this job. If empty, return the requests of all jobs.
            states: return only requests in these states. If empty, return the requests that have
                not ended.
            allocation_ids: return only requests with these ids. A text of at least 4 characters
                that is not an id means all ids that end with the text. If no id ends with the text,
                the text means all ids that begin with the text.

        Raises:
            InvalidArgument: a state does not exist, or a part of an id is too short.
        """
        numbers = [_request_state(each) for each in states]
        return await self._pages(
            lambda cluster, token, timeout_s: cluster.ListRequests(
                pb.ListRequestsRequest(
                    job_id=job_id,
                    states=numbers,
                    allocation_ids=allocation_ids,
                    page_size=PAGE_SIZE,
                    page_token=token,
                ),
                timeout=timeout_s,
            ),
            lambda page: read.each(types.RequestStatus, page.requests),
        )

    async def jobs(
        self, *, include_ended: bool = False, matching: Sequence[str] = ()
    ) -> list[types.JobStatus]:
        """Returns jobs in order of arrival.

        Args:
            include_ended: if true, also returns jobs that have ended.
            matching: return only the jobs that have one of these names, or an id that begins or
                ends with one of these texts (at least 4 characters). If empty, return all jobs.
        """
        return await self._pages(
            lambda cluster, token, timeout_s: cluster.ListJobs(
                pb.ListJobsRequest(
                    include_ended=include_ended,
                    matching=matching,
                    page_size=PAGE_SIZE,
                    page_token=token,
                ),
                timeout=timeout_s,
            ),
            lambda page: read.each(types.JobStatus, page.jobs),
        )

    async def events(
        self,
        *,
        from_sequence: int = 0,
        subject_id: str = "",
        follow: bool = False,
        newest: int = EVENTS_PAGE_SIZE,
    ) -> AsyncIterator[types.ClusterEvent]:
        """Yields events of the cluster, oldest first. With `follow`, also waits for new events.

        Args:
            from_sequence: sequence number of the first event to yield; 0 means that the iteration
                starts with the last `newest` events.
            subject_id: yield only events about this executor, job or allocation id.
            follow: if true, the iteration does not end, and yields events as they happen.
            newest: number of past events to start with if `from_sequence` is 0.
        """
        wanted, page_size = from_sequence, newest if from_sequence == 0 else EVENTS_PAGE_SIZE
        while True:
            message = pb.ListEventsRequest(
                from_sequence=wanted,
                subject_id=subject_id,
                page_size=page_size,
                # The deadline of the call below must be longer than this wait.
                wait=duration(EVENTS_WAIT_S) if follow and wanted else None,
            )
            answer = await self._connection.call_cluster(
                lambda cluster, timeout_s, message=message: cluster.ListEvents(  # type: ignore[misc]
                    message, timeout=max(timeout_s, EVENTS_WAIT_S + 10)
                )
            )
            for each in answer.events:
                yield read(types.ClusterEvent, each)
            # The newest events fit into one page. Events from a given number on can fill many
            # pages. The page after the last event is empty.
            if not follow and (not wanted or not answer.events):
                return
            # Request at least number 1, because 0 would mean the newest events again.
            wanted, page_size = max(answer.next_sequence, 1), EVENTS_PAGE_SIZE

    async def explain(
        self, allocation_id: str, *, executor_id: str = "", max_executors: int = 0
    ) -> Explanation:
        """Explains why a request waits, or how it ended.

        Args:
            allocation_id: the request.
            executor_id: explain only this executor. If empty, explain all executors.
            max_executors: largest number of executors to list in full; 0 means 20.

        Raises:
            NotFound: ALLOCATION_UNKNOWN: there is no such request.
        """
        message = rm.ExplainRequest(
            allocation_id=allocation_id, executor_id=executor_id, max_executors=max_executors
        )
        answer = await self._connection.call_manager(
            lambda manager, timeout_s: manager.Explain(message, timeout=timeout_s)
        )
        from finegrain_client.types.explain import Explanation

        return read(Explanation, answer)

    async def providers(self) -> Providers:
        """Returns the executor shapes, and the requested executors with the reason for each
        request.

        All lists are empty if no provider is configured.
        """
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ListProviders(
                pb.ListProvidersRequest(), timeout=timeout_s
            )
        )
        from finegrain_client.types.providers import Providers

        return read(Providers, answer)

    async def preview(
        self,
        action: PreviewedAction | str,
        *,
        executor_id: str = "",
        device: str = "",
        allocation_ids: Sequence[str] = (),
        job_id: str = "",
        group: str = "",
        weight: float | None = None,
        maximum: Mapping[str, int | None] | None = None,
        minimum: Mapping[str, int | None] | None = None,
        policy: Mapping[str, str | bool | None] | None = None,
        clear: Sequence[str] = (),
    ) -> Preview:
        """Returns what an action of an administrator would change. Changes nothing.

        Args:
            action: "DRAIN", "CORDON", "RELEASE", "END_JOB", "SET_GROUP" or "SET_HOST_POLICY".
            executor_id: the executor of DRAIN, CORDON and SET_HOST_POLICY. For SET_HOST_POLICY, an
                empty text means the settings of the cluster.
            device: the device of CORDON, by name or UUID.
            allocation_ids: slots and requests of RELEASE, at most 1,000.
            job_id: the job of END_JOB.
            group: the group of SET_GROUP.
            weight: the new weight of the group; None means that it stays unchanged.
            maximum: new limits of the group by dimension; None removes a limit.
            minimum: new guaranteed amounts of the group by dimension; None removes a guarantee.
            policy: new settings of SET_HOST_POLICY, by the names of the arguments of
                `set_host_policy`.
            clear: names of the settings that SET_HOST_POLICY would remove.

        Raises:
            NotFound: the executor, device, slot, job or group does not exist.
            InvalidArgument: a value is missing or not allowed.
        """
        from finegrain_client.admin.host_policy import policy_of
        from finegrain_client.types.preview import Preview, PreviewedAction

        message = pb.PreviewActionRequest(
            action=pb.PreviewedAction.Value(f"PREVIEWED_ACTION_{PreviewedAction(action)}"),
            executor_id=executor_id,
            device=device,
            allocation_ids=allocation_ids,
            job_id=job_id,
            group=group,
            weight=weight,
            maximum={name: -1 if most is None else most for name, most in (maximum or {}).items()},
            minimum={name: -1 if most is None else most for name, most in (minimum or {}).items()},
            policy=None if policy is None else policy_of(policy),
            clear=clear,
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.PreviewAction(message, timeout=timeout_s)
        )
        return read(Preview, answer)

    async def users(self) -> list[UserStatus]:
        """Returns the users that have limits or live jobs, with the amounts that they use."""
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ListUsers(pb.ListUsersRequest(), timeout=timeout_s)
        )
        from finegrain_client.types.groups import UserStatus

        return read.each(UserStatus, answer.users)

    async def groups(self) -> Groups:
        """Returns the resource groups with their weights, limits and usage."""
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.ListGroups(pb.ListGroupsRequest(), timeout=timeout_s)
        )
        from finegrain_client.types.groups import Groups

        return read(Groups, answer)

    async def advise(
        self, job_id: str, *, target_s: float | None = None, quantile: float | None = None
    ) -> ThreadAdvice:
        """Returns the number of threads into which the work of a job should be split. The number is
        computed from the times that threads of the job took.

        A thread is a part of the work that runs in one slot.

        Args:
            job_id: the job. The resource manager remembers an ended job for a while.
            target_s: longest time in seconds that a thread should take; None means 2 minutes.
            quantile: fraction of all threads that should finish within `target_s`; None means 0.95.

        Raises:
            NotFound: JOB_UNKNOWN: there is no such job.
            InvalidArgument: `target_s` is not a valid time, or `quantile` is not between 0 and 1.
        """
        if quantile is not None and not 0 < quantile < 1:
            raise InvalidArgument("quantile", quantile, "above 0 and below 1, such as 0.95")
        message = pb.AdviseThreadsRequest(
            job_id=job_id,
            target=duration(target_s),
            quantile=quantile or 0.0,
        )
        answer = await self._connection.call_cluster(
            lambda cluster, timeout_s: cluster.AdviseThreads(message, timeout=timeout_s)
        )
        from finegrain_client.types.advice import ThreadAdvice

        return read(ThreadAdvice, answer, job_id=job_id)

    async def _pages(
        self,
        call: Callable[[Any, str, float], Awaitable[ResponseT]],
        items: Callable[[Any], list[ItemT]],
    ) -> list[ItemT]:
        found: list[ItemT] = []
        token = ""
        while True:
            page: Any = await self._connection.call_cluster(
                lambda cluster, timeout_s, token=token: call(cluster, token, timeout_s)  # type: ignore[misc]
            )
            found += items(page)
            token = page.next_page_token
            if not token:
                return found


def _request_state(word: str) -> slots_pb2.RequestState.ValueType:
    try:
        known = RequestState(word.upper())
    except ValueError:
        names = ", ".join(RequestState)
        raise InvalidArgument("states", word, f"one of {names}") from None
    return slots_pb2.RequestState.Value(f"REQUEST_STATE_{known}")
