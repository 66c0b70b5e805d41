"""Tests that the checks of a chaos run notice failures."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import finegrain_client as fg
from finegrain.v1 import resource_manager_pb2, slots_pb2
from tests.chaos import journal as j
from tests.chaos.excuses import Disturbance
from tests.chaos.faults import CUT_RM_EXECUTOR, FRONT_STOP, KINDS, MASTER_STOP, plan
from tests.chaos.job_master import Work
from tests.chaos.journal import Journal, read_journal
from tests.chaos.judge import (
    STARVED,
    Master,
    grace_after_restart,
    judge_log,
    judge_losses,
    judge_masters,
    judge_requests,
)
from tests.chaos.watcher import Watcher
from tests.support.identities import own

NOON = 1_800_000_000.0


def lost(executor: str, at: float) -> fg.ClusterEvent:
    moment = datetime.fromtimestamp(at, UTC)
    return fg.ClusterEvent(1, moment, "executor_lost", executor, "", "", "", "it was silent")


def master_of(tmp_path: Path, *lines: dict[str, Any]) -> Master:
    path = tmp_path / "master-0-0.jsonl"
    journal = Journal(path)
    for line in lines:
        journal.write(**line)
    master = Master("master-0-0", "master-0")
    master.take(path)
    return master


def books(**states: str) -> dict[str, fg.RequestStatus]:
    return {
        name: cast("fg.RequestStatus", SimpleNamespace(state=state, reason=""))
        for name, state in states.items()
    }


ACKNOWLEDGED = {"what": j.ACKNOWLEDGED, "job_id": "job", "ids": ["a"]}
DONE = {"what": j.DONE}


def test_a_plan_follows_from_its_seed_alone_and_holds_every_kind() -> None:
    groups = tuple(KINDS)
    assert plan(7, groups, 60) == plan(7, groups, 60)
    assert plan(7, groups, 60) != plan(8, groups, 60)
    kinds = {kind for group in groups for kind in KINDS[group]}
    assert {fault.kind for fault in plan(7, groups, 60)} == kinds


def test_a_journal_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(j.JOB, job_id="one")
    with (tmp_path / "journal").open("a") as file:
        file.write('{"what": "jo')
    assert [line["job_id"] for line in read_journal(tmp_path / "journal")] == ["one"]


@pytest.mark.parametrize(
    ("known", "noticed"),
    [
        pytest.param({}, "forgotten", id="forgotten"),
        pytest.param({"a": "PENDING"}, "still PENDING", id="never ended"),
        pytest.param({"a": "REJECTED"}, "without a reason", id="rejected without a reason"),
        pytest.param({"a": "RELEASED"}, "", id="ended in order"),
    ],
)
def test_acknowledged_requests(tmp_path: Path, known: dict[str, str], noticed: str) -> None:
    wrong, _ = judge_requests([master_of(tmp_path, ACKNOWLEDGED, DONE)], books(**known))
    assert noticed in "".join(wrong)
    assert bool(wrong) == bool(noticed)


def test_an_end_that_was_told_otherwise(tmp_path: Path) -> None:
    told = {"what": j.EVENT, "id": "a", "state": "RELEASED", "reason": "", "sequence": 1}
    wrong, _ = judge_requests([master_of(tmp_path, ACKNOWLEDGED, told)], books(a="CANCELLED"))
    assert "told RELEASED, in the books CANCELLED" in wrong[0]


def test_a_loss_needs_somebody_who_was_silent_all_the_time() -> None:
    early = Disturbance(FRONT_STOP, frozenset({"host"}), NOON - 30, NOON - 25)
    whole = Disturbance(FRONT_STOP, frozenset({"host"}), NOON - 9, NOON + 3)
    short = Disturbance(CUT_RM_EXECUTOR, frozenset({"host"}), NOON - 4, NOON + 3)
    other = Disturbance(FRONT_STOP, frozenset({"another"}), NOON - 9, NOON + 3)
    assert judge_losses([lost("host", NOON)], [early, whole])[0] == []
    for excuses in ([], [early], [short], [other]):
        assert judge_losses([lost("host", NOON)], excuses)[0]


def test_the_grace_after_a_restart() -> None:
    assert grace_after_restart([lost("host", NOON)], [NOON - 5], 8.0)
    assert not grace_after_restart([lost("host", NOON)], [NOON - 9, NOON + 1], 8.0)


def test_a_slot_that_was_lost_with_nobody_to_blame(tmp_path: Path) -> None:
    line = {"what": j.SLOT_LOST, "id": "a", "executor": "host", "generation": 1, "reason": "?"}
    master = master_of(tmp_path, ACKNOWLEDGED, line, DONE)
    at = master.lost[0]["at"]
    assert judge_masters([master], [], {}, 30)
    assert not judge_masters([master], [], {"host": [at - 1]}, 30)


def test_a_job_that_ended_while_its_master_was_there(tmp_path: Path) -> None:
    line = {"what": j.JOB_LOST, "job_id": "job", "reason": "LEASE_EXPIRED"}
    master = master_of(tmp_path, line, DONE)
    at = master.lost_jobs[0]["at"]
    stopped = Disturbance(MASTER_STOP, frozenset({"master-0-0"}), at - 40, at + 1)
    assert judge_masters([master], [], {}, 30)
    assert not judge_masters([master], [stopped], {}, 30)


def test_a_task_that_was_never_heard_of_again(tmp_path: Path) -> None:
    task = {"what": j.TASK, "task_id": "t", "id": "a", "generation": 1, "executor": "host"}
    ended = {"what": j.TASK_ENDED, "task_id": "t"}
    assert judge_masters([master_of(tmp_path, ACKNOWLEDGED, task, DONE)], [], {}, 30)
    assert not judge_masters([master_of(tmp_path, task, ended, DONE)], [], {}, 30)


def test_a_job_master_that_never_finished(tmp_path: Path) -> None:
    assert judge_masters([master_of(tmp_path, ACKNOWLEDGED)], [], {}, 30)


def test_words_that_no_log_may_hold(tmp_path: Path) -> None:
    log = tmp_path / "rm.log"
    log.write_text('{"event": "serving"}\n{"event": "invariants_broken"}\n')
    assert len(judge_log(log)) == 1


def test_only_a_transaction_that_got_no_cpu_may_drop_a_batch(tmp_path: Path) -> None:
    log = tmp_path / "rm.log"
    log.write_text(f'{{"event": "batch_dropped", "error": "({STARVED})"}}\n')
    assert judge_log(log) == []
    log.write_text('{"event": "batch_dropped", "error": "(server closed the connection)"}\n')
    assert len(judge_log(log)) == 1


def result(**changes: Any) -> fg.TaskResult:
    values: dict[str, Any] = {
        "task_id": "t",
        "exit_code": 7,
        "signal": 0,
        "oom_killed": False,
        "timed_out": False,
        "cancelled": False,
        "peak_memory_bytes": 0,
        "cpu_time_s": 0.0,
        "end_time": None,
        "stdout_bytes": 0,
        "stderr_bytes": 0,
        "dropped_bytes": 0,
        "stdout": b"x 1\nx 2\nx 3\n",
    }
    return fg.TaskResult(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"exit_code": 0}, id="another exit status"),
        pytest.param({"signal": 9}, id="killed"),
        pytest.param({"cancelled": True, "signal": 15}, id="ended by nobody of ours"),
        pytest.param({"stdout": b"x 1\nx 3\n"}, id="a line is missing"),
        pytest.param({"stdout": b"x 1\nx 2\nx 2\nx 3\n"}, id="a line came twice"),
    ],
)
def test_results_that_are_not_what_was_run(changes: dict[str, Any]) -> None:
    work = Work(3, "x", 0.1, 7)
    assert not work.wrong_with(result(), ended_by_us=False)
    assert work.wrong_with(result(**changes), ended_by_us=False)


def test_the_output_of_a_task_that_we_ended_has_no_gap_either() -> None:
    work = Work(3, "x", 0.1, 7)
    assert not work.wrong_with(result(cancelled=True, stdout=b"x 1\nx"), ended_by_us=True)
    assert work.wrong_with(result(cancelled=True, stdout=b"x 2\n"), ended_by_us=True)


def heard(tmp_path: Path, *events: tuple[int, str, int]) -> list[str]:
    """Returns what a watcher finds wrong with events: sequence, state, generation."""
    path = tmp_path / "watched"
    watcher = Watcher([], own("user/alice"), "job", Journal(path))
    for sequence, state, generation in events:
        number = slots_pb2.RequestState.Value(f"REQUEST_STATE_{state}")
        event = resource_manager_pb2.JobEvent(sequence=sequence, allocation_id="a", state=number)
        event.slot.generation = generation
        watcher._take(event)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["message"] for line in lines if line["what"] == j.WRONG]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([(1, "GRANTED", 1), (3, "RELEASED", 1)], id="a gap"),
        pytest.param([(1, "GRANTED", 1), (1, "GRANTED", 1)], id="a repeat"),
        pytest.param([(1, "GRANTED", 1), (2, "GRANTED", 2)], id="granted twice"),
        pytest.param([(1, "RELEASED", 1), (2, "GRANTED", 1)], id="granted after its end"),
        pytest.param(
            [(1, "GRANTED", 2), (2, "PENDING", 2), (3, "GRANTED", 1)], id="an older slot again"
        ),
    ],
)
def test_streams_that_no_resource_manager_may_send(
    tmp_path: Path, events: list[tuple[int, str, int]]
) -> None:
    assert heard(tmp_path, *events)


def test_a_stream_in_order(tmp_path: Path) -> None:
    story = [(1, "GRANTED", 1), (2, "PENDING", 1), (3, "GRANTED", 1), (4, "RELEASED", 1)]
    assert not heard(tmp_path, *story)
