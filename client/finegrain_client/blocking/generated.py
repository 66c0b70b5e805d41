"""Written by `python -m tests.support.blocking_client`; do not edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Literal

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.errors import FinegrainError
from finegrain.options import TlsOptions
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import GangPlacement, RequestState, TaskState
from finegrain_client.blocking.handle import ContextHandle, Handle, LoopOwner, Lost
from finegrain_client.blocking.loop import PrivateLoop
from finegrain_client.blocking.standard_input import async_input
from finegrain_client.cluster import Cluster as AsyncCluster
from finegrain_client.cluster import connect as async_connect
from finegrain_client.errors import Rejection
from finegrain_client.job.gangs import GangSpec
from finegrain_client.job.job import Job as AsyncJob
from finegrain_client.job.ranges import RequestRange as AsyncRequestRange
from finegrain_client.job.request import Request as AsyncRequest
from finegrain_client.slot.slot import Slot as AsyncSlot
from finegrain_client.slot.task import Task as AsyncTask
from finegrain_client.specs import SlotSpec
from finegrain_client.types.advice import ThreadAdvice
from finegrain_client.types.explain import Explanation
from finegrain_client.types.groups import Groups, GroupStatus
from finegrain_client.types.host_policy import HostPolicyStatus
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
)
from finegrain_client.types.topology import TopologyReport


def connect(
    address: str | Sequence[str] | None = None,
    *,
    token_file: str | PathLike[str] | None = None,
    token: str | None = None,
    tls: TlsOptions | None = None,
    insecure: bool = False,
    budget_s: float = 30.0,
) -> Cluster:
    """A client of one cluster; nothing is dialled before the first call.

    Args:
        address: "host:port" of the RM, several where there are standbys. Default: the environment
            variable FINEGRAIN_MANAGER (several separated by commas), else 127.0.0.1:7170.
        token_file: file with the token. Default: FINEGRAIN_TOKEN_FILE, else no token.
        token: the token itself, instead of a file.
        tls: TLS by files; needed beyond loopback.
        insecure: send the token in clear all the same.
        budget_s: how long one call may take with all its tries.

    Raises:
        InvalidArgument: a malformed address.
        ConfigurationError: the token cannot be read, or would be sent in clear over a network.
    """
    inner = async_connect(
        address, token_file=token_file, token=token, tls=tls, insecure=insecure, budget_s=budget_s
    )
    return Cluster(PrivateLoop(), inner)


class Task(Handle[AsyncTask]):
    """A command that runs in a slot.

    Attributes:
        task_id: its identity.
        status: what was last heard of it.
    """

    @property
    def task_id(self) -> str:
        return self.inner.task_id

    @property
    def status(self) -> TaskStatus:
        return self.inner.status

    @property
    def state(self) -> TaskState:
        """Where it stands, as last heard."""
        return self.inner.state

    @property
    def pid(self) -> int:
        """Its process id on its host; 0: not known yet."""
        return self.inner.pid

    def wait(self, timeout_s: float | None = None) -> TaskResult:
        """How it ended. Interrupting this, or a timeout, leaves the task running.

        Raises:
            TimeoutError: it still runs after `timeout_s`.
            TaskNotStarted: it never ran.
            SlotLost: its slot is gone and its fate unknown.
            JobEnded: the job is over.
        """
        return self.loop.run(self.inner.wait(timeout_s))

    def output(self, *, stdout_offset: int = 0, stderr_offset: int = 0) -> Iterator[OutputChunk]:
        """What the task writes, from the offsets given until it has ended and all was read.

        Every iteration reads for itself (the executor keeps the output as long as the slot
        exists), and reads no faster than it is consumed.

        Raises:
            SlotLost: the slot is gone.
            FinegrainError: the executor refused.
        """
        return self.loop.iterate(
            self.inner.output(stdout_offset=stdout_offset, stderr_offset=stderr_offset)
        )

    def write_input(self, data: bytes, *, eof: bool = False) -> None:
        """Writes to the task's standard input; returns when the executor has taken it in.

        Only for a task started with `stdin="pipe"`.

        Raises:
            InvalidArgument: the task's input is not ours to write.
            FailedPrecondition: TASK_ENDED, or input closed already.
            SlotLost: the slot is gone.
        """
        self.loop.run(self.inner.write_input(data, eof=eof))

    def close_input(self) -> None:
        """Closes the task's standard input; the same errors as `write_input`."""
        self.loop.run(self.inner.close_input())

    def signal(self, number: int) -> None:
        """Sends a signal to the task's process group; nothing happens if it has ended.

        Raises:
            SlotLost: the slot is gone.
            FinegrainError: the executor refused, or could not be reached.
        """
        self.loop.run(self.inner.signal(number))

    def cancel(self, grace_s: float | None = None) -> None:
        """Ends the task: SIGTERM, the grace period, SIGKILL. Returns when that has begun.

        Raises:
            SlotLost: the slot is gone.
            FinegrainError: the executor refused, or could not be reached.
        """
        self.loop.run(self.inner.cancel(grace_s))


class Slot(ContextHandle[AsyncSlot]):
    """Resources that exist for us on one executor until `release`.

    Usable as a context manager that releases the slot at its end.
    """

    @property
    def lost(self) -> Lost:
        return Lost(self.loop, self.inner.lost)

    @property
    def error(self) -> FinegrainError | None:
        return self.inner.error

    @property
    def profile(self) -> ResourceProfile:
        """What it consists of now; `status.resizes` says what it is becoming."""
        return self.inner.profile

    @property
    def memory_bytes(self) -> int:
        """Its memory limit."""
        return self.inner.memory_bytes

    @property
    def cpus(self) -> str:
        """The cpus it may run on, as a cpu list; empty: the executor's shared pool."""
        return self.inner.cpus

    @property
    def assignment(self) -> CpuAssignment | None:
        """Its class, own cpus, NUMA nodes and pools; None: an LS slot in the whole shared pool."""
        return self.inner.assignment

    @property
    def isolation(self) -> Isolation | None:
        """What is really enforced; None where the executor did not say."""
        return self.inner.isolation

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
        task_id: str = "",
        cancel_on_interrupt: bool = True,
    ) -> Task:
        """Starts a command in the slot; returns when the executor has accepted it.

        Args:
            argv: program and arguments; no shell.
            env: the whole environment (PATH and HOME get defaults).
            cwd: absolute working directory; empty: a scratch directory of the task.
            user: user to run as; empty: the executor's.
            timeout_s: ended after this time.
            stdin: bytes, or chunks of them, or "pipe" for `Task.write_input`; None: /dev/null.
            output: "capture": collected in the result; "stream": read `Task.output` yourself;
                a function: called with every `OutputChunk`.
            output_limit_bytes: kept on the executor's disk per stream; 0: its default.
            task_id: identity; made up where empty.
            cancel_on_interrupt: whether interrupting this call cancels the task, too; False: if it
                was accepted, it runs on, and the same `task_id` submitted again finds it.

        Raises:
            TaskNotStarted: the command cannot be executed; `reason` says why.
            SlotLost: the slot is gone.
            FinegrainError: the executor refused, or could not be reached.
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
                    task_id=task_id,
                    cancel_on_interrupt=cancel_on_interrupt,
                )
            ),
        )

    def release(self, grace_s: float | None = None) -> None:
        """Gives the slot back; releasing it twice, or when it is lost, is fine.

        Args:
            grace_s: time between SIGTERM and SIGKILL for tasks that still run; None: the
                executor's default.

        Raises:
            FinegrainError: the RM could not be told; the end of the job will release it.
        """
        self.loop.run(self.inner.release(grace_s))

    def reuse_for(self, request: Request | str, grace_s: float | None = None) -> bool:
        """Asks whether the slot, whose work is done, may do that of a request which waits; see
        `Job.reuse`. False: it was given back, and the request waits on.

        Args:
            request: of the same job, asking for the same; or its allocation id.
            grace_s: see `release`.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(
            self.inner.reuse_for(
                request.inner if isinstance(request, Request) else request, grace_s
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
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        timeout_s: float | None = None,
    ) -> SlotStatus:
        """Changes what the slot consists of, without touching its tasks; returns when it has.

        What is not named stays as it is, or as a change that is under way makes it; see
        `SizeChange`. Growth is queued until its executor has room. Interrupting this, or a timeout,
        keeps the change queued; `withdraw_resize` takes it back.

        Args:
            wait_for_use: where the slot uses more memory than it is to have: wait until it uses
                less (True), or refuse (False).
            timeout_s: how long to wait here; None: for ever.

        Raises:
            ResizeRefused: the slot uses more, or another change took the place of this one.
            FailedPrecondition: INFEASIBLE_NEVER, more than the executor has in total.
            StillResizing: (a TimeoutError) not done within `timeout_s`.
            SlotLost: the slot is gone.
            InvalidArgument: no amount, or one that cannot be.
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(
            self.inner.resize(
                cpu_milli=cpu_milli,
                memory_bytes=memory_bytes,
                task_off_heap_memory_bytes=task_off_heap_memory_bytes,
                managed_memory_bytes=managed_memory_bytes,
                network_memory_bytes=network_memory_bytes,
                extended=extended,
                cpu_limit_milli=cpu_limit_milli,
                wait_for_use=wait_for_use,
                timeout_s=timeout_s,
            )
        )

    def withdraw_resize(self) -> SlotStatus:
        """Takes back whatever change waits; one that is ordered already is undone if it succeeds.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(self.inner.withdraw_resize())

    @property
    def status(self) -> SlotStatus:
        """The newest that is known of it."""
        return self.inner.status

    @property
    def allocation_id(self) -> str:
        """Identity, the same as the request's."""
        return self.inner.allocation_id

    @property
    def generation(self) -> int:
        """Which placement of the request this is."""
        return self.inner.generation

    @property
    def executor_id(self) -> str:
        """The executor that hosts it."""
        return self.inner.executor_id

    @property
    def executor_address(self) -> str:
        """Where that executor serves, "host:port"."""
        return self.inner.executor_address

    @property
    def is_lost(self) -> bool:
        """True once the slot is known to be lost."""
        return self.inner.is_lost

    @property
    def has_ended(self) -> bool:
        """True once the slot is lost or given back."""
        return self.inner.has_ended


class Request(Handle[AsyncRequest]):
    """A slot request that the RM has acknowledged: it is queued until it is granted or ends.

    Attributes:
        allocation_id: identity of the request and of the slot that will serve it.
        state: where it stands; `reason` (a stable code) and `message` say why.
        slot: its latest slot, or None; look at `Slot.has_ended`.
        gang: the gang that it belongs to, or None.
        acknowledged: the RM has taken it in, durably.
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
        """Number of the placement that `slot` is; 0: never granted."""
        return self.inner.generation

    @property
    def has_ended(self) -> bool:
        """True where nothing more will happen to it."""
        return self.inner.has_ended

    @property
    def rejection(self) -> Rejection | None:
        """Why it was refused; None where it was not."""
        return self.inner.rejection

    def granted(self, timeout_s: float | None = None) -> Slot:
        """The slot, once there is one. Interrupting this, or a timeout, keeps the request queued.

        After a loss with `restart_on_loss` it waits for the next slot.

        Raises:
            StillWaiting: (a TimeoutError) not granted within `timeout_s`.
            RequestRejected, RequestEnded, SlotLost: it ended without a slot (GangTimeout, a
                RequestRejected: its gang was given up).
            JobEnded: the job is over.
        """
        return Slot(self.loop, self.loop.run(self.inner.granted(timeout_s)))

    def cancel(self) -> None:
        """Takes the request back; a slot that it has meanwhile is released.

        Raises:
            FinegrainError: the RM could not be told.
        """
        self.loop.run(self.inner.cancel())

    def explain(self, *, executor_id: str = "", max_executors: int = 0) -> Explanation:
        """Why it waits, executor by executor, and with which change it would fit now.

        Raises:
            FinegrainError: the RM could not be asked.
        """
        return self.loop.run(
            self.inner.explain(executor_id=executor_id, max_executors=max_executors)
        )

    @property
    def is_settled(self) -> bool:
        """True where `granted` returns or raises at once."""
        return self.inner.is_settled


class RequestRange(Handle[AsyncRequestRange]):
    """So many equal slot requests, each of which waits, has a slot, or has ended.

    Attributes:
        range_id: identity; member `index` has the allocation id `<range_id>.<index>`.
        requests: those that were granted a slot and have not ended, by index.
        ended: how many ended, by state.
        acknowledged: the RM has taken it in, durably.
        rejection: why it was refused as a whole, or None.
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
        """How many wait that never had a slot."""
        return self.loop.call(lambda: self.inner.waiting)

    @property
    def has_ended(self) -> bool:
        """True where nothing more will happen to any of them."""
        return self.loop.call(lambda: self.inner.has_ended)

    def waiting_members(self) -> list[tuple[int, int]]:
        """Indexes of those that wait and never had a slot, as (first, behind the last)."""
        return self.loop.call(self.inner.waiting_members)

    def index_of(self, allocation_id: str) -> int | None:
        """Which member has this id; None: none."""
        return self.loop.call(lambda: self.inner.index_of(allocation_id))

    def slots(self) -> Iterator[Slot]:
        """The slots that are there, then each one as it is granted; see `GrantedSlots`."""
        return (
            Slot(self.loop, each) for each in self.loop.iterate(self.loop.call(self.inner.slots))
        )

    def cancel(self, first_index: int = 0, count: int | None = None) -> ItemOutcome:
        """Takes members back, all of them or so many from an index on; slots that they have are
        released.

        Raises:
            InvalidArgument: indexes that no range has.
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(self.inner.cancel(first_index, count))

    def release(
        self, first_index: int = 0, count: int | None = None, grace_s: float | None = None
    ) -> ItemOutcome:
        """Gives slots of members back; those that wait are cancelled.

        Raises:
            InvalidArgument: indexes that no range has.
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(self.inner.release(first_index, count, grace_s))


class Job(ContextHandle[AsyncJob]):
    """A job that is registered and kept alive inside `with`, and ended on the way out.

    Attributes:
        job_id: identity.
        secret: proof of ownership. Keep it secret; with `Cluster.attach_job` it opens the job to
            another process.
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
        """Identity."""
        return self.inner.job_id

    @property
    def secret(self) -> str:
        """Proof of ownership; keep it secret."""
        return self.inner.secret

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended, in the order in which they were made; of ranges, those
        that have slots, or had some.
        """
        return [Request(self.loop, each) for each in self.loop.call(lambda: self.inner.requests)]

    @property
    def ranges(self) -> list[RequestRange]:
        """The ranges of which some members have not ended."""
        return [RequestRange(self.loop, each) for each in self.loop.call(lambda: self.inner.ranges)]

    def request_slots(
        self,
        specs: SlotSpec | GangSpec | Iterable[SlotSpec | GangSpec],
        *,
        raise_on_reject: bool = True,
    ) -> list[Request]:
        """Asks for slots; returns when all requests are durable, in the order given.

        If this is interrupted or fails, whatever was taken in is taken back.

        Args:
            specs: what is wanted; one with `count` gives so many requests, a `GangSpec` one for
                each member.
            raise_on_reject: False: rejected requests are returned too, with `rejection` set.

        Raises:
            RequestRejected: names every request that was refused; the others are taken back.
            JobEnded: the job is over.
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
        """Slots of which all are needed, or none: returns when all are granted, in the order given.

        If this is interrupted or fails, the whole gang is taken back. To hold the requests while
        they wait, pass a `GangSpec` to `request_slots` instead.

        Args:
            members: one spec with a `count`, or several; see `GangSpec`.
            placement: ANYWHERE, SAME_EXECUTOR, SAME_LABEL or SPREAD; see `GangSpec`.
            label: name of the label, with SAME_LABEL only.
            timeout_s: how long the gang may wait; None: for ever.
            gang_id: identity of the gang; made up where absent.

        Raises:
            GangTimeout: (a TimeoutError) not placed as a whole within `timeout_s`.
            RequestRejected: it could never be placed; names the members that are to blame.
            RequestEnded, SlotLost: somebody took a member back before all were here.
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
        """Asks for `spec.count` equal slots as one range, which costs hardly more than one until
        they are granted; returns when it is durable. If this is interrupted or fails, whatever was
        taken in is taken back.

        Args:
            spec: what each member asks for, without `target_address`.
            range_id: identity of the range, made up where absent; member `index` has the allocation
                id `<range_id>.<index>`. The same again with other indexes is more of one range.
            first_index: of the first member that is asked for.
            raise_on_reject: False: a range that is refused is returned with `rejection` set.

        Raises:
            InvalidArgument: a spec, a range_id or an index that no range can have.
            RequestRejected: it was refused as a whole.
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
        """Takes requests back; slots they have meanwhile are released. One outcome for each.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(self.inner.cancel([each.inner for each in requests]))

    def release(self, slots: Sequence[Slot], grace_s: float | None = None) -> list[ItemOutcome]:
        """Gives many slots back in one call. One outcome for each.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(self.inner.release([each.inner for each in slots], grace_s))

    def reuse(
        self, pairs: Sequence[tuple[Slot, Request | str]], grace_s: float | None = None
    ) -> list[ItemOutcome]:
        """Asks whether slots whose work is done may do that of requests which wait, in one call for
        many. One outcome for each.

        Each wish names a slot, and a request of this job that waits and asks for the same. Where
        an outcome is `ok`, the slot stays ours and the request has ended: RELEASED, reason REUSED.
        Else the slot was given back (reason FAIR_SHARE: others come first with what it frees), and
        the request waits on. The same pairs again get the same outcomes.

        Args:
            pairs: pairs of a slot and a request, or its allocation id.
            grace_s: time between SIGTERM and SIGKILL for tasks that still run in slots that are
                given back; None: the executor's default.

        Raises:
            InvalidArgument: a slot or a request is named twice.
            FinegrainError: the RM could not be told.
        """
        return self.loop.run(
            self.inner.reuse(
                [
                    (each[0].inner, each[1].inner if isinstance(each[1], Request) else each[1])
                    for each in pairs
                ],
                grace_s,
            )
        )

    def events(self) -> Iterator[JobEvent]:
        """What happens to the job's requests from now on, in order and once; see `JobEvents`."""
        return self.loop.iterate(self.loop.call(self.inner.events))

    def serve_offers(self, address: str = "127.0.0.1:0", *, insecure: bool = False) -> str:
        """Lets executors offer slots to this process directly; see `finegrain_client.job.offers`.

        Returns the address to put into `SlotSpec.target_address`. Ends with the job.

        Raises:
            ConfigurationError: the address is in use, or beyond loopback, where offers travel in
                clear.
        """
        return self.loop.run(self.inner.serve_offers(address, insecure=insecure))

    def end(self, grace_s: float | None = None) -> None:
        """Ends the job now: requests are cancelled, slots freed, tasks killed after the grace.

        Ending an ended job is fine. A detached job is ended by nothing else.

        Raises:
            FinegrainError: the RM could not be told.
        """
        self.loop.run(self.inner.end(grace_s))


class Cluster(LoopOwner[AsyncCluster]):
    """One cluster. Use it as a context manager."""

    @property
    def address(self) -> str:
        """The RM that is spoken to at present."""
        return self.inner.address

    def job(
        self, name: str, *, group: str = "", lease_s: float = 30.0, detached: bool = False
    ) -> Job:
        """A new job, registered by `with` and ended at its end.

        Args:
            name: for people, 1 to 200 printable characters.
            group: resource group; empty: "default".
            lease_s: how long the job may be silent before it is ended, 1 s to 1 day.
            detached: no lease, and not ended at the end of `with` but only by `Job.end`.

        Raises:
            InvalidArgument: a bad name or lease.
        """
        return Job(
            self.loop,
            self.loop.call(
                lambda: self.inner.job(name, group=group, lease_s=lease_s, detached=detached)
            ),
        )

    def attach_job(self, job_id: str, secret: str, *, lease_s: float = 30.0) -> Job:
        """A job that exists, opened by its id and secret: its requests and slots are in
        `Job.requests`. Leaving the context leaves the job as it is; `Job.end` ends it.

        Raises:
            InvalidArgument: a malformed id, or no secret.
        """
        return Job(
            self.loop,
            self.loop.call(lambda: self.inner.attach_job(job_id, secret, lease_s=lease_s)),
        )

    def info(self) -> ClusterInfo:
        """The RM itself and the sums of the cluster."""
        return self.loop.run(self.inner.info())

    def executors(self) -> list[ExecutorStatus]:
        """All executors, in order of id."""
        return self.loop.run(self.inner.executors())

    def executor(self, executor_id: str) -> ExecutorStatus:
        """One executor with its topology and slots.

        Raises:
            NotFound: EXECUTOR_UNKNOWN.
        """
        return self.loop.run(self.inner.executor(executor_id))

    def topology(self, executor_id: str) -> TopologyReport:
        """One executor's cpus and NUMA nodes: what is where, who has it, and which settings hold.

        Raises:
            NotFound: EXECUTOR_UNKNOWN.
        """
        return self.loop.run(self.inner.topology(executor_id))

    def host_policy(self, executor_id: str | None) -> HostPolicyStatus:
        """Settings of an executor's host: what is set at runtime, what holds, and by whom; None:
        those for the cluster, which hold where no host says anything else.

        Raises:
            NotFound: EXECUTOR_UNKNOWN.
        """
        return self.loop.run(self.inner.host_policy(executor_id))

    def slots(self, *, executor_id: str = "", job_id: str = "") -> list[SlotStatus]:
        """Slots that exist, in order of executor and allocation id."""
        return self.loop.run(self.inner.slots(executor_id=executor_id, job_id=job_id))

    def requests(
        self,
        *,
        job_id: str = "",
        states: Iterable[RequestState | str] = (),
        allocation_ids: Sequence[str] = (),
    ) -> list[RequestStatus]:
        """Requests in queue order.

        Args:
            job_id: only of this job.
            states: only in these; empty: those that have not ended.
            allocation_ids: only these ids, or ids that begin so (at least 4 characters).

        Raises:
            InvalidArgument: no such state, or too short a beginning of an id.
        """
        return self.loop.run(
            self.inner.requests(job_id=job_id, states=states, allocation_ids=allocation_ids)
        )

    def jobs(self, *, include_ended: bool = False) -> list[JobStatus]:
        """Jobs in order of arrival."""
        return self.loop.run(self.inner.jobs(include_ended=include_ended))

    def events(
        self,
        *,
        from_sequence: int = 0,
        subject_id: str = "",
        follow: bool = False,
        newest: int = 1000,
    ) -> Iterator[ClusterEvent]:
        """What happened in the cluster, oldest first; with `follow` also what will.

        Args:
            from_sequence: first one wanted; 0: the newest `newest` ones.
            subject_id: only what concerns this executor, job or allocation id.
        """
        return self.loop.iterate(
            self.inner.events(
                from_sequence=from_sequence, subject_id=subject_id, follow=follow, newest=newest
            )
        )

    def explain(
        self, allocation_id: str, *, executor_id: str = "", max_executors: int = 0
    ) -> Explanation:
        """Why a request waits, or what became of it.

        Args:
            executor_id: only this executor; empty: all.
            max_executors: most executors listed in full; 0: 20.

        Raises:
            NotFound: ALLOCATION_UNKNOWN.
        """
        return self.loop.run(
            self.inner.explain(allocation_id, executor_id=executor_id, max_executors=max_executors)
        )

    def providers(self) -> Providers:
        """How the cluster grows and shrinks: executor shapes, executors that were asked for, and
        why. All empty where no provider is set up.
        """
        return self.loop.run(self.inner.providers())

    def groups(self) -> Groups:
        """Resource groups with their weights, limits, and what they have and get."""
        return self.loop.run(self.inner.groups())

    def advise(
        self, job_id: str, *, target_s: float | None = None, quantile: float | None = None
    ) -> ThreadAdvice:
        """Into how many threads a job's work should be split, by how long its threads took.

        Args:
            job_id: the job; one that has ended is remembered for a while.
            target_s: how long a thread should take at most; None: 2 minutes.
            quantile: the part of all threads that should keep to that; None: 0.95.

        Raises:
            NotFound: JOB_UNKNOWN.
            InvalidArgument: no time, or a quantile that is not above 0 and below 1.
        """
        return self.loop.run(self.inner.advise(job_id, target_s=target_s, quantile=quantile))

    def drain(
        self, executor_id: str, *, reason: str = "", deadline_s: float | None = None
    ) -> ExecutorStatus:
        """Stops new slots on an executor; after `deadline_s` takes away those that are left."""
        return self.loop.run(self.inner.drain(executor_id, reason=reason, deadline_s=deadline_s))

    def undrain(self, executor_id: str) -> ExecutorStatus:
        """Lets an executor take new slots again."""
        return self.loop.run(self.inner.undrain(executor_id))

    def forget(self, executor_id: str) -> None:
        """Strikes a lost executor from the books.

        Raises:
            FailedPrecondition: EXECUTOR_NOT_LOST.
        """
        self.loop.run(self.inner.forget(executor_id))

    def release(
        self, allocation_ids: Sequence[str], *, grace_s: float | None = None
    ) -> list[ItemOutcome]:
        """Releases slots, or cancels requests, of any job. One outcome per id, in order."""
        return self.loop.run(self.inner.release(allocation_ids, grace_s=grace_s))

    def terminate_job(self, job_id: str, *, grace_s: float | None = None) -> None:
        """Ends any job.

        Raises:
            NotFound: JOB_UNKNOWN.
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
        """Makes a resource group, or changes what is given of one. It holds from the next decision
        on; what runs is never stopped for it.

        Args:
            name: 1 to 63 characters out of a-z 0-9 . _ - that start with a letter or digit.
            weight: 0.001 to 1,000,000; a group of weight 4 gets four times the service of one of 1.
            parent: the group that it is part of; empty: none. Only while no job lives in it.
            description: for people.
            minimum: what it is to have at least, by dimension ("cpu_milli", "memory_bytes", or
                "extended." and a name); None takes it away.
            maximum: what its slots may have at most, likewise; 0 lets nothing more start.

        Raises:
            InvalidArgument: one of these is not acceptable.
            NotFound: GROUP_UNKNOWN, no such parent.
            FailedPrecondition: GROUP_IN_USE, another parent for a group in which jobs live.
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

    def delete_group(self, name: str) -> None:
        """Strikes a resource group in which no job lives and that has no parts.

        Raises:
            NotFound: GROUP_UNKNOWN.
            FailedPrecondition: GROUP_IN_USE.
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
        """Changes settings of an executor's host, or (None) those for the cluster. What is not
        named stays as it is. They hold from the next decision on, for new slots, over restarts and
        whatever the executor's own configuration says.

        Args:
            bind: what slots with cpus of their own must keep to: "FullPCPUsOnly", "SpreadByPCPUs"
                or "None".
            numa_strategy: NUMA node to take first: "MostAllocated", "LeastAllocated" or
                "DistributeEvenly".
            alignment: how every slot there lies on NUMA nodes: "None", "BestEffort", "Restricted"
                or "SingleNUMANode".
            reserved_cpus: cpus that no slot has to itself, as a list ("0-1"; empty: none), besides
                those that the host keeps back by its configuration.
            reserved_strict: whether slots of the shared pools are kept off them, too.
            default_bind: "FullPCPUs", "SpreadByPCPUs" or "None", of requests that do not say.
            default_exclusive: "PCPULevel", "NUMANodeLevel" or "None", likewise.
            clear: names of these arguments that are no longer to be set here.

        Raises:
            InvalidArgument: one of these is not acceptable.
            NotFound: EXECUTOR_UNKNOWN.
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
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> SlotStatus:
        """Changes what a slot of any job consists of, without touching its tasks; see
        `Slot.resize`. Returns the slot once it has changed, or (`wait` False) with the change under
        way in `SlotStatus.resizes`.

        Raises:
            NotFound: ALLOCATION_UNKNOWN.
            FailedPrecondition: SLOT_NOT_READY, it has no slot; INFEASIBLE_NEVER, more than the
                executor has in total.
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
                cpu_limit_milli=cpu_limit_milli,
                wait_for_use=wait_for_use,
                wait=wait,
                timeout_s=timeout_s,
            )
        )

    def withdraw_resize(self, allocation_id: str) -> SlotStatus:
        """Takes back whatever change of a slot waits; one that is ordered is undone if it succeeds.

        Raises:
            NotFound: ALLOCATION_UNKNOWN.
            FailedPrecondition: SLOT_NOT_READY, it has no slot.
        """
        return self.loop.run(self.inner.withdraw_resize(allocation_id))
