"""Tests the memory of a loaded state: limits per entity, in bytes, without timing."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.filled_books import Size, fill, machine
from finegrain.resources import KIB
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store

PER_EXECUTOR_BYTES = 50 * KIB
PER_REQUEST_BYTES = 2 * KIB
EXECUTORS = 200
REQUESTS = 5_000


def weight(folder: Path, size: Size) -> int:
    """Returns the bytes of a state of this size."""
    folder.mkdir()
    with open_store(sqlite_url(folder / "books.db")) as store:
        store.lead("test")
        fill(store, size)
        return _allocated(lambda: restore(store.load(), EngineSettings(), Instant(0, 0)))


def _allocated(make: Callable[[], State]) -> int:
    make()  # caches, such as decoded profiles, are filled now
    gc.collect()
    tracemalloc.start()
    try:
        state = make()
        gc.collect()
        weighed, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not check_invariants(state)
    return weighed


@pytest.mark.full
def test_executors_and_waiting_requests_stay_within_their_bounds(tmp_path: Path) -> None:
    assert len(machine().cores) == 32  # of two threads each: 64 cpus
    one = weight(tmp_path / "one", Size(executors=1))
    executors = weight(tmp_path / "executors", Size(executors=1 + EXECUTORS))
    assert KIB < (executors - one) / EXECUTORS < PER_EXECUTOR_BYTES
    queued = weight(tmp_path / "queued", Size(executors=1, queued=REQUESTS))
    assert KIB / 4 < (queued - one) / REQUESTS < PER_REQUEST_BYTES


@pytest.mark.full
def test_a_slot_costs_no_more_than_its_request(tmp_path: Path) -> None:
    """Equal profiles, bookings and isolation reports are shared."""
    few = weight(tmp_path / "few", Size(executors=10, slots=500))
    many = weight(tmp_path / "many", Size(executors=10, slots=500 + REQUESTS))
    assert (many - few) / REQUESTS < 2 * PER_REQUEST_BYTES
