"""Which shapes there are. Decides how long one is remembered that nobody waits with, and which
labels somebody waits for. Refuses to know who waits, and whether there is room.
"""

from __future__ import annotations

from resource_manager.engine.model.scheduling_key import Labels, SchedulingKey
from resource_manager.engine.queue.scheduling_classes import SchedulingClass, make_scheduling_class

IDLE_SHAPES_MAX = 1_024
"""Shapes remembered although nobody waits with them."""


class KnownClasses:
    """All shapes, by what they ask for.

    Attributes:
        waited_with: those that somebody waits with.
    """

    def __init__(self) -> None:
        self.waited_with: dict[SchedulingKey, SchedulingClass] = {}
        self._idle: dict[
            SchedulingKey, SchedulingClass
        ] = {}  # nobody waits with them; longest unused first
        self._asked_for: dict[Labels, int] = {}  # shapes that somebody waits with
        self._made = 0

    def is_asked_for(self, labels: Labels) -> bool:
        """True if somebody waits with a shape that asks for these labels."""
        return labels in self._asked_for

    def of(self, key: SchedulingKey) -> SchedulingClass:
        """The shape of requests that ask for this, whether or not anybody waits with it."""
        shape = self.waited_with.get(key) or self._idle.get(key)
        if shape is None:
            shape = self._make(key)
            self._retire(key, shape)
        return shape

    def begin(self, key: SchedulingKey) -> SchedulingClass:
        """Somebody begins to wait who asks for this."""
        shape = self._idle.pop(key, None) or self._make(key)
        self.waited_with[key] = shape
        self._asked_for[shape.labels] = self._asked_for.get(shape.labels, 0) + 1
        return shape

    def end(self, shape: SchedulingClass) -> None:
        """The last one who waited with a shape has left."""
        key = shape.key
        del self.waited_with[key]
        self._asked_for[shape.labels] -= 1
        if not self._asked_for[shape.labels]:
            del self._asked_for[shape.labels]
        shape.heads.clear()
        self._retire(key, shape)

    def _retire(self, key: SchedulingKey, shape: SchedulingClass) -> None:
        """Keeps what was learnt about a shape, for the next one who asks for the same."""
        self._idle[key] = shape
        if len(self._idle) > IDLE_SHAPES_MAX:
            del self._idle[next(iter(self._idle))]

    def _make(self, key: SchedulingKey) -> SchedulingClass:
        self._made += 1
        return make_scheduling_class(self._made, key)
