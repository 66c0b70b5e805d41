"""`finegrain run`: all output arrives, even if it is very large, and even if processes are killed
in between.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import finegrain_client as fg
from tests.e2e.driving import Daemons, Small, eventually, finish, helper_pid, unique
from tests.support.patience import PATIENCE_S

LIMIT = ("--output-limit", "64K")
COUNT = 400_000


def counted(last: int = COUNT) -> bytes:
    return b"".join(b"%d\n" % number for number in range(1, last + 1))


def test_more_output_than_the_executor_stores_arrives_whole(small: Small) -> None:
    both = f"seq {COUNT} & seq {COUNT} >&2; wait"
    outcome = small.cli.run(*LIMIT, "--", "sh", "-c", both)
    assert (outcome.code, outcome.stdout) == (0, counted())
    assert outcome.stderr.encode() == counted()


@pytest.mark.full
def test_output_beyond_the_default_limit_arrives_whole(small: Small) -> None:
    outcome = small.cli.run("--", "seq", "1", "20000000")
    assert (outcome.code, len(outcome.stdout)) == (0, 168_888_897)
    assert outcome.stdout.endswith(b"19999999\n20000000\n")


def test_output_without_newlines_arrives_whole(small: Small) -> None:
    outcome = small.cli.run(*LIMIT, "--", "head", "-c", "3000000", "/dev/zero")
    assert (outcome.code, outcome.stdout) == (0, bytes(3_000_000))


def test_a_file_takes_the_output_of_a_command(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("replaced")
    outcome = small.cli.run("--output", str(file), "--", "sh", "-c", "echo out; echo err >&2")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, b"", "")
    assert sorted(file.read_text().split()) == ["err", "out"]


def test_a_file_takes_the_output_of_a_gang(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "out"
    gang = ("--gang", "2", "--cpu", "0.1", "--memory", "32M", *LIMIT)
    outcome = small.cli.run(*gang, "--output", str(file), "--", "seq", "50000")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, b"", "")
    lines = file.read_bytes().splitlines()
    for member in (0, 1):
        label = b"[%d] " % member
        own = [line.removeprefix(label) for line in lines if line.startswith(label)]
        assert own == counted(50_000).splitlines()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--output", "/no/such/folder/file"), "No such file or directory"),
        (("--output-limit", "10"), "64K or more"),
        (("--output-limit", "much"), "a size such as"),
    ],
)
def test_a_bad_option_is_refused(small: Small, flags: tuple[str, str], named: str) -> None:
    outcome = small.cli.run(*flags, "--", "true")
    assert outcome.code == 125
    assert flags[0] in small.cli.error(outcome)
    assert named in outcome.stderr


def test_a_full_disk_of_the_caller_ends_the_command(small: Small) -> None:
    outcome = small.cli.run("--output", "/dev/full", "--", "seq", "1000")
    assert outcome.code == 125
    assert "/dev/full: No space left on device" in outcome.stderr
    assert "[DISK_FULL]" in outcome.stderr


def test_a_command_waits_for_a_slow_reader(small: Small, tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = f"seq {COUNT}; touch {done}"
    process = small.cli.start("run", "--cpu", "0.1", *LIMIT, "--", "sh", "-c", command)
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 1000)
    time.sleep(1.0)
    assert not done.exists()
    outcome = finish(process)
    assert (outcome.code, first + outcome.stdout) == (0, counted())
    assert done.exists()


def await_size(file: Path, size: int) -> None:
    eventually(lambda: file.exists() and file.stat().st_size > size, "output came")


@pytest.mark.slow
def test_output_survives_kills_of_front_and_helper(daemons: Daemons, tmp_path: Path) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    executor = daemons.executor(name := unique("output"))
    executor.start()
    daemons.await_executors(name)
    file, pieces = tmp_path / "out", 40
    code = f"for i in $(seq {pieces}); do seq {COUNT // pieces}; sleep 0.3; done"
    run = daemons.patient_cli.start(
        "run", "--cpu", "0.1", *LIMIT, "--output", str(file), "--", "sh", "-c", code
    )
    for kill_helper, size in ((False, 100_000), (True, 700_000), (False, 1_100_000)):
        await_size(file, size)
        if kill_helper:
            os.kill(helper_pid(executor), signal.SIGKILL)
        executor.kill()
        executor.start()
        executor.endpoint()
    outcome = finish(run, 2 * PATIENCE_S)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert file.read_bytes() == counted(COUNT // pieces) * pieces


@pytest.mark.slow
def test_a_lost_holder_costs_the_middle_and_the_caller_learns_it(
    daemons: Daemons, tmp_path: Path
) -> None:
    daemons.manager.start("--lost-timeout", "10m")
    daemons.manager.endpoint()
    executor = daemons.executor(name := unique("output"))
    executor.start()
    daemons.await_executors(name)
    file = tmp_path / "out"
    code = "echo first; sleep 4; seq 1000000; echo last"
    run = daemons.patient_cli.start(
        "run", "--cpu", "0.1", *LIMIT, "--output", str(file), "--", "sh", "-c", code
    )
    eventually(lambda: file.exists() and file.read_bytes() == b"first\n", "output came")
    executor.kill()
    time.sleep(75)  # longer than a holder may be gone
    executor.start()
    executor.endpoint()
    outcome = finish(run, 2 * PATIENCE_S)
    content = file.read_bytes()
    assert outcome.code == 125
    assert (content[:6], content[-5:]) == (b"first\n", b"last\n")
    missing = len(b"first\nlast\n") + len(counted(1_000_000)) - len(content)
    assert f"{missing} bytes of standard output are missing here [OUTPUT_LOST]" in outcome.stderr
    assert f"{missing} bytes of output were lost" in outcome.stderr


def test_another_reader_neither_holds_nor_delays(small: Small) -> None:
    with small.cli.client() as cluster, cluster.job("two readers") as job:
        (request,) = job.request_slots(fg.SlotSpec(cpu_milli=100, memory_bytes=32 * fg.MIB))
        slot = request.granted(PATIENCE_S)
        received = bytearray()
        task = slot.run(
            ["sh", "-c", f"seq {COUNT}"],
            output=lambda chunk: received.extend(chunk.data),
            output_limit_bytes=64 * 1024,
            hold_output=True,
        )
        for chunk in task.output():
            assert counted()[chunk.offset : chunk.offset + len(chunk.data)] == chunk.data
            break
        result = task.wait(PATIENCE_S)
        slot.release()
    assert (result.ok, result.output_lost, bytes(received)) == (True, False, counted())


def test_a_shell_pipeline_sees_the_whole_output(small: Small) -> None:
    run = f"{small.cli.python} -m {small.cli.module} run --cpu 0.1 --memory 32M --output-limit 64K"
    outcome = subprocess.run(
        ["sh", "-c", f"{run} -- seq {COUNT} | (sleep 1; md5sum)"],
        env=small.cli.environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    expected = subprocess.run(["md5sum"], input=counted(), capture_output=True, check=True)
    assert (outcome.stdout, outcome.stderr) == (expected.stdout, b"")
