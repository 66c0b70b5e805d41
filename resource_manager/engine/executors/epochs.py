"""Whether these books may command at all: epochs that executors have seen.

Decides by one rule: an RM commands nothing at an epoch at or below one that it has seen reported.
Only whoever this incarnation has answered can know its epoch from itself; anybody else who reports
it, or a higher one, has it from other books: those of a newer incarnation, or those that were
replaced by the copy that these are. Refuses to know databases, and thus the way out.
"""

from __future__ import annotations

from finegrain.errors import FailedPrecondition, Reason
from resource_manager.engine.state import State


class EpochSeen(FailedPrecondition):
    """These books are not the newest: whoever drives the engine commands nothing any more, stores
    nothing of this batch, and ends."""

    default_reason = Reason.STALE_EPOCH

    def __init__(self, executor_id: str, seen: int, own: int) -> None:
        super().__init__(
            f"executor {executor_id} has seen rm_epoch {seen}, these books have {own}:"
            " this resource manager is not the newest one and commands nothing",
            details={"executor_id": executor_id, "seen": seen, "own": own},
        )
        self.executor_id, self.seen, self.own = executor_id, seen, own


def refuse_seen_epoch(state: State, executor_id: str, rm_epoch: int) -> None:
    """Stops books that are not the newest.

    Args:
        state: the books.
        executor_id: who reports.
        rm_epoch: the highest epoch that it has seen; 0: none.

    Raises:
        EpochSeen: it has the epoch from other books.
    """
    own = state.rm_epoch
    known = own if executor_id in state.answered_executors else own - 1
    if rm_epoch > known:
        raise EpochSeen(executor_id, rm_epoch, own)
