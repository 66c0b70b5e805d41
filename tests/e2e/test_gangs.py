"""`finegrain run --gang`: one command in many slots, granted together, ended together."""

from __future__ import annotations

import signal
import subprocess

import pytest

import finegrain_client as fg
from tests.e2e.driving import (
    Daemons,
    Small,
    eventually,
    finish,
    gone,
    interrupt,
    read_until,
    unique,
)
from tests.support.patience import PATIENCE_S

WHO = 'echo "$FINEGRAIN_GANG_INDEX of $FINEGRAIN_GANG_SIZE in $FINEGRAIN_GANG_ID"'


def test_a_gang_of_four(small: Small) -> None:
    outcome = small.cli.run("--gang", "4", "--", "sh", "-c", WHO)

    assert (outcome.code, outcome.stderr) == (0, "")
    lines = sorted(outcome.text.splitlines())
    gang_id = lines[0].split()[-1]
    assert lines == [f"[{index}] {index} of 4 in {gang_id}" for index in range(4)]


@pytest.mark.parametrize(
    ("placement", "executors"), [("spread", 2), ("same-executor", 1), ("same-label:zone", 1)]
)
def test_members_go_where_the_gang_wants_them(small: Small, placement: str, executors: int) -> None:
    flags = ("--gang", "2", "--gang-placement", placement)
    process = small.cli.start(
        "run", "--cpu", "0.1", *flags, "--", "sh", "-c", "echo up; sleep 1000"
    )
    said = b""
    while said.count(b"up\n") < 2:
        said += read_until(process, b"up\n")
    slots = small.cli.items("slots")
    gangs = {each["gang"]["gang_id"] for each in small.cli.items("requests")}
    interrupt(process)
    finish(process)

    assert len(slots) == 2
    assert len({each["executor_id"] for each in slots}) == executors
    assert len(gangs) == 1


def test_the_first_that_fails_ends_the_others(small: Small) -> None:
    mark = unique("member")
    script = f'if [ "$FINEGRAIN_GANG_INDEX" = 2 ]; then exit 7; fi; sleep 1000; : {mark}'
    outcome = small.cli.run("--gang", "4", "--grace", "2s", "--", "sh", "-c", script)

    assert outcome.code == 7
    assert "member 2 failed; the other members are stopped" in outcome.stderr
    eventually(gone(mark), "all members have gone")


def test_a_member_that_ends_well_ends_nobody(small: Small) -> None:
    script = '[ "$FINEGRAIN_GANG_INDEX" = 0 ] || sleep 0.5; echo done'
    outcome = small.cli.run("--gang", "2", "--", "sh", "-c", script)

    assert outcome.code == 0
    assert sorted(outcome.text.splitlines()) == ["[0] done", "[1] done"]


def test_a_member_whose_slot_is_taken_away_ends_the_others(small: Small) -> None:
    mark = unique("member")
    script = f"echo up; sleep 1000; : {mark}"
    process = small.cli.start("run", "--cpu", "0.1", "--gang", "3", "--", "sh", "-c", script)
    said = b""
    while said.count(b"up\n") < 3:
        said += read_until(process, b"up\n")
    one = small.cli.items("slots")[0]["allocation_id"]
    assert small.cli("release", one, "--yes", "--grace", "0s").code == 0
    outcome = finish(process)

    assert outcome.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL), outcome.stderr
    assert "the other members are stopped" in outcome.stderr
    eventually(gone(mark), "all members have gone")


def test_a_command_that_is_not_there_is_told_once(small: Small) -> None:
    outcome = small.cli.run("--gang", "4", "--", "no-such-program")

    assert outcome.code == 127
    assert "COMMAND_NOT_FOUND" in small.cli.error(outcome)


def test_signals_go_to_all_members(small: Small) -> None:
    """Each member may run to its end, although the first member that ended has failed."""
    bye = "sleep 0.$FINEGRAIN_GANG_INDEX; echo bye; exit 3"
    script = f"trap '{bye}' INT; echo up; while :; do sleep 0.05; done"
    process = small.cli.start("run", "--cpu", "0.1", "--gang", "3", "--", "sh", "-c", script)
    said = b""
    while said.count(b"up\n") < 3:
        said += read_until(process, b"up\n")
    interrupt(process)
    outcome = finish(process)

    assert outcome.code == 3
    assert sorted(outcome.text.splitlines()) == ["[0] bye", "[1] bye", "[2] bye"]
    assert "the other members are stopped" not in outcome.stderr


def test_input_goes_to_the_first_member(small: Small) -> None:
    outcome = small.cli.run("-i", "--gang", "2", "--", "wc", "-c", stdin=b"12345")

    assert sorted(outcome.text.split("\n")) == ["", "[0] 5", "[1] 0"]


def test_a_gang_that_could_never_be_placed_is_refused(small: Small) -> None:
    outcome = small.cli.run("--gang", "3", "--gang-placement", "spread", "--", "true")

    assert outcome.code == 125
    assert "[INFEASIBLE_NEVER]" in small.cli.error(outcome)


def test_a_gang_that_waits_for_too_long_is_given_up(small: Small) -> None:
    with small.cli.client() as cluster, cluster.job("neighbour") as job:
        (neighbour,) = job.request_slots(fg.SlotSpec(cpu_milli=500, memory_bytes=64 * fg.MIB))
        neighbour.granted(PATIENCE_S)
        flags = ("--cpu", "0.5", "--memory", "32M", "--gang", "4", "--gang-timeout", "2s")
        outcome = small.cli("run", *flags, "--", "true")
        ended = small.cli.items("requests", "--all")

    assert outcome.code == 125
    assert "[GANG_TIMEOUT]" in outcome.stderr
    assert [each["reason"] for each in ended].count("GANG_TIMEOUT") == 4


def test_a_gang_waits_as_a_whole_until_there_is_room(small: Small) -> None:
    with small.cli.client() as cluster, cluster.job("neighbour") as job:
        (neighbour,) = job.request_slots(fg.SlotSpec(cpu_milli=500, memory_bytes=64 * fg.MIB))
        slot = neighbour.granted(PATIENCE_S)
        flags = ("run", "--cpu", "0.5", "--memory", "32M", "--gang", "4")
        process = small.cli.start(*flags, "--", "echo", "here")

        def waiting() -> list[str]:
            rows = small.cli.items("requests")
            return [each["allocation_id"] for each in rows if each["reason"] == "WAITING_GANG"]

        one, *others = eventually(waiting, "the gang waits")
        assert len(others) == 3
        assert len(small.cli.items("slots")) == 1  # the gang has no slot meanwhile
        explained = small.cli("explain", one).text
        assert "3 of 4 members could be placed together now" in explained
        assert "waiting for a slot" in read_error(process)
        slot.release()
        outcome = finish(process)

    assert (outcome.code, len(outcome.text.splitlines())) == (0, 4)


def read_error(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().decode()


def test_ctrl_c_while_a_gang_waits_leaves_nothing(small: Small) -> None:
    flags = ("--gang", "3", "--gang-placement", "spread", "--allow-pending")
    process = small.cli.start("run", "--cpu", "0.1", *flags, "--", "true")
    assert "waiting for a slot" in read_error(process)
    interrupt(process, signal.SIGINT)

    assert finish(process).code == 130
    assert not small.cli.items("requests")


def test_a_gang_waits_on_over_a_crash_of_the_resource_manager(daemons: Daemons) -> None:
    name = unique("e2e-gang")
    daemons.manager.start()
    daemons.manager.endpoint()
    daemons.executor(name).start()
    daemons.await_executors(name)
    with daemons.cli.client() as cluster, cluster.job("neighbour") as job:
        (neighbour,) = job.request_slots(fg.SlotSpec(cpu_milli=500, memory_bytes=64 * fg.MIB))
        slot = neighbour.granted(PATIENCE_S)
        flags = ("run", "--cpu", "0.5", "--memory", "32M", "--gang", "2")
        process = daemons.cli.start(*flags, "--", "echo", "here")
        assert "waiting for a slot" in read_error(process)
        daemons.manager.kill()
        daemons.manager.start()
        daemons.manager.endpoint()
        daemons.await_executors(name)
        assert len(daemons.cli.items("slots")) == 1
        slot.release()
        outcome = finish(process)

    assert (outcome.code, sorted(outcome.text.splitlines())) == (0, ["[0] here", "[1] here"])
