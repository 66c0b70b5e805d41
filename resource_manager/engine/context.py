"""The context that each event handler receives: the state, and through it the journal."""

from __future__ import annotations

from dataclasses import dataclass

from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.state import State


@dataclass(frozen=True, slots=True)
class EventContext:
    """The state, the time, and the effects of one event."""

    state: State

    @property
    def journal(self) -> Journal:
        """Collects effects and log entries."""
        return self.state.journal

    @property
    def at(self) -> Instant:
        """Time of the event."""
        return self.state.journal.at

    @property
    def now_ms(self) -> int:
        """Time of the event, in milliseconds of the monotonic clock."""
        return self.state.journal.at.monotonic_ms
