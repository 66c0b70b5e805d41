"""Written by `python -m tests.support.blocking_client`; do not edit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from finegrain.values.states import GangPlacement, JobOutcome, RequestState, TaskState, ThreadEnd
from finegrain_client.blocking.handle import ContextHandle, Handle, LoopOwner, Lost
from finegrain_client.blocking.loop import PrivateLoop
from finegrain_client.blocking.standard_input import async_input
from finegrain_client.cluster import connect as async_connect

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from finegrain.cpu_assignment import CpuAssignment
    from finegrain.cpu_policy import (
        BindPolicy,
        ExclusivePolicy,
        HostBindPolicy,
        NumaPolicy,
        NumaStrategy,
    )
    from finegrain.credentials import Credentials
    from finegrain.errors import FinegrainError
    from finegrain.resources import ResourceProfile
    from finegrain.values.dependencies import JobDependency
    from finegrain.values.group_rules import GroupRule
    from finegrain.values.isolation import Isolation
    from finegrain.values.outcomes import ItemOutcome
    from finegrain_client.cluster import Cluster as AsyncCluster
    from finegrain_client.errors import Rejection
    from finegrain_client.job.gangs import GangSpec
    from finegrain_client.job.job import Job as AsyncJob
    from finegrain_client.job.ranges import RequestRange as AsyncRequestRange
    from finegrain_client.job.request import Request as AsyncRequest
    from finegrain_client.slot.slot import Slot as AsyncSlot
    from finegrain_client.slot.task import Task as AsyncTask
    from finegrain_client.specs import SlotSpec
    from finegrain_client.types.advice import ThreadAdvice
    from finegrain_client.types.devices import ExecutorDevices
    from finegrain_client.types.explain import Explanation
    from finegrain_client.types.groups import Groups, GroupStatus, UserStatus
    from finegrain_client.types.host_policy import HostPolicyStatus
    from finegrain_client.types.identities import (
        AuditCheck,
        AuditEntry,
        Denial,
        NewToken,
        TokenStatus,
        WebLink,
        WebSession,
    )
    from finegrain_client.types.preview import Preview, PreviewedAction
    from finegrain_client.types.providers import Providers
    from finegrain_client.types.status import (
        ClusterEvent,
        ClusterInfo,
        ExecutorStatus,
        Gang,
        JobEvent,
        JobStatus,
        OutputChunk,
        RequestStatus,
        SlotStatus,
        TaskResult,
        TaskStatus,
        UsageHistory,
    )
    from finegrain_client.types.topology import TopologyReport


def connect(
    address: str | Sequence[str] | None = None,
    *,
    credentials: str | PathLike[str] | Credentials | None = None,
    budget_s: float = 30.0,
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
    inner = async_connect(address, credentials=credentials, budget_s=budget_s)
    return Cluster(PrivateLoop(), inner)


class Task(Handle["AsyncTask"]):
    """A command that runs in a slot.

    Attributes:
        task_id: identity of the task.
        status: last known status of the task.
    """

    @property
    def task_id(self) -> str:
        return self.inner.task_id

    @property
    def status(self) -> TaskStatus:
        return self.inner.status

    @property
    def state(self) -> TaskState:
        """Last known state of the task."""
        return self.inner.state

    @property
    def pid(self) -> int:
        """Process id of the task on its host; 0 if it is not known yet."""
        return self.inner.pid

    def wait(self, timeout_s: float | None = None) -> TaskResult:
        """Waits until the task has ended, and returns its result.

        If the wait is cancelled or times out, the task continues to run. If the slot was released,
        the result says that the task was cancelled.

        Raises:
            TimeoutError: the task still runs after `timeout_s`.
            TaskNotStarted: the task never ran.
            SlotLost: the slot was lost before the task ended, or ended the task.
            JobEnded: the job has ended.
        """
        return self.loop.run(self.inner.wait(timeout_s))

    def output(self, *, stdout_offset: int = 0, stderr_offset: int = 0) -> Iterator[OutputChunk]:
        """Yields the task's output from the given offsets to the end of the task.

        The executor keeps the output as long as the slot exists. So each iteration reads all
        output, even if other iterations have already read it. The client does not read faster than
        the caller consumes.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call.
        """
        return self.loop.iterate(
            self.inner.output(stdout_offset=stdout_offset, stderr_offset=stderr_offset)
        )

    def write_input(self, data: bytes, *, eof: bool = False) -> None:
        """Writes to the task's standard input. Returns when the executor has accepted the data.

        This works only for a task started with `stdin="pipe"`.

        Raises:
            InvalidArgument: the task was not started with `stdin="pipe"`.
            FailedPrecondition: TASK_ENDED: the task has ended, or its input is closed.
            SlotLost: the slot has ended.
        """
        self.loop.run(self.inner.write_input(data, eof=eof))

    def close_input(self) -> None:
        """Closes the task's standard input. Raises the errors of `write_input`."""
        self.loop.run(self.inner.close_input())

    def signal(self, number: int) -> None:
        """Sends a signal to the task's process group. Does nothing if the task has ended.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call, or could not be reached.
        """
        self.loop.run(self.inner.signal(number))

    def cancel(self, grace_s: float | None = None) -> None:
        """Ends the task: SIGTERM, then SIGKILL after the grace period. Does not wait for the end.

        Args:
            grace_s: time in seconds between SIGTERM and SIGKILL; None means the executor's default.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call, or could not be reached.
        """
        self.loop.run(self.inner.cancel(grace_s))


class Slot(ContextHandle["AsyncSlot"]):
    """Resources on one executor that belong to the job until `release`.

    A slot can be used in `with`, which releases the slot at the end.
    """

    @property
    def lost(self) -> Lost:
        return Lost(self.loop, self.inner.lost)

    @property
    def error(self) -> FinegrainError | None:
        return self.inner.error

    @property
    def profile(self) -> ResourceProfile:
        """The current resources of the slot. `status.resizes` has the pending changes."""
        return self.inner.profile

    @property
    def memory_bytes(self) -> int:
        """Memory limit of the slot."""
        return self.inner.memory_bytes

    @property
    def cpus(self) -> str:
        """The cpus of the slot, as a cpu list; an empty value means the executor's shared pool."""
        return self.inner.cpus

    @property
    def assignment(self) -> CpuAssignment | None:
        """QoS class, dedicated cpus, NUMA nodes and pools of the slot.

        The value is None if the slot has class LS and runs in the whole shared pool.
        """
        return self.inner.assignment

    @property
    def isolation(self) -> Isolation | None:
        """How the executor enforces the limits of the slot; None if the executor has not reported
        it.
        """
        return self.inner.isolation

    @property
    def ports(self) -> tuple[int, ...]:
        """The network ports that belong to the slot."""
        return self.inner.ports

    def run(
        self,
        argv: Sequence[str | PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        timeout_s: float | None = None,
        stdin: bytes | Iterable[bytes] | Literal["pipe"] | None = None,
        output: Literal["capture", "stream"] | Callable[[OutputChunk], None] = "capture",
        output_limit_bytes: int = 0,
        hold_output: bool = False,
        task_id: str = "",
        cancel_on_interrupt: bool = True,
        wait_s: float = 0.0,
    ) -> Task:
        """Starts a command in the slot. Returns when the executor has accepted the command.

        Args:
            argv: program and arguments. The executor starts the program without a shell.
            env: the whole environment of the task. The executor adds PATH and HOME if they are
                absent, FINEGRAIN_ variables, and variables about devices of the slot.
            cwd: absolute path of the working directory; an empty value means a scratch directory of
                the task.
            user: user that the task runs as; an empty value means the executor's default.
            timeout_s: after this time in seconds, the executor ends the task; None means that there
                is no limit.
            stdin: bytes or chunks of bytes, or "pipe" for `Task.write_input`; None means /dev/null.
            output: where the output goes. With "capture", the result contains the output. With
                "stream", the caller reads `Task.output`. A function is called with
                every `OutputChunk`.
            output_limit_bytes: bytes per stream that the executor keeps on disk, at most the
                executor's own limit; 0 means the executor's limit. If there is more output, the
                executor keeps the first and the last part.
            hold_output: if true, no output is lost: when the output that `output` has not processed
                reaches `output_limit_bytes`, the task waits. `output` must be a function. If this
                process has no connection to the executor for 60 s, the executor drops output again.
            task_id: id of the task; an empty value means that the client generates an id.
            cancel_on_interrupt: if true, interrupting this call also cancels the task. If false, an
                accepted task continues, and a call with the same `task_id` returns its handle.
            wait_s: the call returns when the task has ended, or after this time in seconds, at most
                1. For a task that ends within this time, this saves a call to the executor.

        Raises:
            TaskNotStarted: the command cannot be executed. `reason` says why.
            SlotLost: the slot has ended.
            FinegrainError: the executor refused the call, or could not be reached.
        """
        return Task(
            self.loop,
            self.loop.run(
                self.inner.run(
                    argv,
                    env=env,
                    cwd=cwd,
                    user=user,
                    timeout_s=timeout_s,
                    stdin=async_input(stdin),
                    output=output,
                    output_limit_bytes=output_limit_bytes,
                    hold_output=hold_output,
                    task_id=task_id,
                    cancel_on_interrupt=cancel_on_interrupt,
                    wait_s=wait_s,
                )
            ),
        )

    def tasks(self) -> list[TaskStatus]:
        """Returns the tasks of the slot that its executor knows, in order of submission.

        A job master that has attached to its job again finds its tasks with this method. To wait
        for a task, the job master calls `run` with the same arguments and the `task_id`. This call
        does not start the task twice.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the executor could not be reached.
        """
        return self.loop.run(self.inner.tasks())

    def release(self, grace_s: float | None = None, *, thread_end: ThreadEnd | None = None) -> None:
        """Releases the slot. It is not an error to release a slot twice, after it was lost, or
        after its job has ended.

        Args:
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks that still run; None
                means the executor's default.
            thread_end: FINISHED if a thread of work has its result, UNFINISHED if it will run again
                elsewhere. `Cluster.advise` counts only finished threads. None: the slot counts as a
                thread, and the advice says that it could not be matched to a thread.

        Raises:
            FinegrainError: the call to the resource manager failed. The slot is then released when
                the job ends.
        """
        self.loop.run(self.inner.release(grace_s, thread_end=thread_end))

    def reuse_for(
        self,
        request: Request | str,
        grace_s: float | None = None,
        *,
        thread_end: ThreadEnd | None = None,
    ) -> bool:
        """Reuses this finished slot for a waiting request; see `Job.reuse`.

        Args:
            request: a request of the same job for the resources of this slot, or the request's
                allocation id.
            grace_s: see `release`.
            thread_end: see `release`.

        Returns:
            True if the slot is reused; False if the slot was released and the request stays queued.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(
            self.inner.reuse_for(
                request.inner if isinstance(request, Request) else request,
                grace_s,
                thread_end=thread_end,
            )
        )

    def resize(
        self,
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
        timeout_s: float | None = None,
    ) -> SlotStatus:
        """Changes the resources of the slot while its tasks continue to run, and waits until the
        change is done.

        An amount that is not given keeps its value, or gets the value of a pending change.
        `SizeChange` describes the amounts. Growth is queued until the slot's executor has free
        capacity. If the wait is cancelled or times out, the change stays pending. `withdraw_resize`
        withdraws the change.

        Args:
            wait_for_use: what the executor does if the slot uses more memory than its new size. If
                true, the executor waits until the slot uses less. If false, the executor refuses
                the change.
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            ResizeRefused: the slot uses more memory than its new size, or another change replaced
                this change.
            FailedPrecondition: INFEASIBLE_NEVER: the new size is more than the executor has in
                total.
            StillResizing: (a TimeoutError) the change was not done within `timeout_s`.
            SlotLost: the slot has ended.
            InvalidArgument: no amount is given, an amount is out of range, or `devices` names
                devices that the slot does not have.
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(
            self.inner.resize(
                cpu_milli=cpu_milli,
                memory_bytes=memory_bytes,
                task_off_heap_memory_bytes=task_off_heap_memory_bytes,
                managed_memory_bytes=managed_memory_bytes,
                network_memory_bytes=network_memory_bytes,
                extended=extended,
                devices=devices,
                cpu_limit_milli=cpu_limit_milli,
                wait_for_use=wait_for_use,
                timeout_s=timeout_s,
            )
        )

    def park(self, *, timeout_s: float | None = None) -> SlotStatus:
        """Frees the GPUs of the slot, and keeps its processes. Returns when the GPUs are free.

        The contents of the GPUs' memory move to the slot's main memory. CUDA calls of the processes
        block, and the slot accepts no tasks, until the slot has GPUs again. The executor must be
        configured to park slots.

        Args:
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            ResizeRefused: the executor failed to park the slot, or another change replaced this
                change.
            FailedPrecondition: PARK_FAILED: the executor does not park slots on these GPUs.
            InvalidArgument: the slot has no GPUs.
            StillResizing, SlotLost, FinegrainError: see `resize`.
        """
        return self.loop.run(self.inner.park(timeout_s=timeout_s))

    def unpark(self, *, timeout_s: float | None = None) -> SlotStatus:
        """Gives the slot GPUs again, after `park`. Returns when the slot's processes can use the
        GPUs.

        The change is queued until GPUs are free. `withdraw_resize` withdraws the change.

        Args:
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            ResizeRefused: another change replaced this change.
            InvalidArgument: the slot has no GPUs.
            StillResizing, SlotLost, FinegrainError: see `resize`.
        """
        return self.loop.run(self.inner.unpark(timeout_s=timeout_s))

    def withdraw_resize(self) -> SlotStatus:
        """Withdraws all pending changes.

        If the executor is already carrying out a change, the executor then resizes the slot back to
        the old size.

        Raises:
            SlotLost: the slot has ended.
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(self.inner.withdraw_resize())

    @property
    def status(self) -> SlotStatus:
        """The newest known status of the slot."""
        return self.inner.status

    @property
    def allocation_id(self) -> str:
        """Identity of the slot. The request has the same allocation id."""
        return self.inner.allocation_id

    @property
    def generation(self) -> int:
        """Number of the placement of the request: 1 for the first slot, 2 for the slot that
        replaces it.
        """
        return self.inner.generation

    @property
    def executor_id(self) -> str:
        """Id of the executor that hosts the slot."""
        return self.inner.executor_id

    @property
    def executor_address(self) -> str:
        """Address of the executor, "host:port"."""
        return self.inner.executor_address

    @property
    def is_lost(self) -> bool:
        """True if the slot is known to be lost."""
        return self.inner.is_lost

    @property
    def has_ended(self) -> bool:
        """True if the slot was lost or released."""
        return self.inner.has_ended


class Request(Handle["AsyncRequest"]):
    """A slot request, which is queued until it is granted or ends.

    Attributes:
        allocation_id: id of the request and of the slot that will serve the request.
        state: state of the request. `reason` (a stable code) and `message` explain the state.
        slot: latest slot of the request; None if it has no slot yet. `Slot.has_ended` says whether
            the slot has ended.
        gang: the gang to which the request belongs; None if it belongs to no gang.
        acknowledged: True if the resource manager has stored the request durably.
    """

    @property
    def allocation_id(self) -> str:
        return self.inner.allocation_id

    @property
    def state(self) -> RequestState:
        return self.inner.state

    @property
    def reason(self) -> str:
        return self.inner.reason

    @property
    def message(self) -> str:
        return self.inner.message

    @property
    def slot(self) -> Slot | None:
        return Slot(self.loop, found) if (found := self.inner.slot) is not None else None

    @property
    def gang(self) -> Gang | None:
        return self.inner.gang

    @property
    def acknowledged(self) -> bool:
        return self.inner.acknowledged

    @property
    def generation(self) -> int:
        """Generation of `slot`; 0 if the request was never granted."""
        return self.inner.generation

    @property
    def has_ended(self) -> bool:
        """True if the request has ended and can no longer change its state."""
        return self.inner.has_ended

    @property
    def rejection(self) -> Rejection | None:
        """The reason why the request was rejected; None if it was not rejected."""
        return self.inner.rejection

    def granted(self, timeout_s: float | None = None) -> Slot:
        """Waits for the slot and returns it.

        If the wait is cancelled or times out, the request stays queued. If a slot with
        `restart_on_loss` is lost, the call waits for the next slot.

        Args:
            timeout_s: longest time to wait in seconds; None means no limit.

        Raises:
            StillWaiting: (a TimeoutError) the request was not granted within `timeout_s`.
            RequestRejected, RequestEnded, SlotLost: the request ended without a slot. The error is
                GangTimeout (a RequestRejected) if the gang was not placed in time.
            JobEnded: the job has ended.
        """
        return Slot(self.loop, self.loop.run(self.inner.granted(timeout_s)))

    def cancel(self) -> None:
        """Cancels the request. The resource manager releases a slot that was granted in the
        meantime.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        self.loop.run(self.inner.cancel())

    def explain(self, *, executor_id: str = "", max_executors: int = 0) -> Explanation:
        """Explains for each executor why the request does not fit, and after which changes it would
        fit.

        Args:
            executor_id: explain only this executor. If empty, explain all executors.
            max_executors: largest number of executors to list in full; 0 means 20.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(
            self.inner.explain(executor_id=executor_id, max_executors=max_executors)
        )

    @property
    def is_settled(self) -> bool:
        """True if `granted` returns or raises at once."""
        return self.inner.is_settled


class RequestRange(Handle["AsyncRequestRange"]):
    """A range of equal slot requests, each of which waits, has a slot, or has ended.

    Attributes:
        range_id: id of the range. Member `index` has the allocation id `<range_id>.<index>`.
        requests: members that were granted a slot and have not ended, by index.
        ended: number of ended members, by state.
        acknowledged: True if the resource manager has stored the range durably.
        rejection: the reason why the range was rejected as a whole; None if the range was not
            rejected.
    """

    @property
    def range_id(self) -> str:
        return self.inner.range_id

    @property
    def requests(self) -> dict[int, Request]:
        return {
            key: Request(self.loop, each)
            for key, each in self.loop.call(self.inner.requests.copy).items()
        }

    @property
    def ended(self) -> Counter[RequestState]:
        return self.loop.call(self.inner.ended.copy)

    @property
    def acknowledged(self) -> bool:
        return self.inner.acknowledged

    @property
    def rejection(self) -> Rejection | None:
        return self.inner.rejection

    def __len__(self) -> int:
        return self.loop.call(lambda: len(self.inner))

    def __contains__(self, index: object) -> bool:
        return self.loop.call(lambda: index in self.inner)

    @property
    def waiting(self) -> int:
        """Number of waiting members that never had a slot."""
        return self.loop.call(lambda: self.inner.waiting)

    @property
    def has_ended(self) -> bool:
        """True if all members have ended and can no longer change their state."""
        return self.loop.call(lambda: self.inner.has_ended)

    def waiting_members(self) -> list[tuple[int, int]]:
        """Returns the indexes of waiting members that never had a slot, as half-open intervals."""
        return self.loop.call(self.inner.waiting_members)

    def index_of(self, allocation_id: str) -> int | None:
        """Returns the index of the member with this allocation id, or None if this is not an id of
        this range.
        """
        return self.loop.call(lambda: self.inner.index_of(allocation_id))

    def slots(self) -> Iterator[Slot]:
        """Iterates over the current slots, then over each new slot; see `GrantedSlots`."""
        return (
            Slot(self.loop, each) for each in self.loop.iterate(self.loop.call(self.inner.slots))
        )

    def cancel(self, first_index: int = 0, count: int | None = None) -> ItemOutcome:
        """Cancels members. The resource manager releases the slots of these members.

        Args:
            first_index: index of the first member to cancel.
            count: number of members to cancel, with consecutive indexes; None means all members
                from `first_index` on.

        Raises:
            InvalidArgument: an index is below 0, or `INDEX_END` or above.
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(self.inner.cancel(first_index, count))

    def release(
        self, first_index: int = 0, count: int | None = None, grace_s: float | None = None
    ) -> ItemOutcome:
        """Releases the slots of members, and cancels members that wait.

        Args:
            first_index: index of the first member to release.
            count: number of members to release, with consecutive indexes; None means all members
                from `first_index` on.
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks that still run; None
                means the executor's default.

        Raises:
            InvalidArgument: an index is below 0, or `INDEX_END` or above.
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(self.inner.release(first_index, count, grace_s))


class Job(ContextHandle["AsyncJob"]):
    """A job. Entering `with` registers the job, and leaving `with` ends the job. In
    between, the client renews the lease of the job.

    Attributes:
        job_id: id of the job. Another process of the same user can open the job by this id, with
            `Cluster.attach_job`.
    """

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def group(self) -> str:
        return self.inner.group

    @property
    def lease_s(self) -> float:
        return self.inner.lease_s

    @property
    def detached(self) -> bool:
        return self.inner.detached

    @property
    def job_id(self) -> str:
        """Identity of the job."""
        return self.inner.job_id

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended, in the order in which they were made.

        A member of a range is included only after it has got a slot.
        """
        return [Request(self.loop, each) for each in self.loop.call(lambda: self.inner.requests)]

    @property
    def ranges(self) -> list[RequestRange]:
        """The ranges with members that have not ended."""
        return [RequestRange(self.loop, each) for each in self.loop.call(lambda: self.inner.ranges)]

    def request_slots(
        self,
        specs: SlotSpec | GangSpec | Iterable[SlotSpec | GangSpec],
        *,
        raise_on_reject: bool = True,
    ) -> list[Request]:
        """Requests slots. Returns the requests, in the given order, when all requests are durable.

        If the call is interrupted or fails, the client cancels all requests of this call that were
        accepted.

        Args:
            specs: the slots to request. A `SlotSpec` becomes `count` requests. A `GangSpec` becomes
                one request for each member.
            raise_on_reject: if false, the result also contains rejected requests, with `rejection`
                set.

        Raises:
            RequestRejected: at least one request was rejected. The error names all rejected
                requests. The client cancels all other requests.
            JobEnded: the job has ended.
            FinegrainError: the call failed as a whole.
        """
        return [
            Request(self.loop, each)
            for each in self.loop.run(
                self.inner.request_slots(specs, raise_on_reject=raise_on_reject)
            )
        ]

    def request_gang(
        self,
        members: SlotSpec | Sequence[SlotSpec],
        *,
        placement: GangPlacement | str = GangPlacement.ANYWHERE,
        label: str = "",
        timeout_s: float | None = None,
        gang_id: str = "",
    ) -> list[Slot]:
        """Requests a gang, and waits until it is granted. Returns its slots in the given order.

        If the call is interrupted or fails, the client cancels the whole gang. A caller that needs
        the requests' handles while the gang waits passes a `GangSpec` to `request_slots`.

        Args:
            members: one or several specs; see `GangSpec`.
            placement: ANYWHERE, SAME_EXECUTOR, SAME_LABEL or SPREAD; see `GangSpec`.
            label: name of the label; only with SAME_LABEL.
            timeout_s: longest time in seconds that the gang may wait; None means no limit.
            gang_id: id of the gang; an empty value means that the client generates an id.

        Raises:
            GangTimeout: (a TimeoutError) the gang was not placed as a whole within `timeout_s`.
            RequestRejected: the gang can never be placed. The error names the members that cannot
                be placed.
            RequestEnded, SlotLost: a member ended before all members were granted.
            InvalidArgument, JobEnded, FinegrainError: see `request_slots`.
        """
        return [
            Slot(self.loop, each)
            for each in self.loop.run(
                self.inner.request_gang(
                    members, placement=placement, label=label, timeout_s=timeout_s, gang_id=gang_id
                )
            )
        ]

    def request_range(
        self,
        spec: SlotSpec,
        *,
        range_id: str = "",
        first_index: int = 0,
        raise_on_reject: bool = True,
    ) -> RequestRange:
        """Requests `spec.count` equal slots as one range. Returns when the range is durable.

        Until its members are granted, a range costs almost as little as one request. If the call is
        cancelled or fails, the client cancels the members that were accepted.

        Args:
            spec: the request of each member, without `target_address`.
            range_id: id of the range; an empty value means that the client generates an id. Member
                `index` has the allocation id `<range_id>.<index>`. A later call with the same id
                and other indexes adds members to the range.
            first_index: index of the first member to request.
            raise_on_reject: if false, a rejected range is returned, with `rejection` set.

        Raises:
            InvalidArgument: the spec, the `range_id` or an index is not allowed for a range.
            RequestRejected: the range was rejected as a whole.
            JobEnded, FinegrainError: see `request_slots`.
        """
        return RequestRange(
            self.loop,
            self.loop.run(
                self.inner.request_range(
                    spec,
                    range_id=range_id,
                    first_index=first_index,
                    raise_on_reject=raise_on_reject,
                )
            ),
        )

    def cancel(self, requests: Sequence[Request]) -> list[ItemOutcome]:
        """Cancels requests. The resource manager releases slots that were granted in the meantime.

        Returns one outcome per request.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(self.inner.cancel([each.inner for each in requests]))

    def release(
        self,
        slots: Sequence[Slot],
        grace_s: float | None = None,
        *,
        thread_end: ThreadEnd | None = None,
    ) -> list[ItemOutcome]:
        """Releases many slots in one call. Returns one outcome per slot.

        Args:
            slots: the slots to release.
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks that still run; None
                means the executor's default.
            thread_end: what happened to the threads of work in the slots; see `Slot.release`.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(
            self.inner.release([each.inner for each in slots], grace_s, thread_end=thread_end)
        )

    def reuse(
        self,
        pairs: Sequence[tuple[Slot, Request | str]],
        grace_s: float | None = None,
        *,
        thread_end: ThreadEnd | None = None,
    ) -> list[ItemOutcome]:
        """Reuses finished slots for waiting requests, many in one call.

        Each pair names a slot, and a waiting request of this job for the resources that the slot
        has. If the outcome of a pair is `ok`, the job keeps the slot and the request ends in state
        RELEASED with reason REUSED. Otherwise the slot is released and the request stays queued.
        The reason FAIR_SHARE means that other requests get the freed capacity first. A repeated
        call with the same pairs returns the same outcomes.

        Returns one outcome per pair.

        Args:
            pairs: pairs of a slot, and a request or the request's allocation id.
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks that still run in
                released slots; None means the executor's default.
            thread_end: what happened to the threads of work in the slots; see `Slot.release`.

        Raises:
            InvalidArgument: a slot or a request is named twice.
            FinegrainError: the call to the resource manager failed.
        """
        return self.loop.run(
            self.inner.reuse(
                [
                    (each[0].inner, each[1].inner if isinstance(each[1], Request) else each[1])
                    for each in pairs
                ],
                grace_s,
                thread_end=thread_end,
            )
        )

    def events(self) -> Iterator[JobEvent]:
        """Returns an iterator over the job's events from now on; see `JobEvents`."""
        return self.loop.iterate(self.loop.call(self.inner.events))

    def serve_offers(self, address: str = "127.0.0.1:0") -> str:
        """Starts a server to which executors offer slots directly; see `job/offers.py`.

        The server shows the certificate of this client, which must have the role `user`. The server
        stops when the client leaves the job. A second call returns the address of the running
        server.

        Args:
            address: the address "host:port" to listen on. With port 0, the kernel chooses a free
                port.

        Returns:
            The address to put into `SlotSpec.target_address`.

        Raises:
            ConfigurationError: the address is in use, or the certificate of this client does not
                have the role `user`.
        """
        return self.loop.run(self.inner.serve_offers(address))

    def fail(self) -> None:
        """After this call, leaving `with` ends the job with the outcome FAILED. Without this
        call, the outcome is SUCCEEDED, or FAILED after an exception.
        """
        self.loop.call(self.inner.fail)

    def end(
        self, grace_s: float | None = None, *, outcome: JobOutcome | str = JobOutcome.SUCCEEDED
    ) -> None:
        """Ends the job now. Cancels its requests, releases its slots, and ends their tasks.

        If the job has already ended, nothing happens. A detached job ends only by this call.

        Args:
            grace_s: time in seconds between SIGTERM and SIGKILL for tasks; None means the
                executor's default.
            outcome: SUCCEEDED or FAILED, for jobs that depend on this job (`Cluster.job`).

        Raises:
            InvalidArgument: `outcome` is another word.
            FinegrainError: the call to the resource manager failed.
        """
        self.loop.run(self.inner.end(grace_s, outcome=outcome))


class Cluster(LoopOwner["AsyncCluster"]):
    """A client of one cluster. Use it as a context manager."""

    @property
    def address(self) -> str:
        """Address of the resource manager that the client currently calls."""
        return self.inner.address

    def job(
        self,
        name: str,
        *,
        group: str = "",
        lease_s: float = 30.0,
        detached: bool = False,
        after: Iterable[JobDependency | str] = (),
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Job:
        """Returns a new job. `with` registers it on entry and ends it on exit.

        Args:
            name: name for people to read, 1 to 200 printable characters.
            group: resource group of the job. If it is empty, the rules of the groups choose the
                group; if no rule matches, the group is "default".
            lease_s: time in seconds without contact after which the resource manager ends the job,
                1 s to 1 day.
            detached: if true, the job has no lease, and leaving `with` does not end the job.
                Only `Job.end` ends the job.
            after: jobs that must end before this job gets its first slot. A `JobDependency` says
                how the other job must end. The id of a job alone means that the job must succeed.
                If a job ends in another way, this job ends, too (DEPENDENCY_FAILED).
            labels: labels of the job, which the rules of the groups can use.
            priority: order of the job within its group, -100 to 100; the highest is served first.

        Raises:
            InvalidArgument: the name, the lease, the priority or an id is not allowed.
        """
        return Job(
            self.loop,
            self.loop.call(
                lambda: self.inner.job(
                    name,
                    group=group,
                    lease_s=lease_s,
                    detached=detached,
                    after=after,
                    labels=labels,
                    priority=priority,
                )
            ),
        )

    def attach_job(self, job_id: str, *, lease_s: float = 30.0) -> Job:
        """Returns a handle of an existing job of this client's identity.

        Inside `with`, `Job.requests` has the requests and slots of the job. Leaving the
        context does not end the job. Only `Job.end` ends the job.

        Args:
            job_id: id of the job (`Job.job_id`).
            lease_s: lease of the job in seconds; the client renews it three times within a lease,
                and at least every 10 s.

        Raises:
            InvalidArgument: the id is malformed.
        """
        return Job(
            self.loop, self.loop.call(lambda: self.inner.attach_job(job_id, lease_s=lease_s))
        )

    def info(self) -> ClusterInfo:
        """Returns facts about the resource manager and the totals of the cluster."""
        return self.loop.run(self.inner.info())

    def executors(self) -> list[ExecutorStatus]:
        """Returns all executors, ordered by id."""
        return self.loop.run(self.inner.executors())

    def executor(self, executor_id: str) -> ExecutorStatus:
        """Returns one executor with its topology and slots.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        return self.loop.run(self.inner.executor(executor_id))

    def devices(self, executor_id: str = "") -> list[ExecutorDevices]:
        """Returns the devices of all executors with devices, or of one executor, ordered by id.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        return self.loop.run(self.inner.devices(executor_id))

    def topology(self, executor_id: str) -> TopologyReport:
        """Returns the cpus and NUMA nodes of one executor.

        The report has their layout, the slots that use them, and the settings in effect.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        return self.loop.run(self.inner.topology(executor_id))

    def usage(
        self, *, executor_id: str = "", allocation_id: str = "", group: str = ""
    ) -> UsageHistory:
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
        return self.loop.run(
            self.inner.usage(executor_id=executor_id, allocation_id=allocation_id, group=group)
        )

    def host_policy(self, executor_id: str | None) -> HostPolicyStatus:
        """Returns the policy settings of an executor's host.

        The result has the settings that administrators made at runtime, and each setting in effect
        with its origin.

        Args:
            executor_id: the executor; None means the settings for the whole cluster. If a host does
                not have a setting itself, the cluster's setting applies.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: there is no such executor.
        """
        return self.loop.run(self.inner.host_policy(executor_id))

    def slots(self, *, executor_id: str = "", job_id: str = "") -> list[SlotStatus]:
        """Returns existing slots, ordered by executor and allocation id.

        Args:
            executor_id: return only slots on this executor. If empty, return the slots on all
                executors.
            job_id: return only slots of this job. If empty, return the slots of all jobs.
        """
        return self.loop.run(self.inner.slots(executor_id=executor_id, job_id=job_id))

    def requests(
        self,
        *,
        job_id: str = "",
        states: Iterable[RequestState | str] = (),
        allocation_ids: Sequence[str] = (),
    ) -> list[RequestStatus]:
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
        return self.loop.run(
            self.inner.requests(job_id=job_id, states=states, allocation_ids=allocation_ids)
        )

    def jobs(self, *, include_ended: bool = False, matching: Sequence[str] = ()) -> list[JobStatus]:
        """Returns jobs in order of arrival.

        Args:
            include_ended: if true, also returns jobs that have ended.
            matching: return only the jobs that have one of these names, or an id that begins or
                ends with one of these texts (at least 4 characters). If empty, return all jobs.
        """
        return self.loop.run(self.inner.jobs(include_ended=include_ended, matching=matching))

    def events(
        self,
        *,
        from_sequence: int = 0,
        subject_id: str = "",
        follow: bool = False,
        newest: int = 1000,
    ) -> Iterator[ClusterEvent]:
        """Yields events of the cluster, oldest first. With `follow`, also waits for new events.

        Args:
            from_sequence: sequence number of the first event to yield; 0 means that the iteration
                starts with the last `newest` events.
            subject_id: yield only events about this executor, job or allocation id.
            follow: if true, the iteration does not end, and yields events as they happen.
            newest: number of past events to start with if `from_sequence` is 0.
        """
        return self.loop.iterate(
            self.inner.events(
                from_sequence=from_sequence, subject_id=subject_id, follow=follow, newest=newest
            )
        )

    def explain(
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
        return self.loop.run(
            self.inner.explain(allocation_id, executor_id=executor_id, max_executors=max_executors)
        )

    def providers(self) -> Providers:
        """Returns the executor shapes, and the requested executors with the reason for each
        request.

        All lists are empty if no provider is configured.
        """
        return self.loop.run(self.inner.providers())

    def preview(
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
        return self.loop.run(
            self.inner.preview(
                action,
                executor_id=executor_id,
                device=device,
                allocation_ids=allocation_ids,
                job_id=job_id,
                group=group,
                weight=weight,
                maximum=maximum,
                minimum=minimum,
                policy=policy,
                clear=clear,
            )
        )

    def users(self) -> list[UserStatus]:
        """Returns the users that have limits or live jobs, with the amounts that they use."""
        return self.loop.run(self.inner.users())

    def groups(self) -> Groups:
        """Returns the resource groups with their weights, limits and usage."""
        return self.loop.run(self.inner.groups())

    def advise(
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
        return self.loop.run(self.inner.advise(job_id, target_s=target_s, quantile=quantile))

    def drain(
        self, executor_id: str, *, reason: str = "", deadline_s: float | None = None
    ) -> ExecutorStatus:
        """Stops the placement of new slots on an executor. Running slots continue.

        Args:
            executor_id: the executor.
            reason: text for people.
            deadline_s: after this time in seconds, the resource manager releases the remaining
                slots; None means that it does not release them.
        """
        return self.loop.run(self.inner.drain(executor_id, reason=reason, deadline_s=deadline_s))

    def undrain(self, executor_id: str) -> ExecutorStatus:
        """Allows the placement of new slots on an executor again."""
        return self.loop.run(self.inner.undrain(executor_id))

    def cordon(self, executor_id: str, device: str, *, reason: str = "") -> str:
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
        return self.loop.run(self.inner.cordon(executor_id, device, reason=reason))

    def uncordon(self, executor_id: str, device: str) -> None:
        """Lets new slots get a device again. Does nothing if the device is not cordoned.

        Args:
            executor_id: the executor.
            device: name of the device ("gpu3") or its UUID.

        Raises:
            NotFound: EXECUTOR_UNKNOWN: the executor does not exist, or it has no such device.
        """
        self.loop.run(self.inner.uncordon(executor_id, device))

    def forget(self, executor_id: str) -> None:
        """Deletes a lost executor from the resource manager's state.

        Raises:
            FailedPrecondition: EXECUTOR_NOT_LOST: only lost executors can be forgotten.
        """
        self.loop.run(self.inner.forget(executor_id))

    def check_operator(self) -> None:
        """Checks that this client may change the cluster. The call does not change the cluster.

        Raises:
            PermissionDenied: the caller does not have the role `operator`.
        """
        self.loop.run(self.inner.check_operator())

    def release(
        self, allocation_ids: Sequence[str], *, grace_s: float | None = None
    ) -> list[ItemOutcome]:
        """Releases slots, or cancels requests, of any job. Returns one outcome per id, in order."""
        return self.loop.run(self.inner.release(allocation_ids, grace_s=grace_s))

    def terminate_job(self, job_id: str, *, grace_s: float | None = None) -> None:
        """Ends a job, even if the job belongs to another job master.

        Raises:
            NotFound: JOB_UNKNOWN: there is no such job.
        """
        self.loop.run(self.inner.terminate_job(job_id, grace_s=grace_s))

    def set_group(
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
        return self.loop.run(
            self.inner.set_group(
                name,
                weight=weight,
                parent=parent,
                description=description,
                minimum=minimum,
                maximum=maximum,
            )
        )

    def change_group_rules(
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
        return self.loop.run(self.inner.change_group_rules(name, add=add, remove=remove))

    def change_group_users(
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
        return self.loop.run(self.inner.change_group_users(name, allow=allow, revoke=revoke))

    def set_user_limits(
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
        return self.loop.run(self.inner.set_user_limits(user, maximum))

    def delete_user_limits(self, user: str) -> None:
        """Deletes the separate limits of a user, so that the limits of "*" apply to this user.

        Raises:
            NotFound: IDENTITY_UNKNOWN: the user has no separate limits.
        """
        self.loop.run(self.inner.delete_user_limits(user))

    def delete_group(self, name: str) -> None:
        """Deletes a resource group. The group must have no jobs and no child groups.

        Raises:
            NotFound: GROUP_UNKNOWN: there is no such group.
            FailedPrecondition: GROUP_IN_USE: the group has jobs or child groups.
        """
        self.loop.run(self.inner.delete_group(name))

    def set_host_policy(
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
        return self.loop.run(
            self.inner.set_host_policy(
                executor_id,
                bind=bind,
                numa_strategy=numa_strategy,
                alignment=alignment,
                reserved_cpus=reserved_cpus,
                reserved_strict=reserved_strict,
                default_bind=default_bind,
                default_exclusive=default_exclusive,
                clear=clear,
            )
        )

    def resize(
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
    ) -> SlotStatus:
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
        return self.loop.run(
            self.inner.resize(
                allocation_id,
                cpu_milli=cpu_milli,
                memory_bytes=memory_bytes,
                task_off_heap_memory_bytes=task_off_heap_memory_bytes,
                managed_memory_bytes=managed_memory_bytes,
                network_memory_bytes=network_memory_bytes,
                extended=extended,
                devices=devices,
                cpu_limit_milli=cpu_limit_milli,
                wait_for_use=wait_for_use,
                wait=wait,
                timeout_s=timeout_s,
            )
        )

    def park(
        self, allocation_id: str, *, wait: bool = True, timeout_s: float | None = None
    ) -> SlotStatus:
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
        return self.loop.run(self.inner.park(allocation_id, wait=wait, timeout_s=timeout_s))

    def unpark(
        self, allocation_id: str, *, wait: bool = True, timeout_s: float | None = None
    ) -> SlotStatus:
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
        return self.loop.run(self.inner.unpark(allocation_id, wait=wait, timeout_s=timeout_s))

    def withdraw_resize(self, allocation_id: str) -> SlotStatus:
        """Withdraws all pending changes of a slot.

        If the executor is already carrying out a change, the executor then resizes the slot back to
        the old size.

        Raises:
            NotFound: ALLOCATION_UNKNOWN: there is no such slot or request, or the slot or request
                has ended.
            FailedPrecondition: SLOT_NOT_READY: the request has no slot yet.
        """
        return self.loop.run(self.inner.withdraw_resize(allocation_id))

    @property
    def identity(self) -> str:
        """The identity that this client shows, such as "user/alice"."""
        return self.inner.identity

    def create_token(
        self, role: str, name: str = "", *, ttl_s: int = 900, certificate_life_s: int = 0
    ) -> NewToken:
        """Creates a token with which one new member gets its first certificate.

        Args:
            role: "executor", "operator", "viewer", "user", "metrics" or "rm".
            name: executor id, or login name; empty for the roles "metrics" and "rm".
            ttl_s: time in seconds in which the token can be used.
            certificate_life_s: validity of the certificate in seconds; 0 means the default of the
                role.

        Raises:
            InvalidArgument: the role, the name or a time is not allowed.
            FailedPrecondition: the resource manager has no join port.
        """
        return self.loop.run(
            self.inner.create_token(role, name, ttl_s=ttl_s, certificate_life_s=certificate_life_s)
        )

    def tokens(self) -> list[TokenStatus]:
        """Returns the tokens that were never used and are still valid."""
        return self.loop.run(self.inner.tokens())

    def revoke_token(self, token_id: str) -> None:
        """Revokes a token, so that no member can use the token any more.

        Raises:
            NotFound: there is no such token.
        """
        self.loop.run(self.inner.revoke_token(token_id))

    def deny_identity(self, subject: str, *, reason: str = "") -> None:
        """Denies an identity: its calls are rejected from now on, and its streams end.

        Args:
            subject: "ROLE/NAME", or the serial number of one certificate in hexadecimal.
            reason: the reason why the identity is denied, for other administrators.
        """
        self.loop.run(self.inner.deny_identity(subject, reason=reason))

    def allow_identity(self, subject: str) -> None:
        """Withdraws the denial of an identity or a certificate.

        Raises:
            NotFound: the identity or certificate is not denied.
        """
        self.loop.run(self.inner.allow_identity(subject))

    def denied_identities(self) -> list[Denial]:
        """Returns all denials."""
        return self.loop.run(self.inner.denied_identities())

    def web_link(self) -> WebLink:
        """Returns a link that begins a session of the web page with the identity of this client.

        Raises:
            FailedPrecondition: the resource manager serves no web page.
        """
        return self.loop.run(self.inner.web_link())

    def web_sessions(self) -> list[WebSession]:
        """Returns the sessions of the web page that this identity has. A caller with the role
        `operator` gets the sessions of all identities.
        """
        return self.loop.run(self.inner.web_sessions())

    def end_web_session(self, session_id: str) -> None:
        """Ends a session of the web page.

        Raises:
            NotFound: there is no such session, or it belongs to another identity.
        """
        self.loop.run(self.inner.end_web_session(session_id))

    def audit(self, *, newest: int = 100, actor: str = "", method: str = "") -> list[AuditEntry]:
        """Returns the newest entries of the audit log, ordered from the oldest to the newest.

        Args:
            newest: maximum number of entries.
            actor: return only entries of this identity, such as "operator/ann". If empty, return
                the entries of all identities.
            method: return only entries of this method, such as "DrainExecutor". If empty, return
                the entries of all methods.
        """
        return self.loop.run(self.inner.audit(newest=newest, actor=actor, method=method))

    def verify_audit(self) -> AuditCheck:
        """Checks that no entry of the audit log was deleted or changed."""
        return self.loop.run(self.inner.verify_audit())
