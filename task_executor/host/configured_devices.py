"""Finds the devices of configured types (`[devices.TYPE]`).

A type names files or a command that lists devices. Each file is one device. If no devices of a type
can be found, the executor starts with a warning.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from finegrain.devices.device import FPGA, GPU, RDMA, WHOLE, Device, pairs
from finegrain.devices.names import MIG_PREFIX, device_requests
from finegrain.errors import InvalidArgument
from finegrain.topology import NumaNode, printable
from finegrain.values.bounds import AMOUNT_MAX
from task_executor.host.detection.reader import TreeReader
from task_executor.options import DeviceType

COMMAND_TIMEOUT_S: Final = 10.0
DEVICES_MAX: Final = 512  # limit for all types together: half of the devices that a host can have
_OUTPUT_MAX: Final = 1024 * 1024  # maximum size of a command's output, in bytes
_TEXT_MAX: Final = 200
_TAIL: Final = re.compile(r"-[a-z0-9_.-]{1,30}", re.ASCII)
_TYPE_LENGTH_MAX: Final = 32
_DETECTED: Final = (GPU, RDMA, FPGA)
_FILES_MAX: Final = 16  # maximum number of files of one device
_KEYS: Final = ("uuid", "model", "numa_node", "pci_address", "problem", "capacities", "files")
_Found = tuple[Device, tuple[str, ...]]  # a device and its files


@dataclass(frozen=True, slots=True)
class ConfiguredDevices:
    """The devices of all configured types.

    Attributes:
        devices: the devices.
        warnings: for each type without devices, the reason.
        files: the paths of the device files, by type and UUID.
    """

    devices: tuple[Device, ...] = ()
    warnings: tuple[str, ...] = ()
    files: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


NOTHING_CONFIGURED = ConfiguredDevices()


class _NotFoundError(Exception):
    """No device of a type was found. The message gives the reason."""


def discover(
    types: Iterable[DeviceType], nodes: Iterable[NumaNode], root: Path = Path("/")
) -> ConfiguredDevices:
    """Returns the present devices of these types. Commands run one after another.

    Args:
        types: the configured types.
        nodes: the NUMA nodes of the host.
        root: the root of the file system in which paths are searched. Commands always run on this
            host.

    Raises:
        InvalidArgument: the configuration of a type is not valid.
    """
    ids = [node.id for node in nodes]
    devices: list[Device] = []
    warnings: list[str] = []
    files: dict[tuple[str, str], tuple[str, ...]] = {}
    for each in types:
        check_type(each)
        try:
            found = list(_unique(_by_command(each) if each.command else _by_paths(each, root)))
        except _NotFoundError as error:
            warnings.append(f"no devices of type {each.name}: {error}")
            continue
        room = DEVICES_MAX - len(devices)
        if len(found) > room:
            warnings.append(
                f"only the first {room} of {len(found)} devices of type {each.name} are offered: "
                f"at most {DEVICES_MAX} devices can be configured"
            )
        for minor, (device, paths) in enumerate(found[:room]):
            files[device.type, device.uuid] = paths
            node = device.numa_node
            if node is None and len(ids) == 1:
                node = ids[0]
            if node is not None and node not in ids:
                warnings.append(
                    f"device {each.name}{minor} is reported on NUMA node {node}, which this host"
                    f" does not have (nodes: {', '.join(map(str, ids))}); its node is unknown"
                )
                node = None
            devices.append(replace(device, minor=minor, numa_node=node))
    return ConfiguredDevices(tuple(devices), tuple(warnings), files)


def check_type(type_: DeviceType) -> None:
    """Checks the configuration of a type, as far as this is possible without the host.

    Raises:
        InvalidArgument: the name is malformed or already used, or a capacity is outside of the
            allowed range. Or `paths` and `command` are both set, or neither is set.
    """
    field = f"devices.{type_.name}"
    (request,) = device_requests({type_.name: WHOLE}, "devices")
    if request.type in _DETECTED or request.type != type_.name or type_.name.startswith(MIG_PREFIX):
        expected = "a name that detected devices do not use (they use gpu..., rdma, fpga, mig-...)"
        raise InvalidArgument(field, type_.name, expected)
    if len(type_.name) > _TYPE_LENGTH_MAX:
        raise InvalidArgument(field, type_.name, f"at most {_TYPE_LENGTH_MAX} characters")
    for key in ("model", "vendor"):
        if len(getattr(type_, key)) > _TEXT_MAX:
            expected = f"at most {_TEXT_MAX} characters"
            raise InvalidArgument(f"{field}.{key}", getattr(type_, key), expected)
    if bool(type_.paths) == bool(type_.command):
        given = "both" if type_.paths else "neither"
        raise InvalidArgument(field, f"{given} of paths and command", "exactly one of them")
    for path in type_.paths:
        if not path.startswith("/"):
            raise InvalidArgument(f"{field}.paths", path, "absolute paths, such as /dev/npu*")
    _check_capacities(f"{field}.capacities", type_.name, dict(type_.capacities))


def _check_capacities(field: str, name: str, amounts: Mapping[str, int]) -> None:
    for dimension, amount in amounts.items():
        # A dimension of another type would change the sums of the other type's devices.
        tail = dimension.removeprefix(name)
        if tail and not (dimension.startswith(name) and _TAIL.fullmatch(tail)):
            expected = f"{name}, or a name such as {name}-memory"
            raise InvalidArgument(field, dimension, expected)
        most = WHOLE if dimension == name else AMOUNT_MAX
        if not 0 < amount <= most:
            raise InvalidArgument(f"{field}.{dimension}", amount, f"1 to {most}")


def _by_paths(type_: DeviceType, root: Path) -> Iterator[_Found]:
    """Yields a device for each file that exists."""
    reader = TreeReader(root)
    # Search files only below the root. So tests can use another file system.
    base = os.fspath(root).rstrip("/")
    found = [name for each in type_.paths for name in sorted(glob.glob(base + each))]  # noqa: PTH207
    if not found:
        raise _NotFoundError(f"no file matches {', '.join(type_.paths)}")
    for name in found:
        path = name.removeprefix(base)
        node = type_.numa_node
        if node is None:
            node = _node_of_file(reader, name)
        yield _device(type_, path, numa_node=node), (path,)


def _node_of_file(reader: TreeReader, name: str) -> int | None:
    """Returns the NUMA node that the kernel reports for a device file, or None."""
    try:
        status = Path(name).stat()
    except OSError:
        return None
    kind = {stat.S_IFCHR: "char", stat.S_IFBLK: "block"}.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    node = reader.integer(f"sys/dev/{kind}/{number}/device/numa_node")
    return node if node is not None and node >= 0 else None


def _by_command(type_: DeviceType) -> Iterator[_Found]:
    """Yields the devices that a command lists. The list is a JSON array, or has one id in each
    line.
    """
    text = _output(type_.command).strip()
    if not text.startswith("["):
        ids = [line.strip() for line in text.splitlines() if line.strip()]
        if not ids:
            raise _NotFoundError(f"{type_.command!r} lists no devices")
        for each in ids:
            # An id can be the path of the device.
            yield _device(type_, each, numa_node=type_.numa_node), (each,) * each.startswith("/")
        return
    try:
        listed: list[Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"the output of {type_.command!r} is not JSON: {error}"
        raise _NotFoundError(message) from None
    if not listed:
        raise _NotFoundError(f"{type_.command!r} lists no devices")
    for at, each in enumerate(listed):
        yield _from_json(type_, each, f"entry {at} of the output of {type_.command!r}")


def _output(command: str) -> str:
    """Runs a command without a shell and without input. Returns its standard output."""
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _NotFoundError(f"{command!r} took longer than {COMMAND_TIMEOUT_S:g} s") from None
    except (OSError, ValueError, IndexError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _NotFoundError(f"{command!r} cannot be run: {reason}") from None
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip()[-_TEXT_MAX:]
        message = f"{command!r} ended with status {done.returncode}: {last or 'without a message'}"
        raise _NotFoundError(printable(message))
    if len(done.stdout) > _OUTPUT_MAX:
        raise _NotFoundError(f"{command!r} wrote more than {_OUTPUT_MAX} bytes")
    return done.stdout.decode("utf-8", "replace")


def _from_json(type_: DeviceType, entry: Any, where: str) -> _Found:
    if not isinstance(entry, dict) or not isinstance(entry.get("uuid"), str):
        raise _NotFoundError(f'{where} is not an object with a text "uuid"')
    if unknown := sorted(set(entry) - set(_KEYS)):
        raise _NotFoundError(f"{where} has the key {unknown[0]!r}; allowed: {', '.join(_KEYS)}")
    texts = {name: entry.get(name, "") for name in ("model", "pci_address", "problem")}
    node, capacities = entry.get("numa_node", type_.numa_node), entry.get("capacities", {})
    uuid = entry["uuid"]
    files = entry.get("files", [uuid] if uuid.startswith("/") else [])
    if not isinstance(files, list) or len(files) > _FILES_MAX or not all(map(_is_path, files)):
        raise _NotFoundError(f"{where}: files is {files!r}; expected up to {_FILES_MAX} paths")
    if not all(isinstance(text, str) for text in texts.values()):
        raise _NotFoundError(f"{where}: model, pci_address and problem must be texts")
    if node is not None and type(node) is not int:
        raise _NotFoundError(f"{where}: numa_node is {node!r}; expected a number")
    if not isinstance(capacities, dict) or any(type(n) is not int for n in capacities.values()):
        raise _NotFoundError(f"{where}: capacities is {capacities!r}; expected whole numbers")
    try:
        _check_capacities(f"{where}: capacities", type_.name, capacities)
    except InvalidArgument as error:
        raise _NotFoundError(error.message) from None
    device = _device(type_, uuid, numa_node=node, capacities=capacities, **texts)
    return device, tuple(files)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _device(
    type_: DeviceType,
    uuid: str,
    *,
    numa_node: int | None,
    model: str = "",
    pci_address: str = "",
    problem: str = "",
    capacities: Mapping[str, int] | None = None,
) -> Device:
    name = printable(uuid)
    if not name or len(name) > _TEXT_MAX:
        raise _NotFoundError(f"the id {name[:40]!r} is not 1 to {_TEXT_MAX} characters")
    return Device(
        type_.name,
        name,
        0,
        pairs({type_.name: WHOLE} | dict(type_.capacities) | dict(capacities or {})),
        vendor=type_.vendor,
        model=printable(model)[:_TEXT_MAX] or type_.model,
        numa_node=None if numa_node is not None and numa_node < 0 else numa_node,
        pci_address=printable(pci_address)[:_TEXT_MAX],
        whole_only=not type_.shared,
        problem=printable(problem)[:_TEXT_MAX],
    )


def _unique(devices: Iterable[_Found]) -> Iterator[_Found]:
    """Yields the first device of each id: two patterns can match the same file."""
    seen: set[str] = set()
    for each, files in devices:
        if each.uuid not in seen:
            seen.add(each.uuid)
            yield each, files
