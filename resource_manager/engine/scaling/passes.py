"""Runs the planning pass, which requests new executors and gives back executors that are not
needed.

If the queue is long, a pass takes several cycles. Each cycle continues where the last cycle stopped
(`planning/steps.py`).

A pass starts `plan_interval_ms` after the first cycle that needs a pass. This delay has two
effects: requests that arrive one by one are planned together, and a slot that is being freed can
still serve the next request. Queued requests are planned again only if the result could differ from
the last plan.

After a restart, no plan is made until the known executors have registered again, because the queued
requests possibly fit on them.
"""

from __future__ import annotations

from math import gcd

from finegrain.values.states import ExecutorState, ProvidedExecutorState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.provisions import ProvisionMoves, is_lost
from resource_manager.engine.model.entities import Instant, Provision
from resource_manager.engine.model.settings import EngineSettings, ExecutorShape
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.elastic import PENDING, Elastic
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.planning.cover import cover
from resource_manager.engine.planning.draft import COST_UNIT
from resource_manager.engine.planning.offers import Allowance, Offer
from resource_manager.engine.planning.steps import Steps, advance, finish
from resource_manager.engine.scaling.backlog import PATIENCE, more_of, note_totals, plan_waiting
from resource_manager.engine.scaling.emptying import Emptying
from resource_manager.engine.scaling.spare import Spare
from resource_manager.engine.state import State

_PARTS_MAX = 5_000
"""The approximate limit for the number of units of a missing amount (see `_cheapest`). The limit
keeps the search for the cheapest set small.
"""

WORK_MAX = 7_000
"""The limit for the work (`planning/steps.py`) of a planning pass in one cycle. The work of one
cycle takes some milliseconds.
"""

MINIMUM = "minimum"
"""The stored cause of an executor that is requested to reach the configured minimum, and not for a
request.
"""


def provide(state: State) -> None:
    """Runs a planning pass if a pass is due. The scheduling cycle calls this function after its
    placements, if there are executor shapes or provisions.
    """
    elastic = state.elastic
    if elastic.resumes:
        elastic.resumes = False
        state.provision_moves.resume()
    interval_ms = elastic.provisioning.plan_interval_ms
    if elastic.next_pass_ms is None and elastic.steps is None:
        elastic.next_pass_ms = state.journal.now_ms + interval_ms
    elif not state.queue_unfinished:
        # While the queue is unfinished, no pass runs: the next cycles can still place requests,
        # which then need no new executor.
        if elastic.steps is None and state.journal.now_ms >= (elastic.next_pass_ms or 0):
            elastic.steps, elastic.next_pass_ms = _pass(state), None
        if elastic.steps is not None and advance(elastic.steps, WORK_MAX):
            elastic.steps = None
            # If no request and no gang waits, no provision exists and no amount is missing, another
            # pass would change nothing. So no further pass is scheduled.
            waiting = state.queue.by_job or state.gangs.waiting
            if waiting or state.provisions or _missing(state.settings, state.provision_moves):
                elastic.next_pass_ms = state.journal.now_ms + interval_ms
    if elastic.next_pass_ms is not None:
        state.timers.arm(Timer.PLAN, "", elastic.next_pass_ms)


def _pass(state: State) -> Steps[None]:
    """Checks all provisions, requests executors for queued requests and for the configured minimum,
    and then gives back executors that are not needed.
    """
    for provision in list(state.provisions.values()):
        # The pass pauses at each `yield`, so the provision has possibly been deleted during a
        # pause.
        if provision.executor_id in state.provisions:
            _check_provision(state, provision)
            yield 1
    if _are_expected_back(state.journal, state.hosts, state.settings, state.started):
        return
    # Plan first, because executors that the plan needs must not be given back.
    yield from plan_waiting(state)
    _request_minimum(state.provision_moves)
    yield len(state.provisions)
    _give_back_surplus(state)
    yield len(state.provisions)
    _give_back_idle(state)
    yield len(state.provisions)
    Emptying(state).choose()


def _check_provision(state: State, provision: Provision) -> None:
    """Stops a provision if its executor did not register in time, has been lost for too long, or
    was deleted by an administrator.
    """
    elastic = state.elastic
    shape = elastic.shapes.get(provision.shape)
    if provision.state in PENDING and shape is not None:
        after_stall_ms = state.timers.listening_since_ms + shape.start_timeout_ms
        # During a stall, the resource manager cannot receive registrations. So after a stall, the
        # executor gets the whole timeout again.
        if state.journal.now_ms >= max(provision.deadline_at_ms or 0, after_stall_ms):
            seconds = shape.start_timeout_ms // 1_000
            state.provision_moves.fail(provision, f"did not register within {seconds} s")
    elif provision.state is ProvidedExecutorState.REGISTERED:
        host = state.hosts.get(provision.executor_id)
        if host is None:
            state.provision_moves.stop(provision, "an administrator deleted the executor")
        elif is_lost(host):
            # The time of the loss is not stored, so after a restart of the resource manager the
            # timeout begins again.
            since_ms = elastic.lost_since_ms.setdefault(provision.executor_id, state.journal.now_ms)
            if state.journal.now_ms - since_ms >= elastic.provisioning.provided_lost_timeout_ms:
                seconds = elastic.provisioning.provided_lost_timeout_ms // 1_000
                state.provision_moves.stop(provision, f"was lost for {seconds} s")
        else:
            elastic.lost_since_ms.pop(provision.executor_id, None)
            _judge_by_use(elastic, state.provision_moves, provision, host)


def _judge_by_use(
    elastic: Elastic, provision_moves: ProvisionMoves, provision: Provision, host: Host
) -> None:
    """Gives the shape of an executor a back-off if the executor cannot be reached, or if it
    repeatedly refuses slots. Without the back-off, executors of this shape would be requested and
    given back again and again.
    """
    verdicts = elastic.verdicts
    if verdicts.get(host.host_id):
        return
    if any(slot.state is SlotState.ALLOCATED for slot in host.slots.values()):
        provision_moves.proved(provision)
        return
    lack = ""
    if host.reach.unreachable:
        lack = f"cannot be reached at {host.executor.registration.address}"
    elif (refused := max([r.failures for r in host.refusals.values()], default=0)) > PATIENCE:
        lack = f"refused a slot {refused} times"
    if lack and host.host_id not in verdicts:
        verdicts[host.host_id] = False
        provision_moves.back_off(provision.shape, f"{host.host_id}: registered, and {lack}")


def _are_expected_back(
    journal: Journal, hosts: Hosts, settings: EngineSettings, started: Instant
) -> bool:
    """Returns whether known executors are still expected to register with this resource manager."""
    # After the lost timeout, planning does not wait any longer for executors that have not
    # registered.
    if journal.now_ms >= started.monotonic_ms + settings.lost_timeout_ms:
        return False
    return any(
        host.executor.state is ExecutorState.UNCONFIRMED and not host.reach.unreachable
        for host in hosts.values()
    )


def _missing(settings: EngineSettings, provision_moves: ProvisionMoves) -> dict[str, int]:
    """Returns the amounts that are missing to reach the configured minimum, by dimension."""
    least = settings.provisioning.total_min
    if not least:
        return {}
    there = provision_moves.retained_total()
    return {
        name: amount - there.get(name, 0)
        for name, amount in least.items()
        if amount > there.get(name, 0)
    }


def _request_minimum(moves: ProvisionMoves) -> None:
    """Requests executors for the configured minimum. The dimensions are handled one after the
    other. For each dimension, the function requests the cheapest set of executors that provides the
    missing amount.
    """
    for name in sorted(_missing(moves.settings, moves)):
        # Executors that were just requested for another dimension also provide amounts of this
        # dimension.
        lack = _missing(moves.settings, moves).get(name, 0)
        if lack <= 0:
            continue
        shapes = [each for each in moves.requestable_shapes() if each.total.get(name, 0)]
        room = moves.room_below_maximum()
        for shape, count in _cheapest(moves.provisions, shapes, name, lack):
            for _ in range(count):
                if any(shape.total.get(each, 0) > left for each, left in room.items()):
                    break
                moves.request_executor(shape, MINIMUM)
                note_totals(moves, [shape])
                room = {each: left - shape.total.get(each, 0) for each, left in room.items()}


def _cheapest(
    provisions: dict[str, Provision], shapes: list[ExecutorShape], name: str, lack: int
) -> list[tuple[ExecutorShape, int]]:
    """Returns the number of executors of each shape that together provide `lack` of dimension
    `name` at the lowest cost.

    The greatest common divisor of the shapes' amounts is the unit of all amounts. Example: 10 cpus
    are missing, and the shapes have 4 cpus at cost 1.0 and 8 cpus at cost 1.5. The unit is 4 cpus,
    and 3 units are needed. One executor of each shape (cost 2.5) is cheaper than three small
    executors (cost 3.0).
    """
    if not shapes:
        return []
    unit = gcd(*[shape.total[name] for shape in shapes])
    # If the common divisor is very small, use a larger unit, and round the amounts of shapes down
    # to whole units.
    if lack // unit > _PARTS_MAX:
        unit = max(unit, min(lack // _PARTS_MAX, *[shape.total[name] for shape in shapes]))
    # For `cover`, each missing unit is one request. If even all allowed executors together are not
    # enough, `cover` chooses all of them.
    offers = [
        Offer([shape.total[name] // unit], [((0, 1),)], max(1, round(shape.cost * COST_UNIT)))
        for shape in shapes
    ]
    allowance = Allowance([more_of(provisions, shape) for shape in shapes])
    # Round up. Otherwise the minimum would not be reached.
    chosen = finish(cover({0: -(-lack // unit)}, offers, allowance))
    return [(shapes[each.offer], each.copies) for each in chosen.purchases]


def _give_back_surplus(state: State) -> None:
    """Stops the pending executors that no request has needed in two planning passes in a row."""
    elastic = state.elastic
    before, elastic.surplus = elastic.surplus, set()
    spare = Spare(state)
    for provision in _most_expensive_first(state.provisions, state.elastic):
        name = provision.executor_id
        if provision.state not in PENDING or elastic.plan.on.get(name):
            continue
        total = elastic.shapes[provision.shape].total
        if not spare.has(total):
            continue
        if name in before:
            state.provision_moves.stop(provision, "no request needs it any more")
            spare.give(total)
        else:
            elastic.surplus.add(name)


def _give_back_idle(state: State) -> None:
    """Gives back executors that have had no slots for the idle timeout."""
    elastic = state.elastic
    timeout_ms = elastic.provisioning.idle_timeout_ms
    spare = Spare(state)
    for provision in _most_expensive_first(state.provisions, state.elastic):
        host = state.hosts.get(provision.executor_id)
        if provision.state is not ProvidedExecutorState.REGISTERED or host is None:
            continue
        # A host with a reservation counts as busy, because the owner of the reservation will use it
        # soon.
        busy = host.slots or host.reserved is not None
        if busy or host.executor.state is not ExecutorState.ACTIVE:
            provision.idle_since_ms = None
            continue
        # If one of these numbers has changed, the host possibly had slots between two passes.
        mark = (host.executor.registration_number, host.executor.command_number)
        if provision.idle_since_ms is None or elastic.idle_marks.get(host.host_id) != mark:
            provision.idle_since_ms = state.journal.now_ms
            elastic.idle_marks[host.host_id] = mark
        idle_ms = state.journal.now_ms - provision.idle_since_ms
        # Keep executors in `counted_on`, because a planned gang needs them together with executors
        # that have not registered yet.
        if idle_ms < timeout_ms or provision.executor_id in elastic.plan.counted_on:
            continue
        total = host.executor.registration.total
        if spare.has(total):
            state.provision_moves.stop(provision, f"had no slots for {idle_ms // 1_000} s")
            spare.give(total)


def _most_expensive_first(provisions: dict[str, Provision], elastic: Elastic) -> list[Provision]:
    """Returns provisions in the order of their costs, the most expensive provision first. Of
    equally expensive provisions, the newest comes first.
    """
    shapes = elastic.shapes

    def rank(each: Provision) -> tuple[float, int]:
        shape = shapes.get(each.shape)
        return (-shape.cost if shape is not None else 0.0, -each.number)

    return sorted(provisions.values(), key=rank)
