"""Selectors are as many as job masters please; only some of them have an index of their own."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import GangSpec, RequestSpec, RequestState
from resource_manager.engine.model.events import (
    ExecutorRegistered,
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.indexes import BUILT_AT_ONCE
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

SMALL = ResourceProfile(100, 64 * MIB)
LARGE = ResourceProfile(1_000_000, 64 * MIB)
TOTAL = {"cpu_milli": 4_000, "memory_bytes": 4 * GIB}
LABELS = tuple((f"l{number}", "x") for number in range(8))
SSD = (("disk", "ssd"),)


def cluster_of(hosts: int, label_indexes_max: int = 64) -> ModelCluster:
    cluster = ModelCluster(EngineSettings(label_indexes_max=label_indexes_max))
    for number in range(hosts):
        cluster.register(ModelExecutor(f"host-{number}", TOTAL, SMALL, labels=LABELS))
    cluster.batch(JobRegistered(cluster.at, "job", "job", "default", None, "s", "r"))
    return cluster


def submit(cluster: ModelCluster, *specs: RequestSpec) -> None:
    cluster.batch(RequestsSubmitted(cluster.at, "job", specs))


@pytest.mark.parametrize("label_indexes_max", [0, 3, 64])
def test_a_flood_of_selectors_does_not_look_at_every_host_for_each(
    label_indexes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(20, label_indexes_max)
    looked_at = 0
    vector = Host.vector

    def counting(host: Host, strategy: Any) -> dict[str, int]:
        nonlocal looked_at
        looked_at += 1
        return vector(host, strategy)

    monkeypatch.setattr(Host, "vector", counting)
    selectors = [chosen for n in range(1, 5) for chosen in combinations(LABELS, n)]
    submit(
        cluster,
        *(
            RequestSpec(f"r{number}", LARGE, required_labels=selector, allow_pending=True)
            for number, selector in enumerate(selectors)
        ),
    )
    assert len(selectors) == 162
    assert looked_at <= BUILT_AT_ONCE * len(cluster.state.hosts)
    looked_at = 0
    submit(cluster, RequestSpec("other", SMALL))
    assert looked_at <= BUILT_AT_ONCE * len(cluster.state.hosts)
    assert cluster.state.requests["other"].state is RequestState.ALLOCATING
    assert not check_invariants(cluster.state)


@pytest.mark.parametrize("label_indexes_max", [0, 64])
def test_a_host_that_comes_back_with_the_label_asked_for_serves_who_waits(
    label_indexes_max: int,
) -> None:
    cluster = cluster_of(3, label_indexes_max)
    wished = RequestSpec("wished", SMALL, required_labels=SSD, allow_pending=True)
    submit(cluster, wished)
    cluster.settle()
    assert cluster.state.requests["wished"].state is RequestState.PENDING
    changed = replace(cluster.executors["host-1"], labels=SSD)
    cluster.register(changed)
    (slot,) = cluster.state.slots.values()
    assert (slot.allocation_id, slot.executor_id) == ("wished", "host-1")
    cluster.settle()
    late = RequestSpec("late", SMALL, required_labels=SSD + LABELS[:1], allow_pending=True)
    submit(cluster, late)
    cluster.register(replace(changed, labels=LABELS))
    assert cluster.state.requests["late"].state is RequestState.PENDING
    assert not check_invariants(cluster.state)


def test_selectors_that_nobody_waits_with_make_room_for_others() -> None:
    cluster = cluster_of(3, label_indexes_max=2)
    for number, label in enumerate(LABELS):
        submit(cluster, RequestSpec(f"r{number}", SMALL, required_labels=(label,)))
        assert cluster.state.requests[f"r{number}"].state is RequestState.ALLOCATING
    assert 1 <= len(cluster.state.hosts.indexes.selected) <= 2
    assert (LABELS[-1],) in cluster.state.hosts.indexes.selected
    assert not check_invariants(cluster.state)


def test_selectors_of_gangs_that_wait_are_not_made_anew_all_the_time() -> None:
    cluster = cluster_of(3, label_indexes_max=2)
    gangs = {f"g{n}": (label,) for n, label in enumerate(LABELS[:3])}
    profile = ResourceProfile(3_000, 64 * MIB)
    members = [
        RequestSpec(f"{gang_id}.{n}", profile, required_labels=wanted, gang_id=gang_id)
        for gang_id, wanted in gangs.items()
        for n in range(3)
    ]
    submit(cluster, RequestSpec("full", profile))
    cluster.batch(
        RequestsSubmitted(cluster.at, "job", tuple(members), gangs=tuple(map(GangSpec, gangs)))
    )
    first = dict(cluster.state.hosts.indexes.selected)
    assert len(first) == 2
    for host in cluster.state.hosts.values():
        cluster.state.hosts.indexes.log_growth(host, cluster.state.queue)
        cluster.batch()
    assert cluster.state.hosts.indexes.selected == first
    assert not check_invariants(cluster.state)
    cluster.batch(RequestsCancelled(cluster.at, "job", tuple(f"{name}.0" for name in gangs)))
    cluster.batch()
    assert not cluster.state.hosts.indexes.selected


def test_a_host_that_registers_twice_at_once_with_new_labels_and_a_broken_slot() -> None:
    cluster = cluster_of(1)
    submit(cluster, RequestSpec("broken", SMALL, restart_on_loss=True))
    cluster.settle()
    submit(cluster, RequestSpec("wished", SMALL, required_labels=SSD, allow_pending=True))
    assert SSD in cluster.state.hosts.indexes.selected
    changed = replace(cluster.executors["host-0"], labels=SSD)
    changed.end(("broken", 1), "SLOT_BROKEN")
    again = [
        ExecutorRegistered(cluster.at, changed.registration(), changed.report()) for _ in range(2)
    ]
    cluster.batch(*again)
    assert cluster.state.requests["wished"].state is RequestState.ALLOCATING
    assert not check_invariants(cluster.state)
