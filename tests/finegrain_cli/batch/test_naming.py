"""Which batch a user means, and the name of a batch in messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from finegrain.errors import NotFound
from finegrain_cli.batch.naming import command_for, found_batches, short_name, state_file_of
from finegrain_client.batch.lock import take_lock
from finegrain_client.batch.status import read_status
from tests.finegrain_cli.batch.conftest import MakeBatch


def test_by_path_wherever_it_lies(make_batch: MakeBatch, tmp_path: Path) -> None:
    path = make_batch("nightly")
    elsewhere = tmp_path / "elsewhere.batch"
    path.rename(elsewhere)

    assert state_file_of(str(elsewhere)) == elsewhere
    assert command_for(elsewhere) == f"finegrain batch --attach {elsewhere}"


def test_the_newest_of_a_name_is_meant(make_batch: MakeBatch) -> None:
    make_batch("nightly-20260301-120000", name="nightly")
    newest = make_batch("nightly-20260302-120000", name="nightly")
    make_batch("other-20260303-120000", name="other")

    assert state_file_of("nightly") == newest
    assert state_file_of("nightly-20260302-120000") == newest
    assert state_file_of("oth").name == "other-20260303-120000.batch"
    assert command_for(newest, "--stop") == "finegrain batch --stop nightly-20260302-120000"


def test_a_name_that_is_exact_comes_before_one_that_begins_so(make_batch: MakeBatch) -> None:
    exact = make_batch("load")
    make_batch("load-all")

    assert state_file_of("load") == exact


@pytest.mark.parametrize("text", ["nobody", "no/such.batch", "~/nothing"])
def test_nothing_of_that_name(make_batch: MakeBatch, text: str) -> None:
    make_batch("nightly")
    with pytest.raises(NotFound, match="finegrain batches"):
        state_file_of(text)


def test_what_is_no_batch_is_passed_over(make_batch: MakeBatch) -> None:
    path = make_batch("nightly")
    (path.parent / "broken.batch").write_bytes(b"this is no database, whatever its name says" * 99)
    (path.parent / "empty.batch").touch()

    assert [short_name(each) for each in found_batches()] == ["nightly"]


def test_nobody_is_given_a_pid_that_means_everybody(make_batch: MakeBatch) -> None:
    """A process that has just taken the lock, and has not written its name yet, must not look like
    pid -1.
    """
    path = make_batch("nightly")
    descriptor = take_lock(path)
    os.ftruncate(descriptor, 0)
    batch = read_status(path)
    os.close(descriptor)

    assert batch.is_worked_on
    assert (batch.runner_pid, batch.runner_host) == (0, "?")
    assert not read_status(path).is_worked_on
