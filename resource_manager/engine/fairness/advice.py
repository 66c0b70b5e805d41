"""Recommends into how many threads the work of a job should be split, from the durations of its
finished threads.

A thread may take long for two reasons, and each reason needs a different recommendation:

- The thread has many units of work, like all other threads of the job. If the same work is split
  evenly into k times as many threads, each thread takes 1/k of the time.
- The thread has one unit of work that takes long. More threads do not divide this unit. But with
  more threads, the long threads are a smaller part of all threads.

A thread counts as the second kind if it took more than `LONG_FACTOR` times the median, and only a
few threads did so (`LONG_SHARE_MAX`). A thread of about a second or less is mostly overhead
(carving a slot, starting a process, reporting), so the advice avoids such short threads.

Example: 30 threads have finished. 29 threads took 4 minutes each, and one took 25 minutes. The
target is 2 minutes, and 5 times the median is 20 minutes. So the long thread is of the second kind.
With 60 threads, ordinary threads would take 2 minutes each, but the long thread still 25 minutes.
So the advice is about 60 threads, because 59 of 60 threads then meet the target.

The default target comes from the paper in docs/fairness-theory.md: almost all threads should take
less than two minutes. Jobs typically need 200 to 1,000 threads for this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from finegrain.units import format_duration
from resource_manager.engine.model.durations import Durations

TARGET_MS = 120_000
QUANTILE = 0.95
THREADS_MAX = 100_000
"""The advice never recommends more threads than this. Jobs with more threads are unusual."""

TYPICAL_MIN, TYPICAL_MAX = 200, 1_000
OBSERVED_FEW = 20
"""With fewer finished threads, the advice is only rough, and a remark says so."""

LONG_FACTOR = 5.0
LONG_SHARE_MAX = 0.1
FINISHED_SHARE_MIN = 0.1
OVERHEAD_MS = 1_000
"""A shorter thread mostly consists of the overhead that every thread has."""

WORTH_MS = 10_000
"""Recommended mean duration if the threads of a job are too short."""

ASSUMED = (
    "assumed: the same work in total, split evenly; a thread lasts from the grant of its slot until"
    " the slot is given back or reused"
)
OUTWEIGHED = "the cost of every thread (a slot, a process) would exceed the gain of more threads"
ONE_THREAD = (
    "a job of one thread that cannot be split, such as an extract to one file, may stay as it is:"
    " it uses only one slot"
)
ONE_UNIT = (
    "if each of these threads has one long unit of work, more threads do not divide it; the other"
    " threads use the other slots"
)
MANY_THREADS = (
    f"that is more than the typical {TYPICAL_MIN} to {TYPICAL_MAX:,}: check that the work can be"
    " split so finely"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """The known durations and numbers of a job's threads."""

    finished: Durations
    running: int = 0
    waiting: int = 0
    running_longest_ms: int = 0  # how long the oldest running thread has taken so far

    @property
    def threads(self) -> int:
        """Number of threads that the job has requested so far."""
        return self.finished.count + self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation, with the numbers on which it is based. Durations are in milliseconds."""

    threads_recommended: int  # 0: no thread has finished yet
    threads_observed: int
    threads_running: int
    threads_waiting: int
    median_ms: int
    at_quantile_ms: int
    longest_ms: int
    share_within_target: float
    target_ms: int
    quantile: float
    remarks: tuple[str, ...]


def advise(observed: Observed, target_ms: int = TARGET_MS, quantile: float = QUANTILE) -> Advice:
    """Recommends a number of threads.

    Args:
        observed: durations of finished threads, and the numbers of other threads.
        target_ms: the longest time that a thread should take; above 0.
        quantile: the fraction of threads that should meet the target; above 0, below 1.
    """
    found = observed.finished
    wanted, remarks = 0, ["no thread of the job has finished yet: repeat this later"]
    if found.count:
        work = _Work.of(observed, target_ms)
        wanted, remarks = _recommend(work, target_ms, quantile)
        remarks += [*_about_long_ones(work, wanted, target_ms), *_doubts(observed)]
        remarks.append(ASSUMED)
    return Advice(
        threads_recommended=wanted,
        threads_observed=found.count,
        threads_running=observed.running,
        threads_waiting=observed.waiting,
        median_ms=round(found.quantile_ms(0.5)),
        at_quantile_ms=round(found.quantile_ms(quantile)),
        longest_ms=found.longest_ms,
        share_within_target=found.share_within(target_ms) if found.count else 0.0,
        target_ms=target_ms,
        quantile=quantile,
        remarks=tuple(remarks),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """A job's work, split into `threads` threads. Some of the threads have one long unit."""

    finished: Durations
    threads: int
    long: int  # number of finished threads with one long unit
    longest_ms: int
    ordinary_mean_ms: float

    @classmethod
    def of(cls, observed: Observed, target_ms: int) -> _Work:
        found = observed.finished
        long, long_ms = found.beyond(max(target_ms, LONG_FACTOR * found.quantile_ms(0.5)))
        # If only a few threads are long, each of them may have one long unit. If many threads are
        # long, this is their normal length.
        if long > max(1, LONG_SHARE_MAX * found.count) or long == found.count:
            long, long_ms = 0, 0.0  # too many to be exceptions
        # `long_ms` is a sum of rounded durations (buckets), so it may be above the exact total.
        mean_ms = max(0.0, found.total_ms - long_ms) / (found.count - long)
        return cls(found, observed.threads, long, found.longest_ms, mean_ms)

    def share_within(self, threads: int, target_ms: int) -> float:
        """Returns the fraction of threads that would meet the target if there were `threads`
        threads.

        With k times as many threads, an ordinary thread takes 1/k of its time. So it meets the
        target if it took at most k times the target. The number of long threads stays the same.
        """
        ordinary = self.finished.count - self.long
        scaled_ms = target_ms * threads / self.threads
        # The scaled target may be longer than long threads take, so the count is limited to
        # ordinary threads.
        within = min(self.finished.count_within(scaled_ms), ordinary) / ordinary
        # Assumes that the same fraction of the unfinished threads is long.
        long = self.long * self.threads / self.finished.count
        return max(0.0, 1 - long / threads) * within

    def threads_lasting(self, mean_ms: int) -> int:
        """Returns the number of threads for which an ordinary thread takes `mean_ms` on average."""
        return max(1, int(self.threads * self.ordinary_mean_ms / mean_ms))


def _recommend(work: _Work, target_ms: int, quantile: float) -> tuple[int, list[str]]:
    now, share = work.threads, work.share_within(work.threads, target_ms)
    remark = f"{_percent(share)} of the finished threads met {_text(target_ms)}"
    if share >= quantile:
        return _enough_or_fewer(work, target_ms, quantile, remark)
    # With more threads than `most`, the threads would mostly consist of overhead.
    most = min(THREADS_MAX, work.threads_lasting(OVERHEAD_MS))
    if most <= now:
        return now, [f"{remark}, but most are so short already that {OUTWEIGHED}"]
    wanted = _least(now, most, lambda threads: work.share_within(threads, target_ms) >= quantile)
    if wanted is None:
        reached = _percent(work.share_within(most, target_ms))
        return most, [f"{remark}; with {most} threads {reached} would; with more, {OUTWEIGHED}"]
    # Rounded for people, but not above `most`, where overhead dominates.
    wanted = min(most, _rounded_up(wanted))
    reached = _percent(work.share_within(wanted, target_ms))
    times = f"{wanted / now:.3g} times as many threads"
    remarks = [f"{remark}; with {wanted}, {times}, about {reached} would"]
    if now == 1:
        remarks.append(ONE_THREAD)
    if wanted > TYPICAL_MAX:
        remarks.append(MANY_THREADS)
    return wanted, remarks


def _enough_or_fewer(
    work: _Work, target_ms: int, quantile: float, remark: str
) -> tuple[int, list[str]]:
    # The advice never recommends fewer threads than the typical number, because it is unknown how
    # many threads can run at the same time.
    now, fewer = work.threads, max(TYPICAL_MIN, work.threads_lasting(WORTH_MS))
    remarks = [f"{remark}: no more threads are needed"]
    if work.ordinary_mean_ms >= OVERHEAD_MS or fewer >= now:
        return now, remarks
    wanted = _least(fewer, now, lambda threads: work.share_within(threads, target_ms) >= quantile)
    remarks.append(
        f"they last {_text(work.ordinary_mean_ms)} on average, which is mostly the cost of"
        " every thread (a slot, a process): fewer and longer threads would waste less"
    )
    return min(now, _rounded_up(wanted or now)), remarks


def _about_long_ones(work: _Work, wanted: int, target_ms: int) -> list[str]:
    if not work.long:
        return []
    median, longest = _text(work.finished.quantile_ms(0.5)), _text(work.longest_ms)
    whole = _rounded_up(math.ceil(work.threads * work.longest_ms / target_ms))
    number = f"{work.long} of {work.finished.count}"
    remarks = [
        f"{number} took far longer than the others (up to {longest}; the median is {median})",
        ONE_UNIT,
    ]
    if whole > wanted:
        remarks.append(
            f"if each of these threads has many units of work, about {whole} threads would bring"
            " them within the target, too"
        )
    return remarks


def _doubts(observed: Observed) -> list[str]:
    found, doubts = observed.finished, []
    if found.count < OBSERVED_FEW:
        doubts.append("few threads have finished: this is a rough estimate")
    if found.count < FINISHED_SHARE_MIN * observed.threads:
        doubts.append(
            f"only {found.count} of {observed.threads} threads have finished, and short threads"
            " finish first: repeat this later"
        )
    if observed.running_longest_ms > found.longest_ms:
        so_far = _text(observed.running_longest_ms)
        doubts.append(f"one thread has run for {so_far}, longer than any finished thread")
    return doubts


def _least(low: int, high: int, enough: Callable[[int], bool]) -> int | None:
    """Returns the smallest number from `low` to `high` for which `enough` is True; None if `enough`
    is False for `high`.

    The function uses bisection. So if `enough` is True for a number, it must also be True for all
    larger numbers.
    """
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _rounded_up(threads: int) -> int:
    """Rounds up to two significant digits, because people prefer 4,200 to 4,137."""
    step = int(10 ** max(0, len(str(threads)) - 2))
    return math.ceil(threads / step) * step


def _text(duration_ms: float) -> str:
    return format_duration(duration_ms / 1000)


def _percent(share: float) -> str:
    return f"{math.floor(share * 1000 + 0.5) / 10:g} %"
