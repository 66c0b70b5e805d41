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

    def __contains__(self, line: JobQueue) -> bool:
        return line in self._by_group.get(line.stopped_by, {}).get(line.shape, {})

    def __iter__(self) -> Iterator[JobQueue]:
        for shapes in self._by_group.values():
            yield from chain.from_iterable(shapes.values())

    @property
    def groups(self) -> list[str]:
        """Those that stop anybody."""
        return list(self._by_group)

    def put(self, line: JobQueue, group_id: str) -> None:
        """A group stops a line."""
        line.stopped_by = group_id
        self._by_group.setdefault(group_id, {}).setdefault(line.shape, {})[line] = None

    def take(self, line: JobQueue) -> None:
        """It is stopped no more."""
        shapes = self._by_group[line.stopped_by]
        del shapes[line.shape][line]
        if not shapes[line.shape]:
            del shapes[line.shape]
            if not shapes:
                del self._by_group[line.stopped_by]
        line.stopped_by = ""

    def of(
        self, group_id: str, admits: Callable[[SchedulingClass], bool], most: int
    ) -> list[JobQueue]:
        """Lines that a group stops, of shapes that it admits, so many at most."""
        shapes = self._by_group.get(group_id, {})
        admitted = (lines for shape, lines in shapes.items() if admits(shape))
        return list(islice(chain.from_iterable(admitted), most))
