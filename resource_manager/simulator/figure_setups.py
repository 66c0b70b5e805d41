"""The set-ups of Figures 3-1 to 3-10 of "Improved Batch Processing Through Fine-Grained Thread
Submission" (Oracle Utilities Cloud Services; below: the paper), as data.

Numbers come from the paper's text: thread counts, usage, weights, threads of work per thread of
capacity, 60 threads of capacity. If the paper shows a picture without numbers, the set-up has
plausible numbers, and its field `assumed` states them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from resource_manager.engine.model.settings import Fairness

SEED_MEASURE = Fairness(usage_measure="slots", half_life_ms=None, lookahead_ms=0)
"""Settings for usage as the paper defines it: the time for which threads ran."""

COUNTED_IN_SLOTS = Fairness(usage_measure="slots")
"""The default settings, but with slots as the unit of usage."""

UNITS = 100
"""Number of pieces of work of Job 1. A fine thread of work has one piece, and a coarse thread has
about ten pieces.
"""

STATE_U_UNIT = 54
STATE_U_MS = 360_000


@dataclass(frozen=True, slots=True)
class FigureJob:
    """A job of a figure.

    `marks` has the threads (counted from 0) that the picture shows with a separate letter.
    `only_on` is the only thread of capacity on which the job can run.
    """

    name: str
    mark: str
    durations_ms: Sequence[int]
    at_ms: int = 0
    group: str = "default"
    only_on: str = ""
    marks: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetUp:
    """One figure: the capacity, the jobs, and the statement of the paper.

    `speeds` has the speed of each thread of capacity. `coarse` is the figure that shows the same
    work in few threads. `looked_at_ms` is the moment at which the scheduler's choice is examined.
    """

    figure: str
    title: str
    jobs: tuple[FigureJob, ...]
    speeds: tuple[float, ...]
    says: str
    assumed: str
    fairness: Fairness = COUNTED_IN_SLOTS
    coarse: str = ""
    looked_at_ms: int | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    shares: bool = False  # whether the figure shows shares over time instead of a timeline


def lane_names(count: int) -> list[str]:
    """Returns C1, C2, ..., the names of threads of capacity in the paper."""
    return [f"C{number}" for number in range(1, count + 1)]


def unit_ms(number: int) -> int:
    """Returns the duration of a piece of work: 50 to 70 s, the same in every run. Numbers start at
    1.
    """
    return 1_000 * (50 + number * 17 % 21)


def _units(*, state_u: bool) -> list[int]:
    units = [unit_ms(number) for number in range(1, UNITS + 1)]
    if state_u:
        units[STATE_U_UNIT - 1] = STATE_U_MS
    return units


def _coarse(units: Sequence[int], threads: int) -> list[int]:
    """Returns the same work in few threads. Each thread has consecutive pieces."""
    ends = [len(units) * number // threads for number in range(threads + 1)]
    return [sum(units[first:after]) for first, after in pairwise(ends)]


ALIKE = (1.0,) * 10
UNLIKE = (1.25, 0.8, 1.0, 1.0, 0.9, 1.1, 1.25, 0.9, 1.0, 0.8)
JOB_0 = FigureJob("Job 0", "0", [270_000], only_on="C4")
JOB_2 = FigureJob("Job 2", "2", [45_000], at_ms=90_000)
STATE_U = {"U": "State U"}

_UNIT_TIMES = "Job 1 is 100 pieces of work of 50 to 70 s"


def _job_1(durations_ms: Sequence[int], marks: Mapping[int, str] | None = None) -> FigureJob:
    return FigureJob("Job 1", "1", durations_ms, marks=marks or {})


def _coarse_and_fine() -> list[SetUp]:
    with_u, plain = _units(state_u=True), _units(state_u=False)
    return [
        SetUp(
            "3-1",
            "Coarse-grained submission: two jobs",
            (_job_1(_coarse(with_u, 10), {5: "U"}), JOB_2),
            ALIKE,
            says="Job 1 has 10 threads, #6 with State U, which ends much later; Job 2 has one short"
            " thread and waits until a thread of Job 1 is over",
            assumed=f"{_UNIT_TIMES}, State U takes 360 s; Job 2 comes after 90 s and takes 45 s",
            meanings=STATE_U,
        ),
        SetUp(
            "3-2",
            "Coarse-grained submission: delayed job completion",
            (JOB_0, _job_1(_coarse(plain, 10))),
            UNLIKE,
            says="Job 0 occupies one of 10 threads of capacity, and Job 1 ends later by all that",
            assumed=f"{_UNIT_TIMES}; Job 0 has 270 s left, on C4; computers differ in speed, 0.8"
            " to 1.25",
        ),
        SetUp(
            "3-3",
            "Coarse-grained submission: unused capacity",
            (_job_1(_coarse(plain, 8)), JOB_2),
            ALIKE,
            says="Job 1 is given fewer threads, so that others find capacity: most is unused",
            assumed=f"{_UNIT_TIMES}; it has 8 threads; Job 2 as in Figure 3-1",
        ),
        SetUp(
            "3-4",
            "Fine-grained submission",
            (_job_1(with_u, {STATE_U_UNIT - 1: "U"}), JOB_2),
            ALIKE,
            says="100 threads: C6, with State U, does 6 of them and C7 11; C3 does two and then"
            " Job 2's",
            assumed="the work of Figure 3-1; State U is the 54th of the 100 pieces",
            coarse="3-1",
            meanings=STATE_U,
        ),
        SetUp(
            "3-5",
            "Fine-grained submission: previously running job",
            (JOB_0, _job_1(plain)),
            UNLIKE,
            says="C4, where Job 0 runs, does 6 threads of Job 1, others as many as 13",
            assumed="the work and the computers of Figure 3-2",
            coarse="3-2",
        ),
        SetUp(
            "3-6",
            "Fine-grained submission: excess capacity shortens completion times",
            (_job_1(plain), JOB_2),
            ALIKE,
            says="Job 1 uses capacity that no other job needs, and gives way when another needs it",
            assumed="the work of Figure 3-3 in 100 threads",
            coarse="3-3",
        ),
    ]


def _default(number: int, *seconds: float, at_ms: int = 0) -> FigureJob:
    durations = [round(each * 1_000) for each in seconds]
    return FigureJob(f"DEFAULT{number}", str(number), durations, at_ms)


_HISTORY = (
    _default(1, 40, 40, 15.75, 6.25, 30, 30, 30),
    _default(2, 45, 56.5, 30, 30, 30),
)
_HISTORY_SAYS = "the history that leads to these virtual times, with two threads of capacity"


def _choices() -> list[SetUp]:
    return [
        SetUp(
            "3-7",
            "Two flows",
            _HISTORY,
            (1.0, 1.0),
            says="DEFAULT1 (100) is served before DEFAULT2 (101.5)",
            assumed=_HISTORY_SAYS,
            fairness=SEED_MEASURE,
            looked_at_ms=100_750,
        ),
        SetUp(
            "3-8",
            "Two flows: more thread capacity",
            _HISTORY,
            (1.0, 1.0),
            says="DEFAULT1's thread has run for some time: now DEFAULT2 is served",
            assumed=f"{_HISTORY_SAYS}; capacity becomes free 2 s later",
            fairness=SEED_MEASURE,
            looked_at_ms=102_750,
        ),
        SetUp(
            "3-9",
            "Three jobs competing for backlogged threads",
            (
                FigureJob("MED1", "M", [404_000, 404_000, 30_000, 30_000], group="medium"),
                _default(1, 50, 50, 30, 30),
                _default(2, 40.75, 50.75, 12, 30),
            ),
            (1.0, 1.0),
            says="MED1 has received 808, its group of weight 4 counts 202 = 808 / 4",
            assumed="the virtual times of Figure 3-7 for DEFAULT1 and DEFAULT2, so 201.5 for their"
            " group;"
            f" {_HISTORY_SAYS}",
            fairness=SEED_MEASURE,
            looked_at_ms=504_750,
        ),
    ]


def _varied(count: int, mean_ms: int) -> list[int]:
    """Returns durations from half to one and a half times the mean, the same in every run."""
    return [mean_ms // 2 + mean_ms * (number * 37 % 101) // 100 for number in range(count)]


def figure_3_10(
    thread_ms: int = 60_000, fairness: Fairness = COUNTED_IN_SLOTS, lanes: int = 60
) -> SetUp:
    """Returns the set-up with 60 threads of capacity and three jobs: DEFAULT2 ends first, then
    MED1, then DEFAULT1.

    The threads can be long or short. In all cases the jobs have work for three intervals: 1,200 s
    until DEFAULT2 ends, then 600 s until MED1 ends, then 400 s until DEFAULT1 ends.
    """

    def job(name: str, mark: str, work_s: int, group: str = "default") -> FigureJob:
        return FigureJob(
            name, mark, _varied(max(1, work_s * 1_000 // thread_ms), thread_ms), group=group
        )

    return SetUp(
        "3-10",
        "Thread capacity utilization",
        (
            job("MED1", "M", lanes * 4 // 5 * 1_800, "medium"),
            job("DEFAULT1", "1", lanes // 10 * 1_200 + lanes // 5 * 600 + lanes * 400),
            job("DEFAULT2", "2", lanes // 10 * 1_200),
        ),
        (1.0,) * lanes,
        says="of 60 threads of capacity MED1 has 48 and the others 6 each; when DEFAULT2 is done"
        " DEFAULT1 has 12; when MED1 is done it has all 60",
        assumed=f"threads of work take {thread_ms / 2_000:g} to {thread_ms * 1.5 / 1_000:g} s; the"
        " jobs come together and are long enough for 1,200, 600 and 400 s",
        fairness=fairness,
        shares=True,
    )


def one_after_another(thread_ms: int, fairness: Fairness, *, alike: bool = False) -> SetUp:
    """Returns a set-up in which the three jobs of Figure 3-10 arrive one by one.

    DEFAULT1 arrives at 0, MED1 at 600 s and DEFAULT2 at 1,200 s. DEFAULT2 is done after about
    another 600 s.

    Args:
        thread_ms: mean duration of a thread.
        fairness: settings of the engine.
        alike: True: all threads take `thread_ms`. False: each thread takes between 0.5 and 1.5
            times `thread_ms`.
    """

    def job(name: str, mark: str, work_s: int, at_s: int, group: str = "default") -> FigureJob:
        count = work_s * 1_000 // thread_ms
        durations = [thread_ms] * count if alike else _varied(count, thread_ms)
        return FigureJob(name, mark, durations, at_s * 1_000, group)

    return SetUp(
        "one-after-another",
        "Three jobs that come one after another",
        (
            job("DEFAULT1", "1", 60 * 600 + 12 * 600 + 6 * 600 + 12 * 900, 0),
            job("MED1", "M", 48 * 2_100, 600, "medium"),
            job("DEFAULT2", "2", 6 * 600, 1_200),
        ),
        (1.0,) * 60,
        says="60 for DEFAULT1, then 12 and 48 for MED1, then 6, 48 and 6 for DEFAULT2, then 12, 48",
        assumed="everything",
        fairness=fairness,
        shares=True,
    )


def all_set_ups() -> dict[str, SetUp]:
    """Returns all figures by number, in order."""
    every = [*_coarse_and_fine(), *_choices(), figure_3_10()]
    return {each.figure: each for each in every}
