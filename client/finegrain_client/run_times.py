"""Checks time limits, expected run times and timeouts of slots."""

from __future__ import annotations

from finegrain.errors import InvalidArgument
from finegrain.values.bounds import TIME_LIMIT_MS_MAX, TIME_LIMIT_MS_MIN


def check_run_times(time_limit_s: float | None, expected_run_time_s: float | None) -> None:
    """Checks the time limit and the expected run time of a slot.

    Raises:
        InvalidArgument: a time is out of range, or the expected run time exceeds the limit.
    """
    check_time("time_limit_s", time_limit_s, TIME_LIMIT_MS_MIN / 1000)
    most_s = check_time("expected_run_time_s", expected_run_time_s, 0)
    if time_limit_s is not None and most_s > time_limit_s:
        expected = f"at most time_limit_s ({time_limit_s:g} s)"
        raise InvalidArgument("expected_run_time_s", f"{most_s:g} s", expected)


def check_time(name: str, seconds: float | None, least_s: float) -> float:
    """Returns the time, or 0 if there is none."""
    most_s = TIME_LIMIT_MS_MAX / 1000
    if seconds is not None and not least_s <= seconds <= most_s:
        raise InvalidArgument(name, f"{seconds:g} s", f"{least_s:g} s to {most_s:.0f} s")
    return seconds or 0.0
