"""Answers a repeated request with the stored answer to the first request.

A client that did not get an answer can send the same request again with the same `Idempotency-Key`.
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
"""Maximum total size of all stored answers in bytes. If the answers become larger, the oldest
answers are dropped.
"""

KEY_LENGTH_MAX = 255


def check_key(key: str) -> None:
    """Checks a key. Raises InvalidArgument if the key is empty or too long."""
    if not 0 < len(key) <= KEY_LENGTH_MAX:
        raise InvalidArgument("Idempotency-Key", key[:80], f"1 to {KEY_LENGTH_MAX} characters")


@dataclass(slots=True)
class _Kept:
    digest: str
    at_s: float
    answer: asyncio.Future[Response]


class Repeats:
    """Keeps the answers of the last day in memory, by caller and key.

    After a restart of the resource manager, a repeated request is executed again. Even then, the
    resource manager recognizes a repeated slot request by its allocation id.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    async def once(
        self, caller: str, key: str, digest: str, run: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Runs a request. If the caller has already sent the same request with this key, returns
        the stored answer instead.

        Args:
            caller: the identity of the caller.
            key: the key of the request, which the caller has chosen.
            digest: digest of the request.
            run: a function that executes the request. If it raises an exception, no answer is
                stored, so that the client can try again.

        Raises:
            OtherContent: the caller has already used the key for another request.
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
        if self._kept.get((caller, key)) is kept:  # unless the entry was dropped in the meantime
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
