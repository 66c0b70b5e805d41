"""Keeps the job queues that a quota blocks. A blocked queue waits even if a host has room for its
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass


class QuotaBlocked:
    """Job queues that a quota blocks, by group and scheduling class. All requests of a class book
    the same amounts. So the quota of a group admits either all queues of a class or none of them.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, dict[SchedulingClass, dict[JobQueue, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def __contains__(self, job_queue: JobQueue) -> bool:
        return job_queue in self._by_group.get(job_queue.blocked_by, {}).get(
            job_queue.scheduling_class, {}
        )

    def __iter__(self) -> Iterator[JobQueue]:
        for scheduling_classes in self._by_group.values():
            yield from chain.from_iterable(scheduling_classes.values())

    @property
    def groups(self) -> list[str]:
        """The groups whose quotas block at least one job queue."""
        return list(self._by_group)

    def put(self, job_queue: JobQueue, group_id: str) -> None:
        """Records that the quota of a group blocks a job queue."""
        job_queue.blocked_by = group_id
        self._by_group.setdefault(group_id, {}).setdefault(job_queue.scheduling_class, {})[
            job_queue
        ] = None

    def take(self, job_queue: JobQueue) -> None:
        """Removes a job queue, if a quota blocks it."""
        scheduling_classes = self._by_group[job_queue.blocked_by]
        del scheduling_classes[job_queue.scheduling_class][job_queue]
        if not scheduling_classes[job_queue.scheduling_class]:
            del scheduling_classes[job_queue.scheduling_class]
            if not scheduling_classes:
                del self._by_group[job_queue.blocked_by]
        job_queue.blocked_by = ""

    def of(
        self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int
    ) -> list[JobQueue]:
        """Returns up to `most` job queues that the quota of a group has blocked, but would admit
        now.

        Args:
            group_id: the id of the group.
            admits: a function that returns whether the group admits one more slot of a class now.
            most: the largest number of job queues to return.
        """
        scheduling_classes = self._by_group.get(group_id, {})
        admitted = (
            job_queues
            for scheduling_class, job_queues in scheduling_classes.items()
            if admits(scheduling_class)
        )
        return list(islice(chain.from_iterable(admitted), most))
