"""Keeps the changes that administrators have made at this executor, until the resource manager has
answered a report with these changes. The resource manager records the changes in its audit log.
"""

from __future__ import annotations

from collections import deque

from finegrain.v1.resource_manager_pb2 import AdminCall

CALLS_MAX = 1_000
"""Maximum number of calls that are kept while no resource manager answers. If there are more, the
oldest calls are lost.
"""
CALLS_PER_REPORT_MAX = 100


class AdminCalls:
    """The calls that were not reported yet, the oldest first."""

    def __init__(self) -> None:
        self._calls: deque[AdminCall] = deque(maxlen=CALLS_MAX)

    def add(self, call: AdminCall) -> None:
        """Adds a call, for the next report."""
        self._calls.append(call)

    def first(self) -> list[AdminCall]:
        """Returns the calls for the next report."""
        return list(self._calls)[:CALLS_PER_REPORT_MAX]

    def reported(self, calls: list[AdminCall]) -> None:
        """Drops calls of a report that the resource manager has answered."""
        for call in calls:
            # If calls were added since the report, the oldest calls were possibly dropped already.
            if self._calls and self._calls[0] is call:
                self._calls.popleft()
