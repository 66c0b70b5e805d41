"""How many hosts the benchmark's workload takes."""

from __future__ import annotations

from typing import Any

from bench.engine import Bench, gen_workload
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.engine.step import step


def hosts_used(**settings: Any) -> int:
    bench = Bench(gen_workload(100, 1_000), EngineSettings(memory_bytes_min=0, **settings))
    bench.batch(*bench.registrations())
    for events in bench.submissions("job-", bench.workload["jobs"]):
        for event in events:
            step(bench.state, event)
    bench.settle(bench.batch())
    assert not bench.state.queue.classes()
    return sum(bool(host.slots) for host in bench.state.hosts.values())


def test_one_candidate_is_first_fit() -> None:
    """76 is what first fit gives on this workload, by hand and in other systems alike, if jobs are
    placed as they came.
    """
    assert hosts_used(pack_candidates=1, fairness=Fairness(order="arrival")) == 76


def test_the_default_needs_fewer_hosts_than_first_fit() -> None:
    assert hosts_used() < 76


def test_spread_uses_them_all() -> None:
    assert hosts_used(strategy="spread") == 100
