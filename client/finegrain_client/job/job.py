"""One job as its master holds it: registration, requests, the end.

Nothing outlives the job's `async with`, unless it is detached. Requests are submitted and taken
back in `submission.py`, slots released in `releasing.py` or reused in `slot/reusing.py`, and the
events of both taken in by `watch.py`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound
from finegrain.ids import new_id
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import GangPlacement
from finegrain_client.connection import Connection
from finegrain_client.durations import duration
from finegrain_client.errors import JobEnded, rejected
from finegrain_client.job.context import JobContext
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

LEASE_DEFAULT_S = 30.0
KEEP_ALIVE_LONGEST_S = 10.0
ENDING_BUDGET_S = 10.0
"""How long leaving a job may try to tell the RM; after that the lease ends it."""
ABANDONING_BUDGET_S = 2.0


class Job:
    """A job that is registered and kept alive inside `async with`, and ended on the way out.

    Attributes:
        job_id: identity.
        secret: proof of ownership. Keep it secret; with `Cluster.attach_job` it opens the job to
            another process.
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
        secret: str = "",
    ) -> None:
        self._context = JobContext(connection, job_id or new_id(), secret)
        self._attached = bool(secret)
        self._watch = JobWatch(self._context, from_snapshot=self._attached)
        self._submission = Submission(self._context, self._watch)
        self._offers: OfferServer | None = None
        self.name = name
        self.group = group
        self.lease_s = lease_s
        self.detached = detached

    def __repr__(self) -> str:
        return f"<Job {self.name!r} {self.job_id}>"

    @property
    def job_id(self) -> str:
        """Identity."""
        return self._context.job_id

    @property
    def secret(self) -> str:
        """Proof of ownership; keep it secret."""
        return self._context.secret

    @property
    def requests(self) -> list[Request]:
        """The requests that have not ended, in the order in which they were made; of ranges, those
        that have slots, or had some.
        """
        return list(self._watch.requests.values())

    @property
    def ranges(self) -> list[RequestRange]:
        """The ranges of which some members have not ended."""
        return list(self._watch.ranges.by_id.values())

    async def __aenter__(self) -> Self:
        if not self._attached:
            await self._register()
        background = self._context.background
        background.start(self._watch.run(), f"watching job {self.job_id}")
        interval_s = KEEP_ALIVE_LONGEST_S if self.detached else self.lease_s / 3
        background.start(
            self._watch.keep_alive(min(KEEP_ALIVE_LONGEST_S, interval_s)),
            f"keeping job {self.job_id} alive",
        )
        if self._attached:
            try:
                await self._watch.first_snapshot()
            except BaseException:
                await background.stop()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leaving = asyncio.ensure_future(self._leave())
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await leaving  # bounded by ENDING_BUDGET_S
            raise

    async def request_slots(
        self,
        specs: SlotSpec | GangSpec | Iterable[SlotSpec | GangSpec],
        *,
        raise_on_reject: bool = True,
    ) -> list[Request]:
        """Asks for slots; returns when all requests are durable, in the order given.

        If this is cancelled or fails, whatever was taken in is taken back.

        Args:
            specs: what is wanted; one with `count` gives so many requests, a `GangSpec` one for
                each member.
            raise_on_reject: False: rejected requests are returned too, with `rejection` set.

        Raises:
            RequestRejected: names every request that was refused; the others are taken back.
            JobEnded: the job is over.
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
        """Slots of which all are needed, or none: returns when all are granted, in the order given.

        If this is cancelled or fails, the whole gang is taken back. To hold the requests while
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
        spec = GangSpec(
            members, placement=placement, label=label, timeout_s=timeout_s, gang_id=gang_id
        )
        requests = await self.request_slots(spec)
        try:
            return await all_granted(requests)
        except BaseException:
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
        """Asks for `spec.count` equal slots as one range, which costs hardly more than one until
        they are granted; returns when it is durable. If this is cancelled or fails, whatever was
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
        self._check_alive()
        check_range(spec, range_id, first_index)
        found = await self._submission.submit_range(spec, range_id or new_id(), first_index)
        if found.rejection is not None and raise_on_reject:
            raise rejected([found.rejection])
        return found

    async def cancel(self, requests: Sequence[Request]) -> list[ItemOutcome]:
        """Takes requests back; slots they have meanwhile are released. One outcome for each.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return await self._submission.cancel([each.allocation_id for each in requests])

    async def release(
        self, slots: Sequence[Slot], grace_s: float | None = None
    ) -> list[ItemOutcome]:
        """Gives many slots back in one call. One outcome for each.

        Raises:
            FinegrainError: the RM could not be told.
        """
        return await release(self._context, slots, grace_s)

    async def reuse(
        self, pairs: Sequence[Reuse], grace_s: float | None = None
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
        return await reuse(self._context, pairs, grace_s)

    def events(self) -> JobEvents:
        """What happens to the job's requests from now on, in order and once; see `JobEvents`."""
        return self._watch.listen()

    async def serve_offers(
        self,
        address: str = "127.0.0.1:0",
        *,
        insecure: bool = False,
    ) -> str:
        """Lets executors offer slots to this process directly; see `finegrain_client.job.offers`.

        Returns the address to put into `SlotSpec.target_address`. Ends with the job.

        Raises:
            ConfigurationError: the address is in use, or beyond loopback, where offers travel in
                clear.
        """
        from finegrain_client.job.offers import OfferServer

        if self._offers is None:
            server = OfferServer(self._may_accept, self.secret, address, insecure=insecure)
            await server.start()
            self._offers = server
        return self._offers.address

    async def end(self, grace_s: float | None = None) -> None:
        """Ends the job now: requests are cancelled, slots freed, tasks killed after the grace.

        Ending an ended job is fine. A detached job is ended by nothing else.

        Raises:
            FinegrainError: the RM could not be told.
        """
        await self._end(self._context.connection, grace_s)
        self._watch.close(JobEnded(f"job {self.job_id} was ended by its master"), expected=True)

    async def _end(
        self, connection: Connection, grace_s: float | None, budget_s: float | None = None
    ) -> None:
        message = rm.EndJobRequest(job_id=self.job_id, grace=duration(grace_s))
        policy = connection.policy
        if budget_s is not None:
            policy = replace(policy, budget_s=min(budget_s, policy.budget_s))
        try:
            await connection.call_manager(
                lambda manager, timeout_s: manager.EndJob(
                    message, timeout=timeout_s, metadata=self._context.metadata
                ),
                policy=policy,
            )
        except (NotFound, FailedPrecondition):
            return  # over already

    async def _leave(self) -> None:
        ended = self._watch.error is not None
        if self.detached:  # its slots live on: tasks can be taken back until we know them no more
            await self._context.background.settle(ENDING_BUDGET_S)
        self._watch.close(JobEnded(f"job {self.job_id} was left"), expected=True)
        await self._context.background.stop()
        if self._offers is not None:
            await self._offers.stop()
        if self.detached or ended:
            return
        try:
            await self._end(self._context.connection, None, ENDING_BUDGET_S)
        except FinegrainError as error:
            log.warning(
                "job %s could not be ended (%s); it ends when its lease of %g s is over",
                self.job_id,
                error.message,
                self.lease_s,
            )

    async def _register(self) -> None:
        message = rm.RegisterJobRequest(
            job_id=self.job_id,
            request_id=secrets.token_hex(16),
            name=self.name,
            group=self.group,
            lease=None if self.detached else duration(self.lease_s),
            detached=self.detached,
        )
        try:
            await self._register_once(message, None)
        except asyncio.CancelledError:
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
        self._context.secret = answer.job_secret
        self.lease_s = answer.lease.ToMicroseconds() / 1e6 or self.lease_s

    async def _abandon(self, message: rm.RegisterJobRequest) -> None:
        # Whether the job exists is unknown; registering it once more tells its secret.
        try:
            await self._register_once(message, ABANDONING_BUDGET_S)
            await self._end(self._context.connection, None, ABANDONING_BUDGET_S)
        except FinegrainError as error:
            log.warning("job %s may exist until its lease ends: %s", self.job_id, error.message)

    def _may_accept(self, allocation_id: str, generation: int) -> bool:
        request = self._watch.requests.get(allocation_id)
        return request is not None and generation >= request.generation

    def _check_alive(self) -> None:
        if not self._context.secret:
            raise FailedPrecondition(f'job {self.name!r} is not registered; use "async with"')
        if self._watch.error is not None:
            raise self._watch.error
