"""Tests of a running resource manager that reloads its state after a failed commit."""

from __future__ import annotations

import pytest

from finegrain.errors import FailedPrecondition, Reason
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.events import (
    ExecutorRegistered,
)
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)


def test_a_late_copy_of_a_registration_strikes_no_slot_that_was_made_since() -> None:
    cluster = EngineCluster()
    executor = host("host-a", memory_bytes=4 * GIB, default_profile=SMALL)
    cluster.submit("r1", profile=None)
    cluster.register(executor)
    without_slots = (executor.registration(), executor.report())
    cluster.report(executor)
    cluster.settle()
    assert ("r1", 1) in executor.slots

    heard = cluster.state.hosts.report_numbers()
    cluster.restart_rm()
    cluster.state.hosts.restore_report_numbers(heard)
    with pytest.raises(FailedPrecondition) as refused:
        cluster.batch(ExecutorRegistered(cluster.at, *without_slots))
    assert refused.value.reason is Reason.STALE_REGISTRATION
    assert ("r1", 1) in cluster.state.slots


def test_nor_does_one_that_reaches_whoever_takes_over() -> None:
    cluster = EngineCluster()
    executor = host("host-a", memory_bytes=4 * GIB, default_profile=SMALL)
    cluster.submit("r1", profile=None)
    sent_elsewhere_first = (executor.registration(), executor.report())
    cluster.register(executor)
    cluster.settle()
    assert ("r1", 1) in executor.slots

    cluster.restart_rm()
    with pytest.raises(FailedPrecondition) as refused:
        cluster.batch(ExecutorRegistered(cluster.at, *sent_elsewhere_first))
    assert refused.value.reason is Reason.STALE_REGISTRATION
    assert ("r1", 1) in cluster.state.slots
    assert cluster.register(executor).registration_number == 2


def test_an_executor_registers_as_ever_when_the_books_were_read_anew() -> None:
    cluster = EngineCluster()
    executor = cluster.host("host-a", memory_bytes=4 * GIB, default_profile=SMALL)
    heard = cluster.state.hosts.report_numbers()
    cluster.restart_rm()
    cluster.state.hosts.restore_report_numbers(heard)
    assert cluster.register(executor).registration_number == 2
