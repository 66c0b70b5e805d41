"""Reads processes, memory, use and health of this host's NVIDIA GPUs about once a second.

An NVML call can block while a driver hangs. So a separate thread makes the calls, and callers wait
for this thread at most `ANSWER_S` seconds. While a call hangs, no second thread is started. The
readings then state the time since which the driver has not answered.

The thread keeps NVML open, because opening it takes long with many GPUs. There is one exception:
while a GPU is missing or needs a repair, the thread closes NVML after each reading. A GPU cannot be
reset while a process has it open.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Final

from finegrain.topology import printable
from task_executor.host.nvml import (
    ask,
    bus_id_of,
    import_pynvml,
    is_lost,
    recovery_action,
    repair_of,
    text_of,
    words_of,
)

READ_EVERY_S: Final = 1.0
ANSWER_S: Final = 5.0
"""Maximum time of a reading. After this time, the driver counts as not answering."""

EVENTS_MAX: Final = 256
"""Maximum number of events that one reading takes from the driver. Later readings take the
remaining events.
"""

_XID: Final = 8  # the value nvmlEventTypeXidCriticalError
_PROCESSES_MAX: Final = 1_000
_GONE_ON: Final = frozenset({1, 2, 6, 7})  # recovery actions after which no work can continue


class ProcessKind(StrEnum):
    """The way in which a process uses a GPU."""

    COMPUTE = "compute"
    MPS = "mps"  # the process is a client of an MPS daemon
    GRAPHICS = "graphics"  # the process only draws


_QUERIES: Final = (
    ("nvmlDeviceGetGraphicsRunningProcesses", ProcessKind.GRAPHICS),
    ("nvmlDeviceGetComputeRunningProcesses", ProcessKind.COMPUTE),
    ("nvmlDeviceGetMPSComputeRunningProcesses", ProcessKind.MPS),
)


@dataclass(frozen=True, slots=True)
class GpuProcessSample:
    """A process that has a GPU open.

    If the driver lists a process with several kinds, MPS has priority over compute, and compute has
    priority over graphics.
    """

    pid: int
    kind: ProcessKind
    memory_bytes: int | None = None  # None if the driver does not report the memory

    @property
    def computes(self) -> bool:
        """True if the process can compute, and so possibly uses much memory. False if the process
        only draws.
        """
        return self.kind is not ProcessKind.GRAPHICS


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU, or one of its MIG instances, at one moment.

    Attributes:
        problem: the reason why the GPU can take no work, and how to repair it; empty if the driver
            reports no problem.
        work_lost: True if work on the GPU cannot continue because of the problem.
        recovery_known: True if the driver reports recovery actions. XIDs are then not needed.
        xids: the different XIDs (error numbers) since the last reading. `xid_count` counts all
            errors.
        measures_processes: True if the driver lists the computing processes, with the memory of
            each process.
    """

    uuid: str
    index: int
    minor: int | None = None
    pci_address: str = ""
    parent_uuid: str = ""  # UUID of the GPU to which a MIG instance belongs
    problem: str = ""
    work_lost: bool = False
    recovery_known: bool = False
    xids: tuple[int, ...] = ()
    xid_count: int = 0
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    busy_percent: int | None = None
    processes: tuple[GpuProcessSample, ...] = ()
    measures_processes: bool = False


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs at one moment.

    Attributes:
        number: the number of the driver's answer. Two readings with the same number have the same
            answer.
        at_s: the time of the driver's answer, in seconds of `time.monotonic`.
        gpus: the GPUs by UUID. MIG instances have separate entries.
        problem: the reason why the driver did not answer; empty if the driver answered. If there is
            a problem, `gpus` contains the last answer.
    """

    number: int = 0
    at_s: float = 0.0
    gpus: Mapping[str, GpuSample] = field(default_factory=dict)
    problem: str = ""


class GpuMonitor:
    """Reads GPUs in a separate thread. Concurrent callers share one reading.

    Args:
        load: imports the NVML binding. Tests pass another function.
        answer_s: the maximum time of a reading, in seconds.
    """

    def __init__(
        self, load: Callable[[], ModuleType] = import_pynvml, *, answer_s: float = ANSWER_S
    ) -> None:
        self._session = NvmlSession(load)
        self._answer_s = answer_s
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._pending: asyncio.Future[GpuReading] | None = None
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self.latest = GpuReading()

    async def read(self) -> GpuReading:
        """Returns a new reading. If the driver does not answer, returns the last reading with a
        problem.
        """
        loop = asyncio.get_running_loop()
        if self._pending is None:
            self._pending = loop.create_future()
            self._asked_at = time.time()
            if self._thread is None:
                # Use a daemon thread. So the executor can stop while the driver hangs.
                self._thread = threading.Thread(
                    target=self._serve, args=(loop,), name="gpu-monitor", daemon=True
                )
                self._thread.start()
            self._asked.put(True)
        done, _ = await asyncio.wait([self._pending], timeout=self._answer_s)
        if done:
            return self.latest
        # Show the time of the call and not its duration, because every change of the text causes a
        # report.
        since = datetime.fromtimestamp(self._asked_at, UTC).strftime("%H:%M:%S")
        return GpuReading(
            self.latest.number,
            self.latest.at_s,
            self.latest.gpus,
            f"the GPU driver has not answered since {since} UTC",
        )

    def close(self) -> None:
        """Orders the thread to end. The thread ends when the driver answers."""
        self._asked.put(False)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        number = 0
        while self._asked.get():
            number += 1
            reading = self._session.read(number)
            try:
                loop.call_soon_threadsafe(self._answered, reading)
            except RuntimeError:  # the event loop has ended
                break
        self._session.close()

    def _answered(self, reading: GpuReading) -> None:
        pending, self._pending = self._pending, None
        # After a failure, keep the last known GPUs. They show which GPUs have vanished.
        self.latest = (
            GpuReading(reading.number, reading.at_s, self.latest.gpus, reading.problem)
            if reading.problem
            else reading
        )
        if pending is not None and not pending.done():
            pending.set_result(self.latest)


class NvmlSession:
    """An open NVML session for several readings. Only one thread is allowed to call the methods."""

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self._load = load
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}  # from UUID to index
        self._known: set[str] = set()  # UUIDs of all GPUs that the host has ever had
        self._events: Any = None

    def read(self, number: int) -> GpuReading:
        """Returns all present GPUs. This method never raises."""
        try:
            if self._nvml is None:
                self._open()
            gpus = self._gpus()
        except ImportError:
            return GpuReading(number, time.monotonic(), problem="nvidia-ml-py is not installed")
        except Exception as error:  # ctypes and drivers raise any exception
            self.close()
            problem = printable(f"the GPU driver cannot be used: {words_of(error)}")
            return GpuReading(number, time.monotonic(), problem=problem)
        # Only a new session finds a GPU that was missing before. And no GPU can be reset during a
        # session.
        is_missing = not self._known <= self._handles.keys()
        self._known |= self._handles.keys()
        if is_missing or any(gpu.problem for gpu in gpus.values()):
            self.close()
        return GpuReading(number, time.monotonic(), gpus)

    def close(self) -> None:
        """Closes NVML. The next reading opens it again."""
        nvml, self._nvml = self._nvml, None
        self._handles, self._numbers = {}, {}
        events, self._events = self._events, None
        if nvml is not None:
            if events is not None:
                ask(nvml, "nvmlEventSetFree", events)
            ask(nvml, "nvmlShutdown")

    def _open(self) -> None:
        nvml: Any = self._load()
        nvml.nvmlInit()
        self._nvml = nvml
        self._events = ask(nvml, "nvmlEventSetCreate")
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else text_of(ask(nvml, "nvmlDeviceGetUUID", handle))
            if not uuid:
                continue  # the GPU has fallen off the bus, so its UUID is missing in the reading
            self._handles[uuid], self._numbers[uuid] = handle, index
            if self._events is not None:
                ask(nvml, "nvmlDeviceRegisterEvents", handle, _XID, self._events)

    def _gpus(self) -> dict[str, GpuSample]:
        xids = self._new_xids()
        found: dict[str, GpuSample] = {}
        for uuid, handle in self._handles.items():
            gpu = self._gpu(uuid, handle, xids.get(uuid, ()))
            found[uuid] = gpu
            mode = ask(self._nvml, "nvmlDeviceGetMigMode", handle) or (0, 0)
            for instance in self._instances(gpu, handle) if mode[0] == 1 else ():
                found[instance.uuid] = instance
        return found

    def _gpu(self, uuid: str, handle: Any, xids: tuple[int, ...] | list[int]) -> GpuSample:
        used, total, problem, lost = self._memory(handle)
        action = None if problem else recovery_action(self._nvml, handle)
        pci = ask(self._nvml, "nvmlDeviceGetPciInfo", handle)
        busy = ask(self._nvml, "nvmlDeviceGetUtilizationRates", handle)
        processes = self._processes(handle)
        return GpuSample(
            uuid=uuid,
            index=self._numbers[uuid],
            minor=ask(self._nvml, "nvmlDeviceGetMinorNumber", handle),
            pci_address=bus_id_of(pci) or "",
            problem=problem or repair_of(action, uuid),
            work_lost=lost or action in _GONE_ON,
            recovery_known=action is not None,
            xids=tuple(sorted(set(xids))),
            xid_count=len(xids),
            memory_used_bytes=used,
            memory_total_bytes=total,
            busy_percent=None if busy is None else int(busy.gpu),
            processes=processes or (),
            measures_processes=processes is not None
            and all(each.memory_bytes is not None for each in processes if each.computes),
        )

    def _memory(self, handle: Any) -> tuple[int | None, int | None, str, bool]:
        """Returns four values: the used bytes, the total bytes, the reason why the bytes are not
        known, and True if the GPU is lost.
        """
        try:
            info = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except Exception as error:  # the kind of error only changes the message
            if is_lost(error):
                return None, None, "the GPU has fallen off the bus; reset the host", True
            why = f"the driver does not report the GPU's memory: {words_of(error)}"
            return None, None, printable(why), False
        return int(info.used), int(info.total), "", False

    def _processes(self, handle: Any) -> tuple[GpuProcessSample, ...] | None:
        """Returns the processes that have the GPU open; None if the driver does not list them."""
        found: dict[int, GpuProcessSample] = {}
        for query, kind in _QUERIES:
            listed = ask(self._nvml, query, handle)
            if listed is None and kind is ProcessKind.COMPUTE:
                return None
            seen: dict[int, int | None] = {}
            for each in (listed or ())[:_PROCESSES_MAX]:
                used = each.usedGpuMemory
                before = seen.get(each.pid)
                # The driver lists a process with contexts on several MIG instances once for each
                # instance.
                seen[each.pid] = before if used is None else (before or 0) + int(used)
            found |= {pid: GpuProcessSample(pid, kind, used) for pid, used in seen.items()}
        return tuple(found[pid] for pid in sorted(found))

    def _instances(self, gpu: GpuSample, handle: Any) -> list[GpuSample]:
        """Returns the instances of a GPU in MIG mode.

        A problem of the GPU applies to all its instances.
        """
        found = []
        for index in range(ask(self._nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            mig = ask(self._nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            uuid = None if mig is None else text_of(ask(self._nvml, "nvmlDeviceGetUUID", mig))
            if not uuid:
                continue  # the indexes of instances have gaps
            info = ask(self._nvml, "nvmlDeviceGetMemoryInfo", mig)
            found.append(
                GpuSample(
                    uuid=uuid,
                    index=gpu.index,
                    minor=gpu.minor,
                    pci_address=gpu.pci_address,
                    parent_uuid=gpu.uuid,
                    problem=gpu.problem,
                    work_lost=gpu.work_lost,
                    recovery_known=gpu.recovery_known,
                    xids=gpu.xids,
                    xid_count=gpu.xid_count,
                    memory_used_bytes=None if info is None else int(info.used),
                    memory_total_bytes=None if info is None else int(info.total),
                    processes=self._processes(mig) or (),
                )
            )
        return found

    def _new_xids(self) -> dict[str, list[int]]:
        """Returns the XIDs since the last reading, by UUID of the GPU."""
        found: dict[str, list[int]] = {}
        if self._events is None:
            return found
        by_address = {_address(handle): uuid for uuid, handle in self._handles.items()}
        for _ in range(EVENTS_MAX):
            # Ask until no event is left: the call then fails.
            event = ask(self._nvml, "nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                break
            uuid = by_address.get(_address(event.device))
            if uuid is not None and event.eventType & _XID:
                found.setdefault(uuid, []).append(int(event.eventData))
        return found


def _address(handle: Any) -> Any:
    """Returns the address of a handle, because the binding makes a new object at each call."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value
    except ctypes.ArgumentError:  # handles in tests are no pointers
        return handle
