"""Tests that any number of label selectors works, of which only some have an index."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    ExecutorRegistered,
)
from resource_manager.engine.placement import hosts
from resource_manager.engine.placement.columns import columns_of
from resource_manager.engine.placement.hosts import BUILT_AT_ONCE
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)
LARGE = ResourceProfile(1_000_000, 64 * MIB)
LABELS = tuple((f"l{number}", "x") for number in range(8))
SSD = (("disk", "ssd"),)


def cluster_of(hosts: int, label_indexes_max: int = 64) -> EngineCluster:
    made = (host(f"host-{number}", labels=LABELS) for number in range(hosts))
    return EngineCluster(*made, label_indexes_max=label_indexes_max)


@pytest.mark.parametrize("label_indexes_max", [0, 3, 64])
def test_a_flood_of_selectors_does_not_look_at_every_host_for_each(
    label_indexes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_of(20, label_indexes_max)
    looked_at = 0

    def counting(host: Host, strategy: Any) -> dict[str, int]:
        nonlocal looked_at
        looked_at += 1
        return columns_of(host, strategy)

    monkeypatch.setattr(hosts, "columns_of", counting)
    selectors = [chosen for n in range(1, 5) for chosen in combinations(LABELS, n)]
    cluster.submit(
        *(
            RequestSpec(f"r{number}", LARGE, required_labels=selector, allow_pending=True)
            for number, selector in enumerate(selectors)
        )
    )
    assert len(selectors) == 162
    assert looked_at <= BUILT_AT_ONCE * len(cluster.state.hosts)
    looked_at = 0
    cluster.submit("other", profile=SMALL)
    assert looked_at <= BUILT_AT_ONCE * len(cluster.state.hosts)
    assert cluster.state_of("other") is RequestState.ALLOCATING
    cluster.check()


@pytest.mark.parametrize("label_indexes_max", [0, 64])
def test_a_host_that_comes_back_with_the_label_asked_for_serves_who_waits(
    label_indexes_max: int,
) -> None:
    cluster = cluster_of(3, label_indexes_max)
    wished = RequestSpec("wished", SMALL, required_labels=SSD, allow_pending=True)
    cluster.submit(wished)
    cluster.settle()
    assert cluster.state_of("wished") is RequestState.PENDING
    changed = replace(cluster.executors["host-1"], labels=SSD)
    cluster.register(changed)
    (slot,) = cluster.state.slots.values()
    assert (slot.allocation_id, slot.executor_id) == ("wished", "host-1")
    cluster.settle()
    late = RequestSpec("late", SMALL, required_labels=SSD + LABELS[:1], allow_pending=True)
    cluster.submit(late)
    cluster.register(replace(changed, labels=LABELS))
    assert cluster.state_of("late") is RequestState.PENDING
    cluster.check()


def test_selectors_that_nobody_waits_with_make_room_for_others() -> None:
    cluster = cluster_of(3, label_indexes_max=2)
    for number, label in enumerate(LABELS):
        cluster.submit(f"r{number}", profile=SMALL, required_labels=(label,))
        assert cluster.state_of(f"r{number}") is RequestState.ALLOCATING
    assert 1 <= len(cluster.state.hosts.indexes.selected) <= 2
    assert (LABELS[-1],) in cluster.state.hosts.indexes.selected
    cluster.check()


def test_selectors_of_gangs_that_wait_are_not_made_anew_all_the_time() -> None:
    cluster = cluster_of(3, label_indexes_max=2)
    gangs = {f"g{n}": (label,) for n, label in enumerate(LABELS[:3])}
    profile = ResourceProfile(3_000, 64 * MIB)
    members = [
        RequestSpec(f"{gang_id}.{n}", profile, required_labels=wanted, gang_id=gang_id)
        for gang_id, wanted in gangs.items()
        for n in range(3)
    ]
    cluster.submit("full", profile=profile)
    cluster.submit(*members, *map(GangSpec, gangs))
    first = dict(cluster.state.hosts.indexes.selected)
    assert len(first) == 2
    for grown in cluster.state.hosts.values():
        cluster.state.hosts.indexes.log_growth(grown, cluster.state.queue)
        cluster.batch()
    assert cluster.state.hosts.indexes.selected == first
    cluster.check()
    cluster.cancel(*(f"{name}.0" for name in gangs))
    cluster.batch()
    assert not cluster.state.hosts.indexes.selected


def test_a_host_that_registers_twice_at_once_with_new_labels_and_a_broken_slot() -> None:
    cluster = cluster_of(1)
    cluster.submit("broken", profile=SMALL, restart_on_loss=True)
    cluster.settle()
    cluster.submit("wished", profile=SMALL, required_labels=SSD, allow_pending=True)
    assert SSD in cluster.state.hosts.indexes.selected
    changed = replace(cluster.executors["host-0"], labels=SSD)
    changed.end(("broken", 1), "SLOT_BROKEN")
    again = [
        ExecutorRegistered(cluster.at, changed.registration(), changed.report()) for _ in range(2)
    ]
    cluster.batch(*again)
    assert cluster.state_of("wished") is RequestState.ALLOCATING
    cluster.check()
