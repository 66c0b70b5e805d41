"""Requests, slots and tasks for blocking callers; what they mean stands with their asyncio twins.

`inner` is the asyncio object behind each; use it on the private loop only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Self, cast

from finegrain.errors import FinegrainError
from finegrain.resources import ResourceProfile
from finegrain_client.blocking.loop import PrivateLoop, in_threads
from finegrain_client.errors import Rejection
from finegrain_client.job import request as aio_request
from finegrain_client.slot import slot as aio_slot
from finegrain_client.slot import task as aio_task
from finegrain_client.types import status as types
from finegrain_client.types.cpus import SlotCpus
from finegrain_client.types.explain import Explanation


class Lost:
    """Whether a slot is lost, as a `threading.Event` would say it."""

    def __init__(self, loop: PrivateLoop, event: asyncio.Event) -> None:
        self.loop = loop
        self._event = event

    def is_set(self) -> bool:
        """True once the slot is known to be lost."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the loss; False: not lost within `timeout_s`."""

        async def work() -> bool:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._event.wait()
            except TimeoutError:
                return False

        return self.loop.run(work())


class Task:
    """See `finegrain_client.Task`."""

    def __init__(self, loop: PrivateLoop, inner: aio_task.Task) -> None:
        self.loop = loop
        self.inner = inner
        self.task_id = inner.task_id

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def status(self) -> types.TaskStatus:
        return self.inner.status

    @property
    def state(self) -> types.TaskState:
        return self.inner.state

    @property
    def pid(self) -> int:
        return self.inner.pid

    def wait(self, timeout_s: float | None = None) -> types.TaskResult:
        return self.loop.run(self.inner.wait(timeout_s))

    def output(
        self, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> Iterator[types.OutputChunk]:
        return self.loop.iterate(
            self.inner.output(stdout_offset=stdout_offset, stderr_offset=stderr_offset)
        )

    def write_input(self, data: bytes, *, eof: bool = False) -> None:
        self.loop.run(self.inner.write_input(data, eof=eof))

    def close_input(self) -> None:
        self.loop.run(self.inner.close_input())

    def signal(self, number: int) -> None:
        self.loop.run(self.inner.signal(number))

    def cancel(self, grace_s: float | None = None) -> None:
        self.loop.run(self.inner.cancel(grace_s))


class Slot:
    """See `finegrain_client.Slot`."""

    def __init__(self, loop: PrivateLoop, inner: aio_slot.Slot) -> None:
        self.loop = loop
        self.inner = inner
        self.lost = Lost(loop, inner.lost)

    def __repr__(self) -> str:
        return repr(self.inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    @property
    def status(self) -> types.SlotStatus:
        return self.inner.status

    @property
    def error(self) -> FinegrainError | None:
        return self.inner.error

    @property
    def allocation_id(self) -> str:
        return self.inner.allocation_id

    @property
    def generation(self) -> int:
        return self.inner.generation

    @property
    def executor_id(self) -> str:
        return self.inner.executor_id

    @property
    def executor_address(self) -> str:
        return self.inner.executor_address

    @property
    def profile(self) -> ResourceProfile:
        return self.inner.profile

    @property
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes

    @property
    def cpus(self) -> str:
        return self.inner.cpus

    @property
    def assignment(self) -> SlotCpus | None:
        return self.inner.assignment

    @property
    def isolation(self) -> types.Isolation | None:
        return self.inner.isolation

    @property
    def is_lost(self) -> bool:
        return self.inner.is_lost

    @property
    def has_ended(self) -> bool:
        return self.inner.has_ended

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        timeout_s: float | None = None,
        stdin: bytes | Iterable[bytes] | Literal["pipe"] | None = None,
        output: Literal["capture", "stream"] | Callable[[types.OutputChunk], None] = "capture",
        output_limit_bytes: int = 0,
        task_id: str = "",
        take_back: bool = True,
    ) -> Task:
        plain = stdin is None or isinstance(stdin, bytes | str)
        source = stdin if plain else in_threads(cast("Iterable[bytes]", stdin))
        started = self.inner.run(
            argv,
            env=env,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s,
            stdin=cast("aio_task.StdinSource", source),
            output=output,
            output_limit_bytes=output_limit_bytes,
            task_id=task_id,
            take_back=take_back,
        )
        return Task(self.loop, self.loop.run(started))

    def resize(
        self,
        *,
        cpu_milli: int | None = None,
        memory_bytes: int | None = None,
        task_off_heap_memory_bytes: int | None = None,
        managed_memory_bytes: int | None = None,
        network_memory_bytes: int | None = None,
        extended: Mapping[str, int] | None = None,
        cpu_limit_milli: int | None = None,
        wait_for_use: bool = False,
        timeout_s: float | None = None,
    ) -> types.SlotStatus:
        work = self.inner.resize(
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            task_off_heap_memory_bytes=task_off_heap_memory_bytes,
            managed_memory_bytes=managed_memory_bytes,
            network_memory_bytes=network_memory_bytes,
            extended=extended,
            cpu_limit_milli=cpu_limit_milli,
            wait_for_use=wait_for_use,
            timeout_s=timeout_s,
        )
        return self.loop.run(work)

    def withdraw_resize(self) -> types.SlotStatus:
        return self.loop.run(self.inner.withdraw_resize())

    def release(self, grace_s: float | None = None) -> None:
        self.loop.run(self.inner.release(grace_s))

    def reuse_for(self, request: Request | str, grace_s: float | None = None) -> bool:
        wish = request if isinstance(request, str) else request.inner
        return self.loop.run(self.inner.reuse_for(wish, grace_s))


class Request:
    """See `finegrain_client.Request`."""

    def __init__(self, loop: PrivateLoop, inner: aio_request.Request) -> None:
        self.loop = loop
        self.inner = inner
        self.allocation_id = inner.allocation_id

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def state(self) -> types.RequestState:
        return self.inner.state

    @property
    def reason(self) -> str:
        return self.inner.reason

    @property
    def message(self) -> str:
        return self.inner.message

    @property
    def slot(self) -> Slot | None:
        return Slot(self.loop, self.inner.slot) if self.inner.slot else None

    @property
    def gang(self) -> types.Gang | None:
        return self.inner.gang

    @property
    def acknowledged(self) -> bool:
        return self.inner.acknowledged

    @property
    def generation(self) -> int:
        return self.inner.generation

    @property
    def has_ended(self) -> bool:
        return self.inner.has_ended

    @property
    def is_settled(self) -> bool:
        return self.inner.is_settled

    @property
    def rejection(self) -> Rejection | None:
        return self.inner.rejection

    def granted(self, timeout_s: float | None = None) -> Slot:
        return Slot(self.loop, self.loop.run(self.inner.granted(timeout_s)))

    def cancel(self) -> None:
        self.loop.run(self.inner.cancel())

    def explain(self, *, executor_id: str = "", max_executors: int = 0) -> Explanation:
        work = self.inner.explain(executor_id=executor_id, max_executors=max_executors)
        return self.loop.run(work)


class AsGranted:
    """See `finegrain_client.as_granted`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.loop = requests[0].loop if requests else None
        inner = [each.inner for each in requests]
        self.inner = self.loop.call(lambda: aio_request.as_granted(inner)) if self.loop else None

    def __iter__(self) -> Iterator[Slot]:
        return self

    def __next__(self) -> Slot:
        if self.loop is None or self.inner is None:
            raise StopIteration
        try:
            return Slot(self.loop, self.loop.run(self.inner.__anext__()))
        except StopAsyncIteration:
            raise StopIteration from None


def as_granted(requests: Iterable[Request]) -> AsGranted:
    """See `finegrain_client.as_granted`."""
    return AsGranted(list(requests))
