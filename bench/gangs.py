"""Measures the cost of gangs for the resource manager's engine on nearly full clusters, without
database and RPC. Simulated executors accept every order.

    python -m bench.gangs [--hosts 1000 --hosts 10000] [--arrivals 50] [--waiting 1000]

Hosts are in racks of 40. Each host has 17 slots of the workload of `bench.engine`. The benchmark
prints the CPU time of this process, for each size of the cluster and each of these steps:

- for each placement, a gang of 4 arrives: the time until its commands are written. The gang is then
  released;
- gangs of different kinds arrive that do not fit. They have 8 to 40 members, and each member needs
  most of a host. Measured are the submission, which checks whether the gangs could ever fit, and
  the first decision;
- a slot is released: the decision skips all gangs, because no member fits into the free capacity.
  Then a host is emptied, and the decision places the first gang that fits;
- the two previous steps, with an equal number of gangs of one kind;
- a gang of 1,000 different members arrives and does not fit.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from dataclasses import replace
from itertools import count

from bench.engine import AT, Bench, gen_workload, show
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement, RequestState
from resource_manager.engine.model.effects import Effect
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    Event,
    ExecutorRegistered,
    JobRegistered,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.state import State
from resource_manager.engine.step import step

RACK = 40
SLOTS_A_HOST = 17
_numbers = count()


class GangBench(Bench):
    """Runs the engine with a cluster whose hosts are in racks."""

    def registrations(self) -> list[Event]:
        events: list[Event] = []
        for number, event in enumerate(super().registrations()):
            assert isinstance(event, ExecutorRegistered)
            labels = (("rack", f"r{number // RACK:04d}"),)
            events.append(replace(event, registration=replace(event.registration, labels=labels)))
        return events

    def give_up(self, slots: list[tuple[str, int]]) -> None:
        """Releases slots, or cancels waiting requests, in as many steps as the engine needs."""
        while slots:
            result = step(self.state, SlotsReleased(AT, "gangs", tuple(slots)))
            assert isinstance(result.answer, list)
            slots = slots[len(result.answer) :]
            self.settle([*result.effects, *self.batch()])

    def fill(self) -> None:
        self.batch(*self.registrations())
        for events in self.submissions("job-", self.workload["jobs"]):
            self.settle(self.batch(*events))
        self.batch(JobRegistered(AT, "gangs", "gangs", "default", None, "s", "r"))

    def timed(self, *events: Event) -> tuple[float, list[Effect]]:
        started = time.process_time()
        effects = self.batch(*events)
        return time.process_time() - started, effects


def gang(placement: GangPlacement, members: int, profile: ResourceProfile) -> RequestsSubmitted:
    """Makes a gang."""
    gang_id = f"g{next(_numbers)}"
    label = "rack" if placement is GangPlacement.SAME_LABEL else ""
    specs = tuple(
        RequestSpec(f"{gang_id}.{number}", profile, gang_id=gang_id) for number in range(members)
    )
    return RequestsSubmitted(AT, "gangs", specs, gangs=(GangSpec(gang_id, placement, label),))


def ids(state: State, event: RequestsSubmitted) -> tuple[tuple[str, int], ...]:
    assert all(
        state.requests[spec.allocation_id].state is RequestState.ALLOCATING
        for spec in event.requests
    )
    return tuple((spec.allocation_id, 0) for spec in event.requests)


def run_arrivals(bench: GangBench, arrivals: int) -> None:
    small = ResourceProfile(500, 256 * MIB)
    for placement in GangPlacement:
        spent = []
        for _ in range(arrivals):
            event = gang(placement, 4, small)
            seconds, effects = bench.timed(event)
            spent.append(seconds)
            slots = ids(bench.state, event)
            bench.settle(effects)
            bench.settle(bench.batch(SlotsReleased(AT, "gangs", slots)))
        note = f"max {max(spent) * 1e3:.2f}"
        show(f"a gang of 4 arrives, {placement} (median)", statistics.median(spent), note)


def run_waiting(bench: GangBench, waiting: int, *, alike: bool) -> None:
    members = {
        GangPlacement.ANYWHERE: (40, 11_000),
        GangPlacement.SPREAD: (40, 11_000),
        GangPlacement.SAME_LABEL: (20, 11_000),
        GangPlacement.SAME_EXECUTOR: (8, 1_900),
    }
    events = []
    for number in range(waiting):
        placement = list(GangPlacement)[0 if alike else number % 4]
        size, cpu = members[placement]
        own = 0 if alike else number // 4
        events.append(gang(placement, size, ResourceProfile(cpu + own, 256 * MIB)))
    what = "of one kind" if alike else "of as many kinds"
    seconds, effects = bench.timed(*events)
    bench.settle(effects)
    here = len(bench.state.gangs.waiting)
    show(f"{waiting} gangs {what} arrive that do not fit", seconds, f"{here} wait")
    hosts = sorted(bench.state.hosts.values(), key=lambda host: host.booked.get("cpu_milli", 0))
    full, host = hosts[-1], hosts[-2]
    key = min(full.slots, key=lambda key: full.slots[key].profile.cpu_milli)
    slot = full.slots[key]
    effects = bench.batch(SlotsReleased(AT, slot.job_id, ((key[0], 0),)))
    seconds = bench.settle(effects)
    show("a small slot ends, no gang fits", seconds, f"{here} wait")
    released: list[Event] = [
        SlotsReleased(AT, host.slots[key].job_id, ((key[0], 0),)) for key in host.slots
    ]
    seconds = bench.settle(bench.batch(*released))
    left = len(bench.state.gangs.waiting)
    show("a host becomes empty, the first gang that fits is placed", seconds, f"{left} wait")
    done = [
        (each.allocation_id, 0)
        for waiting in bench.state.gangs.in_order()
        for each in waiting.members
    ]
    bench.give_up(done)


def run_large(bench: GangBench) -> None:
    for placement in (GangPlacement.ANYWHERE, GangPlacement.SAME_LABEL, GangPlacement.SPREAD):
        event = gang(placement, 1_000, ResourceProfile(9_000, 256 * MIB))
        unlike = tuple(
            replace(spec, profile=ResourceProfile(9_000 + number, 256 * MIB), allow_pending=True)
            for number, spec in enumerate(event.requests)
        )
        seconds, effects = bench.timed(replace(event, requests=unlike))
        state = bench.state.requests[unlike[0].allocation_id].state
        show(f"a gang of 1,000 unequal members arrives, {placement}", seconds, str(state))
        bench.settle(effects)
        bench.give_up([(spec.allocation_id, 0) for spec in unlike])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, action="append")
    parser.add_argument("--arrivals", type=int, default=50)
    parser.add_argument("--waiting", type=int, default=1_000)
    arguments = parser.parse_args()
    for hosts in arguments.hosts or [1_000, 10_000]:
        print(f"{hosts} hosts")
        bench = GangBench(gen_workload(hosts, hosts * SLOTS_A_HOST), EngineSettings())
        bench.fill()
        gc.collect()
        gc.freeze()
        run_arrivals(bench, arguments.arrivals)
        run_waiting(bench, arguments.waiting, alike=False)
        run_waiting(bench, arguments.waiting, alike=True)
        run_large(bench)


if __name__ == "__main__":
    main()
