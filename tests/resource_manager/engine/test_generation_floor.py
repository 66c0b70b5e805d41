"""Tests that a restored RM uses generations above all that the backup may lack."""

from __future__ import annotations

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.changes import GENERATION_FLOOR
from resource_manager.engine.model.effects import Snapshot
from resource_manager.engine.restoring import restore
from tests.support.engine_cluster import EngineCluster

SMALL = ResourceProfile(100, 64 * MIB)


def test_the_first_placement_after_a_restore_is_above_the_floor() -> None:
    cluster = EngineCluster(jobs=())
    snapshot = Snapshot(rm_epoch=7, counters={GENERATION_FLOOR: 1_000_003})
    cluster.state = restore(snapshot, cluster.state.settings, cluster.at)
    cluster.job("job")
    cluster.host()
    cluster.submit("r1", profile=SMALL)
    assert list(cluster.state.slots) == [("r1", 1_000_004)]


def test_placing_anew_does_not_count_up_from_the_first_generation() -> None:
    cluster = EngineCluster(jobs=())
    snapshot = Snapshot(rm_epoch=7, counters={GENERATION_FLOOR: 10**12})  # would take forever
    cluster.state = restore(snapshot, cluster.state.settings, cluster.at)
    cluster.job("job")
    cluster.host("host-a")  # which is silent
    cluster.submit("r1", profile=SMALL, restart_on_loss=True)
    cluster.wait(cluster.settings.lost_timeout_ms + 1)
    cluster.host("host-b")
    assert [(slot.executor_id, slot.generation) for slot in cluster.state.slots.values()] == [
        ("host-a", 10**12 + 1),
        ("host-b", 10**12 + 2),
    ]
