"""Calls the helper and receives its events, over one unix socket.

The sequence of answers can differ from the sequence of calls. If the connection was lost, the
client sends a call again. All calls except `signal_task` and `stop` are idempotent. The client does
not repeat these two calls.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from finegrain import errors
from finegrain.errors import FinegrainError, Reason
from task_executor.helper.protocol import FRAME_BYTES_MAX, Fault, decode, encode, frames
from task_executor.helper.server import peer_uid, socket_address
from task_executor.host import helper_messages
from task_executor.host.helper_messages import (
    FRAMES,
    ExitRecord,
    HelperEvent,
    HelperInfo,
    HelperState,
    IsolationReport,
    KubeletFiles,
    Reconnected,
    SlotLimits,
    SlotMemory,
    SlotPlace,
    SlotState,
    SlotUsage,
    TaskExited,
    TaskOom,
    TaskRecord,
    TaskSpec,
    TaskStarted,
    TaskUsage,
    Usage,
)

__all__ = [
    "ExitRecord",
    "HelperClient",
    "HelperError",
    "HelperEvent",
    "HelperInfo",
    "HelperState",
    "HelperUnavailable",
    "IsolationReport",
    "Reconnected",
    "SlotLimits",
    "SlotPlace",
    "SlotState",
    "SlotUsage",
    "TaskExited",
    "TaskOom",
    "TaskRecord",
    "TaskSpec",
    "TaskStarted",
    "TaskUsage",
    "Usage",
]

GAP_S = 10.0  # maximum time that a call waits for a connection to the helper
ANSWER_S = 90.0  # maximum time for an answer; longer than all deadlines of the helper
# maximum time for the answer to parking a slot, which can copy all memory of its GPUs
MOVE_S = 3_600.0
_BACKOFF_S_MIN, _BACKOFF_S_MAX = 0.05, 1.0
_INPUT_CHUNK_BYTES = 128 << 10
_RECEIVE_BYTES = 1 << 18
_EVENTS_MAX = 100_000
_NOT_ASKED = "it is not known yet whether the helper can close device files"
_EARLIER_VERSION = "the helper has an earlier version; restart it"
_PLACES_BYTES_MAX = FRAME_BYTES_MAX // 2  # maximum size of the JSON in one call, in bytes

_CLASSES: dict[str, type[FinegrainError]] = {
    Reason.ALLOCATION_UNKNOWN: errors.NotFound,
    Reason.TASK_UNKNOWN: errors.NotFound,
    Reason.ALREADY_EXISTS: errors.AlreadyExists,
    Reason.OUT_OF_RANGE: errors.OutOfRange,
    Reason.USER_NOT_ALLOWED: errors.PermissionDenied,
    Reason.OVER_LIMIT: errors.ResourceExhausted,
    Reason.UNREACHABLE: errors.Unavailable,
    Reason.INTERNAL: FinegrainError,
}


class HelperError(errors.FailedPrecondition):
    """The helper rejected a call.

    `reason` is the reason code. `details` has values such as file, wrote, read and blocked.
    """


class HelperUnavailable(errors.Unavailable):
    """No helper answered at the socket within the deadline."""


class HelperClient:
    """A connection to the helper. If it is lost, the client opens it again.

    Create the client with `connect`, and end it with `close`.
    """

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self._writer: asyncio.StreamWriter | None = None
        self._connected = asyncio.Event()
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._events: asyncio.Queue[HelperEvent] = asyncio.Queue(_EVENTS_MAX)
        self._keeper: asyncio.Task[None] | None = None
        self._devices_problem = _NOT_ASKED

    @classmethod
    async def connect(cls, socket_path: str | Path, deadline_s: float = GAP_S) -> Self:
        """Connects to the helper and waits for its first answer.

        Args:
            socket_path: the helper's socket.
            deadline_s: the maximum time to wait, in seconds.

        Raises:
            HelperUnavailable: no helper answered in time.
        """
        client = cls(Path(socket_path))
        client._keeper = asyncio.create_task(client._keep_connected())
        try:
            await client._call("hello", {}, deadline_s=deadline_s)
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Closes the connection. The helper and the tasks continue."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    async def events(self) -> AsyncIterator[HelperEvent]:
        """Yields the events of the helper, without end. Only one reader is allowed."""
        while True:
            yield await self._events.get()

    async def hello(self) -> HelperInfo:
        """Returns the identity of the helper, and the limits that it can enforce."""
        info = FRAMES.from_json(HelperInfo, await self._call("hello", {}))
        try:
            self._devices_problem = str((await self._call("devices", {}))["problem"])
        except errors.InvalidArgument:  # a helper of an earlier version does not know the verb
            self._devices_problem = _EARLIER_VERSION
        return replace(info, isolation=self._with_devices(info.isolation))

    def _with_devices(self, report: IsolationReport) -> IsolationReport:
        """Returns the report, completed with the helper's answer about device files."""
        word = "none" if self._devices_problem else "cgroup"
        return replace(report, devices=word, devices_problem=self._devices_problem)

    async def create_slot(self, limits: SlotLimits) -> IsolationReport:
        """Creates a slot's cgroup with its limits, and returns the isolation report.

        Raises:
            HelperError: CARVE_FAILED (details: file, wrote, read). Nothing of the slot is left.
            AlreadyExists: the slot exists with other limits.
        """
        result = await self._call("create_slot", _limits(limits))
        return self._with_devices(FRAMES.from_json(IsolationReport, result))

    async def resize_slot(self, limits: SlotLimits) -> IsolationReport:
        """Changes all limits of a slot; if this fails, all limits stay unchanged. The call can be
        repeated safely.

        Returns:
            The isolation report.

        Raises:
            HelperError: CARVE_FAILED or BELOW_USE; the old limits are in effect. BELOW_USE means
                that the memory in use is above the new limit, even after the kernel has reclaimed
                memory (details: asked, used, in bytes).
        """
        result = await self._call("resize_slot", _limits(limits))
        return self._with_devices(FRAMES.from_json(IsolationReport, result))

    async def place_slots(self, places: Iterable[SlotPlace]) -> None:
        """Moves slots with all their processes to other cpus and memory nodes.

        The helper skips slots that no longer exist. The call can be repeated safely. The client
        sends very many slots in several batches. If a batch fails, no slot of this batch moves, but
        the slots of earlier batches stay moved.

        Raises:
            HelperError: CARVE_FAILED (details: file, wrote, read) or DISK_FULL.
        """
        for batch in _batches([FRAMES.to_json(place) for place in places]):
            await self._call("place_slots", {"slots": batch})

    async def limit_device_memory(
        self, slots: Iterable[SlotMemory], probe: Mapping[str, int]
    ) -> tuple[list[dict[str, str]], dict[str, str]]:
        """Limits the device memory of slots. The call can be repeated safely.

        Args:
            slots: the limits.
            probe: limits, in bytes by device. The helper sets these limits for a control group that
                uses no device, and then removes them. This shows whether limits can be set.

        Returns:
            Two values. The first has, for each slot in the order of `slots`, the reasons why limits
            could not be set, by device. The second has the same reasons for the probe.

        Raises:
            FinegrainError: it is not known which limits are set, for example because a driver hangs
                or the helper has an earlier version.
        """
        args = {"slots": [FRAMES.to_json(each) for each in slots], "probe": dict(probe)}
        try:
            answer = await self._call("limit_device_memory", args)
        except errors.InvalidArgument as error:
            if error.field != "verb":
                raise
            raise HelperError(_EARLIER_VERSION) from None
        # The last two answers are for the probe: its limits are first set, and then removed.
        *of_slots, failed, left = answer["problems"]
        return of_slots, left | failed

    async def park_slot(self, allocation_id: str, generation: int, memory_bytes: int) -> int:
        """Moves all processes of a slot off their GPUs. The call can be repeated safely.

        Args:
            allocation_id: the allocation id of the slot.
            generation: the generation of the slot.
            memory_bytes: the GPU memory that must fit into the slot's memory, in bytes.

        Returns:
            The number of processes that this call moved.

        Raises:
            HelperError: BELOW_USE (the slot's memory is too small) or PARK_FAILED. After
                PARK_FAILED, some processes have possibly been moved.
        """
        return await self._move_slot(
            "park_slot", allocation_id, generation, memory_bytes=memory_bytes
        )

    async def unpark_slot(self, allocation_id: str, generation: int, device_map: str) -> int:
        """Moves all processes of a slot back to GPUs. The call can be repeated safely.

        Args:
            allocation_id: the allocation id of the slot.
            generation: the generation of the slot.
            device_map: "old=new" with UUIDs of GPUs; empty to give the processes the same GPUs
                again.

        Returns:
            The number of processes that this call moved.

        Raises:
            HelperError: PARK_FAILED. Some processes have possibly been moved.
        """
        return await self._move_slot(
            "unpark_slot", allocation_id, generation, device_map=device_map
        )

    async def _move_slot(
        self, verb: str, allocation_id: str, generation: int, **options: int | str
    ) -> int:
        args = {"allocation_id": allocation_id, "generation": generation, **options}
        try:
            answer = await self._call(verb, args, answer_s=MOVE_S)
        except errors.InvalidArgument as error:
            if error.field != "verb":
                raise
            raise HelperError(_EARLIER_VERSION, reason=Reason.PARK_FAILED) from None
        return int(answer["processes"])

    async def destroy_slot(self, allocation_id: str, generation: int, grace_ms: int = 0) -> None:
        """Destroys a slot, and returns when its processes have ended and its cgroups are removed.

        An unknown slot counts as destroyed. After an error, the call can be repeated.

        Args:
            allocation_id: the allocation id of the slot.
            generation: the generation of the slot.
            grace_ms: the time between SIGTERM and SIGKILL, in milliseconds.

        Raises:
            HelperError: SLOT_NOT_READY. The error names the processes that cannot be killed.
        """
        args = {"allocation_id": allocation_id, "generation": generation, "grace_ms": grace_ms}
        await self._call("destroy_slot", args)

    async def start_task(self, spec: TaskSpec) -> TaskStarted:
        """Starts a task, and returns when its program runs.

        If a task with the same spec exists, the helper starts no second task.

        Raises:
            FinegrainError: COMMAND_NOT_FOUND, COMMAND_NOT_EXECUTABLE, CWD_UNAVAILABLE,
                USER_NOT_ALLOWED, LIMIT_TOO_SMALL, START_FAILED, ALLOCATION_UNKNOWN, SLOT_NOT_READY,
                ALREADY_EXISTS or INVALID_ARGUMENT. After an error, no task exists.
        """
        content: dict[str, Any] = FRAMES.to_json(spec)
        for name in ("memory_limit_bytes", "output_holder"):
            if content[name] is None:  # a helper of an earlier version rejects this field
                del content[name]
        try:
            result = await self._call("start_task", content)
        except errors.InvalidArgument as error:
            if "output_holder" not in content or error.field != "args of start_task":
                raise
            # A helper of an earlier version starts the task, but cannot hold its output.
            del content["output_holder"]
            result = await self._call("start_task", content)
        return FRAMES.from_json(TaskStarted, result)

    async def limit_task(self, task_id: str, memory_limit_bytes: int) -> None:
        """Changes the memory limit of a task, unless it has ended. The call can be repeated safely.

        Raises:
            HelperError: CARVE_FAILED, or BELOW_USE (details: asked, used, in bytes). The old limit
                is in effect.
        """
        args = {"task_id": task_id, "memory_limit_bytes": memory_limit_bytes}
        await self._call("limit_task", args)

    async def signal_task(self, task_id: str, signum: int) -> None:
        """Sends a signal to the task's process group.

        Raises:
            FinegrainError: TASK_ENDED, TASK_UNKNOWN or UNREACHABLE.
        """
        await self._call("signal_task", {"task_id": task_id, "signum": signum}, repeat=False)

    async def kill_task(self, task_id: str, grace_ms: int = 0) -> None:
        """Sends SIGTERM to all processes of a task, and SIGKILL after the grace period.

        This method returns immediately. When the task has ended, a `TaskExited` event follows.
        """
        await self._call("kill_task", {"task_id": task_id, "grace_ms": grace_ms})

    async def write_input(self, task_id: str, offset: int, data: bytes, eof: bool = False) -> int:
        """Writes to a task's stdin, and returns the offset up to which bytes were accepted.

        If not all bytes were accepted, the caller should send the remaining bytes a little later.
        Offsets count from the start of stdin, so the call can be repeated safely.

        Args:
            task_id: the id of the task.
            offset: the position of the first byte of `data` in stdin.
            data: the bytes to write.
            eof: True to close stdin when all of `data` is accepted.

        Raises:
            FinegrainError: TASK_ENDED, or UNREACHABLE. After UNREACHABLE (the supervisor does not
                answer), the caller should try again.
        """
        accepted, end = offset, offset + len(data)
        # Send the data in chunks. So frames are small. The loop ends at the first chunk of which
        # not all bytes were accepted.
        while True:
            chunk = data[accepted - offset :][:_INPUT_CHUNK_BYTES]
            sent = accepted + len(chunk)
            # Each byte becomes one character. So any bytes can be sent as JSON text.
            args = {"task_id": task_id, "offset": accepted, "data": chunk.decode("latin-1")}
            result = await self._call("write_input", args | {"eof": eof and sent == end})
            accepted = int(result["accepted_offset"])
            if accepted != sent or sent == end:
                return accepted

    async def hold_output(self, task_id: str, holder: str, stdout: int, stderr: int) -> int:
        """Makes a reader the holder of a task's output, or renews its hold.

        Args:
            task_id: the id of the task.
            holder: the id of the reader.
            stdout: the position before which the reader has received all bytes of stdout.
            stderr: the position before which the reader has received all bytes of stderr.

        Returns:
            The number of unacknowledged bytes of each stream that are stored before the task must
            wait.

        Raises:
            FinegrainError: ALREADY_EXISTS (another reader holds the output), TASK_ENDED,
                TASK_UNKNOWN or UNREACHABLE. INVALID_ARGUMENT if the helper or the task's supervisor
                is of an earlier version.
        """
        args = {"task_id": task_id, "holder": holder, "stdout": stdout, "stderr": stderr}
        return int((await self._call("hold_output", args))["limit_bytes"])

    async def inspect(self) -> HelperState:
        """Returns all slots and tasks of the helper, and unknown groups that it has killed."""
        return FRAMES.from_json(HelperState, await self._pages("inspect"))

    async def usage(self) -> Usage:
        """Returns the use that the kernel counts for all slots and running tasks."""
        return FRAMES.from_json(Usage, await self._pages("usage"))

    async def kubelet(self, seen: str = "") -> KubeletFiles | None:
        """Returns the contents of a kubelet's files; None if the mark `seen` is still valid."""
        answer = await self._call("kubelet", {"seen": seen})
        # If the mark is still valid, the helper has sent only the mark.
        if "found" not in answer:
            return None
        pairs = {name: dict(answer[name]) for name in ("texts", "failures")}
        return FRAMES.from_json(KubeletFiles, answer | pairs)

    async def forget_task(self, task_id: str) -> None:
        """Deletes the files and the scratch directory of an ended task. Ignores an unknown task."""
        await self._call("forget_task", {"task_id": task_id})

    async def stop(self) -> None:
        """Stops the helper. The tasks continue."""
        await self._call("stop", {}, repeat=False)

    async def _pages(self, verb: str) -> dict[str, Any]:
        """Reads all pages. Returns the last page, with the slots and tasks of all pages."""
        slots, tasks, after = list[dict[str, Any]](), list[dict[str, Any]](), ""
        while True:
            page = await self._call(verb, {"after": after})
            slots += page["slots"]
            tasks += page["tasks"]
            after = page["after"]
            if not after:
                return page | {"slots": slots, "tasks": tasks}

    async def _call(
        self,
        verb: str,
        args: dict[str, Any],
        *,
        repeat: bool = True,
        deadline_s: float = GAP_S,
        answer_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """Calls the helper. If the connection is lost, the client sends the call again.

        Args:
            verb: the name of the call.
            args: the arguments of the call.
            repeat: False if the call must not be sent again.
            deadline_s: the maximum time without a connection.
            answer_s: the maximum time in which the helper must answer.

        Raises:
            FinegrainError: the helper rejected the call.
            HelperUnavailable: there is no connection, or no answer.
        """
        while True:
            try:
                # Limit only the wait for a connection, because the helper can need longer for the
                # call.
                if not self._connected.is_set():
                    async with asyncio.timeout(deadline_s):
                        await self._connected.wait()
                return await self._ask(verb, args, answer_s)
            except ConnectionError as error:
                if not repeat:
                    raise HelperUnavailable(
                        f"the helper closed the connection during {verb}; it is unknown whether "
                        "the call was executed"
                    ) from error
            except TimeoutError:
                message = f"no helper answers at {self._path} (waited {deadline_s:g} s for {verb})"
                raise HelperUnavailable(message) from None

    async def _ask(self, verb: str, args: dict[str, Any], answer_s: float) -> dict[str, Any]:
        writer = self._writer
        if writer is None:
            raise ConnectionResetError("the helper is not connected")
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            writer.write(_frame({"id": number, "verb": verb, "args": args}))
            # The helper answers only after the grace period, so add the grace period to the time
            # limit.
            async with asyncio.timeout(answer_s + args.get("grace_ms", 0) / 1000):
                return await answer
        except TimeoutError:
            raise HelperUnavailable(
                f"the helper does not answer {verb}; is it suspended (SIGSTOP)?"
            ) from None
        # Remove the call after a timeout, too. A late answer is then ignored.
        finally:
            self._calls.pop(number, None)

    async def _keep_connected(self) -> None:
        backoff_s, first = _BACKOFF_S_MIN, True
        while True:
            try:
                with socket_address(self._path) as address:
                    reader, writer = await asyncio.open_unix_connection(address)
                # Check the owner of the socket, because calls contain the environment of tasks,
                # which another user must not receive.
                if peer_uid(writer.get_extra_info("socket")) not in (0, os.geteuid()):
                    writer.close()
                    raise ConnectionRefusedError("the socket belongs to another user")
            except OSError:
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311
                backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)
                continue
            self._writer, backoff_s = writer, _BACKOFF_S_MIN
            self._connected.set()
            if not first:
                self._publish(Reconnected())
            first = False
            try:
                await self._read(reader)
            finally:
                self._lose(writer)
            # Pause, to limit the rate of attempts if a helper accepts connections and immediately
            # closes them.
            await asyncio.sleep(backoff_s)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        received = bytearray()
        while True:
            try:
                # One read often returns several frames.
                data = await reader.read(_RECEIVE_BYTES)
                received += data
                messages = [decode(body) for body in frames(received)]
            # After invalid data, it is unknown where the next frame starts.
            except (OSError, Fault):
                return
            for message in messages:
                self._receive(message)
            if not data:
                return

    def _receive(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._publish(helper_messages.event(message))
        elif (call := self._calls.get(message["id"])) and not call.done():
            if message["ok"]:
                call.set_result(message["result"])
            else:
                call.set_exception(_error(message["error"]))

    def _publish(self, event: HelperEvent | None) -> None:
        if event is None:
            return
        # If the queue is full, no reader reads the events. So remove the events. `Reconnected`
        # makes the next reader call `inspect`.
        if self._events.full():
            while not self._events.empty():
                self._events.get_nowait()
            event = Reconnected()
        self._events.put_nowait(event)

    def _lose(self, writer: asyncio.StreamWriter) -> None:
        self._connected.clear()
        self._writer = None
        writer.close()
        # Let the open calls fail. `_call` sends a call again if the call can be repeated.
        for call in self._calls.values():
            if not call.done():
                call.set_exception(ConnectionResetError("the helper closed the connection"))


def _batches(items: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Splits items into batches that fit into a frame. The sequence of items does not change."""
    batch, size = list[dict[str, Any]](), 0
    for item in items:
        # Count the bytes of the JSON, because the size of a frame is limited in bytes.
        length = len(json.dumps(item))
        if batch and size + length > _PLACES_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


def _limits(limits: SlotLimits) -> dict[str, Any]:
    """Returns the arguments of a call, without empty fields.

    A helper of an earlier version rejects unknown fields. So the arguments contain a field only if
    it is set.
    """
    content: dict[str, Any] = FRAMES.to_json(limits)
    unused = {name for name in ("devices_open", "devices_closed") if not content[name]}
    return {name: value for name, value in content.items() if name not in unused}


def _frame(message: dict[str, Any]) -> bytes:
    try:
        return encode(message)
    except Fault as fault:
        expected = f"at most {FRAME_BYTES_MAX} bytes of JSON"
        raise errors.InvalidArgument("request", fault.message, expected) from None


def _error(content: dict[str, Any]) -> FinegrainError:
    """Converts the helper's error into an exception. An unknown reason becomes INTERNAL."""
    name, message, details = content["reason"], content["message"], content["details"]
    reason = Reason(name) if name in Reason.__members__ else Reason.INTERNAL
    if reason is Reason.INVALID_ARGUMENT and "field" in details:
        return errors.InvalidArgument(details["field"], details["value"], details["expected"])
    kind = _CLASSES.get(reason, HelperError)
    return kind(message, reason=reason, details=details)
