"""Checks that provisions stay known until their executor is gone, and are within the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from finegrain.resources import (
    Amounts,
    add,
    booking,
    fits,
    has_separate_pools,
    subtract,
    total_of,
)
from finegrain.values.states import ExecutorState, ProvidedExecutorState
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Provision, RequestSpec, Slot
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.scaling.passes import MINIMUM
from resource_manager.engine.state import State
from tests.simulation.cloud import Cloud
from tests.simulation.fair_checks import Limits

PENDING = (ProvidedExecutorState.ASKED, ProvidedExecutorState.STARTED)


@dataclass
class ProvisionChecks:
    """Records of every executor that was requested."""

    cloud: Cloud | None = None
    # Problems that were found at a place where no caller can raise them.
    wrong: list[str] = field(default_factory=list)
    _asked: set[str] = field(default_factory=set)  # executors whose order was ever on disk
    _disobeyed: set[str] = field(default_factory=set)
    _by_hand: set[str] = field(default_factory=set)

    # -- the provider ----------------------------------------------------------------------

    def started(self, executor_id: str) -> None:
        """The provider is called to start an executor."""
        if executor_id not in self._asked:
            self.wrong.append(f"{executor_id} is started, and nobody has written that down")

    def disobeyed(self, executor_id: str) -> None:
        """An executor runs although its provider has reported its end."""
        self._disobeyed.add(executor_id)

    def started_by_hand(self, executor_id: str) -> None:
        """An administrator started an executor, with the id of a pending one or another (empty)."""
        self._by_hand.add(executor_id)

    def is_over(self, executor_id: str) -> bool:
        """Returns whether the provider has reported the end of the executor. If it has, the
        executor may be lost at once.
        """
        machines = {} if self.cloud is None else self.cloud.machines
        return executor_id in machines and machines[executor_id].stopped

    # -- the engine ------------------------------------------------------------------------

    def decided(self, state: State, changes: Changes) -> Iterator[str]:
        """Checks a batch; yields problems."""
        yield from self.wrong
        new = [each for each in changes.provisions if each.executor_id not in self._asked]
        provisioning = state.settings.provisioning
        if any(each.state in PENDING for each in new):
            yield from _too_many(state, new)
            have, most = _totals(state, provisioning), provisioning.total_max
            for name in most.keys() & have.keys():
                if have[name] > most[name]:
                    yield f"{have[name]} of {name} are asked for, at most {most[name]} may be"
        for name, each in state.provisions.items():
            host = state.hosts.get(name)
            if each.state is ProvidedExecutorState.STOPPING and host is not None and host.eligible:
                yield f"{name} is stopped, and slots may be placed on it"
        for shape in provisioning.shapes:
            # An executor that registers after it was given up may exceed the maximum.
            asked = any(each.shape == shape.name and each.state in PENDING for each in new)
            count = sum(each.shape == shape.name for each in state.provisions.values())
            if asked and shape.count_max and count > shape.count_max:
                yield f"{count} executors of shape {shape.name}, at most {shape.count_max} may be"

    def stored(self, changes: Changes) -> Iterator[str]:
        """Checks a durable transaction; yields problems."""
        self._asked.update(each.executor_id for each in changes.provisions)
        for name in changes.deleted_provisions:
            if self.cloud and name in self.cloud.running() and name not in self._disobeyed:
                yield f"{name} is struck from the books, and its machine runs"

    # -- in the end ------------------------------------------------------------------------

    def healed(self, state: State) -> Iterator[str]:
        """Yields differences between the provider's machines and the engine's provisions."""
        if self.cloud is None:
            return
        pending = [each for each in state.provisions.values() if each.state in PENDING]
        registered = {
            name
            for name, each in state.provisions.items()
            if each.state is ProvidedExecutorState.REGISTERED
        }
        awaited = {each.executor_id for each in pending}
        stopping = state.provisions.keys() - registered - awaited
        running = self.cloud.running()
        # An executor that was started by hand may serve in place of one that the provider lacks.
        registered -= self._by_hand
        if running - state.provisions.keys():
            yield f"{sorted(running - state.provisions.keys())} run, and nobody knows of them"
        if registered - running:
            yield f"{sorted(registered - running)} are registered, and do not run"
        if awaited - running:
            yield f"{sorted(awaited - running)} are awaited for ever"
        if stopping - running:
            yield f"{sorted(stopping - running)} are stopped for ever"

    def empty(self, state: State) -> Iterator[str]:
        """Checks that an idle cluster has only the executors that the minimum requires."""
        if self.cloud is None:
            return
        provisioning, provisions = state.settings.provisioning, state.provisions
        for name, each in provisions.items():
            if each.state is not ProvidedExecutorState.REGISTERED:
                yield f"{name} is {each.state}, and nothing happens to it"
        have, least = _totals(state, provisioning), provisioning.total_min
        for name in provisions:
            host = state.hosts.get(name)
            if host is not None:
                left = subtract(have, host.executor.registration.total)
                if fits(least, left):
                    yield f"{name} is kept, and no request needs it"
        if not fits(least, have):
            could = [s.name for s in provisioning.shapes if _may(provisioning, s, state, have)]
            if could:
                yield f"there is {have}, at least {dict(least)} should be: {could} could be asked"


def _too_many(state: State, new: list[Provision]) -> Iterator[str]:
    """Yields requests that are planned twice. Also yields starts that happen while a pending
    executor is unused.
    """
    plan = state.elastic.plan.on
    planned: Counter[SchedulingClass] = Counter()
    for content in plan.values():
        planned.update(content.classes)
    for wish, count in planned.items():
        if count > wish.waiting:
            yield f"{count} requests are planned for, {wish.waiting} of these wait"
    asked = {each.shape for each in new if each.state in PENDING and each.cause != MINIMUM}
    for name, each in state.provisions.items():
        if each in new or each.state not in PENDING or each.shape not in asked:
            continue
        if not plan.get(name):
            yield f"one more {each.shape} is asked for, and nobody is planned on {name}"


def waits_in_vain(state: State, spec: RequestSpec) -> Iterator[str]:
    """Yields requests that wait although one more executor could serve them.

    While a start or stop is in flight, such a wait is allowed.
    """
    provisioning = state.settings.provisioning
    have = _totals(state, provisioning)
    if any(
        each.state is not ProvidedExecutorState.REGISTERED for each in state.provisions.values()
    ):
        return
    if spec.cpu_policy.topology_constrained:
        return  # the cpus of a new executor are known only from earlier ones, if at all
    for shape in provisioning.shapes:
        profile = spec.profile or shape.default_profile
        need = booking(profile, separate_pools=has_separate_pools(shape.total))
        suits = set(spec.required_labels) <= set(shape.labels) and fits(need, shape.total)
        if suits and _may(provisioning, shape, state, have):
            yield f"{spec.allocation_id} waits, and a {shape.name} could be asked for"


Planned = dict[str, list[tuple[SchedulingClass, int]]]
"""Scheduling classes and counts of planned requests, by pending executor."""


def planned_on(state: State) -> Planned:
    """Returns the plan before a batch."""
    return {name: list(each.classes.items()) for name, each in state.elastic.plan.on.items()}


def served_first(state: State, planned: Planned) -> Iterator[str]:
    """Checks after a batch that a new executor serves the requests that were planned on this
    executor.
    """
    for name, content in planned.items():
        provision, host = state.provisions.get(name), state.hosts.get(name)
        if (
            provision is None
            or host is None
            or provision.state is not ProvidedExecutorState.REGISTERED
        ):
            continue
        shape = next(s for s in state.settings.provisioning.shapes if s.name == provision.shape)
        registration = host.executor.registration
        total = {n: amount for n, amount in registration.total.items() if n in shape.total}
        if total != shape.total or set(registration.labels) != set(shape.labels):
            continue
        if registration.slots_max != shape.slots_max or not host.eligible:
            continue
        if any(wish.best_effort and wish.profile is None for wish, _ in content):
            # default slots are planned by the cpu of ordinary slots, not of best-effort ones
            continue
        if host.unowned:
            # After a restore, slots that the backup does not know still take the capacity.
            continue
        for wish, count in content:
            if host.needs_topology(wish):
                continue  # planned by amounts alone: its cpu topology was unknown until now
            there = sum(_is_of(state, slot, wish) for slot in host.slots.values())
            if there < count and _somebody_may(state, wish):
                yield (
                    f"{name} has registered and serves {there} of {count} requests that were"
                    f" planned on it, {wish.waiting} of these wait"
                )


def _somebody_may(state: State, wish: SchedulingClass) -> bool:
    """Returns whether a request of this class waits that no maximum blocks."""
    limits, need = Limits(state), [state.quotas.need_of(wish)]
    return any(
        line.numbers and not limits.stop(job_id, need) for job_id, line in wish.job_queues.items()
    )


def _is_of(state: State, slot: Slot, wish: SchedulingClass) -> bool:
    request = state.requests.named(slot.allocation_id)
    assert request is not None
    return scheduling_key(request.spec) == wish.key


def _may(provisioning: Provisioning, shape: ExecutorShape, state: State, have: Amounts) -> bool:
    count = sum(each.shape == shape.name for each in state.provisions.values())
    if shape.count_max and count >= shape.count_max:
        return False
    more, most = add(have, shape.total), provisioning.total_max
    return all(more.get(name, 0) <= amount for name, amount in most.items())


def _totals(state: State, provisioning: Provisioning) -> dict[str, int]:
    """Adds up all executors that are not lost, and all pending executors that have not
    registered.
    """
    shapes = {shape.name: shape.total for shape in provisioning.shapes}

    def to_come(each: Provision) -> bool:
        return each.state in PENDING and each.executor_id not in state.hosts

    return total_of(
        [
            *(
                host.executor.registration.total
                for host in state.hosts.values()
                if host.executor.state is not ExecutorState.LOST
            ),
            *(shapes[each.shape] for each in state.provisions.values() if to_come(each)),
        ]
    )
