"""A cluster whose requests turn out to be infeasible, in few words."""

from __future__ import annotations

from typing import Any

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import ItemOutcome, JobRegistered, RequestsSubmitted
from resource_manager.engine.model.settings import EngineSettings
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

AFTER_MS = 30_000
HUGE = ResourceProfile(64_000, 256 * MIB)
SMALL = ResourceProfile(1_000, 256 * MIB)
MOST_OF_A_HOST = ResourceProfile(3_000, 256 * MIB)


def cluster_of(**settings: Any) -> ModelCluster:
    """A cluster without executors, with one job. None is lost unless a test says so."""
    cluster = ModelCluster(EngineSettings(**({"lost_timeout_ms": 10**9} | settings)))
    cluster.batch(JobRegistered(cluster.at, "job", "job", "default", None, "s", "r"))
    return cluster


def host(name: str = "host-a", cpu: int = 4_000) -> ModelExecutor:
    return ModelExecutor(name, {"cpu_milli": cpu, "memory_bytes": 8 * GIB}, SMALL)


def ask(cluster: ModelCluster, *names: str, **what: Any) -> list[ItemOutcome]:
    what = {"profile": HUGE} | what
    specs = tuple(RequestSpec(name, **what) for name in names)
    outcomes: list[ItemOutcome] = cluster.batch(RequestsSubmitted(cluster.at, "job", specs))
    return outcomes


def waits(cluster: ModelCluster, name: str = "early") -> bool:
    request = cluster.state.requests.named(name)
    assert request is not None
    assert not check_invariants(cluster.state)
    return request.state == "PENDING"


def rejected_after(cluster: ModelCluster, ms: int, name: str = "early") -> bool:
    """True if a request waits until the last millisecond of this time, and is rejected then."""
    cluster.wait(ms - 1)
    until_then = waits(cluster, name)
    cluster.wait(1)
    return until_then and not waits(cluster, name)


def told(cluster: ModelCluster, name: str = "early") -> list[tuple[str, str, str]]:
    """What the job master was told of a request: state, reason and message."""
    events = cluster.store.job_events["job"]
    return [(e.state, e.reason, e.message) for e in events if e.allocation_id == name]
