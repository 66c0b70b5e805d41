"""Tests of long reads of the state: short slices, and a new start when the state is read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.paused import PART, Paused, at_once
from resource_manager.service.partial_read import SLICE_S, PartialRead
from tests.support.engine_cluster import EngineCluster, host


class Ticking:
    """A clock that advances by a third of a slice whenever it is read."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += SLICE_S / 3
        return self._now_s


def counting(state: Any) -> Paused[list[int]]:
    seen = []
    for _ in range(10):
        seen.append(state.value)
        yield
    return seen


def test_a_slice_ends_at_the_first_pause_after_its_time() -> None:
    state: Any = SimpleNamespace(rm_epoch=1, value=0)
    read, slices = PartialRead(counting, Ticking()), 0
    while (done := read.run_slice(state)) is None:
        slices += 1
        state.value = slices
    assert done == ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3],)


def test_a_read_begins_again_when_the_state_was_read_from_the_database() -> None:
    dropped: Any = SimpleNamespace(rm_epoch=1, value=1)
    read = PartialRead(counting, Ticking())
    assert read.run_slice(dropped) is None
    state: Any = SimpleNamespace(rm_epoch=2, value=2)
    while (done := read.run_slice(state)) is None:
        pass
    assert done == ([2] * 10,)


def test_executors_that_come_and_go_during_a_pause_do_not_disturb_the_sums() -> None:
    cluster = EngineCluster.settled(*(host(f"host-{n:03}") for n in range(2 * PART)))
    whole = at_once(cluster_view(cluster.state))
    assert whole.total["cpu_milli"] == 2 * PART * 4_000
    cluster.submit("slot", "large", cpu_milli=3_000)
    read = cluster_view(cluster.state)
    next(read)
    cluster.register(host("late"))
    cluster.release("slot")
    try:
        while True:
            next(read)
    except StopIteration as end:
        view = end.value
    assert view.total == whole.total
    assert view.executors["active"] == 2 * PART
    assert view.slots == 1
