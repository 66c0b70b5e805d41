"""What people mean by the beginning of an id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finegrain.errors import InvalidArgument, NotFound, Reason

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster

ENDED_STATES = ("CANCELLED", "REJECTED", "RELEASED", "LOST")


def full_allocation_id(cluster: Cluster, text: str) -> str:
    """The full id of a request or slot, whether it lives or has ended.

    Raises:
        NotFound: there is none.
        InvalidArgument: it could be several.
    """
    living = [each.allocation_id for each in cluster.requests(allocation_ids=[text])]
    ended = [] if living else cluster.requests(allocation_ids=[text], states=ENDED_STATES)
    found = living or [each.allocation_id for each in ended]
    return only("request or slot", text, found, Reason.ALLOCATION_UNKNOWN)


def only(what: str, text: str, found: list[str], reason: Reason) -> str:
    """The one that is meant, of those that are `text` or begin so.

    Raises:
        NotFound: there is none.
        InvalidArgument: it could be several.
    """
    if text in found:
        return text
    if not found:
        raise NotFound(f"no {what} is or begins with {text!r}", reason=reason)
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise InvalidArgument("ID", text, f"more letters of one {what}; it could be {some}")
    return found[0]
