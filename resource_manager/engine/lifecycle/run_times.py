"""Estimates how long slots will run, from the requests and from earlier slots.

The expected run time of a request is the first value that exists of these three: its hint
`expected_run_time`, its time limit, and the estimate from the latest slots of its job and class. If
none of the three exists, the expected run time is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.resources import Amounts, add, fits
from finegrain.values.states import SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.entities import Job, RequestSpec, Slot
from resource_manager.engine.model.scheduling_key import SLOTS, scheduling_key
from resource_manager.engine.queue.requests import Requests

DOUBLED_MAX = 30
"""When a slot runs longer than its expected run time, the expected run time is doubled. After this
number of doublings, the end of the slot counts as unknown.
"""


def declares(spec: RequestSpec) -> bool:
    """Returns True if a request has an expected run time or a time limit."""
    return spec.expected_run_time_ms is not None or spec.time_limit_ms is not None


@dataclass(slots=True, eq=False)
class RunTimes:
    """Estimates how long slots run, and when they end, as of the present time.

    Attributes:
        journal: the journal, with the present time.
        requests: all requests.
        jobs: all jobs, by id.
        declared: True if any request has declared a run time since this process started. If no
            request has declared a run time, no start is planned.
    """

    journal: Journal
    requests: Requests
    jobs: Mapping[str, Job]
    declared: bool = False

    @property
    def now_ms(self) -> int:
        """The present time (monotonic)."""
        return self.journal.now_ms

    def expected_ms(self, spec: RequestSpec, job_id: str) -> int | None:
        """Returns the probable run time of a slot of a request; None: the run time is not known."""
        if spec.expected_run_time_ms is not None:
            return spec.expected_run_time_ms
        if spec.time_limit_ms is not None:
            return spec.time_limit_ms
        job = self.jobs.get(job_id)
        recent = job.run_times.get(scheduling_key(spec)) if job is not None else None
        return recent.expected_ms if recent is not None else None

    def end_ms(self, slot: Slot) -> int | None:
        """Returns the monotonic time at which a slot will probably end; None: the time is not
        known.

        If a slot has run longer than its expected run time, the estimate is twice the expected run
        time, then four times, and so on.
        """
        if slot.state is SlotState.FREEING:
            return self.now_ms
        request = self.requests.get(slot.allocation_id)
        if request is None:
            return None
        expected_ms = self.expected_ms(request.spec, slot.job_id)
        since_ms = self.now_ms if slot.state is SlotState.PENDING else slot.thread_since_ms
        if expected_ms is None or since_ms is None:
            return None
        expected_ms, doubled = max(1, expected_ms), 0
        while since_ms + expected_ms <= self.now_ms and doubled < DOUBLED_MAX:
            expected_ms, doubled = 2 * expected_ms, doubled + 1
        if doubled == DOUBLED_MAX:
            return None
        limit_ms = slot.time_limit_ms
        return since_ms + (expected_ms if limit_ms is None else min(expected_ms, limit_ms))

    def ready_ms(self, host: Host, need: Amounts) -> int | None:
        """Returns the monotonic time at which a host will probably have these amounts free. In
        `need`, `SLOTS` is the number of slots. Returns None if the time is not known.
        """
        free: Amounts = {**host.free(), SLOTS: host.slots_left()}
        if fits(need, free):
            return self.now_ms
        ends: list[tuple[int, int, Amounts]] = []
        for number, slot in enumerate(host.slots.values()):
            end_ms = self.end_ms(slot)
            if end_ms is not None:
                ends.append((end_ms, number, slot.booked))
        for end_ms, _, booked in sorted(ends, key=lambda each: each[:2]):
            free = add(free, {**booked, SLOTS: 1})
            if fits(need, free):
                return max(end_ms, self.now_ms)
        return None

    def empty_ms(self, host: Host) -> int | None:
        """Returns the monotonic time at which a host will probably have no slots any more, if it
        gets no new slots. Returns None if the time is not known.
        """
        latest_ms = self.now_ms
        for slot in host.slots.values():
            end_ms = self.end_ms(slot)
            if end_ms is None:
                return None
            latest_ms = max(latest_ms, end_ms)
        return latest_ms

    def start_ms(
        self, hosts: Mapping[str, Host], kept: Mapping[str, ReservedCapacity]
    ) -> int | None:
        """Returns the monotonic time at which all reserved capacity will probably be free; None:
        the time is not known.
        """
        latest_ms = self.now_ms
        for name, each in kept.items():
            need = {**each.amounts, SLOTS: each.slots} if each.slots else each.amounts
            ready_ms = self.ready_ms(hosts[name], need)
            if ready_ms is None:
                return None
            latest_ms = max(latest_ms, ready_ms)
        return latest_ms
