"""Which of several resource managers to call: found by trying, followed by their own hints.

Decides where to turn after a failure, and whether at once. A standby names the leader, as far as it
knows; that hint is followed without delay, but only once until something works, so that two that
point at each other, or at one that is gone, are asked with the ordinary pauses. Makes no calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.options import TlsOptions
from finegrain.rpc.addresses import check_dialable, is_loopback
from finegrain.rpc.status import LEADER_ADDRESS


class Leaders:
    """The addresses of one cluster's resource managers, and the one to call at present.

    Args:
        addresses: at least one, tried in turn.
        tls: how they are dialled. Other addresses than these are followed only where TLS proves
            who answers there, or where it is this host's own.
    """

    def __init__(self, addresses: Sequence[str], tls: TlsOptions | None = None) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._tls = tls
        self._current = self._addresses[0]
        self._last_listed = self._current
        self._followed: set[str] = set()  # hints, since something worked
        self._current_confirmed = True  # the present one was named, or has answered

    @property
    def current(self) -> str:
        """The one to call."""
        return self._current

    @property
    def several(self) -> bool:
        """Whether there is another one to turn to."""
        return len(self._addresses) > 1

    def worked(self, address: str) -> None:
        """An answer came from `address`: hints are worth following again."""
        if address == self._current:
            self._followed.clear()
            self._current_confirmed = True

    def failed(self, address: str, error: FinegrainError | None = None) -> bool:
        """Turns elsewhere after a failure at `address`.

        Concurrent calls that failed at one address turn once.

        Returns:
            True if the one to call now is worth calling at once: it was named as the leader, or
            has answered another call.
        """
        if address != self._current:
            return self._current_confirmed
        hint = self._hint(error)
        if hint == address:  # it is taking over right now
            self._current_confirmed = False
            return False
        if hint and hint not in self._followed:
            self._followed.add(hint)
            self._switch_to(hint)
            self._current_confirmed = True
            return True
        self._current_confirmed = False
        place = self._addresses.index(self._last_listed)
        self._switch_to(self._addresses[(place + 1) % len(self._addresses)])
        return False

    def _switch_to(self, address: str) -> None:
        self._current = address
        if address in self._addresses:
            self._last_listed = address

    def _hint(self, error: FinegrainError | None) -> str:
        if error is None or error.reason is not Reason.NOT_LEADER:
            return ""
        hint = error.details.get(LEADER_ADDRESS, "")
        return hint if hint in self._addresses or self._is_safe(hint) else ""

    def _is_safe(self, hint: str) -> bool:
        try:
            check_dialable(hint)
        except InvalidArgument:
            return False
        if self._tls is not None:
            return True
        return is_loopback(hint) and is_loopback(self._current)
