"""Declares the interface of the helper that the front uses. Tests implement the interface with a
fake.

`task_executor.host.helper_client.HelperClient` implements the interface for the real helper, and
documents each call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Protocol

from task_executor.host.helper_messages import (
    HelperEvent,
    HelperInfo,
    HelperState,
    IsolationReport,
    KubeletFiles,
    SlotLimits,
    SlotMemory,
    SlotPlace,
    TaskSpec,
    TaskStarted,
    Usage,
)


class Helper(Protocol):
    """The privileged process that carves slots, and starts and ends tasks."""

    def events(self) -> AsyncIterator[HelperEvent]: ...

    async def hello(self) -> HelperInfo: ...

    async def create_slot(self, limits: SlotLimits) -> IsolationReport: ...

    async def resize_slot(self, limits: SlotLimits) -> IsolationReport: ...

    async def place_slots(self, places: Iterable[SlotPlace]) -> None: ...

    async def limit_device_memory(
        self, slots: Iterable[SlotMemory], probe: Mapping[str, int]
    ) -> tuple[list[dict[str, str]], dict[str, str]]: ...
    async def park_slot(self, allocation_id: str, generation: int, memory_bytes: int) -> int: ...

    async def unpark_slot(self, allocation_id: str, generation: int, device_map: str) -> int: ...

    async def destroy_slot(
        self, allocation_id: str, generation: int, grace_ms: int = 0
    ) -> None: ...

    async def start_task(self, spec: TaskSpec) -> TaskStarted: ...

    async def limit_task(self, task_id: str, memory_limit_bytes: int) -> None: ...

    async def signal_task(self, task_id: str, signum: int) -> None: ...

    async def kill_task(self, task_id: str, grace_ms: int = 0) -> None: ...

    async def write_input(
        self, task_id: str, offset: int, data: bytes, eof: bool = False
    ) -> int: ...

    async def hold_output(self, task_id: str, holder: str, stdout: int, stderr: int) -> int: ...

    async def inspect(self) -> HelperState: ...

    async def usage(self) -> Usage: ...

    async def kubelet(self, seen: str = "") -> KubeletFiles | None: ...

    async def forget_task(self, task_id: str) -> None: ...

    async def stop(self) -> None: ...

    async def close(self) -> None: ...
