"""What must always hold, and what once everything has healed. Sees all, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from finegrain.errors import InvariantBroken, Reason
from finegrain.resources import booking, fits, has_separate_pools, total_of
from resource_manager.engine.effects import Effect, PublishJobEvent, SendFree
from resource_manager.engine.entities import (
    ENDED_REQUEST_STATES,
    ExecutorState,
    Request,
    RequestState,
)
from resource_manager.engine.events import RegistrationAnswer, ReportAnswer
from resource_manager.engine.invariants import check_invariants
from resource_manager.engine.placement.feasibility import judge
from resource_manager.engine.state import State
from task_executor.engine.slots import SlotKey, SlotState

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.job_master import JobMaster
    from tests.simulation.slot_host import SlotHost


QUIET_CHECK_EVERY = 4
"""Batches that only brought signs of life."""

IDLE_CHECK_EVERY = 10
"""Batches; that check looks at every shape and host."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Checks:
    """Looks at everybody's books."""

    def __init__(self) -> None:
        self.executors: dict[str, Executor] = {}
        self.masters: dict[str, JobMaster] = {}
        self.placed: dict[SlotKey, str] = {}  # where each generation was carved
        self.promised: dict[str, str] = {}  # acknowledged request to job
        self.in_use: dict[str, dict[str, int]] = {}
        self.batches = 0
        self.grants = self.ends = self.losses = 0

    def require(self, problems: Iterable[str]) -> None:
        """Raises `Violation` with the first problems, if there are any."""
        found = list(problems)
        if found:
            raise Violation("\n".join(found[:5]))

    # -- always ----------------------------------------------------------------------------

    def books(self, state: State) -> None:
        """After every start of a resource manager."""
        self.require(check_invariants(state))
        self.require(
            f"acknowledged request {name} is forgotten"
            for name, job_id in self.promised.items()
            if job_id in state.jobs and name not in state.requests
        )

    def decided(self, state: State, effects: list[Effect], *, changed: bool) -> None:
        """After every batch; `changed`: it touched a row."""
        self.batches += 1
        if changed or self.batches % QUIET_CHECK_EVERY == 0:
            self.require(check_invariants(state))
        self.require(self._orders_without_slots(state))
        if self.batches % IDLE_CHECK_EVERY == 0:
            self.require(self._idle(state))
        for effect in effects:
            if isinstance(effect, SendFree):
                self.nobody_owns(state, [(name, number) for name, number, _ in effect.slots])
            elif isinstance(effect, PublishJobEvent):
                self._job_event(effect)

    def _orders_without_slots(self, state: State) -> Iterator[str]:
        """What was ordered stays booked until its outcome is known."""
        for host in state.hosts.values():
            if host.in_flight is not None and host.in_flight.allocates:
                table = self.executors[host.host_id].table
                for key in host.in_flight.keys:
                    if key not in host.slots and table.get(SlotKey(*key)) is not None:
                        yield f"slot {key} exists at {host.host_id}, but is booked no longer"

    def _idle(self, state: State) -> Iterator[str]:
        """Nobody waits for what is free."""
        for shape in state.queue.shapes():
            head = shape.head()
            for host in state.hosts.values():
                if head is not None and host.eligible and judge(host, shape).fits:
                    older = any(name == head.allocation_id for name, _ in host.slots)
                    if not older:
                        yield f"{head.allocation_id} waits, but {host.host_id} has room for it"

    def nobody_owns(self, state: State, keys: Iterable[tuple[str, int]]) -> None:
        """Slots that are to be freed serve no living request."""
        self.require(
            f"slot {name}/{generation} is freed, but its request is {request.state}"
            for name, generation in keys
            if (request := state.requests.get(name)) is not None
            and request.generation == generation
            and request.state in (RequestState.GRANTED, RequestState.ALLOCATING)
        )

    def answered(self, state: State, answer: object) -> None:
        """What an executor is told to free."""
        if isinstance(answer, ReportAnswer | RegistrationAnswer):
            self.nobody_owns(state, answer.unowned)

    def _job_event(self, effect: PublishJobEvent) -> None:
        event = effect.event
        self.grants += event.state is RequestState.GRANTED
        self.ends += event.state in ENDED_REQUEST_STATES
        if event.reason == Reason.SLOT_MISSING and event.slot is not None:
            self.losses += 1
            executor = self.executors[str(event.slot["executor_id"])]
            generation = event.slot["generation"]
            assert isinstance(generation, int)
            slot = executor.table.get(SlotKey(event.allocation_id, generation))
            if executor.up and slot is not None and slot.state is SlotState.ALLOCATED:
                name = f"{event.allocation_id}/{generation}"
                raise Violation(f"slot {name} is called missing, but {executor.name} has it")

    def host(self, executor: SlotHost) -> None:
        """After every change of a host."""
        try:
            executor.table.check_invariants()
        except InvariantBroken as error:
            raise Violation(f"{executor.name}: {error}") from error
        total = executor.share.total
        separate = has_separate_pools(total)
        real = total_of(
            booking(s.profile, separate_pools=separate) for s in executor.on_host.values()
        )
        before = self.in_use.get(executor.name, {})
        self.in_use[executor.name] = real
        # A share that was made smaller over a restart may be exceeded by what is there already.
        if not fits(real, total) and not fits(real, before):
            raise Violation(f"{executor.name} really has {real} of {dict(total)} in use")
        for key in executor.on_host:
            if self.placed.setdefault(key, executor.name) != executor.name:
                raise Violation(f"{key} is on {executor.name} and was on {self.placed[key]}")

    def acknowledged(self, job_id: str, names: Iterable[str]) -> None:
        """Requests that a job master may rely on from now on."""
        self.promised.update(dict.fromkeys(names, job_id))

    # -- once everything has healed ----------------------------------------------------------

    def healed(self, state: State, why_waiting: Callable[[Request], str]) -> None:
        """Books and tables agree, and every request is where it should be."""
        self.books(state)
        for executor in self.executors.values():
            self._agree(state, executor)
        for request in state.requests.values():
            if request.state is RequestState.ALLOCATING:
                raise Violation(f"request {request.allocation_id} is still ALLOCATING")
            if request.state is RequestState.PENDING:
                self._must_wait(request, why_waiting(request))
        for master in self.masters.values():
            if master.up and not master.over:
                self._told(state, master)

    def _agree(self, state: State, executor: Executor) -> None:
        host = state.hosts.get(executor.name)
        if host is None or host.executor.state is not ExecutorState.ACTIVE:
            raise Violation(f"{executor.name} is {host and host.executor.state}")
        books = {key: str(slot.state) for key, slot in host.slots.items()}
        table = {tuple(slot.key): str(slot.state) for slot in executor.table}
        if books != table or set(executor.on_host) != {slot.key for slot in executor.table}:
            raise Violation(f"{executor.name} has {table}, the books say {books}")
        free = {k: v for k, v in executor.table.available().items() if v > 0}
        if host.free() != free:
            raise Violation(f"{executor.name} has {free} left, the books say {host.free()}")
        if host.in_flight or host.to_allocate or host.to_free:
            raise Violation(f"{executor.name} is still waiting for commands")

    def _must_wait(self, request: Request, why: str) -> None:
        spec = request.spec
        for executor in self.executors.values():
            profile = spec.profile or executor.default_profile
            separate = has_separate_pools(executor.share.total)
            if (
                fits(booking(profile, separate_pools=separate), executor.table.available())
                and set(spec.required_labels) <= set(executor.labels)
                and (len(executor.table) < (executor.share.slots_max or 1 << 30))
            ):
                raise Violation(
                    f"{request.allocation_id} waits ({why}), but {executor.name} has room for it"
                )

    def _told(self, state: State, master: JobMaster) -> None:
        """The log tells the same as the books."""
        for name in sorted(master.acknowledged):
            request, event = state.requests[name], master.seen.get(name)
            told = event.state if event is not None else RequestState.PENDING
            if told is not request.state:
                raise Violation(f"{master.name} was told that {name} is {told}: {request.state}")
            if request.state is RequestState.GRANTED:
                assert event is not None
                assert event.slot is not None
                if event.slot["generation"] != request.generation:
                    raise Violation(f"{master.name} was told another generation of {name}")

    def empty(self, state: State) -> None:
        """All jobs have ended: nothing is left anywhere."""
        self.books(state)
        for executor in self.executors.values():
            self._agree(state, executor)
            if len(executor.table):
                raise Violation(
                    f"{executor.name} still has {[tuple(s.key) for s in executor.table]}"
                )
        living = [r.allocation_id for r in state.requests.values() if not r.end_time_ms]
        self.require(f"request {name} still lives" for name in living)
