"""Planted bugs in late rejection. They have an effect only with early requests (`EARLY`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resource_manager.engine import step
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.scheduling import rejecting

Patch = pytest.MonkeyPatch


def infeasible_requests_wait_for_ever(patch: Patch) -> None:
    """No request is rejected when the time is over."""
    patch.setattr(step, "infeasible_timer_fired", lambda _context: None)


def executors_count_as_known_at_once(patch: Patch) -> None:
    """A request is rejected too early: an executor that may host it has not registered again
    yet.
    """
    patch.setattr(rejecting, "_all_known", lambda _hosts: True)


def infeasible_requests_are_rejected_with_the_first_executor(patch: Patch) -> None:
    """The engine does not wait for executors that register a moment later."""
    patch.setattr(RejectionClock, "due_ms", property(lambda clock: clock.since_ms))


REJECTIONS: tuple[Callable[[Patch], None], ...] = (
    infeasible_requests_wait_for_ever,
    executors_count_as_known_at_once,
    infeasible_requests_are_rejected_with_the_first_executor,
)
