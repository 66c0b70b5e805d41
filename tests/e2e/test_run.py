"""`finegrain run`: the command behaves as if it ran on this host, and nothing is left at its
end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.resources import MIB
from tests.e2e.driving import (
    Outcome,
    Small,
    eventually,
    finish,
    gone,
    interrupt,
    processes_that_name,
    python,
    read_until,
    unique,
)
from tests.support.patience import PATIENCE_S


@pytest.mark.quick
def test_output_and_exit_code_pass_through(small: Small) -> None:
    outcome = small.cli.run("--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert outcome == Outcome(7, b"out\n", "err\n")


def test_the_readmes_first_command(small: Small) -> None:
    outcome = small.cli(
        "run", "--cpu", "0.5", "--memory", "256M", "--", "python3", "-c", "print(42)"
    )
    assert outcome == Outcome(0, b"42\n", "")


def test_without_amounts_the_slot_is_the_default_one(small: Small) -> None:
    outcome = small.cli("run", "--stats", "--", "true")
    assert outcome.code == 0
    assert "peak memory" in outcome.stderr


def test_bytes_pass_through_unchanged(small: Small) -> None:
    everything = bytes(range(256)) * 4096
    outcome = small.cli.run("-i", "--", "cat", stdin=everything)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, everything, "")


def test_large_output_is_complete(small: Small) -> None:
    code = "import sys\nfor i in range(300_000): sys.stdout.write(f'{i}\\n')"
    outcome = small.cli.run("--", *python(code))
    assert outcome.code == 0
    assert outcome.text.splitlines() == [str(number) for number in range(300_000)]


def test_input_from_a_file_and_from_nowhere(small: Small, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"1\n2\n3\n")
    with (tmp_path / "in").open("rb") as file:
        process = small.cli.start("run", "-i", "--cpu", "0.1", "--", "wc", "-l", stdin=file)
        assert finish(process).stdout.strip() == b"3"
    assert small.cli.run("--", "wc", "-c").stdout.strip() == b"0"


def test_a_loop_over_a_file_keeps_its_input(small: Small, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("one\ntwo\n")
    run = f"{small.cli.python} -m {small.cli.module} run --cpu 0.1 --memory 32M"
    loop = f'while read name; do {run} -- sh -c "cat; echo $name"; done < hosts'
    outcome = subprocess.run(
        ["sh", "-c", loop],
        cwd=tmp_path,
        env=small.cli.environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert outcome.stdout == b"one\ntwo\n", outcome.stderr


@pytest.mark.parametrize("flags", [(), ("-i",)], ids=["not passed", "passed"])
def test_a_closed_standard_input_is_an_empty_one(small: Small, flags: tuple[str, ...]) -> None:
    # The shell closes its input. Python code between fork and exec would also run gRPC's threads.
    words = [small.cli.python, "-m", small.cli.module, "run", *flags, "--", "wc", "-c"]
    outcome = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *words],
        env=small.cli.environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout.strip(), outcome.stderr) == (0, b"0", b"")


def test_whoever_reads_only_the_beginning_ends_the_command(small: Small) -> None:
    mark = unique("endless")
    process = small.cli.start("run", "--cpu", "0.1", "--", "sh", "-c", f"yes {mark}")
    read_until(process, mark.encode())
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) in (128 + signal.SIGTERM, 128 + signal.SIGPIPE)
    eventually(gone(mark), "the command has gone")


def test_the_environment_is_a_short_list_and_what_was_asked_for(small: Small) -> None:
    secret = {"MY_SECRET": "s3cret", "MY_WISH": "given", "LC_TIME": "C", **small.cli.environment()}
    flags = ("--env", "MY_WISH", "--env", "OWN=a=b c")
    outcome = small.cli.run(*flags, "--", "env", env=secret)
    found = dict(line.split("=", 1) for line in outcome.text.splitlines())
    assert (found["MY_WISH"], found["OWN"], found["LC_TIME"]) == ("given", "a=b c", "C")
    assert "MY_SECRET" not in found
    assert "FINEGRAIN_TOKEN_FILE" not in found


def test_a_variable_that_is_not_set_is_refused(small: Small) -> None:
    outcome = small.cli.run("--env", "NO_SUCH_VARIABLE", "--", "true")
    assert outcome.code == 125
    assert "--env" in small.cli.error(outcome)
    assert "NO_SUCH_VARIABLE" in outcome.stderr


def test_where_it_runs(small: Small, tmp_path: Path) -> None:
    assert small.cli.run("--cwd", str(tmp_path), "--", "pwd").text.strip() == str(tmp_path)
    scratch = small.cli.run("--", "pwd").text.strip()
    assert scratch not in (str(Path.cwd()), str(small.cli.home), "/")
    eventually(lambda: not Path(scratch).exists(), "the scratch directory is removed")


def test_a_directory_that_is_not_there(small: Small) -> None:
    outcome = small.cli.run("--cwd", "/no/such/place", "--", "true")
    assert outcome.code == 125
    assert "/no/such/place" in small.cli.error(outcome)


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        pytest.param("no-such-program", 127, "COMMAND_NOT_FOUND", id="not in PATH"),
        pytest.param("/no/such/program", 127, "COMMAND_NOT_FOUND", id="no such file"),
        pytest.param("/etc/passwd", 126, "COMMAND_NOT_EXECUTABLE", id="not executable"),
        pytest.param("/etc", 126, "COMMAND_NOT_EXECUTABLE", id="a directory"),
    ],
)
def test_what_cannot_be_executed(small: Small, command: str, code: int, reason: str) -> None:
    outcome = small.cli.run("--", command)
    assert outcome.code == code
    assert command in small.cli.error(outcome)
    assert f"[{reason}]" in outcome.stderr


def test_how_a_signal_shows(small: Small) -> None:
    assert small.cli.run("--", "sh", "-c", "kill -9 $$").code == 128 + signal.SIGKILL


@pytest.mark.quick
def test_memory_that_runs_out_is_told(small: Small) -> None:
    outcome = small.cli.run("--", *python(f"b = bytearray({200 * MIB})"))
    assert outcome.code == 137
    assert "used all memory of its slot" in outcome.stderr


@pytest.mark.quick
def test_a_timeout_ends_the_command(small: Small) -> None:
    mark = unique("9999")
    outcome = small.cli.run("--timeout", "300ms", "--", "sh", "-c", f"sleep 1000; echo {mark}")
    assert outcome.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert "timeout" in outcome.stderr
    eventually(gone(mark), "the command has gone")


@pytest.mark.quick
def test_a_time_limit_ends_the_slot_with_an_exit_code_of_its_own(small: Small) -> None:
    mark = unique("9998")
    flags = ("--time-limit", "2s", "--grace", "1s")
    outcome = small.cli.run(*flags, "--", "sh", "-c", f"sleep 1000; echo {mark}")
    assert outcome.code == 124
    assert "the command was ended by the executor: the time limit of its slot (2s) was over" in (
        outcome.stderr
    )
    eventually(gone(mark), "the command has gone")
    eventually(lambda: not small.cli.items("slots"), "its slot has gone")


def test_what_no_host_can_ever_hold_is_refused_at_once(small: Small) -> None:
    outcome = small.cli("run", "--cpu", "640", "--", "true")
    assert outcome.code == 125
    assert "[INFEASIBLE_NEVER]" in small.cli.error(outcome)
    assert "finegrain executors" in outcome.stderr  # the hint


def test_a_request_times_out_at_the_manager(small: Small) -> None:
    with small.cli.client() as cluster, cluster.job(unique("patient")) as job:
        spec = fg.SlotSpec(cpu_milli=640_000, allow_pending=True, wait_timeout_s=0.5, count=2)
        requests = job.request_slots(spec)
        for request in requests:
            with pytest.raises(fg.RequestRejected) as found:
                request.granted(PATIENCE_S)
            assert found.value.reason is fg.Reason.TIMED_OUT
        ended = cluster.requests(job_id=job.job_id, states=["REJECTED"])
        assert [each.reason for each in ended] == ["TIMED_OUT"] * 2
        assert [each.wait_timeout_s for each in ended] == [0.5] * 2


def test_giving_up_on_a_slot(small: Small) -> None:
    flags = ("--cpu", "640", "--allow-pending", "--wait-timeout", "300ms")
    outcome = small.cli("run", *flags, "--", "true")
    assert outcome.code == 5
    assert "no slot was granted within 0.3 s; the request is cancelled" in outcome.stderr
    assert "[STILL_WAITING]" in outcome.stderr
    assert not small.cli.items("requests")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_goes_to_the_command_and_shows_in_the_exit_code(
    small: Small, number: int, code: int
) -> None:
    mark = unique("sleeper")
    process = small.cli.start(
        "run", "--cpu", "0.1", "--", "sh", "-c", f"echo up; exec sleep 1000 # {mark}"
    )
    read_until(process, b"up")
    interrupt(process, number)
    assert finish(process).code == code


def test_a_command_that_handles_the_signal_decides_its_exit_code(small: Small) -> None:
    script = "trap 'echo bye; exit 3' INT; echo up; while :; do sleep 0.05; done"
    process = small.cli.start("run", "--cpu", "0.1", "--", "sh", "-c", script)
    read_until(process, b"up")
    interrupt(process)
    assert finish(process) == Outcome(3, b"bye\n", "")


def test_a_command_that_ignores_signals_is_killed_after_the_grace(small: Small) -> None:
    mark = unique("stubborn")
    script = f"trap '' INT TERM; echo up {mark}; while :; do sleep 0.05; done"
    process = small.cli.start("run", "--cpu", "0.1", "--grace", "300ms", "--", "sh", "-c", script)
    read_until(process, b"up")
    interrupt(process, signal.SIGTERM)
    assert finish(process).code == 128 + signal.SIGKILL
    eventually(gone(f"echo up {mark}"), "the command has gone")


def test_signals_that_ask_for_no_end_are_passed_on(small: Small) -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit('got it'))\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()"
    )
    process = small.cli.start("run", "--cpu", "0.1", "--", *python(code))
    read_until(process, b"up")
    interrupt(process, signal.SIGUSR1)
    assert finish(process) == Outcome(1, b"", "got it\n")


def test_a_run_waits_for_other_jobs(small: Small, tmp_path: Path) -> None:
    cli, file = small.cli, tmp_path / "first"
    names = unique("first"), unique("second"), unique("third")
    options = ("run", "--cpu", "0.1", "--memory", "32M", "--name")
    first = cli.start(
        *options, names[0], "--", "sh", "-c", f"until [ -e {file} ]; do sleep 0.1; done; exit 3"
    )
    eventually(lambda: names[0] in cli("jobs").text, "the first job is registered")
    told_by_run = tmp_path / "told"
    with told_by_run.open("wb") as stderr:
        after = ("--after", f"{names[0]}:any")
        wait = cli.start(*options, names[1], *after, "--", "echo", "second", stderr=stderr)
    fails = cli.start(*options, names[2], "--after", names[0], "--", "echo", "third")

    def both_wait() -> bool:
        return cli("requests").text.count("WAITING_DEPENDENCY") == 2

    eventually(both_wait, "two jobs wait for the first")
    assert cli("jobs").text.count("WAITS FOR 1 JOB") == 2
    (waiting,) = [each for each in cli.json("jobs")["items"] if each["name"] == names[1]]
    (request,) = cli.json("requests", "--job", names[1])["items"]
    told = cli("explain", request["allocation_id"]).text
    assert f"its job waits for the end of job {waiting['awaited_job_ids'][0]}" in told
    sentence = "waiting for a slot: its job waits for the end of job"
    eventually(lambda: sentence in told_by_run.read_text(), "run says what it waits for")
    file.touch()
    assert finish(first).code == 3
    waited = finish(wait)
    assert (waited.code, waited.stdout) == (0, b"second\n")
    refused = finish(fails)
    assert (refused.code, refused.stdout) == (125, b"")
    assert "DEPENDENCY_FAILED" in refused.stderr
    ends = {each["name"]: each for each in cli.json("jobs", "--all")["items"]}
    assert [ends[name]["outcome"] for name in names] == ["FAILED", "SUCCEEDED", "FAILED"]


def test_a_run_after_an_unknown_job_is_refused(small: Small) -> None:
    outcome = small.cli.run("--after", "no-such-job", "--", "true")
    assert outcome.code == 125
    assert "no job has the name or id 'no-such-job'" in outcome.stderr


def test_two_runs_at_once(small: Small) -> None:
    command = ("run", "-i", "--cpu", "0.2", "--", "sh", "-c", "echo up; cat")
    both = [small.cli.start(*command, stdin=subprocess.PIPE) for _ in range(2)]
    for process in both:
        read_until(process, b"up\n")
    assert len(small.cli.items("slots")) == 2
    ends = [process.communicate(b"%d" % number, 60)[0] for number, process in enumerate(both)]
    assert (ends, [process.returncode for process in both]) == ([b"0", b"1"], [0, 0])


def test_ctrl_c_while_it_waits_leaves_nothing(small: Small) -> None:
    mark = unique("never-run")
    process = small.cli.start("run", "--cpu", "640", "--allow-pending", "--", "echo", mark)
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    assert "waiting for a slot" in said
    assert "INFEASIBLE_NEVER" in said
    (request,) = small.cli.items("requests")
    assert request["allocation_id"] in said
    interrupt(process)
    assert finish(process).code == 130
    assert not small.cli.items("requests")
    assert not small.cli.items("slots")
    assert not small.cli.items("jobs")
    assert not small.slot_groups()
    assert not processes_that_name(mark)


def test_a_second_ctrl_c_does_not_wait_for_the_grace_period(small: Small) -> None:
    mark = unique("stubborn")
    command = ("sh", "-c", f"trap 'echo no' INT; echo up {mark}; while :; do sleep 0.05; done")
    flags = ("--cpu", "0.1", "--memory", "32M", "--grace", "10m")
    process = small.cli.start("run", *flags, "--", *command)
    read_until(process, b"up")
    interrupt(process)
    read_until(process, b"no\n")
    interrupt(process)
    assert finish(process).code == 128 + signal.SIGKILL
    eventually(gone(mark), "the command has gone")


@pytest.mark.parametrize("delay_s", [0.05, 0.2, 0.4])
def test_ctrl_c_during_the_start_shows_no_traceback(small: Small, delay_s: float) -> None:
    process = small.cli.start("run", "--cpu", "0.1", "--memory", "32M", "--", "sleep", "600")
    time.sleep(delay_s)
    interrupt(process)
    outcome = finish(process)
    assert outcome.code in (-signal.SIGINT, 1, 130)  # 1: click aborts the command
    # On a busy machine, Python itself may still be starting, and then shows a traceback.
    assert "__main__.py" not in outcome.stderr
    small.cli.settle()


def test_ctrl_c_while_it_runs_leaves_nothing(small: Small) -> None:
    mark = unique("child")
    tree = (
        f"sh -c 'sleep 1000; echo {mark}' & sh -c 'setsid sleep 1000; echo {mark}' & echo up; wait"
    )
    process = small.cli.start("run", "--cpu", "0.1", "--", "sh", "-c", tree)
    read_until(process, b"up")
    eventually(lambda: len(processes_that_name(mark)) >= 3, "the whole tree runs")
    interrupt(process)
    finish(process)
    eventually(gone(mark), "the whole tree has gone")


def test_a_run_that_is_killed_is_cleaned_up_by_its_lease(small: Small) -> None:
    """The cluster gets no message. test_job_master shows that the job ends because it is silent."""
    mark = unique("orphan")
    process = small.cli.start(
        "run", "--cpu", "0.1", "--", "sh", "-c", f"echo up; sleep 1000; : {mark}"
    )
    read_until(process, b"up")
    process.kill()
    process.wait()
    (job,) = small.cli.items("jobs")
    assert small.cli("terminate", job["job_id"], "--yes", "--grace", "0s").code == 0
    eventually(gone(mark), "the command has gone")


def test_nobody_answers(small: Small) -> None:
    outcome = small.cli.run("--manager", "127.0.0.1:1", "--", "true", patience_s=PATIENCE_S)
    assert outcome.code == 125
    assert "127.0.0.1:1" in outcome.stderr
    assert "finegrain up" in outcome.stderr


def test_arguments_are_taken_as_they_are(small: Small) -> None:
    words = ["--help", "-c", "a b", "", "ä€", "*", "$HOME"]
    code = "import sys, json; print(json.dumps(sys.argv[1:]))"
    outcome = small.cli.run("--", *python(code, *words))
    assert outcome.code == 0, outcome.stderr
    assert json.loads(outcome.stdout) == words
