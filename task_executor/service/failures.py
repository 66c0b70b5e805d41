"""Builds the errors for slots that could not be carved, resized or parked."""

from __future__ import annotations

from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason, Unavailable
from task_executor.engine.slots import SlotKey, SlotSpec


def carve_failed(spec: SlotSpec, error: Exception) -> FinegrainError:
    """Returns CARVE_FAILED, with the host's error in the details."""
    details: dict[str, object] = {"allocation_id": spec.allocation_id, "cause": str(error)}
    if isinstance(error, FinegrainError):
        details |= {"cause_reason": error.reason.value, **error.details}
    return FailedPrecondition(
        f"slot {spec.allocation_id} could not be carved: {error}; nothing of it is left on "
        "this host; place it on another executor",
        reason=Reason.CARVE_FAILED,
        details=details,
    )


def size_kept(wanted: SlotSpec, error: Exception) -> FinegrainError:
    """Returns BELOW_USE or CARVE_FAILED, for a resize that changed no limit of the slot."""
    details: dict[str, object] = {"allocation_id": wanted.allocation_id, "cause": str(error)}
    reason = Reason.CARVE_FAILED
    if isinstance(error, FinegrainError):
        details |= {"cause_reason": error.reason.value, **error.details}
        reason = error.reason if error.reason is Reason.BELOW_USE else reason
    return FailedPrecondition(
        f"slot {wanted.allocation_id} keeps its size: {error}", reason=reason, details=details
    )


def size_unknown(wanted: SlotSpec, error: Exception) -> FinegrainError:
    """Returns UNREACHABLE, for a resize that the helper has received but not answered."""
    return Unavailable(
        f"it is not known yet whether slot {wanted.allocation_id} has its new size ({error}); a "
        "later report will show it",
        details={"allocation_id": wanted.allocation_id, "resize_number": wanted.resize_number},
    )


def slot_removed(key: SlotKey) -> FinegrainError:
    """Returns ALLOCATION_UNKNOWN for a slot that was removed during the call."""
    return NotFound(
        f"slot {key.allocation_id} generation {key.generation} was removed during this call",
        details={"allocation_id": key.allocation_id, "generation": key.generation},
    )


def not_moved(wanted: SlotSpec, error: Exception) -> FinegrainError:
    """Returns the error BELOW_USE or PARK_FAILED for a slot that could not be parked or
    unparked.
    """
    kept = error if isinstance(error, FinegrainError) else None
    reason = Reason.PARK_FAILED
    if kept is not None and kept.reason is Reason.BELOW_USE:
        reason = kept.reason
    return FailedPrecondition(
        f"slot {wanted.allocation_id} could not be {'parked' if wanted.is_parked else 'unparked'}:"
        f" {error}",
        reason=reason,
        details=dict(kept.details) if kept is not None else {},
    )


def still_moving(wanted: SlotSpec, trouble: str) -> FinegrainError:
    """Returns IN_PROGRESS, for a slot that is being parked or unparked.

    Args:
        wanted: the new size of the slot.
        trouble: the failures until now, as text; empty: no failure yet.
    """
    doing = "parked" if wanted.is_parked else "unparked"
    return FailedPrecondition(
        f"slot {wanted.allocation_id} is being {doing}{trouble and '; '}{trouble}",
        reason=Reason.IN_PROGRESS,
        details={"allocation_id": wanted.allocation_id, "resize_number": wanted.resize_number},
    )
