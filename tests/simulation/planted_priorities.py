"""Planted bugs in priorities. They have an effect only if job masters use them (`PRIORITIES`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from resource_manager.engine import restoring
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.model.entities import Request
from resource_manager.engine.queue.scheduling_classes import JobQueue
from resource_manager.engine.state import State

Patch = pytest.MonkeyPatch


def priorities_of_requests_are_forgotten_at_a_start(patch: Patch) -> None:
    """After a restart, requests have no priority."""
    real = restoring._restore_request

    def restore_request(state: State, request: Request) -> None:
        if not request.spec.gang_id:
            request.spec = replace(request.spec, priority=0)
        real(state, request)

    patch.setattr(restoring, "_restore_request", restore_request)


def requests_of_a_job_are_served_in_order_of_arrival(patch: Patch) -> None:
    """The queues of a job ignore priorities."""
    patch.setattr(JobQueue, "priority", property(lambda _line: 0, lambda _line, _value: None))


def jobs_of_a_group_are_served_without_priorities(patch: Patch) -> None:
    """The fairness tree does not know the priorities of jobs."""
    real = FlowTree.add_job

    def add_job(
        tree: FlowTree, job_id: str, group: str, owner: str = "", *, priority: int = 0
    ) -> Flow:
        return real(tree, job_id, group, owner)

    patch.setattr(FlowTree, "add_job", add_job)


PRIORITIES_MISHANDLED: tuple[Callable[[Patch], None], ...] = (
    priorities_of_requests_are_forgotten_at_a_start,
    requests_of_a_job_are_served_in_order_of_arrival,
    jobs_of_a_group_are_served_without_priorities,
)
