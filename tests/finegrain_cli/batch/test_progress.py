"""The progress of a batch: a bar on a terminal, otherwise plain lines. Nothing of it is on standard
output.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from finegrain_cli.batch import progress
from finegrain_cli.batch.progress import display, progress_text
from finegrain_client.batch.values import BatchState, Estimate, Progress
from tests.support.patience import PATIENCE_S

ESTIMATE = Estimate(130.0, datetime(2026, 3, 1, tzinfo=UTC), "312 threads that are done")
HALF = Progress(
    state=BatchState.OPEN,
    threads=500,
    done=312,
    failed=6,
    running=12,
    queued=170,
    slots=12,
    share=0.384,
    estimate=ESTIMATE,
)


def test_all_that_counts_in_one_line() -> None:
    assert progress_text(HALF) == (
        "312 of 500 done, 12 running, 170 queued, 6 failed, 38 % of the cluster, about 2m10s left"
    )


def test_what_is_nothing_is_not_said() -> None:
    done = Progress(BatchState.ENDED, 500, 500, 0, 0, 0)

    assert progress_text(done) == "500 of 500 done, 0 running"


def test_a_small_share_is_not_none() -> None:
    tiny = Progress(BatchState.OPEN, 9, 0, 0, 1, 8, slots=1, share=0.0004)

    assert "0.04 % of the cluster" in progress_text(tiny)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that the display sees."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def test_without_a_terminal_a_line_now_and_then_and_the_last_one(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with display("nightly", 500) as shown:
        for done in range(300):
            shown.show(Progress(BatchState.OPEN, 300, done, 0, 4, 296 - done))
            clock.now += 0.1
        shown.show(Progress(BatchState.ENDED, 300, 300, 0, 0, 0))
    out, err = capsys.readouterr()

    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "finegrain: nightly: 0 of 300 done, 4 running, 296 queued"
    assert lines[-1] == "finegrain: nightly: 300 of 300 done, 0 running"
    assert len(lines) == 4  # 30 seconds, one every ten


def test_nothing_new_is_not_said_again(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with display("nightly", 500) as shown:
        for _ in range(100):
            shown.show(HALF)
            clock.now += 1

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_quiet_says_only_what_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    with display("nightly", 500, quiet=True) as shown:
        shown.show(HALF)
        shown.say("finegrain: stopping")

    assert capsys.readouterr() == ("", "finegrain: stopping\n")


def test_on_a_terminal_a_bar_with_the_numbers_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    text = ""

    def read() -> None:
        nonlocal text
        with suppress(OSError):  # the other end is closed
            while data := os.read(master, 4096):
                text += data.decode()

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("TERM", "xterm")
        with display("night[ly]", 500) as shown:
            shown.show(HALF)
            shown.say("finegrain: [stopping] what runs")
    reader.join()
    os.close(master)

    assert "night[ly]" in text
    assert "318/500" in text
    assert "12 running  170 queued  6 failed  share 38 %  2m10s left" in text
    assert "finegrain: [stopping] what runs" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


LEFT_ALONE = """
import os
from finegrain_cli.batch.progress import display
from finegrain_client.batch.values import BatchState, Progress
with display("night", 3) as shown:
    os.write(1, b"begun\\n")  # print would go where the bar is
    input()
    shown.show(Progress(BatchState.OPEN, 3, 0, 0, 0, 3))
    shown.say("stopping")
print("done")
"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_shown_goes_on_when_nobody_is_there_to_see_it(is_terminal: bool) -> None:
    theirs, ours = pty.openpty() if is_terminal else os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", LEFT_ALONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=ours,
        text=True,
    )
    os.close(ours)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    os.close(theirs)
    said, _ = child.communicate("\n", timeout=PATIENCE_S)
    assert (child.returncode, said) == (0, "done\n")
