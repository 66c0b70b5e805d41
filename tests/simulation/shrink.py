"""Shrinks a failing run: removes parts of its plan for as long as the run still fails.

Every attempt is a complete run, so the search is limited by the number of runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.faults import FAULTS
from tests.simulation.world import Failed, Plan, World

RUNS_MAX = 80


def shrink(failed: Failed, runs_max: int = RUNS_MAX) -> Failed:
    """Returns a failure of the same kind with a smaller plan.

    The smaller plan has a shorter time with faults, fewer hosts and jobs, fewer network faults, and
    only the faults that the failure needs. It reproduces the failure exactly.
    """
    search = _Search(failed, runs_max)
    search.accept(lambda plan: replace(plan, bad_weather=False))
    search.accept(lambda plan: replace(plan, stormy_ms=min(plan.stormy_ms, search.at_ms + 1_001)))
    search.leave_out_kinds(sorted(FAULTS))
    for wish in sorted(failed.plan.wishes):
        search.accept(lambda plan, wish=wish: replace(plan, wishes=plan.wishes - {wish}))  # type: ignore[misc]
    for hosts in (1, 2, 3, 4, 6):
        if search.accept(lambda plan, hosts=hosts: replace(plan, hosts=hosts)):  # type: ignore[misc]
            break
    for jobs in (1, 2, 3):
        if search.accept(lambda plan, jobs=jobs: replace(plan, jobs=jobs)):  # type: ignore[misc]
            break
    search.leave_out_numbers()
    search.accept(lambda plan: replace(plan, stormy_ms=min(plan.stormy_ms, search.at_ms + 1_001)))
    return search.failed


class _Search:
    """Keeps the smallest failure so far."""

    def __init__(self, failed: Failed, runs_max: int) -> None:
        self.failed = failed
        self.runs_left = runs_max
        self.kind = type(failed.error)

    @property
    def at_ms(self) -> int:
        """Returns when the smallest failure so far appeared."""
        return self.failed.at_ms

    def accept(self, change: Callable[[Plan], Plan]) -> bool:
        """Tries a smaller plan. Returns True if the smaller plan also fails, and if it equals the
        present plan.
        """
        plan = replace(change(self.failed.plan), demands_work=False)
        if plan == self.failed.plan:
            return True
        if self.runs_left <= 0:
            return False
        self.runs_left -= 1
        try:
            World(plan).run()
        except Failed as failed:
            if type(failed.error) is self.kind:
                self.failed = failed
                return True
        return False

    def leave_out_kinds(self, kinds: list[str]) -> None:
        """Leaves out all of these kinds, or else tries each half."""
        if not self.accept(lambda plan: replace(plan, without=plan.without | set(kinds))):
            middle = len(kinds) // 2
            if middle:
                self.leave_out_kinds(kinds[:middle])
                self.leave_out_kinds(kinds[middle:])

    def leave_out_numbers(self) -> None:
        """Leaves out single faults of the remaining kinds, the latest first."""
        for number in reversed(World(self.failed.plan).fault_numbers()):
            self.accept(
                lambda plan, number=number: replace(  # type: ignore[misc]
                    plan, without_numbers=plan.without_numbers | {number}
                )
            )
