"""Serves a unix socket for each slot, at which the slot's tasks read their peers and their present
quotas.

The frames have the same format as on the helper's sockets (`helper/protocol.py`). The kernel
reports which process connects, and the executor rejects a process that belongs to no task of the
slot. After a restart, the front makes the sockets again at the same paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from finegrain.errors import FinegrainError, Reason, Unavailable
from finegrain.logs import get_logger
from task_executor.engine.slots import SlotKey
from task_executor.helper.protocol import (
    FRAME_BYTES_MAX,
    Fault,
    Field,
    Fields,
    check_request,
    decode,
    encode,
    identifier,
    integer,
    text,
)
from task_executor.helper.server import socket_address
from task_executor.host.helper_messages import TaskFault
from task_executor.host.process_owners import ProcessOwners
from task_executor.service.operator_calls import OperatorCalls
from task_executor.service.operators import REVOKE_S, Operators, peers_json, quotas_json
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_table import Task

CONNECTIONS_MAX: Final = 16  # maximum number of connections of one task
REQUEST_BYTES_MAX: Final = 64 << 10
UNSENT_BYTES_MAX: Final = 4 << 20  # the executor disconnects a task with more unread bytes
SHRINK_S_MAX: Final = 1.0  # maximum time that a resize waits for pools to return memory
LATE_S: Final = 0.05
ENDED_S: Final = 5.0  # the time to wait for the end of a task that kept memory
NOT_GIVEN_BACK: Final = TaskFault(
    Reason.MANAGED_MEMORY_REVOKED.value,
    f"it did not give borrowed managed memory back within {REVOKE_S:g} s",
)
VERBS: Final[Mapping[str, Fields]] = {
    "RegisterManagedMemory": {"operator_id": Field(identifier), "fraction": Field(text)},
    "WatchQuota": {},
    "GetPeers": {},
    "ReportUse": {"operator_id": Field(identifier), "used_bytes": Field(integer(0, 1 << 60))},
    "UseMemory": {
        "operator_id": Field(identifier),
        "used_bytes": Field(integer(0, 1 << 60)),
        "wanted_bytes": Field(integer(0, 1 << 60)),
        "limit_bytes": Field(integer(0, 1 << 60)),
    },
}

log = get_logger(__name__)


class SlotSockets:
    """The sockets of all slots whose tasks can need a socket.

    Args:
        keeper: the slots, tasks and operators of this executor.
        calls: the handler that registers operators.
        directory: the directory of the sockets. Its path must be short.
        owners: the object that finds the task of a process; None: an object that searches in /proc.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        calls: OperatorCalls,
        directory: Path,
        owners: ProcessOwners | None = None,
    ) -> None:
        self._keeper = keeper
        self._calls = calls
        self._directory = directory
        self._owners = owners or ProcessOwners()
        self._servers: dict[SlotKey, asyncio.Server] = {}
        self._connections: dict[SlotKey, set[_Connection]] = {}
        self._given_back = asyncio.Event()
        self._revoking: dict[SlotKey, asyncio.Task[None]] = {}
        # Kills a task, and reports the reason together with the task's end.
        self.end_task: Callable[[Task, TaskFault], Awaitable[None]] = _end_nothing
        keeper.operators.on_change = self._quotas_changed

    def path(self, key: SlotKey) -> Path:
        """Returns the path of a slot's socket. The path stays the same after a restart of the
        executor.
        """
        mark = hashlib.sha256(f"{key.allocation_id}.{key.generation}".encode()).hexdigest()[:16]
        return self._directory / f"{mark}.sock"

    async def open_for(self, task: Task, uid: int) -> Path | None:
        """Opens the socket of a task's slot, if the socket is not open yet.

        Other tasks have possibly borrowed the quotas of the task. The method waits until they have
        returned the memory. The executor ends tasks that do not return the memory in time.

        Args:
            task: the task that may use the socket.
            uid: the id of the user that the task runs as.

        Returns:
            The path of the socket; None: no socket is needed, because the slot has no managed
            memory and the task runs no operators.

        Raises:
            Unavailable: the socket cannot be made.
        """
        if task.operator_task is None and not self._keeper.operators.managed(task.key):
            return None
        await self._wait_returned(task.key)
        path = self.path(task.key)
        try:
            if task.key not in self._servers:
                await self._open(task.key)
            _admit(path, uid)
        except OSError as error:
            raise Unavailable(
                f"the socket {path} of the slot cannot be made: {error.strerror}; see run_dir",
                reason=Reason.UNREACHABLE,
            ) from None
        return path

    async def open_all(self) -> None:
        """Opens the sockets for running tasks, and removes the sockets of slots that no longer
        exist."""
        for task in self._keeper.tasks:
            if not task.has_ended:
                try:
                    await self.open_for(task, _uid_of(task.pid))
                except FinegrainError as error:
                    log.error("slot_socket_not_made", error=error.message)
        wanted = {self.path(key) for key in self._servers}
        if self._directory.is_dir():
            for path in set(self._directory.iterdir()) - wanted:
                path.unlink(missing_ok=True)

    async def _open(self, key: SlotKey) -> None:
        _make_directory(self._directory)
        path = self.path(key)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        umask = os.umask(0o177)  # `_admit` later gives the task's user access
        try:
            with socket_address(path) as address:
                listener.bind(address)
        finally:
            os.umask(umask)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(key, reader, writer)

        self._servers[key] = await asyncio.start_unix_server(
            connected, sock=listener, limit=REQUEST_BYTES_MAX
        )
        self._connections[key] = set()

    def close_slot(self, key: SlotKey) -> None:
        """Closes the socket of a removed slot."""
        server = self._servers.pop(key, None)
        if server is not None:
            server.close()
            for connection in self._connections.pop(key, set()):
                connection.close()
            self.path(key).unlink(missing_ok=True)

    async def close(self) -> None:
        """Closes all sockets. The files of the sockets stay. So tasks can connect to the next
        front.
        """
        for each in self._revoking.values():
            each.cancel()
        for key, server in self._servers.items():
            server.close()
            for connection in self._connections.get(key, set()):
                connection.close()
        self._servers.clear()
        with contextlib.suppress(OSError):  # the directory is not empty, or does not exist
            self._directory.rmdir()

    # -- connections -------------------------------------------------------------------------

    async def _serve(
        self, key: SlotKey, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = _Connection(self, reader, writer)
        connections = self._connections.get(key, set())
        try:
            task = self._caller(key, writer)
            if sum(each.task is task for each in connections) >= CONNECTIONS_MAX:
                message = f"task {task.task_id} has {CONNECTIONS_MAX} connections; close some"
                raise Fault("OVER_LIMIT", message)
            connection.task = task
            connections.add(connection)
            await connection.serve(task)
        except Fault as fault:
            connection.send({"id": None, "ok": False, "error": fault.as_dict()})
        except (OSError, asyncio.IncompleteReadError):
            pass  # the task has closed the connection, or ended
        finally:
            connections.discard(connection)
            self._forget_pools(connection, connections)
            with contextlib.suppress(OSError):
                connection.close()

    def _caller(self, key: SlotKey, writer: asyncio.StreamWriter) -> Task:
        """Returns the task that a connection comes from.

        Raises:
            Fault: the process belongs to no task of the slot.
        """
        peer = writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", credentials)[0]
        running = {t.task_id: t for t in self._keeper.tasks.of_slot(key) if not t.has_ended}
        # -1 means that the task is being started. Its process can connect before the helper's
        # answer with its pid has arrived.
        pids = {task_id: task.pid or -1 for task_id, task in running.items()}
        found = self._owners.task_of(pid, f"{key.allocation_id}.{key.generation}", pids)
        if found is None:
            message = (
                f"process {pid} belongs to no task of slot {key.allocation_id}; only tasks of the "
                "slot may use this socket"
            )
            raise Fault("NOT_OWNER", message, pid=pid)
        return running[found]

    def _forget_pools(self, gone: _Connection, left: set[_Connection]) -> None:
        if gone.task is None:
            return
        kept = {name for each in left if each.task is gone.task for name in each.pools}
        for name in gone.pools - kept:
            self.operators.used(gone.task, name, None)
        self._given_back.set()

    def _quotas_changed(self, key: SlotKey) -> None:
        if self._keeper.table.get(key) is None:
            self.close_slot(key)
        self._given_back.set()
        for connection in list(self._connections.get(key, ())):
            connection.push()
        if key not in self._revoking and self.operators.next_deadline(key) is not None:
            self._revoking[key] = asyncio.create_task(self._await_given_back(key))

    async def _await_given_back(self, key: SlotKey) -> None:
        """If tasks of a slot do not return borrowed memory in time, ends these tasks."""
        try:
            while (deadline := self.operators.next_deadline(key)) is not None:
                await asyncio.sleep(max(deadline - time.monotonic(), 0) + LATE_S)
                for task in self.operators.overdue(key):
                    log.warning("managed_memory_not_given_back", task_id=task.task_id)
                    await self.end_task(task, NOT_GIVEN_BACK)
        except FinegrainError as error:
            log.error("task_not_ended", allocation_id=key.allocation_id, error=error.message)
        finally:
            self._revoking.pop(key, None)

    @property
    def operators(self) -> Operators:
        """The operators of all slots."""
        return self._keeper.operators

    async def wait_given_back(self, key: SlotKey) -> None:
        """Waits until no pool of a slot is above its quota, at most `SHRINK_S_MAX` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHRINK_S_MAX):
                while self.operators.over_quota(key):
                    self._given_back.clear()
                    await self._given_back.wait()

    async def _wait_returned(self, key: SlotKey) -> None:
        """Waits until operators have returned borrowed memory, or their tasks have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REVOKE_S + ENDED_S):
                while self.operators.next_deadline(key) is not None:
                    self._given_back.clear()
                    await self._given_back.wait()

    # -- calls -------------------------------------------------------------------------------

    async def call(
        self, connection: _Connection, task: Task, verb: str, args: dict[str, Any]
    ) -> Any:
        """Answers one call of a task.

        Args:
            connection: the connection of the call.
            task: the task that calls.
            verb: the name of the call.
            args: the arguments of the call.

        Raises:
            Fault, FinegrainError: the call is rejected.
        """
        match verb:
            case "RegisterManagedMemory":
                quota = await self._calls.register_in_task(
                    task, args["operator_id"], args["fraction"]
                )
                return {
                    "memory_bytes": quota.memory_bytes,
                    "pages": quota.pages,
                    "page_bytes": self.operators.page_bytes,
                }
            case "WatchQuota":
                connection.watches = True
                return quotas_json(task, self.operators)
            case "ReportUse" | "UseMemory":
                if args["operator_id"] not in (each.operator_id for each in task.operators):
                    message = f"operator {args['operator_id']} is not registered in this task"
                    raise Fault("INVALID_ARGUMENT", message)
                connection.pools.add(args["operator_id"])
                if verb == "ReportUse":
                    self.operators.used(task, args["operator_id"], args["used_bytes"])
                else:
                    self.operators.pool_reported(task, *args.values())
                self._given_back.set()
                return {}
            case _:
                work = task.operator_task
                return {"peers": peers_json(work.peers if work else ())}


async def _end_nothing(_task: Task, _why: TaskFault) -> None:
    return


class _Connection:
    """One connection of a task."""

    def __init__(
        self, sockets: SlotSockets, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._sockets, self._reader, self._writer = sockets, reader, writer
        self.task: Task | None = None
        self.watches = False
        self.pools: set[str] = set()  # operators whose memory use this connection has reported
        self._pushed: Any = None

    async def serve(self, task: Task) -> None:
        """Answers requests until the task closes the connection.

        Raises:
            Fault: a frame is malformed.
        """
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if not 2 <= size <= REQUEST_BYTES_MAX:
                message = f"frame of {size} bytes; expected 2 to {REQUEST_BYTES_MAX}"
                raise Fault("INVALID_ARGUMENT", message)
            await self._answer(task, decode(await self._reader.readexactly(size)))
            await self._writer.drain()

    async def _answer(self, task: Task, message: dict[str, Any]) -> None:
        number = message.get("id")
        if type(number) is not int or message.keys() - {"id", "verb", "args"}:
            raise Fault("INVALID_ARGUMENT", "a request must have an integer id, a verb and args")
        try:
            args = check_request(message, VERBS)
            result = await self._sockets.call(self, task, message["verb"], args)
        except Fault as fault:
            return self.send({"id": number, "ok": False, "error": fault.as_dict()})
        except FinegrainError as error:
            refusal = Fault(error.reason.value, error.message, **error.details)
            return self.send({"id": number, "ok": False, "error": refusal.as_dict()})
        if message["verb"] == "WatchQuota":
            self._pushed = result
        return self.send({"id": number, "ok": True, "result": result})

    def push(self) -> None:
        """Sends the quotas of the task, if the task watches them and they have changed."""
        if not self.watches or self.task is None:
            return
        quotas = quotas_json(self.task, self._sockets.operators)
        if quotas != self._pushed:
            self._pushed = quotas
            self.send({"event": "quota", **quotas})

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a frame; closes the connection if the task does not read."""
        try:
            self._writer.write(encode(message))
        except Fault:  # more than `FRAME_BYTES_MAX`; the limits of requests prevent this
            log.error("slot_socket_answer_too_large", limit=FRAME_BYTES_MAX)
            self.close()
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._writer.transport.abort()

    def close(self) -> None:
        """Sends the data that was written, and then closes the connection."""
        self._writer.close()


def _make_directory(directory: Path) -> None:
    """Makes the directory of sockets. All users may enter the directory, because tasks can run as
    different users.
    """
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    for path in (directory, directory.parent):
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o011 != 0o011:
            path.chmod(found.st_mode | 0o011)


def _admit(path: Path, uid: int) -> None:
    """Gives a user access to the socket.

    If this process runs as root, the first user becomes the owner of the socket. Otherwise all
    users get access. This is safe, because for each connection `SlotSockets` finds the task of the
    connected process.
    """
    found = path.stat()
    if uid in (found.st_uid, 0):
        return
    if os.geteuid() == 0 and found.st_uid == 0:
        os.chown(path, uid, -1)
    else:
        path.chmod(0o666)


def _uid_of(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return os.geteuid()
