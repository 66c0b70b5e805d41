"""Tests that a member of a range is a request like any other."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace

from finegrain.cpu_policy import CpuPolicy, QosClass
from finegrain.resources import GIB, ResourceProfile
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from tests.support.engine_cluster import EngineCluster

NOT_OF_RANGES = {"target_address", "gang_id"}
ASKED = RequestSpec(
    "many",
    ResourceProfile(2_000, GIB),
    cpu_limit_milli=2_000,
    pids_max=9,
    required_labels=(("zone", "a"),),
    allow_pending=True,
    restart_on_loss=True,
    restart_on_device_loss=True,
    cpu_policy=CpuPolicy(QosClass.LSR),
    time_limit_ms=60_000,
    wait_timeout_ms=90_000,
    priority=5,
    revocable=True,
    expected_run_time_ms=30_000,
)


def test_a_member_asks_for_all_that_its_range_asks_for() -> None:
    said = {each.name for each in fields(ASKED) if getattr(ASKED, each.name) != each.default}
    assert said == {each.name for each in fields(ASKED)} - NOT_OF_RANGES
    assert all(each.default is not MISSING for each in fields(ASKED)[2:])
    cluster = EngineCluster()
    cluster.submit(RangeSpec(ASKED, 7, 3))
    cluster.settle()

    (part,) = cluster.state.ranges.parts()
    assert part.member(8).spec == replace(ASKED, allocation_id="many.8")
