"""Tests how many hosts the benchmark's workload needs."""

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
    """First fit needs 76 hosts for this workload, computed by hand and by other systems.

    This requires that jobs are placed in order of arrival.
    """
    assert hosts_used(pack_candidates=1, fairness=Fairness(order="arrival")) == 76


def test_the_default_needs_fewer_hosts_than_first_fit() -> None:
    assert hosts_used() < 76


def test_spread_uses_them_all() -> None:
    assert hosts_used(strategy="spread") == 100
