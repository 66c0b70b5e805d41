"""Resource groups as administrators and job masters use them, with real daemons that are killed in
between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.e2e.driving import Daemons, eventually, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SMALL = fg.SlotSpec(cpu_milli=100, memory_bytes=8 * fg.MIB, count=4)


@pytest.fixture
def daemons(home: Path) -> Iterator[Daemons]:
    made = Daemons(home)
    made.manager.command += ("--fairness-usage-interval", "200ms")
    yield made
    made.clean_up()


def groups(daemons: Daemons) -> dict[str, dict[str, Any]]:
    with daemons.cli.client() as cluster:
        return {each.name: each.to_dict() for each in cluster.groups().groups}


def killed(daemons: Daemons) -> None:
    daemons.manager.kill()
    daemons.manager.start()
    daemons.manager.endpoint()


def test_a_maximum_holds_over_a_crash_and_is_raised_at_run_time(daemons: Daemons) -> None:
    name = unique("e2e-groups")
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name).start()
    daemons.await_executors(name)
    set_ = daemons.cli("groups", "set", "nightly", "--parent", "low", "--max-cpu", "0.2")
    assert set_.text == "nightly: weight 1, part of low, maximum cpu 0.2\n"
    with daemons.cli.client() as cluster:
        with pytest.raises(fg.NotFound, match="'nobody'; the groups are critical"):
            cluster.job("refused", group="nobody").__enter__()
        with cluster.job("capped", group="nightly") as job:
            first, second, third, fourth = job.request_slots(SMALL)
            first.granted(PATIENCE_S)
            second.granted(PATIENCE_S)

            def two_wait() -> bool:
                found = groups(daemons)["nightly"]
                return (found["running"], found["waiting"]) == (2, 2)

            eventually(two_wait, "two run and two wait")
            told = daemons.cli("explain", third.allocation_id).text
            assert "group nightly has 0.2 of at most 0.2 cpu" in told

            before = groups(daemons)["nightly"]
            killed(daemons)
            daemons.await_executors(name)
            eventually(two_wait, "nobody was placed who may not be")
            after = groups(daemons)["nightly"]
            assert after["maximum"] == {"cpu_milli": 200}
            # The slot continues to run, and one interval is far less than a second of its usage.
            assert after["service"] > before["service"] - 0.2 * 1.0
            assert (after["share_now"], after["share_entitled"]) == (1.0, 1.0)

            refused = daemons.cli("groups", "delete", "nightly", "--yes")
            assert (refused.code, "GROUP_IN_USE" in refused.stderr) == (4, True)
            cluster.set_group("nightly", maximum={"cpu_milli": None})
            third.granted(PATIENCE_S)
            fourth.granted(PATIENCE_S)

            in_slots = daemons.cli("groups", "set", "nightly", "--max-slots", "4")
            assert in_slots.text == "nightly: weight 1, part of low, maximum slots 4\n"
            (fifth,) = job.request_slots(replace(SMALL, count=1))
            eventually(lambda: groups(daemons)["nightly"]["waiting"] == 1, "a fifth waits")
            told = daemons.cli("explain", fifth.allocation_id).text
            assert "group nightly has 4 of at most 4 slots, but the request needs 1 slot" in told
            cluster.set_group("nightly", maximum={"slots": None})
            fifth.granted(PATIENCE_S)
            (listed,) = cluster.jobs()
            assert (listed.group, listed.share_now) == ("nightly", 1.0)
            assert listed.service > 0
            assert "capped (" in daemons.cli("groups", "--jobs").text


def test_what_operators_do_to_groups_outlives_crashes(daemons: Daemons) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    for arguments in (
        ("set", "medium", "--weight", "5", "--min-cpu", "1.5", "--max", "licence=2"),
        ("set", "medium", "--max-memory", "1GiB", "--description", "who pays"),
        ("delete", "low", "--yes"),
        ("rules", "medium", "--job", "etl-*", "--label", "team=ml"),
    ):
        assert daemons.cli("groups", *arguments).code == 0
    with daemons.cli.client() as cluster:
        for name, labels in (("etl-1", {"team": "ml"}), ("etl-2", {}), ("web", {"team": "ml"})):
            with cluster.job(name, labels=labels):
                (listed,) = cluster.jobs()
                assert listed.group == ("medium" if name == "etl-1" else "default")
    assert daemons.cli.json("groups", "rules")["rules"] == [
        {"group": "medium", "order": 10, "job": "etl-*", "user": "", "labels": {"team": "ml"}}
    ]
    assert "etl-*" in daemons.cli("groups", "rules").text
    before = {each["name"]: each for each in daemons.cli.json("groups")["groups"]}
    killed(daemons)
    after = groups(daemons)
    assert after == before
    assert sorted(after) == ["critical", "default", "high", "medium"]
    assert after["medium"]["maximum"] == {"extended.licence": 2, "memory_bytes": 2**30}
    wrong = daemons.cli("groups", "set", "medium", "--min-cpu", "1", "--max-cpu", "0.5")
    assert (wrong.code, "minimum.cpu_milli is 1000" in wrong.stderr) == (2, True)
    name = unique("e2e-rules")
    daemons.executor(name).start()
    daemons.await_executors(name)
    as_ml = ("--name", "etl-batch", "--job-label", "team=ml", "--cpu", "0.1", "--memory", "8M")
    assert daemons.cli("batch", "-n", "1", *as_ml, "--", "true").code == 0
    with daemons.cli.client() as cluster:
        (batch,) = cluster.jobs(include_ended=True, matching=["etl-batch"])
        assert batch.group == "medium"
