"""Chooses the resource manager that a client calls.

A standby rejects calls, and names the leader that it knows. This address is a hint. A client
follows a new hint at once, but follows the same hint again only after a call has succeeded.
Otherwise the client would switch without delay between two standbys that name each other. This
module makes no calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.status import LEADER_ADDRESS


class Leaders:
    """The addresses of one cluster's resource managers, and the address to call.

    Args:
        addresses: one address or more, in the order in which the client tries them.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(dict.fromkeys(addresses))
        self._current = self._addresses[0]
        self._last_listed = self._current
        # hints that the client has followed since the last successful call
        self._followed: set[str] = set()
        # False after a failure. It becomes True again when the current address answers, or when a
        # standby names the current address as the leader.
        self._current_confirmed = True

    @property
    def current(self) -> str:
        """The address to call."""
        return self._current

    @property
    def several(self) -> bool:
        """True if there is another address to switch to."""
        return len(self._addresses) > 1

    def worked(self, address: str) -> None:
        """Records an answer from `address`. The client can then follow all hints again."""
        if address == self._current:
            self._followed.clear()
            self._current_confirmed = True

    def failed(self, address: str, error: FinegrainError | None = None) -> bool:
        """Switches to another address after a failure at `address`.

        If several concurrent calls fail at the same address, only the first failure switches.

        Args:
            address: the address of the resource manager that failed.
            error: the error of the call, which can name the leader.

        Returns:
            True: the caller should call the current address without delay. A standby has named this
            address as the leader, or the address has answered another call.
        """
        if address != self._current:
            # Another call to this address failed earlier and has already switched.
            return self._current_confirmed
        hint = self._hint(error)
        if hint == address:  # the server names itself: it is about to become the leader
            self._current_confirmed = False
            return False
        if hint and hint not in self._followed:
            # Follow a hint only once: two standbys can name each other until one of them becomes
            # the leader.
            self._followed.add(hint)
            self._switch_to(hint)
            self._current_confirmed = True
            return True
        self._current_confirmed = False
        # The current address is possibly a hint that is not in the list. So take the most recent
        # address that is in the list, and switch to the next address of the list.
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
        # A false hint does no harm. If a server cannot prove that it is a resource manager of this
        # cluster, it receives nothing.
        try:
            check_dialable(hint)
        except InvalidArgument:
            return False
        return True
