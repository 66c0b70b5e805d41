"""Books that a running resource manager reads anew, after a commit that failed."""

from __future__ import annotations

import pytest

from finegrain.errors import FailedPrecondition, Reason
from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import (
    ExecutorRegistered,
    JobRegistered,
    RequestsSubmitted,
)
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

SMALL = ResourceProfile(100, 64 * MIB)


def test_a_late_copy_of_a_registration_strikes_no_slot_that_was_made_since() -> None:
    cluster = ModelCluster()
    executor = ModelExecutor("host-a", {"cpu_milli": 4_000, "memory_bytes": 4 * GIB}, SMALL)
    cluster.batch(JobRegistered(cluster.at, "job", "job", "default", None, "s", "r"))
    cluster.batch(RequestsSubmitted(cluster.at, "job", (RequestSpec("r1", None),)))
    cluster.register(executor)
    without_slots = (executor.registration(), executor.report())
    cluster.report(executor)
    cluster.settle()
    assert ("r1", 1) in executor.slots

    heard = cluster.state.hosts.heard()
    cluster.restart_rm()
    cluster.state.hosts.remember(heard)
    with pytest.raises(FailedPrecondition) as refused:
        cluster.batch(ExecutorRegistered(cluster.at, *without_slots))
    assert refused.value.reason is Reason.STALE_REGISTRATION
    assert ("r1", 1) in cluster.state.slots


def test_nor_does_one_that_reaches_whoever_takes_over() -> None:
    cluster = ModelCluster()
    executor = ModelExecutor("host-a", {"cpu_milli": 4_000, "memory_bytes": 4 * GIB}, SMALL)
    cluster.batch(JobRegistered(cluster.at, "job", "job", "default", None, "s", "r"))
    cluster.batch(RequestsSubmitted(cluster.at, "job", (RequestSpec("r1", None),)))
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
    cluster = ModelCluster()
    executor = ModelExecutor("host-a", {"cpu_milli": 4_000, "memory_bytes": 4 * GIB}, SMALL)
    cluster.register(executor)
    heard = cluster.state.hosts.heard()
    cluster.restart_rm()
    cluster.state.hosts.remember(heard)
    assert cluster.register(executor).registration_number == 2
