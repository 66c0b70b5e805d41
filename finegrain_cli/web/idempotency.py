"""Answers a repeated request with the stored answer to the first request.

A client that did not get an answer sends the same request again with the same `Idempotency-Key`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from finegrain.errors import FailedPrecondition, InvalidArgument, Reason
from finegrain_cli.web.problems import OtherContent

KEPT_S = 24 * 3600.0
KEPT_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024
"""Largest size of all kept answers together. If they become larger, the oldest answers are
dropped.
"""

KEY_LENGTH_MAX = 255


def check_key(key: str) -> None:
    """Raises InvalidArgument if a key is empty or too long."""
    if not 0 < len(key) <= KEY_LENGTH_MAX:
        raise InvalidArgument("Idempotency-Key", key[:80], f"1 to {KEY_LENGTH_MAX} characters")


@dataclass(slots=True)
class _Kept:
    digest: str
    at_s: float
    answer: asyncio.Future[Response]


class Repeats:
    """The answers of the last day, in memory, by caller and key.

    After a restart of the resource manager, a repeated request is executed again. The resource
    manager then recognizes repeated requests for slots by the ids in them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    async def once(
        self, caller: str, key: str, digest: str, run: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Runs a request, or returns the answer of the same request.

        Args:
            caller: the identity of the caller.
            key: the client's key.
            digest: digest of the request.
            run: executes the request. An exception is not kept, so the client may try again.

        Raises:
            OtherContent: the client used the key for another request.
            FailedPrecondition: the first request with this key is still being executed.
        """
        self._drop_old()
        known = self._kept.get((caller, key))
        if known is not None:
            if known.digest != digest:
                raise OtherContent(
                    "Idempotency-Key", key, "a new key for a request with other content"
                )
            if not known.answer.done():
                raise FailedPrecondition(
                    "the first request with this Idempotency-Key is still executed; repeat it"
                    " later",
                    reason=Reason.ALREADY_EXISTS,
                )
            return known.answer.result()
        kept = _Kept(digest, self._clock(), asyncio.get_running_loop().create_future())
        self._kept[caller, key] = kept
        try:
            answer = await run()
        except BaseException:
            self._kept.pop((caller, key), None)
            kept.answer.cancel()
            raise
        kept.answer.set_result(answer)
        if self._kept.get((caller, key)) is kept:  # the entry may have been dropped meanwhile
            self._bytes += len(answer.body)
        self._drop_old()
        return answer

    def _drop_old(self) -> None:
        now_s = self._clock()
        while self._kept:
            name, kept = next(iter(self._kept.items()))
            is_small = len(self._kept) < KEPT_MAX and self._bytes <= BYTES_MAX
            if is_small and now_s - kept.at_s < KEPT_S:
                return
            del self._kept[name]
            if kept.answer.done() and not kept.answer.cancelled():
                self._bytes -= len(kept.answer.result().body)
