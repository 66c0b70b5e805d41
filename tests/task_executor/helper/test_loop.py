"""One thread serves all clients: a client with much work does not delay a client with little
work.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from task_executor.helper.loop import Job, Loop

STEPS = 100


@pytest.fixture
def loop() -> Iterator[Loop]:
    before = signal.getsignal(signal.SIGCHLD)
    yield Loop(lambda: None)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)


def test_a_job_of_many_steps_lets_others_in_between(loop: Loop) -> None:
    """For example, tasks start while a thousand slots are moved."""
    reader, writer = os.pipe()
    done: list[int] = []
    served_after: list[int] = []

    def many() -> Job:
        for step in range(STEPS):
            done.append(step)
            if step == 0:
                os.write(writer, b"a request")
            yield 0.0

    def serve(_events: int) -> None:
        os.read(reader, 100)
        served_after.append(len(done))

    def end(_value: object, _error: Exception | None) -> None:
        loop.running = False

    loop.watch(reader, serve)
    loop.later(0, lambda: loop.run(many(), end))
    loop.serve()
    assert len(done) == STEPS
    assert len(served_after) == 1
    assert served_after[0] <= 2
    loop.unwatch(reader)
    os.close(reader)
    os.close(writer)


def test_a_failure_that_nobody_waits_for_is_written_to_the_log(
    loop: Loop, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Job:
        yield 0.0
        raise ValueError("the group is gone")

    def stop() -> None:
        loop.running = False

    loop.run(broken())
    loop.later(0.01, stop)
    loop.serve()
    assert "ValueError: the group is gone" in capsys.readouterr().err
