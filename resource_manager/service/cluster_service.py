"""Administrators' calls: lists of the cluster's objects, the history of events, and admin calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from finegrain.errors import InvalidArgument, Reason
from finegrain.ids import ID_PATTERN, check_id, check_text
from finegrain.rpc.access import current_caller
from finegrain.rpc.mapping.fields import members_of
from finegrain.rpc.wire import duration_ms_from_proto, timestamp_ms_to_proto
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.cluster_pb2_grpc import ClusterServiceServicer
from finegrain.values.states import RequestState
from resource_manager.engine.explain import lists
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.groups import job_flow
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.explain.provisions import providers_view
from resource_manager.engine.explain.topology import topology_view
from resource_manager.engine.explain.waiting_reasons import jobs_waiting_since
from resource_manager.engine.jobs.groups import known_group
from resource_manager.engine.lifecycle.known import known_host, known_request
from resource_manager.engine.model.entities import ClusterEvent, Executor
from resource_manager.engine.model.events import (
    DrainRequested,
    ForgetRequested,
    JobEndRequested,
    SlotsReleased,
    UndrainRequested,
)
from resource_manager.engine.state import State
from resource_manager.service.audit import audited
from resource_manager.service.device_service import DeviceCalls
from resource_manager.service.engine_driver import now
from resource_manager.service.group_use import GroupUse
from resource_manager.service.groups_service import GroupCalls
from resource_manager.service.host_policy_service import HostPolicyCalls
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.paging import key_of, page_size, token_of
from resource_manager.service.preview_service import PreviewCalls
from resource_manager.service.privacy import hide_private_fields
from resource_manager.service.runner import Runner
from resource_manager.service.submission import give_up, resize_slot
from resource_manager.service.users_service import UserCalls
from resource_manager.service.watch import WatchHub, happens
from resource_manager.service.wire import decoding, encoding
from resource_manager.service.wire.advice import advice_wanted

EVENTS_WAIT_MS_MAX = 30_000
PREFIX_LENGTH_MIN = 4  # minimum length of an id prefix; a shorter prefix could match many requests
FILTERED_IDS_MAX = 10_000
PROVIDERS_ITEMS = 100  # cost of reading all provisions, in items of the fair queues
T = TypeVar("T")

DRAIN_MS_MAX = 366 * 24 * 3600 * 1000

_STATES = members_of(RequestState, slots_pb2.RequestState.DESCRIPTOR)


@dataclass(slots=True)
class About:
    """Facts about the resource manager itself; the answer of GetCluster contains them."""

    software_version: str
    start_time_ms: int
    web_address: str = ""  # known after the HTTP interface was started


class ClusterServicer(
    DeviceCalls, GroupCalls, HostPolicyCalls, PreviewCalls, UserCalls, ClusterServiceServicer
):
    """ClusterService; protos/finegrain/v1/cluster.proto documents each call."""

    def __init__(
        self,
        runner: Runner,
        hub: WatchHub,
        about: About,
        measured: MeasuredUse,
        group_use: GroupUse,
    ) -> None:
        self._group_use = group_use
        self._runner = runner
        self._measured = measured
        self._hub = hub
        self._about = about

    async def GetCluster(
        self, request: cluster_pb2.GetClusterRequest, context: Any
    ) -> cluster_pb2.GetClusterResponse:
        """See the protocol."""
        return await self._runner.read_in_slices(self._cluster, owner=current_caller().peer)

    async def ListExecutors(
        self, request: cluster_pb2.ListExecutorsRequest, context: Any
    ) -> cluster_pb2.ListExecutorsResponse:
        """See the protocol."""
        limit = page_size(request.page_size)
        (after,) = key_of(request.page_token, ("",))

        def read(state: State) -> cluster_pb2.ListExecutorsResponse:
            page = lists.list_executors(state, after=str(after), limit=limit)
            return cluster_pb2.ListExecutorsResponse(
                executors=[self._executor(view) for view in page.items],
                next_page_token=token_of((page.next_key,) if page.next_key is not None else None),
            )

        return await self._read(read, items=limit)

    async def GetExecutor(
        self, request: cluster_pb2.GetExecutorRequest, context: Any
    ) -> cluster_pb2.GetExecutorResponse:
        """See the protocol."""
        executor_id = check_id("executor_id", request.executor_id)

        def read(state: State) -> cluster_pb2.GetExecutorResponse:
            view = lists.executor_view(state, executor_id)
            # The limit is above the number of the executor's slots, because this call has no pages.
            slots = lists.list_slots(state, executor_id=executor_id, limit=view.slots + 1).items
            return cluster_pb2.GetExecutorResponse(
                executor=self._executor(view, with_topology=True),
                slots=self._slots(slots),
            )

        return await self._read(read)

    async def GetTopology(
        self, request: cluster_pb2.GetTopologyRequest, context: Any
    ) -> cluster_pb2.GetTopologyResponse:
        """See the protocol."""
        executor_id = check_id("executor_id", request.executor_id)

        def read(state: State) -> cluster_pb2.GetTopologyResponse:
            view = topology_view(state, executor_id)
            answer = encoding.write(cluster_pb2.GetTopologyResponse, view)
            self._measured.add_to_slots(answer.slots)
            return answer

        return await self._read(read)

    async def ListSlots(
        self, request: cluster_pb2.ListSlotsRequest, context: Any
    ) -> cluster_pb2.ListSlotsResponse:
        """See the protocol."""
        executor_id = request.executor_id and check_id("executor_id", request.executor_id)
        job_id = request.job_id and check_id("job_id", request.job_id)
        limit = page_size(request.page_size)
        executor, allocation, generation = key_of(request.page_token, ("", "", 0))

        def read(state: State) -> cluster_pb2.ListSlotsResponse:
            page = lists.list_slots(
                state,
                executor_id=executor_id,
                job_id=job_id,
                after=(str(executor), str(allocation), int(generation)),
                limit=limit,
            )
            return cluster_pb2.ListSlotsResponse(
                slots=self._slots(page.items),
                next_page_token=token_of(page.next_key),
            )

        return await self._read(read, items=limit)

    async def GetUsage(
        self, request: cluster_pb2.GetUsageRequest, context: Any
    ) -> cluster_pb2.GetUsageResponse:
        """See the protocol."""
        executor_id = request.executor_id and check_id("executor_id", request.executor_id)
        allocation_id = request.allocation_id and check_id("allocation_id", request.allocation_id)
        group = request.group
        if [bool(executor_id), bool(allocation_id), bool(group)].count(True) != 1:
            raise InvalidArgument(
                "executor_id",
                executor_id,
                "an executor, or else a slot in allocation_id, or a group in group",
            )

        def read(state: State) -> cluster_pb2.GetUsageResponse:
            if group:
                known_group(state.groups, group)
                return cluster_pb2.GetUsageResponse(samples=self._group_use.of(group))
            if executor_id:
                known_host(state.hosts, executor_id)
                samples = self._measured.samples_of_executor(executor_id)
                return cluster_pb2.GetUsageResponse(executor_id=executor_id, samples=samples)
            slot = state.slots.of(known_request(state.requests, allocation_id))
            if slot is None:
                return cluster_pb2.GetUsageResponse()
            samples = self._measured.samples_of_slot(
                slot.executor_id, slot.allocation_id, slot.generation
            )
            return cluster_pb2.GetUsageResponse(executor_id=slot.executor_id, samples=samples)

        return await self._read(read)

    async def ListRequests(
        self, request: cluster_pb2.ListRequestsRequest, context: Any
    ) -> cluster_pb2.ListRequestsResponse:
        """See the protocol."""
        job_id = request.job_id and check_id("job_id", request.job_id)
        states = _states(request.states)
        prefixes = _prefixes(request.allocation_ids)
        limit = page_size(request.page_size)
        (after,) = key_of(request.page_token, (0,))
        caller = current_caller()

        def read(state: State) -> cluster_pb2.ListRequestsResponse:
            # This check needs the state, because a short text is allowed if it is a complete id.
            _refuse_short(state, prefixes)
            page = lists.list_requests(
                state,
                job_id=job_id,
                states=states,
                allocation_ids=prefixes,
                after=int(after),
                limit=limit,
            )
            requests = encoding.write.each(rm_pb2.RequestStatus, page.items)
            hide_private_fields(requests, state, caller)
            next_key = (page.next_key,) if page.next_key is not None else None
            return cluster_pb2.ListRequestsResponse(
                requests=requests, next_page_token=token_of(next_key)
            )

        return await self._read(read, items=limit)

    async def ListJobs(
        self, request: cluster_pb2.ListJobsRequest, context: Any
    ) -> cluster_pb2.ListJobsResponse:
        """See the protocol."""
        matching = _job_texts(request.matching)
        limit = page_size(request.page_size)
        (after,) = key_of(request.page_token, (0,))

        def read(state: State) -> cluster_pb2.ListJobsResponse:
            page = lists.list_jobs(
                state,
                include_ended=request.include_ended,
                matching=matching,
                after=int(after),
                limit=limit,
            )
            # Shares change with time, so they are computed for the present moment.
            state.flows.advance(now().monotonic_ms)
            ids = [view.job.job_id for view in page.items]
            since = jobs_waiting_since(state, ids)
            flows = [job_flow(state.flows, job_id, since.get(job_id)) for job_id in ids]
            jobs = [
                encoding.job_status(view, flow)
                for view, flow in zip(page.items, flows, strict=True)
            ]
            return cluster_pb2.ListJobsResponse(
                jobs=jobs,
                next_page_token=token_of((page.next_key,) if page.next_key is not None else None),
            )

        return await self._read(read, items=limit)

    async def ListEvents(
        self, request: cluster_pb2.ListEventsRequest, context: Any
    ) -> cluster_pb2.ListEventsResponse:
        """See the protocol."""
        if request.from_sequence < 0:
            raise InvalidArgument("from_sequence", request.from_sequence, "0 or more")
        subject = request.subject_id and check_id("subject_id", request.subject_id)
        limit = page_size(request.page_size)
        wait_ms = duration_ms_from_proto(request.wait, "wait", largest_ms=EVENTS_WAIT_MS_MAX)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while True:
            # `news` is taken before the read. So an event that commits between these two steps
            # ends the wait at once.
            news = self._hub.cluster_news
            # Read `last` before the events. If no event matches, the caller continues after `last`.
            # The caller must not miss an event that commits between the two reads.
            last = await self._read(lambda state: state.history.last_sequence)
            events = await self._events(request.from_sequence, limit, subject)
            left_s = until - loop.time()
            # A caller without a position gets the stored events at once, without waiting.
            if events or not request.from_sequence or left_s <= 0:
                break
            await happens(news, left_s)
        following = events[-1].sequence + 1 if events else last + 1
        return cluster_pb2.ListEventsResponse(
            events=encoding.write.items(cluster_pb2.ClusterEvent, events),
            # The returned position is never before the position that the caller named.
            next_sequence=max(following, request.from_sequence),
        )

    @audited(lambda request: request.executor_id)
    async def DrainExecutor(
        self, request: cluster_pb2.DrainExecutorRequest, context: Any
    ) -> cluster_pb2.DrainExecutorResponse:
        """See the protocol."""
        executor_id = check_id("executor_id", request.executor_id)
        why = check_text(
            "reason", request.reason, longest=decoding.REASON_LENGTH_MAX, empty_ok=True
        )
        deadline_ms = None
        if request.HasField("deadline"):
            deadline_ms = duration_ms_from_proto(
                request.deadline, "deadline", largest_ms=DRAIN_MS_MAX
            )
        await self._runner.submit(
            lambda at: DrainRequested(at, executor_id, why, deadline_ms), _nothing
        )
        # Read the executor again: the answer must show its state after the change.
        return cluster_pb2.DrainExecutorResponse(executor=await self._status(executor_id))

    @audited(lambda request: request.executor_id)
    async def UndrainExecutor(
        self, request: cluster_pb2.UndrainExecutorRequest, context: Any
    ) -> cluster_pb2.UndrainExecutorResponse:
        """See the protocol."""
        executor_id = check_id("executor_id", request.executor_id)
        await self._runner.submit(lambda at: UndrainRequested(at, executor_id), _nothing)
        return cluster_pb2.UndrainExecutorResponse(executor=await self._status(executor_id))

    @audited(lambda request: request.executor_id)
    async def ForgetExecutor(
        self, request: cluster_pb2.ForgetExecutorRequest, context: Any
    ) -> cluster_pb2.ForgetExecutorResponse:
        """See the protocol."""
        executor_id = check_id("executor_id", request.executor_id)
        await self._runner.submit(lambda at: ForgetRequested(at, executor_id), _nothing)
        return cluster_pb2.ForgetExecutorResponse()

    @audited(lambda request: " ".join(request.allocation_ids[:10]))
    async def ReleaseAllocations(
        self, request: cluster_pb2.ReleaseAllocationsRequest, context: Any
    ) -> cluster_pb2.ReleaseAllocationsResponse:
        """See the protocol."""
        ids = decoding.allocation_ids(request.allocation_ids)
        grace_ms = decoding.grace_ms(request.grace, present=request.HasField("grace"))
        outcomes = await give_up(
            self._runner,
            lambda some: lambda at: SlotsReleased(at, None, some, grace_ms),
            [(each, 0) for each in ids],
            owner="",
        )
        return cluster_pb2.ReleaseAllocationsResponse(
            results=encoding.write.items(slots_pb2.ItemResult, outcomes)
        )

    @audited(lambda request: request.job_id)
    async def TerminateJob(
        self, request: cluster_pb2.TerminateJobRequest, context: Any
    ) -> cluster_pb2.TerminateJobResponse:
        """See the protocol."""
        job_id = check_id("job_id", request.job_id)
        grace_ms = decoding.grace_ms(request.grace, present=request.HasField("grace"))
        await self._runner.submit(
            lambda at: JobEndRequested(at, job_id, Reason.TERMINATED, grace_ms), _nothing
        )
        return cluster_pb2.TerminateJobResponse()

    @audited(lambda request: request.allocation_id)
    async def ResizeSlot(
        self, request: cluster_pb2.ClusterServiceResizeSlotRequest, context: Any
    ) -> cluster_pb2.ClusterServiceResizeSlotResponse:
        """See the protocol."""
        slot = await resize_slot(self._runner, request, None, owner="")
        return cluster_pb2.ClusterServiceResizeSlotResponse(slot=slot)

    async def ListProviders(
        self, request: cluster_pb2.ListProvidersRequest, context: Any
    ) -> cluster_pb2.ListProvidersResponse:
        """See the protocol."""
        return await self._read(
            lambda state: encoding.write(cluster_pb2.ListProvidersResponse, providers_view(state)),
            items=PROVIDERS_ITEMS,
        )

    async def AdviseThreads(
        self, request: cluster_pb2.AdviseThreadsRequest, context: Any
    ) -> cluster_pb2.AdviseThreadsResponse:
        """See the protocol."""
        return await self._read(advice_wanted(request, now().monotonic_ms))

    def _executor(
        self, view: lists.ExecutorView, *, with_topology: bool = False
    ) -> cluster_pb2.ExecutorStatus:
        used = self._measured.of_executor(view.executor.executor_id)
        return encoding.executor_status(view, used, with_topology=with_topology)

    def _slots(self, views: Sequence[lists.SlotView]) -> list[slots_pb2.SlotStatus]:
        slots = encoding.write.each(slots_pb2.SlotStatus, views)
        self._measured.add_to_slots(slots)
        return slots

    def _cluster(self, state: State) -> Paused[cluster_pb2.GetClusterResponse]:
        view = yield from cluster_view(state)
        present = [name for name, host in state.hosts.items() if not host.executor.lost]
        return encoding.write(
            cluster_pb2.GetClusterResponse,
            view,
            rm_epoch=state.rm_epoch,
            software_version=self._about.software_version,
            web_address=self._about.web_address,
            start_time=timestamp_ms_to_proto(self._about.start_time_ms),
            protocol_version=decoding.PROTOCOL_VERSION,
            used=self._measured.sum_of(present),
        )

    async def _events(self, start: int, limit: int, subject: str) -> list[ClusterEvent]:
        return await self._runner.in_store(
            lambda store: store.read_cluster_events(start, limit, subject)
        )

    async def _status(self, executor_id: str) -> cluster_pb2.ExecutorStatus:
        return await self._read(
            lambda state: self._executor(lists.executor_view(state, executor_id))
        )

    async def _read(self, fn: Callable[[State], T], *, items: int = 1) -> T:
        """Reads the state, in the caller's fair queue."""
        return await self._runner.read(fn, owner=current_caller().peer, items=items)


def _nothing(_answer: Executor | None) -> None:
    """Ignores the executor: the answer of the call is empty.

    The engine's answer is a part of the state, which later batches change. So callers read the
    state again instead.
    """


def _states(states: Sequence[slots_pb2.RequestState.ValueType]) -> list[RequestState]:
    for index, each in enumerate(states):
        if each not in _STATES:
            raise InvalidArgument(f"states[{index}]", each, "a known RequestState")
    return [_STATES[each] for each in states]


def _prefixes(ids: Sequence[str]) -> list[str]:
    if len(ids) > FILTERED_IDS_MAX:
        raise InvalidArgument("allocation_ids", f"{len(ids)} ids", f"at most {FILTERED_IDS_MAX}")
    for index, each in enumerate(ids):
        if not ID_PATTERN.fullmatch(each):
            raise _no_id(index, each)
    return list(ids)


def _job_texts(texts: Sequence[str]) -> list[str]:
    if len(texts) > FILTERED_IDS_MAX:
        raise InvalidArgument("matching", f"{len(texts)} texts", f"at most {FILTERED_IDS_MAX}")
    for index, each in enumerate(texts):
        check_text(f"matching[{index}]", each, longest=200)
    return list(texts)


def _refuse_short(state: State, ids: Sequence[str]) -> None:
    """Raises InvalidArgument for a short prefix that is no complete id of a request or range."""
    for index, each in enumerate(ids):
        if len(each) >= PREFIX_LENGTH_MIN or each.removesuffix(".") in state.ranges:
            continue
        if state.requests.named(each) is None:
            raise _no_id(index, each)


def _no_id(index: int, text: str) -> InvalidArgument:
    expected = f"an id, a range, or at least {PREFIX_LENGTH_MIN} characters of its beginning or end"
    return InvalidArgument(f"allocation_ids[{index}]", text, expected)
