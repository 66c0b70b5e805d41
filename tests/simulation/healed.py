"""Checks a healed cluster: managers and executors agree, and no request waits without reason."""

from __future__ import annotations

from finegrain.resources import BEST_EFFORT_CPU_MILLI, booking, fits, has_separate_pools
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Request
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.state import State
from tests.simulation.checks import Checks, Violation
from tests.simulation.executor import Executor
from tests.simulation.fair_checks import Limits
from tests.simulation.job_master import JobMaster
from tests.simulation.provision_checks import waits_in_vain
from tests.simulation.resize_checks import sizes_agree


def check_healed(checks: Checks, state: State) -> None:
    """Checks that every request is in the right state, and that all processes agree on this state.

    Raises:
        Violation: a check failed.
    """
    checks.books(state)
    checks.require(checks.provisions.healed(state))
    checks.require(checks.resizes.healed(state))
    checks.require(checks.rejections.healed(state, checks.now_ms))
    checks.require(checks.resizes.waiting(state))
    checks.require(checks.jobs.healed(state))
    told = {key: each for master in checks.masters.values() for key, each in master.held().items()}
    for executor in checks.executors.values():
        if not _is_double(checks, state, executor):
            _agree(state, executor)
            checks.require(sizes_agree(state, executor, told))
            checks.require(checks.cpus.healed(state, executor))
            checks.require(checks.times.healed(state, executor))
            checks.require(checks.devices.healed(state, executor))
    looked_at, limits = set(), Limits(state)
    waiting = [part.member(part.waiting.first) for part in state.ranges.parts() if part.waiting]
    for request in (*state.requests.values(), *waiting):
        if request.state is RequestState.ALLOCATING:
            raise Violation(f"request {request.allocation_id} is still ALLOCATING")
        shape = scheduling_key(request.spec)
        if request.spec.gang_id:
            continue  # every decision about gangs is checked already
        if request.state is not RequestState.PENDING or shape in looked_at:
            continue
        if not limits.stop_request(request.job_id, request.spec):
            # If one request of a class does not fit, no request of the class fits.
            looked_at.add(shape)
            _must_wait(checks, state, request)
    for master in checks.masters.values():
        if master.up and master.registered and not master.over:
            _told(state, master)


def check_empty(checks: Checks, state: State) -> None:
    """Checks that nothing is left after all jobs have ended.

    Raises:
        Violation: something is left.
    """
    checks.books(state)
    checks.require(checks.provisions.empty(state))
    for executor in checks.executors.values():
        if not _is_double(checks, state, executor):
            _agree(state, executor)
        if len(executor.table) and not _is_double(checks, state, executor):
            raise Violation(f"{executor.name} still has {[tuple(s.key) for s in executor.table]}")
    living = [r.allocation_id for r in state.requests.values() if not r.end_time_ms]
    living += [part.id_of(part.waiting.first) for part in state.ranges.parts() if part.waiting]
    checks.require(f"request {name} still lives" for name in living)


def _is_double(checks: Checks, state: State, executor: Executor) -> bool:
    """Returns whether another executor registered under this id and is not lost.

    The resource manager then always refuses this executor.
    """
    host = state.hosts.get(executor.executor_id)
    return host is not None and checks.at(host.executor.registration.address) is not executor


def _agree(state: State, executor: Executor) -> None:
    host = state.hosts.get(executor.executor_id)
    if host is None or host.executor.state is not ExecutorState.ACTIVE:
        raise Violation(f"{executor.name} is {host and host.executor.state}")
    books = {key: str(slot.state) for key, slot in host.slots.items()}
    table = {tuple(slot.key): str(slot.state) for slot in executor.table}
    if books != table or set(executor.on_host) != {slot.key for slot in executor.table}:
        raise Violation(f"{executor.name} has {table}, the books say {books}")
    free = _free(executor)
    if host.free() != free:
        raise Violation(f"{executor.name} has {free} left, the books say {host.free()}")
    if host.in_flight or host.to_allocate or host.to_free:
        raise Violation(f"{executor.name} is still waiting for commands")


def _free(executor: Executor) -> dict[str, int]:
    """Returns the amounts that new slots can have there, without zeros.

    While LSE slots hold every cpu of the best-effort pool, best-effort cpu that is not booked is
    not free.
    """
    free = {name: amount for name, amount in executor.table.available().items() if amount > 0}
    if not executor.table.cpus.pools.best_effort:
        free.pop(BEST_EFFORT_CPU_MILLI, None)
    return free


def _must_wait(checks: Checks, state: State, request: Request) -> None:
    spec = request.spec
    for executor in checks.executors.values():
        host = state.hosts.get(executor.executor_id)
        if host is None or not host.eligible or _is_double(checks, state, executor):
            continue
        shape = state.queue.class_of(spec)
        if host.needs_topology(shape) and (host.reserved is not None or not host.suits(shape)):
            continue
        profile = spec.profile or executor.default_profile
        separate = has_separate_pools(executor.share.total)
        free, slots = _free(executor), (executor.share.slots_max or 1 << 30)
        left = slots - len(executor.table)
        if host.reserved is not None:
            free = host.reserved.spare(free, executor.share.total, host.slots)
            left = host.reserved.spare_slots(left, slots, host.slots)
        if (
            fits(
                booking(
                    profile,
                    separate_pools=separate,
                    best_effort=spec.cpu_policy.best_effort,
                ),
                free,
            )
            and set(spec.required_labels) <= set(executor.labels)
            and left > 0
        ):
            why = state.waiting_reasons.waiting_reason(state.queue.class_of(spec))
            raise Violation(
                f"{request.allocation_id} waits ({why}), but {executor.name} has room for it"
            )
    checks.require(waits_in_vain(state, spec))


def _told(state: State, master: JobMaster) -> None:
    """Checks that a job master knows the present state."""
    if master.sequence != state.jobs[master.name].last_sequence:
        raise Violation(
            f"{master.name} has heard {master.sequence} of"
            f" {state.jobs[master.name].last_sequence} events"
        )
    for name in sorted(master.acknowledged):
        request, told = state.requests.named(name), master.told_of(name)
        if request is None:
            raise Violation(f"{name} of {master.name} is forgotten")
        if told is None:
            if request.state not in (RequestState.PENDING, *ENDED_REQUEST_STATES):
                raise Violation(f"{master.name} does not know that {name} is {request.state}")
        elif told.state is not request.state:
            raise Violation(f"{master.name} was told that {name} is {told.state}: {request.state}")
        elif told.state is RequestState.GRANTED and told.generation != request.generation:
            raise Violation(f"{master.name} was told another generation of {name}")
