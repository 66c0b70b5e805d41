"""Recommends a number of threads for the work of a job, based on the durations of its finished
threads.

There are two possible reasons why a thread takes long, and each reason leads to a different
recommendation:

- The thread has many units of work, like all other threads of the job. If the work of the job is
  split evenly into k times as many threads, each thread takes 1/k of the time.
- The thread has one unit of work that takes long. More threads do not divide this unit. But if
  there are more threads, the long threads are a smaller part of all threads.

If only a few threads (`LONG_SHARE_MAX`) take more than `LONG_FACTOR` times the median, each of
these threads is assumed to have one long unit. A thread of about a second or less consists mostly
of overhead: a slot is carved, a process starts, and the result is reported. So the advice avoids
such short threads.

Example: 30 threads have finished. 29 of them took 4 minutes each, and one took 25 minutes. The
target is 2 minutes, and 5 times the median is 20 minutes. So the thread of 25 minutes is assumed to
have one long unit. If there were 60 threads, an ordinary thread would take 2 minutes, but the long
thread would still take 25 minutes. So the advice is about 60 threads, because then 59 of 60 threads
meet the target.

The default target is from the paper in docs/fairness-theory.md: almost all threads should take less
than two minutes. Jobs typically need 200 to 1,000 threads for this target.
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
"""The largest number of threads that the advice recommends. Jobs with more threads are unusual."""

TYPICAL_MIN, TYPICAL_MAX = 200, 1_000
OBSERVED_FEW = 20
"""If fewer threads have finished, the advice is only rough, and a remark says so."""

LONG_FACTOR = 5.0
LONG_SHARE_MAX = 0.1
FINISHED_SHARE_MIN = 0.1
OVERHEAD_MS = 1_000
"""A thread that is shorter than this consists mostly of the overhead that every thread has."""

WORTH_MS = 10_000
"""The recommended mean duration if the threads of a job are too short."""

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
    """The durations of a job's finished threads, and the numbers of its other threads."""

    finished: Durations
    running: int = 0
    waiting: int = 0
    running_longest_ms: int = 0  # how long the oldest running thread has run until now

    @property
    def threads(self) -> int:
        """The number of threads that the job has requested until now."""
        return self.finished.count + self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation, with the numbers from which it was computed. Durations are in
    milliseconds.
    """

    threads_recommended: int  # 0 if no thread has finished yet
    threads_observed: int
    threads_running: int
    threads_waiting: int
    attempts_unfinished: int  # ended attempts that finished no thread; not counted elsewhere
    attempts_unmatched: int  # observed threads of which some are possibly repeated attempts
    median_ms: int
    at_quantile_ms: int
    longest_ms: int
    share_within_target: float
    target_ms: int
    quantile: float
    remarks: tuple[str, ...]


def advise(observed: Observed, target_ms: int = TARGET_MS, quantile: float = QUANTILE) -> Advice:
    """Recommends the number of threads for a job.

    Args:
        observed: the durations of finished threads, and the numbers of other threads.
        target_ms: the time within which a thread should finish; above 0.
        quantile: the part of the threads that should meet the target; above 0 and below 1.
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
        attempts_unfinished=found.unfinished,
        attempts_unmatched=found.unmatched,
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
    """The work of a job, split into `threads` threads. Some of the threads have one long unit."""

    finished: Durations
    threads: int
    long: int  # number of finished threads with one long unit
    longest_ms: int
    ordinary_mean_ms: float

    @classmethod
    def of(cls, observed: Observed, target_ms: int) -> _Work:
        found = observed.finished
        long, long_ms = found.beyond(max(target_ms, LONG_FACTOR * found.quantile_ms(0.5)))
        # If only a few threads are long, each of them is assumed to have one long unit. If many
        # threads are long, their duration is normal for the job.
        if long > max(1, LONG_SHARE_MAX * found.count) or long == found.count:
            long, long_ms = 0, 0.0  # too many to be exceptions
        # `long_ms` is a sum of rounded durations (buckets), so it can be higher than the exact
        # total.
        mean_ms = max(0.0, found.total_ms - long_ms) / (found.count - long)
        return cls(found, observed.threads, long, found.longest_ms, mean_ms)

    def share_within(self, threads: int, target_ms: int) -> float:
        """Returns the part of the threads that would meet the target if the job had `threads`
        threads.

        With k times as many threads, an ordinary thread would take 1/k of its time. So a thread
        that took at most k times the target would meet the target. The number of long threads would
        stay the same.
        """
        ordinary = self.finished.count - self.long
        scaled_ms = target_ms * threads / self.threads
        # The scaled target can be higher than the duration of long threads, so the count is limited
        # to the number of ordinary threads.
        within = min(self.finished.count_within(scaled_ms), ordinary) / ordinary
        # The long threads are assumed to be the same part of the unfinished threads as of the
        # finished threads.
        long = self.long * self.threads / self.finished.count
        return max(0.0, 1 - long / threads) * within

    def threads_lasting(self, mean_ms: int) -> int:
        """Returns the number of threads with which an ordinary thread would take `mean_ms` on
        average.
        """
        return max(1, int(self.threads * self.ordinary_mean_ms / mean_ms))


def _recommend(work: _Work, target_ms: int, quantile: float) -> tuple[int, list[str]]:
    now, share = work.threads, work.share_within(work.threads, target_ms)
    remark = f"{_percent(share)} of the finished threads met {_text(target_ms)}"
    if share >= quantile:
        return _enough_or_fewer(work, target_ms, quantile, remark)
    # With more than `most` threads, each thread would consist mostly of overhead.
    most = min(THREADS_MAX, work.threads_lasting(OVERHEAD_MS))
    if most <= now:
        return now, [f"{remark}, but most are so short already that {OUTWEIGHED}"]
    wanted = _least(now, most, lambda threads: work.share_within(threads, target_ms) >= quantile)
    if wanted is None:
        reached = _percent(work.share_within(most, target_ms))
        return most, [f"{remark}; with {most} threads {reached} would; with more, {OUTWEIGHED}"]
    # The number is rounded for people, but not above `most`, because with more threads the overhead
    # dominates.
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
    if found.unmatched:
        attempts = found.count + found.unfinished
        doubts.append(
            f"{found.unmatched} of {attempts} attempts could not be matched to a thread, because"
            " the job master did not report whether a thread has finished: each of them counts as a"
            " thread"
        )
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
    """Returns the lowest number from `low` to `high` for which `enough` is True. The result is None
    if `enough` is False for `high`.

    The function uses bisection. So if `enough` is True for a number, it must also be True for all
    higher numbers.
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
