"""Limits how many calls of one identity a server serves at the same time.

gRPC limits calls for each connection only, and an identity can open many connections.
"""

from __future__ import annotations

from collections import Counter

from finegrain.errors import ResourceExhausted
from finegrain.rpc.access import Caller

CALLS_MAX = 8_192
"""Maximum number of open calls and streams of one identity. A job master has one stream for each
job and each task that it watches.
"""
HEALTH_WATCHES_MAX = 16
"""Maximum number of open streams of one identity that watch the health of a server."""
RETRY_AFTER_S = 1.0
_HEALTH_WATCH = "/grpc.health.v1.Health/Watch"


class OpenCalls:
    """The number of open calls of each identity.

    Args:
        calls_max: maximum number of open calls of one identity.
        health_watches_max: maximum number of open `Health.Watch` streams of one identity.
    """

    def __init__(
        self, calls_max: int = CALLS_MAX, health_watches_max: int = HEALTH_WATCHES_MAX
    ) -> None:
        self._calls_max = calls_max
        self._health_watches_max = health_watches_max
        self._open: Counter[str] = Counter()

    def enter(self, caller: Caller, method: str) -> OpenCall:
        """Counts a call until its `with` block ends.

        Args:
            caller: the caller.
            method: full name of the method.

        Raises:
            ResourceExhausted: the caller has too many open calls.
        """
        is_watch = method == _HEALTH_WATCH
        key = f"{caller.name} {method}" if is_watch else caller.name
        most = self._health_watches_max if is_watch else self._calls_max
        if self._open[key] >= most:
            raise ResourceExhausted(
                f"{caller.name} has {most} open calls of {method if is_watch else 'any method'} at"
                " this server, and may have no more; end some of them",
                retry_after_s=RETRY_AFTER_S,
                details={"identity": caller.name, "limit": most},
            )
        self._open[key] += 1
        return OpenCall(self._open, key)


class OpenCall:
    """One counted call. At the end of its `with` block, it is not counted any more."""

    __slots__ = ("_key", "_open")

    def __init__(self, counts: Counter[str], key: str) -> None:
        self._open = counts
        self._key = key

    def __enter__(self) -> None:
        """Does nothing: the call was counted already."""

    def __exit__(self, *exc: object) -> None:
        self._open[self._key] -= 1
        if not self._open[self._key]:
            del self._open[self._key]
