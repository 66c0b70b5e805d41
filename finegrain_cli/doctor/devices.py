"""Checks the devices of this host: GPUs, NICs with RDMA, FPGAs, and configured types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from finegrain.units import format_bytes
from finegrain_cli.doctor.findings import Finding, ok, warn

if TYPE_CHECKING:
    from finegrain.topology import Gpu, HostTopology
    from finegrain_cli.config.model import Settings
    from task_executor.host.nvml import NvmlSource

NAME: Final = "devices"
NVML: Final = "nvml"
LIMITS: Final = "gpu memory"
_NVIDIA: Final = "0x10de"
_PIDS_SHOWN: Final = 5
_FIXES: Final = (
    ("nvidia-ml-py", "pip install 'finegrain[nvidia]'"),
    ("LibraryNotFound", "install the NVIDIA driver with its libraries (libnvidia-ml.so.1)"),
    ("DriverNotLoaded", "modprobe nvidia; if that fails, dmesg | grep -i nvrm says why"),
    ("LibRmVersionMismatch", "reboot, so that the kernel loads the driver of its libraries"),
    ("NoPermission", "let the executor's user open /dev/nvidiactl and /dev/nvidia*"),
    ("GpuIsLost", "reset the host; if the GPU is lost again, it or its slot is broken"),
)
"""Pairs of a text and a fix. The fix applies if the reason of a failure of NVML contains the text.
"""


def examine_devices(
    settings: Settings, root: Path = Path("/"), source: NvmlSource | None = None
) -> Iterator[Finding]:
    """Reports usable devices, devices that slots cannot use, and GPUs that processes use now.

    Args:
        settings: the configuration of the executor.
        root: the root directory. Tests pass a fake directory.
        source: the source of data on NVIDIA GPUs. If None, NVIDIA's driver is the source.
    """
    from finegrain_cli.config.daemon_options import task_executor_options
    from task_executor.host.configured_devices import discover
    from task_executor.host.detection import detect
    from task_executor.host.devices import devices_of
    from task_executor.host.memory_regions import limit_problems
    from task_executor.host.nvml import PynvmlSource

    options = task_executor_options(settings)
    topology = detect(root, source or PynvmlSource())
    yield from _nvidia(topology)
    yield from _amd(topology)
    configured = discover(options.device_types, topology.numa_nodes, root)
    for message in configured.warnings:
        yield warn(NAME, message, "correct the section [devices.TYPE] of the configuration")
    host = devices_of(topology, configured=configured.devices)
    devices = host.devices
    names = {each.uuid: each.name for each in devices}
    for uuid, problem in sorted(limit_problems(host, root).items()):
        can = (
            f"cannot be limited for each slot: {problem}"
            if problem
            else "can be limited for each slot"
        )
        yield ok(LIMITS, f"the memory of {names[uuid]} {can}")
    for each in devices:
        if each.problem:
            fix = f"see the message; nothing new runs on {each.name} until the executor restarts"
            yield warn(NAME, f"{each.name} ({each.uuid}): {each.problem}", fix)
    for gpu in topology.gpus:
        if gpu.processes:
            yield _in_use(gpu)
    healthy: dict[str, int] = {}
    for each in devices:
        healthy[each.type] = healthy.get(each.type, 0) + (not each.problem)
    shown = ", ".join(f"{count} {type_}" for type_, count in sorted(healthy.items()))
    if not shown:
        yield ok(NAME, "this host has no device that slots can use")
    elif options.devices == "none":
        yield ok(NAME, f"usable: {shown}; not offered, because executor.devices is none")
    else:
        yield ok(NAME, f"usable: {shown}")


def _nvidia(topology: HostTopology) -> Iterator[Finding]:
    """Reports whether NVML answers. Also reports GPUs that slots cannot use because of their MIG
    mode.
    """
    found = [gpu for gpu in topology.gpus if gpu.vendor == "nvidia"]
    on_bus = [
        each
        for each in topology.pci_devices
        if each.vendor == _NVIDIA and each.kind.value == "gpu" and not each.is_virtual_function
    ]
    reason = topology.gpu_absence_reason
    if found:
        yield ok(NVML, f"{len(found)} GPUs")
    elif on_bus:
        fix = next((each for part, each in _FIXES if part in (reason or "")), "")
        message = f"{len(on_bus)} GPUs are on the PCI bus, but not offered: {reason}"
        default = "install the NVIDIA driver, and pip install 'finegrain[nvidia]'"
        yield warn(NVML, message, fix or default)
    else:
        yield ok(NVML, f"no NVIDIA GPU here ({reason or 'none on the PCI bus'})")
    for each in found:
        if each.mig_mode_pending:
            message = f"GPU {each.index} ({each.uuid}): its MIG mode changes at the next reset"
            yield warn(NVML, message, f"nvidia-smi --gpu-reset -i {each.uuid}")
        if each.mig_enabled and not each.mig_instances:
            yield warn(
                NVML,
                f"GPU {each.index} ({each.uuid}) is in MIG mode without instances: slots cannot "
                "use it",
                f"nvidia-smi mig -i {each.uuid} -cgi PROFILE -C, or nvidia-smi -i {each.uuid} -mig"
                " 0; then restart the executor",
            )


def _amd(topology: HostTopology) -> Iterator[Finding]:
    for message in topology.warnings:
        if not message.startswith("AMD GPU"):
            continue
        fix = "see the message; rocminfo shows what the driver reports"
        if "modprobe amdgpu" in message:
            fix = "modprobe amdgpu; if that fails, dmesg | grep amdgpu says why"
        yield warn(NAME, message, fix)


def _in_use(gpu: Gpu) -> Finding:
    """Returns the finding for a GPU with processes.

    The driver does not report whether a process is a task of finegrain.
    """
    shown = ", ".join(
        f"{each.pid}" + (f" ({format_bytes(each.memory_bytes)})" if each.memory_bytes else "")
        for each in gpu.processes[:_PIDS_SHOWN]
    )
    more = len(gpu.processes) - _PIDS_SHOWN
    return warn(
        NAME,
        f"GPU {gpu.index} ({gpu.uuid}) is used by processes {shown}"
        + (f" and {more} more" if more > 0 else "")
        + ": finegrain does not account for processes that are not its tasks",
        "end processes that are not tasks of finegrain, or cordon the device: "
        f"finegrain cordon EXECUTOR/gpu{gpu.minor}"
        if gpu.minor is not None
        else "end processes that are not tasks of finegrain",
    )
