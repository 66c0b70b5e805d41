"""Tests a GPU that has recovered, before slots get this GPU again.

The test runs in a temporary slot that belongs to the executor. This slot is not in the slot table.
So it books no capacity, and no report contains it. The slot exists for a few seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Final

from finegrain.devices.device import Device, DeviceShare
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from finegrain.topology import printable
from task_executor.engine.slots import SlotKey
from task_executor.host import cuda_probe
from task_executor.host.helper_messages import ExitRecord, SlotLimits, TaskSpec
from task_executor.host.task_log import read_output
from task_executor.service.device_environment import CUDA, NVIDIA
from task_executor.service.slot_keeper import SlotKeeper

TIMEOUT_MS: Final = 60_000
# Memory of the test's slot; a CUDA context maps much memory of the driver.
MEMORY_BYTES: Final = 4 << 30
OUTPUT_LIMIT_BYTES: Final = 4_096
PROBE_PREFIX: Final = "finegrain-probe-"

_POLL_S: Final = 0.2
_TEXT_LENGTH_MAX: Final = 300

log = get_logger(__name__)


class DeviceProbe:
    """Tests devices, one at a time.

    Args:
        keeper: the slots of this executor. Its helper runs the test.
        command: the test program. It tests the GPU that CUDA_VISIBLE_DEVICES names.
    """

    def __init__(self, keeper: SlotKeeper, command: tuple[str, ...] = ()) -> None:
        self._keeper = keeper
        self._command = command or (sys.executable, "-I", cuda_probe.__file__)
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()

    async def run(self, device: Device) -> str:
        """Tests an NVIDIA GPU or MIG instance.

        If the test cannot run, for example without CUDA or without the helper, the GPU passes. Only
        the driver can then report whether the GPU works.

        Returns:
            The reason why the GPU failed the test; empty: the GPU passed.
        """
        async with self._lock:
            key = SlotKey(f"{PROBE_PREFIX}{device.name}", next(self._numbers))
            self._keeper.own_slots.add(key)
            try:
                result = await self._test(key, device)
            except (FinegrainError, OSError) as error:
                log.warning("device_not_probed", device=device.name, error=str(error))
                return ""
            finally:
                await self._remove(key)
                self._keeper.own_slots.discard(key)
        return self._judge(device, result)

    async def _test(self, key: SlotKey, device: Device) -> tuple[ExitRecord | None, str]:
        """Runs the program. Returns the exit record (None: the program did not end in time), and
        the output of the program.
        """
        helper = self._keeper.helper
        share = DeviceShare(device.type, device.uuid, device.minor, device.capacity)
        limits = SlotLimits(key.allocation_id, key.generation, 1_000, MEMORY_BYTES)
        await helper.create_slot(self._keeper.with_devices(limits, [share]))
        task_id = f"{key.allocation_id}-{key.generation}"
        spec = TaskSpec(
            task_id,
            key.allocation_id,
            key.generation,
            list(self._command),
            env={"PATH": "/usr/bin:/bin", CUDA: device.uuid, NVIDIA: device.uuid},
            log_limit_bytes=OUTPUT_LIMIT_BYTES,
            timeout_ms=TIMEOUT_MS,
        )
        await helper.start_task(spec)
        for _ in range(int(TIMEOUT_MS / 1000 / _POLL_S) + 50):
            state = await helper.inspect()
            found = next((each for each in state.tasks if each.task_id == task_id), None)
            if found is not None and found.exit is not None:
                output = read_output(found.directory, "stderr", 0, OUTPUT_LIMIT_BYTES)
                return found.exit, printable(output.decode(errors="replace").strip())
            await asyncio.sleep(_POLL_S)
        return None, ""

    def _judge(self, device: Device, result: tuple[ExitRecord | None, str]) -> str:
        record, output = result
        if record is None or record.timed_out:
            return f"the test did not end within {TIMEOUT_MS // 1000} s"
        if record.exit_code == cuda_probe.PASSED:
            log.info("device_probed", device=device.name)
            return ""
        if record.exit_code == cuda_probe.FAILED:
            return output[-_TEXT_LENGTH_MAX:] or "the test failed"
        # The program did not run to its end. For example, there is no driver, the task's user has
        # no Python interpreter, or the program was killed. Such an end is no sign of a broken
        # device.
        log.warning(
            "device_not_probed",
            device=device.name,
            exit_code=record.exit_code,
            signal=record.signal,
            error=output,
        )
        return ""

    async def _remove(self, key: SlotKey) -> None:
        helper = self._keeper.helper
        try:
            await helper.destroy_slot(key.allocation_id, key.generation)
            await helper.forget_task(f"{key.allocation_id}-{key.generation}")
        except FinegrainError as error:
            # The slot stays on the host, and the next reconciliation destroys it as an unknown
            # slot.
            log.warning("probe_not_removed", slot=key.allocation_id, error=error.message)
