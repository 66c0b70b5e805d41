"""What waits although there may be room for it, since the maximum of a group stops it. Knows which
group; what a maximum admits is not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass


class QuotaBlocked:
    """Lines by group and shape: of one shape and one group, a maximum admits all or none."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[SchedulingClass, dict[JobQueue, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def __contains__(self, job_queue: JobQueue) -> bool:
        return job_queue in self._by_group.get(job_queue.stopped_by, {}).get(job_queue.shape, {})

    def __iter__(self) -> Iterator[JobQueue]:
        for scheduling_classes in self._by_group.values():
            yield from chain.from_iterable(scheduling_classes.values())

    @property
    def groups(self) -> list[str]:
        """Those that stop anybody."""
        return list(self._by_group)

    def put(self, job_queue: JobQueue, group_id: str) -> None:
        """A group stops a line."""
        job_queue.stopped_by = group_id
        self._by_group.setdefault(group_id, {}).setdefault(job_queue.shape, {})[job_queue] = None

    def take(self, job_queue: JobQueue) -> None:
        """It is stopped no more."""
        scheduling_classes = self._by_group[job_queue.stopped_by]
        del scheduling_classes[job_queue.shape][job_queue]
        if not scheduling_classes[job_queue.shape]:
            del scheduling_classes[job_queue.shape]
            if not scheduling_classes:
                del self._by_group[job_queue.stopped_by]
        job_queue.stopped_by = ""

    def of(
        self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int
    ) -> list[JobQueue]:
        """Lines that a group stops, of shapes that it admits, so many at most."""
        scheduling_classes = self._by_group.get(group_id, {})
        admitted = (
            job_queues
            for scheduling_class, job_queues in scheduling_classes.items()
            if admits(scheduling_class)
        )
        return list(islice(chain.from_iterable(admitted), most))
