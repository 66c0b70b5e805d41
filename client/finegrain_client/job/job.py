"""Implements the handle of one job: registers it, requests slots, and ends it.

Leaving `async with` ends the job, its requests and its slots, unless the job is detached.
`submission.py` submits and cancels requests, `releasing.py` releases slots, `slot/reusing.py`
reuses them, and `watch.py` applies the events of the watch stream.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from finegrain.errors import FailedPrecondition, FinegrainError, InvalidArgument, NotFound
from finegrain.ids import new_id
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.values.dependencies import JobDependency
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain.values.states import GangPlacement, JobOutcome, ThreadEnd
from finegrain_client.connection import Connection
from finegrain_client.durations import duration, grace
from finegrain_client.errors import JobEnded, rejected
from finegrain_client.job.context import LEASE_DEFAULT_S, JobContext
from finegrain_client.job.events import JobEvents
from finegrain_client.job.gangs import GangSpec
from finegrain_client.job.ranges import RequestRange, check_range
from finegrain_client.job.releasing import release
from finegrain_client.job.request import Request, all_granted
from finegrain_client.job.submission import Submission
from finegrain_client.job.watch import JobWatch
from finegrain_client.slot.reusing import Reuse, reuse
from finegrain_client.slot.slot import Slot
from finegrain_client.specs import SlotSpec

if TYPE_CHECKING:
    from finegrain_client.job.offers import OfferServer

log = logging.getLogger("finegrain_client")

KEEP_ALIVE_LONGEST_S = 10.0
ENDING_BUDGET_S = 10.0
"""Time in seconds to try to end the job on exit. If this fails, the job ends later when its lease
expires.
"""
ABANDONING_BUDGET_S = 2.0


class Job:
    """A job. Entering `async with` registers the job, and leaving `async with` ends the job. In
    between, the client renews the lease of the job.

    Attributes:
        job_id: id of the job. Another process of the same user can open the job by this id, with
            `Cluster.attach_job`.
    """

    name: str
    group: str
    lease_s: float
    detached: bool

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        group: str = "",
        lease_s: float = LEASE_DEFAULT_S,
        detached: bool = False,
        job_id: str = "",
        after: Sequence[JobDependency] = (),
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> None:
        self._attached = bool(job_id)
        self._context = JobContext(connection, job_id or new_id(), registered=self._attached)
        self._watch = JobWatch(self._context, from_snapshot=self._attached)
        self._submission = Submission(self._context, self._watch)
        self._offers: OfferServer | None = None
        self.name = name
        self.group = group
        self.lease_s = lease_s
        self.detached = detached
        self._after = tuple(after)
        self._labels = dict(labels or {})
        self._priority = priority
        self._failed = False

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self.job_id}>"

    @property
    def job_id(self) -> str:
        """Identity of the job."""
        return self._context.job_id

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended, in the order in which they were made.

        A member of a range is included only after it has got a slot.
        """
        return list(self._watch.requests.values())

    @property
    def ranges(self) -> list[RequestRange]:
        """The ranges with members that have not ended."""
        return list(self._watch.ranges.by_id.values())

    async def __aenter__(self) -> Self:
        if not self._attached:
            await self._register()
        background = self._context.background
        background.start(self._watch.run(), f"watching job {self.job_id}")
        background.start(
            # Three calls fit into one lease, so one or two lost calls do not end the job.
            self._watch.keep_alive(min(KEEP_ALIVE_LONGEST_S, self.lease_s / 3)),
            f"keeping job {self.job_id} alive",
        )
        if self._attached:
            try:
                await self._watch.first_snapshot()
            except BaseException:
                # Stop the background tasks here, because `__aexit__` is not called if entering
                # fails.
                await background.stop()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Use a separate asyncio task with a shield. The job must end even if the caller is
        # cancelled.
        failed = self._failed or error is not None
        outcome = JobOutcome.FAILED if failed else JobOutcome.SUCCEEDED
        leaving = asyncio.ensure_future(self._leave(outcome))
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await leaving  # takes at most ENDING_BUDGET_S
            raise

    async def request_slots(
        self,
        specs: SlotSpec | GangSpec | Iterable[SlotSpec | GangSpec],
        *,
        raise_on_reject: bool = True,
    ) -> list[Request]:
        """Requests slots. Returns the requests, in the given order, when all requests are durable.

        If the call is cancelled or fails, the client cancels all requests of this call that were
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
        self._check_alive()
        return await self._submission.submit(specs, raise_on_reject=raise_on_reject)

    async def request_gang(
        self,
        members: SlotSpec | Sequence[SlotSpec],
        *,
        placement: GangPlacement | str = GangPlacement.ANYWHERE,
        label: str = "",
        timeout_s: float | None = None,
        gang_id: str = "",
    ) -> list[Slot]:
        """Requests a gang, and waits until it is granted. Returns its slots in the given order.

        If the call is cancelled or fails, the client cancels the whole gang. A caller that needs
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
        spec = GangSpec(
            members, placement=placement, label=label, timeout_s=timeout_s, gang_id=gang_id
        )
        requests = await self.request_slots(spec)
        try:
            return await all_granted(requests)
        except BaseException:
            # Cancel the requests, because the caller has no handles of these requests.
            self._submission.give_up(requests)
            raise

    async def request_range(
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
        self._check_alive()
        check_range(spec, range_id, first_index)
        found = await self._submission.submit_range(spec, range_id or new_id(), first_index)
        if found.rejection is not None and raise_on_reject:
            raise rejected([found.rejection])
        return found

    async def cancel(self, requests: Sequence[Request]) -> list[ItemOutcome]:
        """Cancels requests. The resource manager releases slots that were granted in the meantime.

        Returns one outcome per request.

        Raises:
            FinegrainError: the call to the resource manager failed.
        """
        return await self._submission.cancel([each.allocation_id for each in requests])

    async def release(
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
        report = ThreadReport(thread_end)
        reports = {each.allocation_id: report for each in slots}
        return await release(self._context, slots, grace_s, reports)

    async def reuse(
        self,
        pairs: Sequence[Reuse],
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
        report = ThreadReport(thread_end)
        reports = {slot.allocation_id: report for slot, _ in pairs}
        return await reuse(self._context, pairs, grace_s, reports)

    def events(self) -> JobEvents:
        """Returns an iterator over the job's events from now on; see `JobEvents`."""
        return self._watch.listen()

    async def serve_offers(self, address: str = "127.0.0.1:0") -> str:
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
        from finegrain_client.job.offers import OfferServer

        if self._offers is None:
            server = OfferServer(self._may_accept, self._context.connection.own, address)
            await server.start()
            self._offers = server
        return self._offers.address

    def fail(self) -> None:
        """After this call, leaving `async with` ends the job with the outcome FAILED. Without this
        call, the outcome is SUCCEEDED, or FAILED after an exception.
        """
        self._failed = True

    async def end(
        self,
        grace_s: float | None = None,
        *,
        outcome: JobOutcome | str = JobOutcome.SUCCEEDED,
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
        try:
            found = JobOutcome(outcome.upper())
        except ValueError:
            raise InvalidArgument("outcome", outcome, "SUCCEEDED or FAILED") from None
        # The watch stream can report the end before the answer to this call arrives.
        self._watch.end_expected = True
        try:
            await self._end(self._context.connection, grace_s, outcome=found)
        except BaseException:
            self._watch.end_expected = False
            raise
        self._watch.close(JobEnded(f"job {self.job_id} was ended by its job master"), expected=True)

    async def _end(
        self,
        connection: Connection,
        grace_s: float | None,
        budget_s: float | None = None,
        *,
        outcome: JobOutcome = JobOutcome.FAILED,
    ) -> None:
        message = rm.EndJobRequest(
            job_id=self.job_id,
            grace=grace(grace_s),
            outcome=rm.JobOutcome.Value(f"JOB_OUTCOME_{outcome}"),
        )
        policy = connection.policy
        if budget_s is not None:
            policy = replace(policy, budget_s=min(budget_s, policy.budget_s))
        try:
            await connection.call_manager(
                lambda manager, timeout_s: manager.EndJob(message, timeout=timeout_s),
                policy=policy,
            )
        except (NotFound, FailedPrecondition):
            return  # the job has already ended

    async def _leave(self, outcome: JobOutcome) -> None:
        # Read the error before `close`, which sets an error itself.
        ended = self._watch.error is not None
        if self.detached:
            # A detached job keeps its slots and tasks. The client is about to drop the handles of
            # these tasks, so background calls that cancel unwanted tasks must finish first.
            await self._context.background.settle(ENDING_BUDGET_S)
        self._watch.close(
            JobEnded(f"this client has closed its handle of job {self.job_id}"), expected=True
        )
        await self._context.background.stop()
        if self._offers is not None:
            await self._offers.stop()
        if self.detached or ended:
            return
        try:
            await self._end(self._context.connection, None, ENDING_BUDGET_S, outcome=outcome)
        except FinegrainError as error:
            log.warning(
                "job %s could not be ended (%s); it ends when its lease of %g s expires",
                self.job_id,
                error.message,
                self.lease_s,
            )

    async def _register(self) -> None:
        message = rm.RegisterJobRequest(
            job_id=self.job_id,
            # A repeated call with the same value is idempotent.
            request_id=os.urandom(16).hex(),
            name=self.name,
            group=self.group,
            lease=None if self.detached else duration(self.lease_s),
            detached=self.detached,
            labels=self._labels,
            priority=self._priority,
            depends_on=[
                rm.JobDependency(
                    job_id=each.job_id,
                    condition=rm.JobCondition.Value(f"JOB_CONDITION_{each.condition}"),
                )
                for each in self._after
            ],
        )
        try:
            await self._register_once(message, None)
        except asyncio.CancelledError:
            # `_abandon` continues even after this wait, and logs a failure.
            abandoning = asyncio.ensure_future(self._abandon(message))
            await asyncio.wait({abandoning}, timeout=2 * ABANDONING_BUDGET_S)
            raise

    async def _register_once(self, message: rm.RegisterJobRequest, budget_s: float | None) -> None:
        connection = self._context.connection
        policy = connection.policy
        if budget_s is not None:
            policy = replace(policy, budget_s=budget_s)
        answer = await connection.call_manager(
            lambda manager, timeout_s: manager.RegisterJob(message, timeout=timeout_s),
            policy=policy,
        )
        self._context.registered = True
        self.lease_s = answer.lease.ToMicroseconds() / 1e6 or self.lease_s

    async def _abandon(self, message: rm.RegisterJobRequest) -> None:
        # It is unknown whether the job is registered: the call is possibly still on its way. So
        # register again with the same request_id, which is idempotent, and then end the job.
        try:
            await self._register_once(message, ABANDONING_BUDGET_S)
            await self._end(self._context.connection, None, ABANDONING_BUDGET_S)
        except FinegrainError as error:
            log.warning("job %s may exist until its lease expires: %s", self.job_id, error.message)

    def _may_accept(self, allocation_id: str, generation: int) -> bool:
        request = self._watch.requests.get(allocation_id)
        # Accept a higher generation, because the offer can be faster than the watch stream.
        return request is not None and generation >= request.generation

    def _check_alive(self) -> None:
        if not self._context.registered:
            raise FailedPrecondition(f'job {self.name!r} is not registered; use "async with"')
        if self._watch.error is not None:
            raise self._watch.error
