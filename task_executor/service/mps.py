"""Runs NVIDIA's Multi-Process Service (MPS) for GPUs that slots share: the level "mps".

Each GPU has its own control daemon. The daemon runs as a task, in a slot that belongs to the
executor itself. So the helper starts and ends the daemon like any task, under the user of tasks.
The daemon continues when the front restarts. A daemon runs while slots have shares of its GPU. It
never runs while a slot has the whole GPU.

The driver rejects memory allocations that exceed the limits in a client's environment. These
limits apply to each process, and a program can change them. So the executor also watches the memory
of the whole slot.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from finegrain.devices.device import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    WHOLE,
    Device,
    DeviceShare,
    HostDevices,
)
from finegrain.devices.levels import MPS
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from finegrain.values.isolation import Isolation
from task_executor.engine.slots import SlotKey, SlotSpec
from task_executor.host.helper_messages import HelperState, SlotLimits, TaskSpec
from task_executor.host.task_log import read_output
from task_executor.service.device_environment import CUDA
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_users import User

CONTROL: Final = "nvidia-cuda-mps-control"
PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PINNED: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

OWN_PREFIX: Final = "finegrain-mps-"
"""Prefix of the allocation ids of the slots in which daemons run."""

CHECK_EVERY_S: Final = 2.0
START_S: Final = 10.0
"""Seconds for which a new slot waits for the daemon of its GPU to start."""

RETRY_S: Final = (1.0, 5.0, 30.0, 120.0)
"""A daemon that has ended is started again after this number of seconds. The position in the tuple
is the number of failures. The last value applies to all further failures.
"""

_MEMORY_BYTES: Final = 1 << 30  # memory of a daemon's slot, for the driver and clients' buffers
_LOG_BYTES: Final = 1 << 20
_POLL_S: Final = 0.05
_MIB: Final = 1 << 20
_SAFE: Final = re.compile(r"[^A-Za-z0-9-]")
_READY: Final = b"ready"
# The folder is in the system's temporary directory. Another user can create a folder with this name
# first, so the script checks the owner.
_SCRIPT: Final = f"""
umask 077
mkdir -p "${PIPES}" "${LOGS}" && [ -O "${PIPES}" ] && rm -f "${PIPES}/control" || exit 1
"$0" -f & daemon=$!
until [ -S "${PIPES}/control" ]; do kill -0 $daemon || exit 1; sleep 0.05; done
echo {_READY.decode()}
wait $daemon
"""

log = get_logger(__name__)


@dataclass(slots=True)
class _Daemon:
    """The daemon of one GPU."""

    key: SlotKey
    folder: Path
    number: int = 0  # number of the daemon's last task
    is_running: bool = False
    failures: int = 0
    retry_at_s: float = 0.0


class MpsDaemons:
    """The MPS daemons of one executor.

    Args:
        keeper: the slots of this executor. Its helper runs the daemons.
        user: the user of daemons and tasks. MPS serves one user at a time.
        executor_id: the id of this executor. Because of the id, several executors on one host have
            different folders.
        changed: a function that is called after the level of enforcement of a GPU has changed.
        temporary: the directory of the folders. Its path must be short, because the paths of
            sockets must be short.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        user: User,
        executor_id: str,
        changed: Callable[[], Awaitable[None]],
        *,
        temporary: Path | None = None,
    ) -> None:
        self._keeper = keeper
        self._user = user
        self._changed = changed
        name = hashlib.sha256(f"{executor_id} {user.uid}".encode()).hexdigest()[:12]
        root = (temporary or Path(tempfile.gettempdir())) / f"finegrain-mps-{name}"
        self._daemons = {
            device.uuid: _Daemon(
                SlotKey(OWN_PREFIX + _SAFE.sub("-", device.uuid), 1), root / str(at)
            )
            for at, device in enumerate(_sharable(keeper.table.devices.host))
        }
        self._lock = asyncio.Lock()
        self._has_looked = False
        # Set this before the first reconciliation with the helper. Otherwise the reconciliation
        # would destroy the daemons of an earlier front.
        keeper.own_slots |= {each.key for each in self._daemons.values()}
        self._offer(self._daemons)

    async def run(self) -> None:
        """Keeps the daemons in step with the slots, until the task is cancelled."""
        while True:
            try:
                await self.refresh()
            except (FinegrainError, OSError) as error:
                log.warning("mps_not_checked", error=str(error))
            await asyncio.sleep(CHECK_EVERY_S)

    async def refresh(self) -> None:
        """Starts the daemons that slots need, and ends all other daemons."""
        needed = _shared(slot.spec for slot in self._keeper.table)
        # The first call always continues, to find the daemons of an earlier front.
        is_idle = not needed and not any(e.is_running or e.failures for e in self._daemons.values())
        if is_idle and self._has_looked:
            return
        self._has_looked = True
        async with self._lock:
            self._take_in(await self._keeper.helper.inspect())
            for uuid, daemon in self._daemons.items():
                # Start a failed daemon again even if no slot needs it. The level of its GPU can
                # then become "mps" again.
                if (uuid in needed or daemon.failures) and not daemon.is_running:
                    if time.monotonic() >= daemon.retry_at_s:
                        await self._start(uuid, daemon)
                elif uuid not in needed and daemon.is_running:
                    await self._stop(daemon)
        await self._offer_running()

    async def prepare(self, specs: Sequence[SlotSpec]) -> None:
        """Starts the daemons that new slots need. Ends the daemon of a GPU if a new slot gets the
        whole GPU.

        If a daemon cannot be started, the level of enforcement of its GPU becomes lower.
        """
        needed, whole = _shared(specs), _whole(specs)
        touched = [uuid for uuid in self._daemons if uuid in needed or uuid in whole]
        if not touched:
            return
        async with self._lock:
            self._take_in(await self._keeper.helper.inspect())
            for uuid in touched:
                daemon = self._daemons[uuid]
                if uuid in whole and daemon.is_running:
                    await self._stop(daemon)
                elif uuid in needed and not daemon.is_running:
                    await self._start(uuid, daemon)
        await self._offer_running()

    def environment(self, spec: SlotSpec, isolation: Isolation) -> dict[str, str]:
        """Returns the variables by which tasks of a slot use MPS; empty: the slot does not use
        MPS.
        """
        share = _single_share(spec)
        if share is None or share.uuid not in self._daemons:
            return {}
        levels = {each.uuid: dict(each.levels) for each in isolation.device_levels}
        if MPS not in levels.get(share.uuid, {}).values():
            return {}
        amounts = dict(share.amounts)
        found = {PIPES: str(self._daemons[share.uuid].folder / "pipe")}
        if core := amounts.get(GPU_CORE, 0):
            found[THREADS] = str(core)
        if memory := amounts.get(GPU_MEMORY, 0):
            # "0" is the only GPU that the task can see. The unit is 1 MiB, so round the limit down.
            found[PINNED] = f"0={max(memory // _MIB, 1)}M"
        return found

    # -- one daemon ------------------------------------------------------------------------------

    async def _start(self, uuid: str, daemon: _Daemon) -> None:
        keeper = self._keeper
        device = next(e for e in keeper.table.devices.host.devices if e.uuid == uuid)
        share = DeviceShare(device.type, device.uuid, device.minor, device.capacity)
        key = daemon.key
        limits = SlotLimits(key.allocation_id, key.generation, 1_000, _MEMORY_BYTES)
        daemon.number += 1
        task_id = f"{key.allocation_id}-{daemon.number}"
        spec = TaskSpec(
            task_id,
            key.allocation_id,
            key.generation,
            ["/bin/sh", "-c", _SCRIPT, shutil.which(CONTROL) or CONTROL],
            env={
                "PATH": "/usr/bin:/bin",
                CUDA: uuid,
                PIPES: str(daemon.folder / "pipe"),
                LOGS: str(daemon.folder / "log"),
            },
            uid=self._user.uid,
            gid=self._user.gid,
            log_limit_bytes=_LOG_BYTES,
        )
        try:
            await keeper.helper.create_slot(keeper.with_devices(limits, [share]))
            await keeper.helper.start_task(spec)
            daemon.is_running = await self._answers(task_id)
        except (FinegrainError, OSError) as error:
            log.warning("mps_not_started", gpu=device.name, error=str(error))
        if daemon.is_running:
            log.info("mps_started", gpu=device.name, uuid=uuid)
            daemon.failures = 0
            return
        await self._failed(daemon)

    async def _answers(self, task_id: str) -> bool:
        """Waits until the daemon has made its socket. Returns False if the daemon ends, or does not
        make the socket in time.
        """
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            state = await self._keeper.helper.inspect()
            record = next((each for each in state.tasks if each.task_id == task_id), None)
            if record is None or record.exit is not None:
                return False
            # Read the daemon's output and not its folder. The folder belongs to the user of tasks,
            # so this process is possibly not allowed to read it.
            if _READY in read_output(record.directory, "stdout", 0, len(_READY)):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _failed(self, daemon: _Daemon) -> None:
        wait_s = RETRY_S[min(daemon.failures, len(RETRY_S) - 1)]
        daemon.failures += 1
        daemon.retry_at_s = time.monotonic() + wait_s
        log.warning("mps_failed", slot=daemon.key.allocation_id, retry_s=wait_s)
        await self._stop(daemon)

    async def _stop(self, daemon: _Daemon) -> None:
        """Ends a daemon and its servers at once. No slot uses them at this time."""
        daemon.is_running = False
        helper, key = self._keeper.helper, daemon.key
        try:
            await helper.destroy_slot(key.allocation_id, key.generation)
            await helper.forget_task(f"{key.allocation_id}-{daemon.number}")
        except FinegrainError as error:
            log.warning("mps_not_ended", slot=key.allocation_id, error=str(error))

    def _take_in(self, state: HelperState) -> None:
        """Records which daemons run, including daemons that an earlier front has started."""
        for daemon in self._daemons.values():
            prefix = f"{daemon.key.allocation_id}-"
            numbers = [
                int(each.task_id.removeprefix(prefix))
                for each in state.tasks
                if each.task_id.startswith(prefix) and each.exit is None
            ]
            was_running, daemon.is_running = daemon.is_running, bool(numbers)
            daemon.number = max([daemon.number, *numbers])
            if was_running and not numbers:
                log.error("mps_ended", slot=daemon.key.allocation_id)

    # -- levels ----------------------------------------------------------------------------------

    async def _offer_running(self) -> None:
        """Sets the level "mps" for GPUs whose daemon runs or has not failed."""
        offered = [
            uuid for uuid, each in self._daemons.items() if each.is_running or not each.failures
        ]
        if self._offer(offered):
            await self._changed()

    def _offer(self, uuids: Iterable[str]) -> bool:
        """Sets the level "mps" for exactly these GPUs. Returns True if this changes a level."""
        before = self._keeper.enforcement
        offered = {uuid: {GPU_CORE: MPS, GPU_MEMORY: MPS} for uuid in uuids}
        self._keeper.enforcement = replace(before, under_mps=offered)
        return offered != before.under_mps


def mps_problem(host: HostDevices) -> str:
    """Returns the reason why MPS daemons cannot run on this host; empty: MPS daemons can run."""
    if not _sharable(host):
        return "this host has no NVIDIA GPU that slots can share"
    if shutil.which(CONTROL) is None:
        return f"{CONTROL} is not installed"
    return ""


def _sharable(host: HostDevices) -> list[Device]:
    if host.fake:
        return []
    return [each for each in host.devices if each.type == GPU and each.vendor == "nvidia"]


def _single_share(spec: SlotSpec) -> DeviceShare | None:
    """Returns the slot's share of a GPU; None: the slot has no GPU, whole GPUs, or shares of
    several GPUs.

    A slot with shares of several GPUs cannot use MPS. Each GPU has its own daemon, and a process
    can be the client of only one daemon.
    """
    shares = spec.assignment.devices if spec.assignment is not None else ()
    gpus = [each for each in shares if each.type == GPU]
    return gpus[0] if len(gpus) == 1 and not _is_whole(gpus[0]) else None


def _shared(specs: Iterable[SlotSpec]) -> set[str]:
    """Returns the GPUs that at least one of these slots shares under MPS."""
    shares = (_single_share(each) for each in specs)
    return {share.uuid for share in shares if share is not None}


def _whole(specs: Iterable[SlotSpec]) -> set[str]:
    return {
        share.uuid
        for spec in specs
        for share in (spec.assignment.devices if spec.assignment is not None else ())
        if share.type == GPU and _is_whole(share)
    }


def _is_whole(share: DeviceShare) -> bool:
    amounts = dict(share.amounts)
    return amounts.get(GPU_CORE) == WHOLE and amounts.get(GPU_MEMORY_RATIO) == WHOLE
