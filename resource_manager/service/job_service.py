"""Job masters' calls: decodes each call, submits it to the writer, and encodes the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from finegrain.errors import InvalidArgument, NotFound, Reason
from finegrain.ids import check_id, check_text
from finegrain.join_token import sha256_hex
from finegrain.rpc.access import current_caller
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.allocation_tokens import TokenSigner
from finegrain.rpc.offer_targets import OfferTargets, comes_from
from finegrain.rpc.wire import duration_ms_from_proto, duration_ms_to_proto, labels_from_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.explain.requests import EXECUTORS_DEFAULT, explain
from resource_manager.engine.model.entities import Instant, Job, RequestSpec
from resource_manager.engine.model.events import (
    Event,
    JobEndRequested,
    JobKeptAlive,
    JobRegistered,
    RequestsCancelled,
    SlotsReleased,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.state import State
from resource_manager.service.admission import JobAdmission, JobLimits, Kind
from resource_manager.service.engine_driver import LIGHT_ITEMS_MAX
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.ownership import JobOwners
from resource_manager.service.privacy import hide_private_fields
from resource_manager.service.runner import Runner
from resource_manager.service.submission import (
    CHUNK_ITEMS_MAX,
    chunks_of,
    give_up,
    make_submission,
    resize_slot,
    submission_events,
)
from resource_manager.service.watch import WatchHub
from resource_manager.service.wire import decoding, encoding
from resource_manager.service.wire.jobs import dependencies, job_outcome
from resource_manager.service.wire.ranges import range_members, request_ranges
from resource_manager.service.wire.slot_reuse import reuse_events, slot_reuses, thread_reports

EXPLAINED_EXECUTORS_MAX = 1_000
# number of requests that are decoded before other calls run; one request takes 10 us
CHECKED_AT_ONCE = 200
# An Explain call counts as this many items in the fair queues. The call takes 50 ms on the largest
# clusters.
EXPLAIN_ITEMS = 500


class JobCalls:
    """The calls of ResourceManagerService that job masters use; see resource_manager.proto."""

    def __init__(
        self,
        runner: Runner,
        hub: WatchHub,
        owners: JobOwners,
        settings: EngineSettings,
        metrics: ResourceManagerMetrics,
        *,
        tokens: TokenSigner,
        targets: OfferTargets,
        limits: JobLimits | None = None,
    ) -> None:
        self._runner = runner
        self._hub = hub
        self._owners = owners
        self._settings = settings
        self._metrics = metrics
        self._tokens = tokens
        self._targets = targets
        self._admission = JobAdmission(limits)

    async def RegisterJob(
        self, request: rm_pb2.RegisterJobRequest, context: Any
    ) -> rm_pb2.RegisterJobResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        request_id = decoding.request_id(request.request_id)
        name = check_text("name", request.name, longest=decoding.NAME_LENGTH_MAX)
        group = check_id("group", request.group) if request.group else ""
        labels = labels_from_proto(request.labels, "labels")
        lease_ms = self._lease_ms(request)
        depends_on = dependencies(request.depends_on)
        priority = decoding.priority(request.priority, "priority")
        caller, request_id_sha256 = current_caller(), sha256_hex(request_id)
        answer = await self._runner.submit(
            lambda at: JobRegistered(
                at,
                job_id,
                name,
                group,
                lease_ms,
                caller.name,
                request_id_sha256,
                depends_on,
                labels,
                priority,
            ),
            lambda job: rm_pb2.RegisterJobResponse(
                lease=_lease(job), rm_epoch=self._runner.rm_epoch
            ),
            owner=caller.peer,
        )
        # The owner is set last, because a rejected registration must not change the owner of the
        # job.
        self._owners.remember(job_id, caller.name)
        return answer

    async def KeepAlive(
        self, request: rm_pb2.KeepAliveRequest, context: Any
    ) -> rm_pb2.KeepAliveResponse:
        """See the protocol."""
        job_id, acknowledged = check_id("job_id", request.job_id), request.acknowledged_sequence
        if acknowledged < 0:
            raise InvalidArgument("acknowledged_sequence", acknowledged, "0 or more")
        # Check the owner before admission. So other callers cannot use up the limits of the job.
        await self._owners.check(job_id)
        with self._admission.entered(Kind.KEEP_ALIVE, job_id):
            return await self._runner.submit(
                lambda at: JobKeptAlive(at, job_id, acknowledged),
                lambda job: rm_pb2.KeepAliveResponse(lease=_lease(job)),
                urgent=True,
                light=True,
            )

    async def EndJob(self, request: rm_pb2.EndJobRequest, context: Any) -> rm_pb2.EndJobResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        grace_ms = decoding.grace_ms(request.grace, present=request.HasField("grace"))
        outcome = job_outcome(request.outcome)
        await self._owners.check(job_id)
        return await self._runner.submit(
            lambda at: JobEndRequested(at, job_id, Reason.ENDED, grace_ms, outcome),
            lambda _job: rm_pb2.EndJobResponse(),
            owner=job_id,
        )

    async def RequestResource(
        self, request: rm_pb2.RequestResourceRequest, context: Any
    ) -> rm_pb2.RequestResourceResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        messages = request.requests
        decoding.check_batch("requests", messages, ranges=request.ranges)
        self._check_targets(messages)
        ranges = request_ranges(request.ranges)
        checked = None
        members_max = self._settings.gang_members_max
        # A small call is decoded at once. So a malformed call is rejected before any other check. A
        # large call is decoded in steps, after the job's owner and limits were checked.
        if len(messages) <= CHECKED_AT_ONCE:
            specs = decoding.slot_requests_from(messages, 0)
            checked = make_submission(specs, request.gangs, members_max=members_max)
        await self._owners.check(job_id)
        with self._admission.entered(Kind.CALL, job_id):
            if checked is None:
                specs = await self._checked(job_id, messages)
                checked = make_submission(specs, request.gangs, members_max=members_max)
            answered = await self._in_chunks(
                submission_events(job_id, checked, ranges),
                len(checked.specs) + len(ranges),
                job_id,
                light=len(checked.specs) <= LIGHT_ITEMS_MAX and not ranges,
            )
        # The last event contains the ranges, after all requests. The outcomes are in the same
        # order.
        of_ranges = answered[len(checked.specs) :]
        merged = checked.outcomes(answered[: len(checked.specs)])
        self._count(merged, [1] * len(merged))
        self._count(of_ranges, [each.count for each in ranges])
        return rm_pb2.RequestResourceResponse(
            results=encoding.write.items(slots_pb2.ItemResult, merged),
            range_results=encoding.write.items(slots_pb2.ItemResult, of_ranges),
        )

    async def CancelRequests(
        self, request: rm_pb2.CancelRequestsRequest, context: Any
    ) -> rm_pb2.CancelRequestsResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        ids = decoding.allocation_ids(request.allocation_ids, ranges=request.ranges)
        ranges = range_members(request.ranges)
        await self._owners.check(job_id)
        with self._admission.entered(Kind.CALL, job_id):
            outcomes = await give_up(
                self._runner,
                lambda some: lambda at: RequestsCancelled(at, job_id, some),
                ids,
                owner=job_id,
            )
            of_ranges = await give_up(
                self._runner,
                lambda some: lambda at: RequestsCancelled(at, job_id, (), ranges=some),
                ranges,
                owner=job_id,
                # A range can contain very many requests, so each event counts as a full chunk.
                weight=CHUNK_ITEMS_MAX,
            )
        return rm_pb2.CancelRequestsResponse(
            results=encoding.write.items(slots_pb2.ItemResult, outcomes),
            range_results=encoding.write.items(slots_pb2.ItemResult, of_ranges),
        )

    async def ReleaseSlots(
        self, request: rm_pb2.ReleaseSlotsRequest, context: Any
    ) -> rm_pb2.ReleaseSlotsResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        grace_ms = decoding.grace_ms(request.grace, present=request.HasField("grace"))
        slots = decoding.slot_releases(request.slots, ranges=request.ranges)
        reports = thread_reports(request.slots)
        ranges = range_members(request.ranges)
        await self._owners.check(job_id)
        with self._admission.entered(Kind.CALL, job_id):
            outcomes = await give_up(
                self._runner,
                lambda some: (
                    lambda at: SlotsReleased(at, job_id, some, grace_ms, thread_reports=reports)
                ),
                slots,
                owner=job_id,
            )
            of_ranges = await give_up(
                self._runner,
                lambda some: lambda at: SlotsReleased(at, job_id, (), grace_ms, ranges=some),
                ranges,
                owner=job_id,
                weight=CHUNK_ITEMS_MAX,
            )
        return rm_pb2.ReleaseSlotsResponse(
            results=encoding.write.items(slots_pb2.ItemResult, outcomes),
            range_results=encoding.write.items(slots_pb2.ItemResult, of_ranges),
        )

    async def ReuseSlots(
        self, request: rm_pb2.ReuseSlotsRequest, context: Any
    ) -> rm_pb2.ReuseSlotsResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        grace_ms = decoding.grace_ms(request.grace, present=request.HasField("grace"))
        slots, ranges = slot_reuses(request.slots), request_ranges(request.ranges)
        reports = thread_reports(request.slots)
        # The ranges and all slots must be in one event. Otherwise the new requests could get other
        # slots before the slots of a later event are examined.
        if ranges and len(slots) > CHUNK_ITEMS_MAX:
            raise InvalidArgument("slots", len(slots), f"at most {CHUNK_ITEMS_MAX} with ranges")
        await self._owners.check(job_id)
        with self._admission.entered(Kind.CALL, job_id):
            makes = reuse_events(job_id, chunks_of(slots), grace_ms, ranges, reports)
            outcomes = await self._in_chunks(makes, len(slots) + len(ranges), job_id)
        of_ranges, of_slots = outcomes[: len(ranges)], outcomes[len(ranges) :]
        self._count(of_ranges, [each.count for each in ranges])
        return rm_pb2.ReuseSlotsResponse(
            results=encoding.write.items(slots_pb2.ItemResult, of_slots),
            range_results=encoding.write.items(slots_pb2.ItemResult, of_ranges),
        )

    async def ResizeSlot(
        self, request: rm_pb2.ResourceManagerServiceResizeSlotRequest, context: Any
    ) -> rm_pb2.ResourceManagerServiceResizeSlotResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        await self._owners.check(job_id)
        with self._admission.entered(Kind.CALL, job_id):
            slot = await resize_slot(self._runner, request, job_id, owner=job_id)
        return rm_pb2.ResourceManagerServiceResizeSlotResponse(slot=slot)

    async def WatchJob(
        self, request: rm_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[rm_pb2.WatchJobResponse]:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        if request.from_sequence < 0:
            raise InvalidArgument("from_sequence", request.from_sequence, "0 or more")
        await self._owners.check(job_id)
        with self._admission.entered(Kind.STREAM, job_id):
            # The stream counts against the limit of the job until the stream ends.
            messages = self._hub.watch(job_id, request.from_sequence)
            try:
                async for message in messages:
                    yield message
            finally:
                # Close the generator at once. Otherwise the hub would keep events for an ended
                # stream.
                await messages.aclose()

    async def GetAllocationToken(
        self, request: rm_pb2.GetAllocationTokenRequest, context: Any
    ) -> rm_pb2.GetAllocationTokenResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        executor_id = check_id("executor_id", request.executor_id)
        await self._owners.check(job_id)
        owner = current_caller().name
        if not request.allocation_id:
            return rm_pb2.GetAllocationTokenResponse(
                token=self._tokens.token(executor_id, job_id, owner)
            )
        allocation_id = check_id("allocation_id", request.allocation_id)
        generation = request.generation
        with self._admission.entered(Kind.CALL, job_id):
            slot = await self._runner.read(
                lambda state: state.slots.get((allocation_id, generation)), owner=job_id
            )
        if slot is None or (slot.job_id, slot.executor_id) != (job_id, executor_id):
            raise NotFound(
                f"job {job_id} has no slot {allocation_id} generation {generation} on executor"
                f" {executor_id}",
                reason=Reason.ALLOCATION_UNKNOWN,
                details={"allocation_id": allocation_id},
            )
        return rm_pb2.GetAllocationTokenResponse(
            token=self._tokens.token(executor_id, job_id, owner, allocation_id, generation)
        )

    async def Explain(self, request: rm_pb2.ExplainRequest, context: Any) -> rm_pb2.ExplainResponse:
        """See the protocol."""
        allocation_id = check_id("allocation_id", request.allocation_id)
        executor_id = request.executor_id and check_id("executor_id", request.executor_id)
        most = request.max_executors or EXECUTORS_DEFAULT
        if not 1 <= most <= EXPLAINED_EXECUTORS_MAX:
            raise InvalidArgument("max_executors", most, f"0 to {EXPLAINED_EXECUTORS_MAX}")
        caller = current_caller()

        def read(state: State) -> rm_pb2.ExplainResponse:
            answer = encoding.explanation(explain(state, allocation_id, executor_id, most), state)
            hide_private_fields([answer.request], state, caller)
            return answer

        return await self._runner.read(read, owner=caller.peer, items=EXPLAIN_ITEMS)

    def _check_targets(self, messages: Sequence[slots_pb2.SlotRequest]) -> None:
        """Checks that executors are allowed to offer slots to the addresses that the requests name.

        Raises:
            InvalidArgument: an address is neither on the host of the caller nor allowed by the
                configuration.
        """
        peer = current_caller().peer
        for index, message in enumerate(messages):
            target, field = message.target_address, f"requests[{index}].target_address"
            if not target:
                continue
            check_dialable(target, field)
            if self._targets.is_empty:
                allowed = comes_from(target, peer)
            else:
                allowed = self._targets.allow(target)
            if not allowed:
                expected = (
                    "an address that the administrator allows (offer_targets of the resource"
                    " manager); by default, only the host from which the request comes"
                )
                raise InvalidArgument(field, target, expected)

    async def _checked(
        self, job_id: str, messages: Sequence[slots_pb2.SlotRequest]
    ) -> list[RequestSpec]:
        """Decodes the requests of a large call in steps. Other calls run in between."""
        specs: list[RequestSpec] = []
        async with self._admission.preparing(job_id):
            for start in range(0, len(messages), CHECKED_AT_ONCE):
                chunk = messages[start : start + CHECKED_AT_ONCE]
                specs += decoding.slot_requests_from(chunk, start)
                await asyncio.sleep(0)
        return specs

    async def _in_chunks(
        self,
        makes: Sequence[Callable[[Instant], Event]],
        items: int,
        job_id: str,
        *,
        light: bool = False,
    ) -> list[ItemOutcome]:
        """Submits the events of one call, and returns their outcomes in order."""
        if not makes:
            return []
        # An event can be smaller than a chunk, but each event counts as a full chunk.
        answers: list[list[ItemOutcome]] = await self._runner.submit_chunks(
            makes,
            None,
            items=min(items, CHUNK_ITEMS_MAX),
            owner=job_id,
            light=light,
        )
        return [outcome for chunk in answers for outcome in chunk]

    def _count(self, outcomes: Sequence[ItemOutcome], requests: Sequence[int]) -> None:
        refused = sum(count for each, count in zip(outcomes, requests, strict=True) if each.reason)
        for outcome, count in ("refused", refused), ("accepted", sum(requests) - refused):
            if count:
                self._metrics.requests.labels(outcome).inc(count)

    def _lease_ms(self, request: rm_pb2.RegisterJobRequest) -> int | None:
        requested = request.lease.seconds or request.lease.nanos
        if request.detached:
            if requested:
                raise InvalidArgument("lease", "set", "absent, because the job is detached")
            return None
        if not requested:
            return self._settings.lease_default_ms
        return duration_ms_from_proto(
            request.lease,
            "lease",
            smallest_ms=self._settings.lease_min_ms,
            largest_ms=self._settings.lease_max_ms,
        )


def _lease(job: Job) -> Any:
    return None if job.lease_ms is None else duration_ms_to_proto(job.lease_ms)
