"""Tests that a restored database never reuses numbers of the one that it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import InvalidArgument
from finegrain.values.bounds import RAISED_EPOCH_MAX
from finegrain.values.states import RequestState
from resource_manager.engine.model.changes import CONTESTED_EPOCH, GENERATION_FLOOR
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import JobEvent, Request, RequestSpec
from resource_manager.storage import schema
from resource_manager.storage.lost_history import GENERATION_STEP, SEQUENCE_STEP
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.support.books import job


def _asked_and_told(store: Store) -> None:
    """Stores a job with one request that was placed four times, and two events."""
    owner = job("job-1")
    owner.last_sequence = 2
    spec = RequestSpec("a-1", None)
    request = Request(spec, "job-1", 1, 0, RequestState.PENDING, generation=4)
    events = [JobEvent("job-1", number, 0, "a-1", RequestState.PENDING) for number in (1, 2)]
    store.commit(Changes([owner], [request], job_events=events))


def _check_skipped(store: Store, times: int) -> None:
    snapshot = store.load()
    (owner,) = snapshot.jobs
    assert owner.last_sequence == owner.trimmed_sequence == 2 + times * SEQUENCE_STEP
    assert store.read_job_events("job-1", 0, 10) == []
    assert snapshot.counters[GENERATION_FLOOR] == 4 + times * GENERATION_STEP


def test_raising_the_epoch_skips_events_and_placements(url: str) -> None:
    with open_store(url) as store:
        store.lead("first")
        _asked_and_told(store)
    for times in (1, 2):
        schema.raise_epoch(url, above_epoch=10 * times)
        with open_store(url, read_only=True) as store:
            _check_skipped(store, times)


@pytest.mark.parametrize("above_epoch", [-1, RAISED_EPOCH_MAX + 1, 2**63 - 2])
def test_a_typing_error_does_not_use_up_all_epochs(
    sqlite_url: str, tmp_path: Path, above_epoch: int
) -> None:
    copy = tmp_path / "backup.db"
    with open_store(sqlite_url) as store:
        store.lead("first")
        schema.backup(sqlite_url, copy)
    with pytest.raises(InvalidArgument, match="above_epoch"):
        schema.raise_epoch(sqlite_url, above_epoch=above_epoch)
    with pytest.raises(InvalidArgument, match="above_epoch"):
        schema.restore(sqlite_url, copy, above_epoch=above_epoch)
    with open_store(sqlite_url) as store:
        assert store.lead("second") == 2


def test_operators_end_a_contest(url: str, sqlite_url: str, tmp_path: Path) -> None:
    contested = Changes(counters={CONTESTED_EPOCH: 9})
    with open_store(url) as store:
        store.lead("first")
        store.commit(contested)
    schema.raise_epoch(url, above_epoch=9)
    with open_store(url, read_only=True) as store:
        assert not store.load().counters[CONTESTED_EPOCH]
    copy = tmp_path / "backup.db"
    with open_store(sqlite_url) as store:
        store.lead("first")
        store.commit(contested)
        schema.backup(sqlite_url, copy)
    schema.restore(sqlite_url, copy, above_epoch=9)
    with open_store(sqlite_url, read_only=True) as store:
        assert CONTESTED_EPOCH not in store.load().counters


def test_a_restore_skips_them_too(sqlite_url: str, tmp_path: Path) -> None:
    copy = tmp_path / "backup.db"
    with open_store(sqlite_url) as store:
        store.lead("first")
        _asked_and_told(store)
        schema.backup(sqlite_url, copy)
    schema.restore(sqlite_url, copy, above_epoch=7)
    with open_store(sqlite_url, read_only=True) as store:
        _check_skipped(store, 1)


def test_nothing_is_skipped_without_a_restore(sqlite_url: str) -> None:
    with open_store(sqlite_url) as store:
        store.lead("first")
        _asked_and_told(store)
        assert GENERATION_FLOOR not in store.load().counters
