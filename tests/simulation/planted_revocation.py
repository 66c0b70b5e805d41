"""Planted bugs in revocation. They have an effect only with revocable slots (`REVOCABLE`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.scheduling import dispatch
from resource_manager.engine.scheduling.revocation import Revocation
from resource_manager.engine.state import State

Patch = pytest.MonkeyPatch


def slots_are_ordered_before_revoked_slots_have_ended(patch: Patch) -> None:
    """The executor has no room for the new slot yet."""
    real = dispatch._send_next

    def send_next(state: State, host: Host) -> None:
        revoked, host.revoked = host.revoked, {}
        real(state, host)
        host.revoked = revoked

    patch.setattr(dispatch, "_send_next", send_next)


def slots_that_are_not_revocable_are_revoked(patch: Patch) -> None:
    """Every slot may be taken back."""
    real = Revocation._candidates

    def candidates(revocation: Revocation, host: Host) -> list[Slot]:
        own, host.revocable = host.revocable, dict.fromkeys(host.slots)
        found = real(revocation, host)
        host.revocable = own
        return found

    patch.setattr(Revocation, "_candidates", candidates)


def capacity_of_revoked_slots_goes_back_to_nobody(patch: Patch) -> None:
    """If the request ends, the revoked slots stay marked for it."""
    patch.setattr(RequestMoves, "_end_revocation", lambda _moves, _host, _slot: None)


REVOCATION_MISHANDLED: tuple[Callable[[Patch], None], ...] = (
    slots_are_ordered_before_revoked_slots_have_ended,
    slots_that_are_not_revocable_are_revoked,
    capacity_of_revoked_slots_goes_back_to_nobody,
)
