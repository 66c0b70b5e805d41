"""Runs all checks of this package. A check tests whether ledgers agree with each other.

Each finding is one sentence that names the entity. The checks read the whole state and never change
the state. `findings` can pause after each entity, so that the service can check a large state in
short slices between its batches. Tests and the simulator check everything without a pause.

A check can also pause within a sum over many entries. If an entry changes during the pause, the sum
is possibly wrong, so the check does not compare the sum with its counter. The next sweep computes
the sum again (`sweep.add_up`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from resource_manager.engine.invariants.fairness import group_problems, tree_problems
from resource_manager.engine.invariants.hosts import (
    host_problems,
    host_sums,
    index_problems,
    indexed_problems,
    slot_problems,
    superseded_problems,
)
from resource_manager.engine.invariants.jobs import job_problems, job_sums, unknown_jobs
from resource_manager.engine.invariants.provisions import plan_problems, provision_problems
from resource_manager.engine.invariants.queue import (
    class_problems,
    item_problems,
    queue_problems,
    quota_block_problems,
)
from resource_manager.engine.invariants.requests import (
    gang_ledger_problems,
    gang_problems,
    member_problems,
    numbers_of_requests,
    part_problems,
    request_problems,
)
from resource_manager.engine.invariants.reservations import reservations
from resource_manager.engine.invariants.sweep import Finding, each
from resource_manager.engine.model.entities import Request
from resource_manager.engine.state import State


def findings(state: State, *, ended: bool = True) -> Iterator[Finding]:
    """Yields a text for each problem, and None at each point where the sweep can pause.

    Index entries are compared only for hosts that have not changed since the last scheduling cycle.

    Args:
        state: the engine's state. `step` is allowed to change the state while the sweep pauses.
        ended: if true, requests that have ended are checked, too. Usually most requests have ended,
            and ended requests no longer change.
    """
    for check in _checks(state, ended=ended):
        yield from check
        yield None  # pause after each check, because some checks never pause themselves


def _checks(state: State, *, ended: bool) -> Iterator[Iterator[Finding]]:
    """Yields all checks. Each check copies its keys when it begins."""
    jobs, requests, slots, hosts = state.jobs, state.requests, state.slots, state.hosts
    queue, ranges, gangs, endings = state.queue, state.ranges, state.gangs, state.endings
    flows, groups, items = state.flows, state.groups, state.queue.non_batchables
    provisions, elastic = state.provisions, state.elastic
    # The arrival numbers of requests are not copied. The generator reads them one at a time from
    # lists that change only at their end.
    numbers = numbers_of_requests(jobs, requests, ended=ended)
    yield each(numbers, partial(request_problems, state))
    yield each(list(jobs), partial(job_problems, state))
    yield job_sums(jobs, state.live_jobs, requests)
    yield unknown_jobs(jobs, flows, queue, gangs)
    yield each(list(hosts), partial(host_problems, hosts))
    yield each(list(slots), partial(slot_problems, state))
    yield each(list(slots.superseded), partial(superseded_problems, slots))
    yield host_sums(hosts, slots)
    yield each(list(hosts.indexes.all()), partial(index_problems, hosts))
    yield each(list(hosts), partial(indexed_problems, hosts))
    yield each(queue.classes(), partial(class_problems, requests, queue))
    yield each(items.numbers(), partial(item_problems, items, gangs, slots))
    yield each(list(queue.quota_blocked), partial(quota_block_problems, queue))
    yield queue_problems(queue, fair=state.settings.fairness.order == "fair")
    yield each(list(groups), partial(group_problems, flows, groups))
    yield tree_problems(flows, groups)
    # The checks get keyword arguments, because `each` passes the id as the first positional
    # argument.
    gang_check = partial(
        gang_problems, requests=requests, slots=slots, gangs=gangs, items=items, endings=endings
    )
    yield each(list(gangs.by_id), gang_check)
    yield gang_ledger_problems(gangs)
    part_check = partial(part_problems, jobs, requests, queue, endings)
    yield each(list(ranges.parts()), part_check)
    yield each(list(ranges.members), partial(member_problems, ranges))
    yield each(list(provisions), partial(provision_problems, provisions, hosts, elastic))
    yield plan_problems(provisions, elastic, state.settings.provisioning.total_max)
    yield reservations(state)


def check_invariants(state: State, *, ended: bool = True) -> list[str]:
    """Returns all problems; empty if the state is consistent. For the arguments, see `findings`."""
    return [finding for finding in findings(state, ended=ended) if finding is not None]


def check_touched(
    state: State, requests: Iterable[Request], executor_ids: Iterable[str]
) -> list[str]:
    """Returns the problems of these requests and executors.

    The cost depends only on the given requests and executors. So a simulation with a large state
    can call this function after every step.

    Args:
        state: the engine's state.
        requests: the requests to check; deleted requests are skipped.
        executor_ids: the executors to check; unknown ids are skipped.
    """
    hosts = [state.hosts[name] for name in executor_ids if name in state.hosts]
    # Skip a request that was deleted, and an id that now belongs to another request.
    known = [each for each in requests if state.requests.get(each.allocation_id) is each]
    return [
        *(
            finding
            for request in known
            for finding in request_problems(state, request.arrival_number)
        ),
        *(finding for host in hosts for finding in host_problems(state.hosts, host.host_id)),
        *(finding for host in hosts for key in host.slots for finding in slot_problems(state, key)),
    ]
