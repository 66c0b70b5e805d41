"""Shows the progress of a batch on standard error. A terminal gets a bar, and other outputs get
single lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from finegrain.units import format_duration
from finegrain_cli.text.output import discard_standard_error, say

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from finegrain_client.batch.values import Progress

GOING_ON = ("OPEN", "STOPPING")
"""States in which a batch has not ended. The display shows why a batch waits only while the batch
is in one of these states.
"""

LINE_EVERY_S = 10.0
"""Shortest time in seconds between two lines of progress. It applies if standard error is not a
terminal.
"""


class Display(Protocol):
    """A display of progress."""

    def show(self, progress: Progress) -> None:
        """Shows the current progress."""

    def say(self, message: str) -> None:
        """Prints a message for people. The bar stays intact."""

    def close(self) -> None:
        """Ends the display and restores the terminal."""


def progress_text(progress: Progress) -> str:
    """Returns one line: "312 of 500 done, 12 running, 170 queued, 6 failed, 38 % of the
    cluster".
    """
    parts = [f"{progress.done} of {progress.threads} done", *_counts(progress)]
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    if progress.share is not None and progress.slots:
        parts.append(f"{_share(progress.share)} of the cluster")
    if progress.estimate is not None:
        parts.append(f"about {format_duration(progress.estimate.remaining_s)} left")
    if progress.message and progress.state in GOING_ON:
        parts.append(progress.message)
    return ", ".join(parts)


@contextmanager
def display(name: str, threads: int, *, quiet: bool = False) -> Iterator[Display]:
    """Yields a display of progress, and closes the display at the end of the context. If standard
    error is a terminal, the display is a bar.
    """
    if quiet:
        yield _Quiet()
    elif sys.stderr.isatty():
        with _Bar(name, threads) as bar:
            yield bar
    else:
        lines = _Lines(name)
        yield lines
        lines.close()


class _Quiet:
    def show(self, progress: Progress) -> None:
        pass

    def say(self, message: str) -> None:
        say(message)

    def close(self) -> None:
        pass


class _Lines:
    """Prints the first and the last state, and between them at most one line every `LINE_EVERY_S`
    seconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._printed = self._latest = ""
        self._next_s = 0.0

    def show(self, progress: Progress) -> None:
        self._latest = progress_text(progress)
        if time.monotonic() >= self._next_s:
            self.close()

    def say(self, message: str) -> None:
        say(message)

    def close(self) -> None:
        if self._latest != self._printed:
            say(f"finegrain: {self._name}: {self._latest}")
            self._printed = self._latest
            self._next_s = time.monotonic() + LINE_EVERY_S


class _Bar:
    """A bar that shows how many threads are done, followed by numbers."""

    def __init__(self, name: str, threads: int) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar: RichProgress = RichProgress(
            TextColumn(escape(name), markup=True),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True, highlight=False),
            refresh_per_second=4,
        )
        self._task: TaskID = self._bar.add_task("", total=threads)

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._bar.stop()
        except OSError:  # the terminal is closed, but the batch continues
            discard_standard_error()

    def show(self, progress: Progress) -> None:
        numbers = _counts(progress)
        if progress.failed:
            numbers.append(f"{progress.failed} failed")
        if progress.share is not None and progress.slots:
            numbers.append(f"share {_share(progress.share)}")
        if progress.estimate is not None:
            numbers.append(f"{format_duration(progress.estimate.remaining_s)} left")
        if progress.message and progress.state in GOING_ON:
            numbers.append(progress.message)
        self._bar.update(
            self._task,
            completed=progress.ended,
            description="  ".join(numbers),
        )

    def say(self, message: str) -> None:
        try:
            self._bar.console.print(message, markup=False)
        except OSError:
            discard_standard_error()


def _counts(progress: Progress) -> list[str]:
    counts = [(progress.running, "running"), (progress.queued, "queued")]
    if progress.speculative:
        counts.append((progress.speculative, "run twice"))
    return [f"{count} {what}" for count, what in counts if count or what == "running"]


def _share(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 else f"{share * 100:.1g} %"
