"""Reads the GPUs of this host with NVIDIA's management library (NVML).

No failure stops the executor: a missing library or driver, a driver of another version, a GPU that
fell off the bus, or an unsupported query. After a failure, the GPU capacity is zero or unknown, and
has a reason. This module does not parse the output of ``nvidia-smi``, because the program truncates
its tables. `detection/gpus.py` adds NUMA nodes and cpusets.

A GPU is identified by its UUID. Its index, its minor number and its position on the PCI bus can all
differ, and CUDA uses yet another numbering.
"""

import contextlib
import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Protocol

from finegrain.cpuset import MAX_ID, CpuSet
from finegrain.topology import Gpu, GpuHealth, GpuLink, GpuProcess, MigInstance, printable

_AFFINITY_WORDS: Final = 128  # words of 64 CPUs: more CPUs than any kernel supports
_NVLINKS_MAX: Final = 18
_NVLINK_TO_SWITCH: Final = 2
_ANCESTORS: Final = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MIG_PROFILE: Final = re.compile(r"MIG (\S+)\s*$", re.ASCII)
_MIB: Final = 1024 * 1024
_LIBRARY: Final = "libnvidia-ml.so.1"
_RECOVERY_ACTION: Final = 230  # the value NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_REPAIRS: Final = {
    1: "the driver asks for a reset: end all processes on it, then nvidia-smi --gpu-reset -i UUID",
    2: "the driver asks for a reboot of the host",
    3: "the driver asks to end peer-to-peer traffic: end the processes that use it with other GPUs",
    4: "the driver asks to drain it: let its tasks end, then nvidia-smi --gpu-reset -i UUID",
    5: "the driver asks for a recovery of the IMEX domain",
    6: "the driver asks for a reset of its PCI bus",
    7: "the driver asks for a reboot of the whole system",
}
_PROCESS_QUERIES: Final = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs at one moment, and how they are connected."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    # the reason why no GPUs are known; None if the driver answered
    absence_reason: str | None = None
    warnings: tuple[str, ...] = ()
    # True if the inventory contains the GPUs of all vendors; then no other source is read
    complete: bool = False


class NvmlSource(Protocol):
    """A source of information about the GPUs of this host."""

    def read(self) -> GpuInventory:
        """Returns the present GPUs.

        This method never raises. Each call reads again, because MIG layouts change.
        """
        ...


class NoNvml:
    """A source that returns no GPUs, with a reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def read(self) -> GpuInventory:
        return GpuInventory(absence_reason=self._reason)


class PynvmlSource:
    """A source that uses ``pynvml`` (the package nvidia-ml-py).

    Args:
        load: a function that imports the module at the first read. Tests pass a fake.
    """

    def __init__(self, load: Callable[[], ModuleType] | None = None) -> None:
        self._load = load or import_pynvml

    def read(self) -> GpuInventory:
        try:
            nvml = self._load()
        except ImportError:
            return GpuInventory(
                absence_reason="the Python package nvidia-ml-py is not installed: "
                "install finegrain[nvidia] to see NVIDIA GPUs"
            )
        except OSError as error:
            return GpuInventory(
                absence_reason=f"NVML cannot be used: NVMLError_LibraryNotFound: {error}"
            )
        try:
            nvml.nvmlInit()
        except Exception as error:  # ctypes and drivers raise any exception
            return GpuInventory(absence_reason=f"NVML cannot be used: {words_of(error)}")
        try:
            return _Session(nvml).inventory()
        except Exception as error:  # every failure must become a reason
            return GpuInventory(absence_reason=f"NVML failed: {words_of(error)}")
        finally:
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()


def words_of(error: Exception) -> str:
    """Returns the text of an error that the binding raised."""
    return printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Returns the result of an NVML call; None if this GPU or driver does not support the call."""
    try:
        return getattr(nvml, name)(*arguments)
    except Exception:  # raises NVMLError of many kinds; old modules raise AttributeError
        return None


def recovery_action(nvml: Any, handle: Any) -> int | None:
    """Returns the recovery action that the driver requests.

    0 means that no action is needed. None means that the driver does not know the query. The
    binding has no function for this query, so the action is read as a field value.
    """
    values = ask(nvml, "nvmlDeviceGetFieldValues", handle, [_RECOVERY_ACTION])
    # The field has its own error code, in addition to the error code of the call.
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal)


def repair_of(action: int | None, uuid: str) -> str:
    """Returns, for a recovery action, how to repair the GPU; empty if no repair is needed, or no
    repair is known.
    """
    if not action:
        return ""
    repair = _REPAIRS.get(action, f"the driver asks for recovery action {action}")
    return repair.replace("UUID", uuid)


def is_lost(error: Exception) -> bool:
    """Returns True if an error says that the GPU cannot be used until it is reset."""
    return type(error).__name__ in {"NVMLError_GpuIsLost", "NVMLError_ResetRequired"}


def import_pynvml(library: str = _LIBRARY) -> ModuleType:
    """Imports the binding, if this host has the driver. Without the driver, the binding would only
    take 2 MiB of memory.

    Args:
        library: name of the driver's library.

    Raises:
        OSError: the library of the driver is not installed.
        ImportError: the binding is not installed.
    """
    ctypes.CDLL(library)
    import pynvml

    module: ModuleType = pynvml
    return module


class _Session:
    """One read between nvmlInit and nvmlShutdown."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._warnings: list[str] = []

    def inventory(self) -> GpuInventory:
        handles: dict[str, Any] = {}
        gpus = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._handle(index)
            gpu = None if handle is None else self._gpu(index, handle)
            if gpu is not None:
                gpus.append(gpu)
                handles[gpu.uuid] = handle
        links = self._links(gpus, handles)
        return GpuInventory(tuple(gpus), links, warnings=tuple(self._warnings))

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:  # one bad GPU must not hide other GPUs
            self._warnings.append(
                f"GPU {index} cannot be opened and is left out: {words_of(error)}"
            )
            return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        return ask(self._nvml, name, *arguments)

    def _gpu(self, index: int, handle: Any) -> Gpu | None:
        uuid = text_of(self._ask("nvmlDeviceGetUUID", handle))
        if not uuid:
            self._warnings.append(f"GPU {index} does not report its UUID and is left out")
            return None
        memory_bytes, driver_bytes, health = self._memory(index, handle)
        problem = ""
        if health is not GpuHealth.LOST:
            problem = repair_of(recovery_action(self._nvml, handle), uuid)
        if problem:
            self._warnings.append(f"GPU {index} gets no work: {problem}")
            health = GpuHealth.FAULTY
        # The result has the present mode and the pending mode, which differ until the next reset.
        mode = self._ask("nvmlDeviceGetMigMode", handle) or (0, 0)
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        node = self._ask("nvmlDeviceGetNumaNodeId", handle)
        return Gpu(
            uuid=uuid,
            index=index,
            minor=self._ask("nvmlDeviceGetMinorNumber", handle),
            pci_bus_id=bus_id_of(pci),
            name=text_of(self._ask("nvmlDeviceGetName", handle)) or "unknown",
            memory_bytes=memory_bytes,
            driver_bytes=driver_bytes,
            health=health,
            problem=problem,
            processes=self._processes(handle),
            mig_enabled=mode[0] == 1,
            mig_mode_pending=mode[0] != mode[1],
            mig_instances=tuple(self._mig_instances(handle)) if mode[0] == 1 else (),
            cpus=self._affinity(handle),
            numa_node=None,
            # A negative node id means that the GPU's memory is not a NUMA node.
            memory_numa_node=node if isinstance(node, int) and node >= 0 else None,
        )

    def _memory(self, index: int, handle: Any) -> tuple[int | None, int, GpuHealth]:
        """Returns the usable bytes, the bytes that the driver reserves, and the health of a GPU.

        If the GPU does not respond, this query fails. So the health follows from the query.
        """
        # The second version of the query also reports the memory that the driver reserves.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = self._ask("nvmlDeviceGetMemoryInfo", handle, version) if version else None
        if info is not None:
            # The memory that the driver reserves is not available to tasks.
            return int(info.total) - int(info.reserved), int(info.reserved), GpuHealth.OK
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total), 0, GpuHealth.OK
        except Exception as error:  # the error decides only the message and the health
            self._warnings.append(f"GPU {index} offers no capacity: {words_of(error)}")
            return None, 0, GpuHealth.LOST if is_lost(error) else GpuHealth.UNKNOWN

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """Returns the processes that compute on a GPU.

        Processes that only draw are left out: they use little memory, and every desktop has some.
        """
        found: dict[int, GpuProcess] = {}
        for query in _PROCESS_QUERIES:
            for each in self._ask(query, handle) or ():
                # The driver lists a process with contexts on several MIG instances once for each
                # instance.
                before = found.get(each.pid, GpuProcess(each.pid)).memory_bytes or 0
                used = each.usedGpuMemory
                known = None if used is None and not before else before + (used or 0)
                found[each.pid] = GpuProcess(each.pid, known)
        return tuple(found[pid] for pid in sorted(found))

    def _mig_instances(self, handle: Any) -> Iterator[MigInstance]:
        for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            mig = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            uuid = None if mig is None else text_of(self._ask("nvmlDeviceGetUUID", mig))
            if not uuid:
                continue  # the indexes of instances have gaps
            profile = _MIG_PROFILE.search(text_of(self._ask("nvmlDeviceGetName", mig)) or "")
            attributes = self._ask("nvmlDeviceGetAttributes_v2", mig)
            yield MigInstance(
                uuid=uuid,
                profile=profile.group(1) if profile else None,
                memory_bytes=int(attributes.memorySizeMB) * _MIB if attributes else None,
                multiprocessor_count=int(attributes.multiprocessorCount) if attributes else None,
                gpu_instance=self._ask("nvmlDeviceGetGpuInstanceId", mig),
                compute_instance=self._ask("nvmlDeviceGetComputeInstanceId", mig),
            )

    def _affinity(self, handle: Any) -> CpuSet | None:
        scope = getattr(self._nvml, "NVML_AFFINITY_SCOPE_NODE", 0)
        words = self._ask("nvmlDeviceGetCpuAffinityWithinScope", handle, _AFFINITY_WORDS, scope)
        if words is None:
            return None
        # The driver fills 64-bit words, and the first word has the lowest cpus. Remove bits above
        # the highest possible cpu number.
        bits = sum(int(word) << (64 * position) for position, word in enumerate(words))
        return CpuSet.from_bits(bits & ((1 << (MAX_ID + 1)) - 1))

    def _links(self, gpus: list[Gpu], handles: dict[str, Any]) -> tuple[GpuLink, ...]:
        joined = {gpu.uuid: self._nvlinks(handles[gpu.uuid]) for gpu in gpus}
        links = []
        for position, first in enumerate(gpus):
            for second in gpus[position + 1 :]:
                # Without a bus id, it is unknown which GPU is at the other end of a link.
                direct = joined[first.uuid].get(second.pci_bus_id, 0) if second.pci_bus_id else 0
                # Through switches, each GPU can reach every other GPU with all its links.
                switched = min(joined[each.uuid].get(None, 0) for each in (first, second))
                level = self._ask(
                    "nvmlDeviceGetTopologyCommonAncestor",
                    handles[first.uuid],
                    handles[second.uuid],
                )
                links.append(
                    GpuLink(
                        first_uuid=first.uuid,
                        second_uuid=second.uuid,
                        nvlink_count=direct or switched,
                        via_switch=not direct and switched > 0,
                        common_ancestor=_ANCESTORS.get(level),
                    )
                )
        return tuple(links)

    def _nvlinks(self, handle: Any) -> dict[str | None, int]:
        """Returns the number of active links, by PCI id of the GPU at the other end (None: a
        switch)."""
        counts: dict[str | None, int] = {}
        for link in range(_NVLINKS_MAX):
            if self._ask("nvmlDeviceGetNvLinkState", handle, link) != 1:
                continue
            kind = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            if kind == _NVLINK_TO_SWITCH:
                far: str | None = None
            else:
                far = bus_id_of(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
                if far is None:
                    continue
            counts[far] = counts.get(far, 0) + 1
        return counts


def text_of(value: Any) -> str | None:
    """Returns a value as text. Some versions of the binding return bytes, others return text."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return printable(value) if isinstance(value, str) else None


def bus_id_of(pci: Any) -> str | None:
    """Returns the bus id in the kernel's form. NVML writes the domain with eight digits."""
    text = text_of(getattr(pci, "busId", None))
    match = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F:.]+)", text) if text else None
    if match is None:
        return None
    return f"{int(match.group(1), 16):04x}:{match.group(2).lower()}"
