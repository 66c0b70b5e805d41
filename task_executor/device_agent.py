"""Limits the memory of GPUs for control groups: `python -m task_executor.device_agent`.

Only root can set limits, with a library of the driver. But the front has no privileges, and the
helper loads no library. So the helper runs this program, which reads a JSON order from stdin and
writes a JSON answer to stdout.

    {"groups": [{"path": "/sys/fs/cgroup/...", "limits": {"GPU-...": 42949672960}}]}
    {"problems": [{}]}

The name of a device is the UUID of an NVIDIA GPU, or a region of the kernel's dmem controller
("drm/..."). A limit of 0 bytes removes the limit. After the program has set a limit, it reads the
limit back. The answer lists the failures of each control group.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

REGION_PREFIX: Final = "drm/"
"""Prefix of the names of regions of the kernel's dmem controller."""

NO_LIMIT: Final = (1 << 64) - 1  # the value NVML_DEVICE_MEMORY_LIMIT_MAX: no limit
LIFETIME_S: Final = 15
_LIBRARY: Final = "libnvidia-ml.so.1"


class SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
    )


class GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (*SetLimits._fields_, ("currentUsed", ctypes.c_ulonglong))


class NotLimitedError(Exception):
    """A limit could not be set; the message says why."""


class Nvml:
    """The driver's library. It is loaded when the first limit of an NVIDIA GPU is set."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None

    def limit(self, uuid: str, path: str, limit_bytes: int) -> None:
        """Limits the memory of a GPU for a control group, and reads the limit back.

        Raises:
            NotLimitedError: the limit could not be set.
        """
        if self._library is None:
            try:
                library = ctypes.CDLL(_LIBRARY)
            except OSError as error:
                raise NotLimitedError(f"{error}") from None
            self._call(library, "nvmlInitWithFlags", 0)
            self._library = library
        device = ctypes.c_void_p()
        name = ctypes.c_char_p(uuid.encode())
        self._call(self._library, "nvmlDeviceGetHandleByUUID", name, ctypes.byref(device))
        # Set no soft limit: a soft limit reserves memory in all parent groups until the soft limit
        # is lowered again. No soft limit is needed, because the amounts of all slots together fit
        # on the GPU.
        wanted = SetLimits(path.encode(), 0, limit_bytes or NO_LIMIT)
        self._call(self._library, "nvmlDeviceSetMemoryLimits_v1", device, ctypes.byref(wanted))
        if not limit_bytes:
            return
        found = GetLimits(path.encode())
        self._call(self._library, "nvmlDeviceGetMemoryLimits_v1", device, ctypes.byref(found))
        if found.hardLimit != limit_bytes:
            raise NotLimitedError(
                f"a limit of {limit_bytes} bytes was set, but the driver reports {found.hardLimit}"
            )

    @staticmethod
    def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
        try:
            code = getattr(library, name)(*arguments)
        except AttributeError:
            raise NotLimitedError(
                f"the driver does not have {name}: update it to version 615 or later"
            ) from None
        if code:
            words = library.nvmlErrorString
            words.restype = ctypes.c_char_p
            text = words(code).decode("utf-8", "replace")
            raise NotLimitedError(f"{name} failed with code {code}: {text}")


def limit_region(region: str, path: str, limit_bytes: int) -> None:
    """Limits a region of the dmem controller for a control group, and reads the limit back.

    Raises:
        NotLimitedError: the limit could not be set.
    """
    file, wanted = Path(path, "dmem.max"), str(limit_bytes or "max")
    try:
        # Open without O_CREAT: if the controller is not enabled, no file must be created.
        with file.open("r+") as opened:
            opened.write(f"{region} {wanted}\n")
        found = dict(line.rsplit(" ", 1) for line in file.read_text().splitlines() if " " in line)
    except FileNotFoundError:
        raise NotLimitedError("the kernel's dmem controller is not enabled for the slot") from None
    except OSError as error:
        raise NotLimitedError(f"{file}: {error.strerror}") from None
    if found.get(region) != wanted:
        raise NotLimitedError(f"{file}: wrote {region} {wanted}, but read back {found.get(region)}")


def obey(order: Mapping[str, Any]) -> dict[str, Any]:
    """Sets all limits of an order. If one limit cannot be set, the function still sets the
    remaining limits.
    """
    nvml = Nvml()
    problems = []
    for group in order["groups"]:
        failed = {}
        for device, limit_bytes in group["limits"].items():
            limit = limit_region if device.startswith(REGION_PREFIX) else nvml.limit
            try:
                limit(device, group["path"], limit_bytes)
            except NotLimitedError as error:
                failed[device] = str(error)
        problems.append(failed)
    return {"problems": problems}


def main() -> int:
    """Reads an order and writes the answer. Returns the exit status."""
    # Limit the run time of this process, because the driver can hang. If the helper is killed
    # during that time, nothing else would end this process.
    signal.alarm(LIFETIME_S)
    answer = obey(json.load(sys.stdin))
    # Use one write. So the helper never reads a part of the answer.
    os.write(1, json.dumps(answer).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
