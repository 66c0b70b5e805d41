"""Writes the standard input of a task. Each byte has an offset, so a repeated write adds no byte
twice.

A write is split into messages. If the call breaks, the write continues from the offset that the
executor has accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator

import grpc

from finegrain.errors import FailedPrecondition, NotFound, Reason
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import task_executor_pb2 as te
from finegrain_client.errors import SlotLost
from finegrain_client.job.context import JobContext
from finegrain_client.retry import Backoff, delay_before_retry, was_ended_during_write
from finegrain_client.slot.at_executor import SlotAtExecutor

MESSAGE_BYTES_MAX = 64 * 1024 - 1024  # 64 KiB per message, of which 1 KiB is for the other fields
WRITE_BYTES_MAX = 1024 * 1024
"""Maximum number of bytes per call.

The client keeps these bytes until the call succeeds, so that it can send them again.
"""


class TaskInput:
    """The writing end of one task's standard input."""

    def __init__(self, slot: SlotAtExecutor, context: JobContext, task_id: str) -> None:
        self._slot = slot
        self._context = context
        self._task_id = task_id
        self._offset = 0
        self._closed = False
        self._one_at_a_time = asyncio.Lock()

    async def feed(self, source: bytes | AsyncIterable[bytes]) -> None:
        """Writes all of `source`, then closes the input.

        It is not an error if the task ends earlier.
        """
        try:
            if isinstance(source, bytes):
                await self.write(source, eof=True)
                return
            async for data in source:
                await self.write(data)
            await self.write(b"", eof=True)
        except SlotLost:
            return  # `Task.wait` raises this error
        except NotFound:
            return
        except FailedPrecondition as error:
            if error.reason is not Reason.TASK_ENDED:
                raise

    async def write(self, data: bytes, *, eof: bool = False) -> None:
        """Writes `data`, and closes the input if `eof` is true.

        Returns when the executor has accepted all bytes.

        Raises:
            FailedPrecondition: the task has ended, or its input is already closed.
            SlotLost: the slot has ended.
        """
        # Allow only one write at a time, because a write starts at the last accepted offset, and
        # two writes at once would overlap.
        async with self._one_at_a_time:
            if self._closed:
                if eof and not data:
                    return
                raise FailedPrecondition(
                    f"the standard input of task {self._task_id} is closed",
                    reason=Reason.TASK_ENDED,
                )
            pieces = [
                data[start : start + WRITE_BYTES_MAX]
                for start in range(0, len(data), WRITE_BYTES_MAX)
            ] or [b""]
            for index, piece in enumerate(pieces):
                last = eof and index == len(pieces) - 1
                if piece or last:
                    await self._slot.guard(self._write_piece(piece, eof=last))
            self._closed = eof

    async def _write_piece(self, piece: bytes, *, eof: bool) -> None:
        start = self._offset
        end = start + len(piece)
        backoff = Backoff(self._context.connection.policy)
        while True:
            # After a break, send from the last known offset. The executor ignores bytes that it
            # already has.
            messages = self._messages(piece[self._offset - start :], eof=eof)
            call = self._slot.stub.WriteTaskInput(messages)
            try:
                accepted = (await call).accepted_bytes
            except grpc.RpcError as error:
                delay_s = (
                    backoff.next_s()
                    if was_ended_during_write(error)
                    else delay_before_retry(error, backoff)
                )
                if delay_s is None:
                    meaning = error_from_rpc(error, self._slot.executor_address)
                    await self._slot.renew_token(meaning)
                    delay_s = 0.0
                else:
                    await self._slot.after_break(backoff.failures)
            else:
                if accepted > self._offset:
                    backoff.reset()
                    # The executor can accept bytes although the call fails, so use only the
                    # executor's count.
                    self._offset = min(accepted, end)
                if accepted >= end:
                    return
                delay_s = backoff.next_s()
            finally:
                call.cancel()
            await asyncio.sleep(delay_s)

    def _messages(self, data: bytes, *, eof: bool) -> Iterator[te.WriteTaskInputRequest]:
        # If there is no data, send one empty message with the end of the input.
        starts = range(0, len(data), MESSAGE_BYTES_MAX) or (0,)
        for start in starts:
            part = data[start : start + MESSAGE_BYTES_MAX]
            yield te.WriteTaskInputRequest(
                task_id=self._task_id,
                offset=self._offset + start,
                data=part,
                eof=eof and start + len(part) == len(data),
            )
