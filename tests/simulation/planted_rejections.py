"""Planted bugs in late rejection, which show only where job masters request early (`EARLY`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resource_manager.engine import step
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.scheduling import rejecting

Patch = pytest.MonkeyPatch


def infeasible_requests_wait_for_ever(patch: Patch) -> None:
    """Nothing is rejected when the clock is over."""
    patch.setattr(step, "infeasible_timer_fired", lambda _context: None)


def executors_count_as_known_at_once(patch: Patch) -> None:
    """A request is rejected while an executor that may host it has yet to register again."""
    patch.setattr(rejecting, "_all_known", lambda _hosts: True)


def infeasible_requests_are_rejected_with_the_first_executor(patch: Patch) -> None:
    """Those that come a moment later are not waited for."""
    patch.setattr(RejectionClock, "due_ms", property(lambda clock: clock.since_ms))


REJECTIONS: tuple[Callable[[Patch], None], ...] = (
    infeasible_requests_wait_for_ever,
    executors_count_as_known_at_once,
    infeasible_requests_are_rejected_with_the_first_executor,
)
