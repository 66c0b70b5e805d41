"""Keeps the slots of a job that runs a plan. This part of the runner calls the resource manager.

Slot `n` of the schedule has the allocation id `<prefix>-<n>`. So every runner of the job finds the
slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from finegrain.errors import FinegrainError, Reason
from finegrain.values.states import ThreadEnd
from finegrain_client.batch.slots import retry_until_answered
from finegrain_client.errors import JobEnded, RequestRejected
from finegrain_client.graph.plan import GroupPlan, Plan, SlotTimes
from finegrain_client.graph.schedule import Event, HostLost, RequestSlots, SlotLost, SlotRevoked
from finegrain_client.graph_run.task_start import slot_spec
from finegrain_client.job.gangs import GangSpec
from finegrain_client.job.job import Job
from finegrain_client.job.request import Request, all_granted
from finegrain_client.slot.slot import Slot


class JobSlots:
    """The requests and slots of one job.

    Args:
        job: the job.
        prefix: the beginning of the allocation ids of its requests.
        times: time limit and expected run time of each slot.
        deliver: a function that is called with events of lost slots and hosts.
    """

    def __init__(
        self, job: Job, prefix: str, times: SlotTimes, deliver: Callable[[Event], None]
    ) -> None:
        self._job = job
        self._prefix = prefix
        self._times = times
        self._deliver = deliver
        self._requests: dict[int, Request] = {}  # the key is the slot number
        self._numbers: dict[int, range] = {}  # slot numbers, by number of the request
        self._watched: dict[int, Callable[[], None]] = {}

    async def adopt(self, granted: set[int], requested: set[int]) -> set[int]:
        """Takes over the slots of the last runner, and releases slots that the job does not need.

        Args:
            granted: numbers of the slots that the schedule has.
            requested: numbers of the slots that the schedule has requested.

        Returns:
            The granted slots that still exist.

        Raises:
            FinegrainError: the resource manager refused a call.
        """
        for request in self._job.requests:
            prefix, _, digits = request.allocation_id.rpartition("-")
            if prefix == self._prefix and digits.isdecimal():
                self._requests[int(digits)] = request
        for number in [*self._requests]:
            if number not in granted and number not in requested:
                await self.release(number)
        found = {each for each in granted if (slot := self.slot(each)) and not slot.has_ended}
        for number in found:
            self._watch(number)
        return found

    def slot(self, number: int) -> Slot | None:
        """Returns the slot with this number, or None if the job does not have the slot."""
        request = self._requests.get(number)
        return request.slot if request is not None else None

    def new_addresses(self, known: Mapping[str, str]) -> dict[str, str]:
        """Returns the addresses of the slots' executors that are new or changed, compared with
        `known`.
        """
        slots = [each.slot for each in self._requests.values() if each.slot is not None]
        return {
            each.executor_id: each.executor_address
            for each in slots
            if known.get(each.executor_id) != each.executor_address
        }

    async def request(
        self, request: int, first_slot: int, groups: Sequence[GroupPlan]
    ) -> tuple[str, ...] | RequestRejected:
        """Requests slots as one gang, each for a group, and waits until they are granted.

        Returns the executor of each slot. If the slots can never be granted, returns the rejection.
        A slot that was lost in the meantime counts as granted. Its loss is reported when a task is
        deployed.

        Raises:
            FinegrainError: the job has ended, or the resource manager refused the call.
        """
        numbers = range(first_slot, first_slot + len(groups))
        self._numbers[request] = numbers
        if not any(each in self._requests for each in numbers):  # no earlier runner requested them
            spec = GangSpec(
                [
                    slot_spec(each, self._times, self._id(at))
                    for at, each in zip(numbers, groups, strict=True)
                ],
                gang_id=f"{self._prefix}-gang-{request}",
            )
            try:
                made = await retry_until_answered(
                    partial(self._job.request_slots, spec), "requesting slots"
                )
            except RequestRejected as error:
                return error
            self._requests.update(zip(numbers, made, strict=True))
        requests = [self._requests[each] for each in numbers if each in self._requests]
        try:
            await all_granted(requests)
        except RequestRejected as error:
            return error
        except JobEnded:
            raise
        except FinegrainError:
            pass  # a slot was lost before all slots were granted
        for each in numbers:
            self._watch(each)
        slots = [self.slot(each) for each in numbers]
        return tuple(each.executor_id if each is not None else "" for each in slots)

    async def cancel_request(self, request: int) -> None:
        """Cancels a request. The resource manager releases slots that were granted in the
        meantime.
        """
        numbers = self._numbers.get(request, range(0))
        for each in numbers:
            self._unwatch(each)
        requests = [self._requests.pop(each) for each in numbers if each in self._requests]
        if requests:
            await retry_until_answered(partial(self._job.cancel, requests), "cancelling requests")

    async def release(self, number: int, *, finished: bool = False) -> None:
        """Releases a slot, or cancels its request. `finished` is True if the tasks in the slot have
        done their work.
        """
        self._unwatch(number)
        request = self._requests.pop(number, None)
        if request is None or request.has_ended:
            return
        if request.slot is None:
            await retry_until_answered(request.cancel, "cancelling a request")
        else:
            thread_end = ThreadEnd.FINISHED if finished else ThreadEnd.UNFINISHED
            work = partial(request.slot.release, thread_end=thread_end)
            await retry_until_answered(work, "releasing a slot")

    def report_lost(self, number: int) -> None:
        """Reports the loss of a slot that has ended without a release, or of its host."""
        self._unwatch(number)
        request = self._requests.pop(number, None)
        slot = request.slot if request is not None else None
        if request is not None and slot is not None and request.reason == Reason.EXECUTOR_LOST:
            self._deliver(HostLost(slot.executor_id))
        elif request is not None and request.reason == Reason.REVOKED:
            self._deliver(SlotRevoked(number))
        else:
            self._deliver(SlotLost(number))

    def _watch(self, number: int) -> None:
        request = self._requests.get(number)
        if request is None or number in self._watched:
            return
        listener = partial(self._changed, number)
        self._watched[number] = listener
        request.on_change(listener)
        self._changed(number)

    def _unwatch(self, number: int) -> None:
        listener = self._watched.pop(number, None)
        if listener is not None:
            self._requests[number].off_change(listener)

    def _changed(self, number: int) -> None:
        request = self._requests[number]
        # If the whole job has ended, the runner's watch reports the end of the job.
        if request.slot is not None and isinstance(request.slot.error, JobEnded):
            return
        if request.has_ended or request.slot is None or request.slot.has_ended:
            self.report_lost(number)

    def _id(self, number: int) -> str:
        return f"{self._prefix}-{number}"


def rejection_text(plan: Plan, effect: RequestSlots, error: RequestRejected) -> str:
    """Returns the reason why a region cannot get its slots, with the operators whose slots were
    rejected.
    """
    number = int(error.rejections[0].allocation_id.rpartition("-")[2])
    group = effect.places[number - effect.first_slot].group
    names = [
        operator.name
        for chain in plan.group_of[group].chains
        if plan.chain_named[chain].region == effect.region
        for operator in plan.chain_named[chain].operators
    ]
    slots = sum(each.group == group for each in effect.places)
    return (
        f"{'operators' if len(names) > 1 else 'operator'} {', '.join(names)} of region "
        f"{effect.region} cannot get {slots} slot{'s' if slots > 1 else ''}: "
        f"{error.rejections[0].message}"
    )
