"""Parses the checkpoints of a kubelet's cpu and memory managers, of all kubelet versions.

Known forms of `cpu_manager_state`:

    1.8 to 1.9    policyName, defaultCpuSet, and `entries` (container id -> cpus); no checksum
    1.10 to 1.17  as in 1.9, and a checksum
    1.18 on       `entries` (pod -> container -> cpus)
    1.36 on       in addition `podEntries` (pod -> {cpuSet}), for cpus of a whole pod
    later         in addition `data`: the same content as JSON text, which has priority

`memory_manager_state` exists since 1.21, and its form changed in the same way.

`kubelet_internal_checkpoint`, of the device manager, exists since 1.8:

    1.8 to 1.9    `PodDeviceEntries`: pod, container, resource, and a list of device ids
    1.10 to 1.19  the fields of 1.9 within `Data`, and a checksum
    1.20 on       device ids by NUMA node

Checksums are not verified: a kubelet computes them from the printed form of Go structures, and this
form differs between versions. But a kubelet (except 1.8 and 1.9) replaces its files atomically. So
these parsers accept a file as complete if they can parse it and its content is consistent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from finegrain.cpuset import MAX_ID, CpuSet
from finegrain.errors import InvalidArgument
from task_executor.host.kubelet.state import KubeletDevices

_DEPTH_OF_DATA = 1  # no kubelet nests `data` within `data`


class Damaged(ValueError):
    """The text is not a valid checkpoint. The message says why."""


@dataclass(frozen=True, slots=True)
class CpuCheckpoint:
    """The cpu manager's checkpoint.

    `cpus` has the key (pod uid, container). The container is empty for cpus of a whole pod.
    """

    policy: str
    default_cpus: CpuSet
    cpus: Mapping[tuple[str, str], CpuSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryCheckpoint:
    """The memory manager's checkpoint.

    Attributes:
        policy: the policy of the memory manager.
        containers: the bytes of each container by NUMA node. The key is (pod uid, container).
        given: the bytes that containers have, by NUMA node and resource, without zeros.
        kept: the bytes that the kubelet reserves for the system, by NUMA node and resource, without
            zeros.
    """

    policy: str
    containers: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    given: Mapping[tuple[int, str], int] = field(default_factory=dict)
    kept: Mapping[tuple[int, str], int] = field(default_factory=dict)


def parse_cpu_checkpoint(text: str) -> CpuCheckpoint:
    """Parses `cpu_manager_state`.

    Raises:
        Damaged: the text is not a valid checkpoint.
    """
    fields = _fields(text)
    cpus: dict[tuple[str, str], CpuSet] = {}
    # The file does not state its form, so find the form from each entry.
    for name, entry in _object(fields, "entries").items():
        if isinstance(entry, str):  # the older form, with container ids as keys
            cpus["", name] = _cpus(entry, f"entries of {name}")
        else:
            for container, listed in _mapping(entry, f"entries of {name}").items():
                cpus[name, container] = _cpus(listed, f"entries of {name}/{container}")
    for name, entry in _object(fields, "podentries").items():
        listed = _lowered(_mapping(entry, f"podEntries of {name}")).get("cpuset", "")
        cpus[name, ""] = _cpus(listed, f"podEntries of {name}")
    default = _cpus(fields.get("defaultcpuset", ""), "defaultCpuSet")
    # A container without dedicated cpus runs in the shared pool of the kubelet.
    return CpuCheckpoint(
        _policy(fields), default, {key: each for key, each in cpus.items() if each}
    )


def parse_memory_checkpoint(text: str) -> MemoryCheckpoint:
    """Parses `memory_manager_state`.

    Raises:
        Damaged: the text is not a valid checkpoint.
    """
    fields = _fields(text)
    containers: dict[tuple[str, str], dict[int, int]] = {}
    for key, block in _blocks(fields):
        # Huge pages are counted below, from `machineState`.
        if block.get("type") != "memory":
            continue
        nodes = [_number(each, "numaAffinity") for each in block.get("numaaffinity") or ()]
        held = containers.setdefault(key, {})
        # The file does not say how the bytes of a block are divided among several nodes. Divide the
        # bytes equally, and give the remainder to the first nodes.
        for at, node in enumerate(sorted(nodes)):
            share, rest = divmod(_number(block.get("size"), "size"), len(nodes))
            held[node] = held.get(node, 0) + share + (at < rest)
    given: dict[tuple[int, str], int] = {}
    kept: dict[tuple[int, str], int] = {}
    for name, node in _object(fields, "machinestate").items():
        tables = _object(_lowered(_mapping(node, f"machineState of {name}")), "memorymap")
        for resource, table in tables.items():
            numbers = _lowered(_mapping(table, f"memoryMap of {name}"))
            place = _node(name), resource
            given[place] = _number(numbers.get("reserved", 0), "reserved")
            kept[place] = _number(numbers.get("systemreserved", 0), "systemReserved")
    return MemoryCheckpoint(
        _policy(fields), containers, _without_zeros(given), _without_zeros(kept)
    )


def parse_device_checkpoint(text: str) -> tuple[KubeletDevices, ...]:
    """Parses `kubelet_internal_checkpoint`.

    Raises:
        Damaged: the text is not a valid checkpoint.
    """
    fields = _json_object(text)
    content = fields.get("data")
    fields = fields if content is None else _lowered(_mapping(content, "data"))
    found = []
    for each in _list(fields.get("poddeviceentries") or [], "podDeviceEntries"):
        entry = _lowered(_mapping(each, "an entry"))
        pod, container, resource = (
            str(entry.get(name, "")) for name in ("poduid", "containername", "resourcename")
        )
        listed = entry.get("deviceids") or []
        by_node = listed.values() if isinstance(listed, dict) else [listed]
        ids = [one for some in by_node for one in _list(some or [], "deviceIDs")]
        # If containers share a GPU, the plug-in appends a number to the id: "GPU-...::3".
        plain = frozenset(str(one).partition("::")[0] for one in ids)
        found.append(KubeletDevices(pod, container, resource, plain))
    return tuple(sorted(found, key=lambda one: (one.pod_uid, one.container, one.resource)))


def _without_zeros(sizes: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], int]:
    return {key: size for key, size in sizes.items() if size}


def _blocks(fields: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for pod, entry in _object(fields, "entries").items():
        for container, blocks in _mapping(entry, f"entries of {pod}").items():
            for block in _list(blocks, f"entries of {pod}/{container}"):
                yield (pod, container), _lowered(_mapping(block, "a block"))
    for pod, entry in _object(fields, "podentries").items():
        blocks = _lowered(_mapping(entry, f"podEntries of {pod}")).get("memoryblocks")
        for block in _list(blocks or [], f"podEntries of {pod}"):
            yield (pod, ""), _lowered(_mapping(block, "a block"))


def _fields(text: str, depth: int = _DEPTH_OF_DATA) -> dict[str, Any]:
    """Returns the fields of a checkpoint of the cpu or memory manager."""
    fields = _json_object(text)
    # The newest form contains the whole content as text in `data`, which has priority.
    data = fields.get("data")
    if isinstance(data, str) and data and depth:
        return _fields(data, depth - 1)
    if "policyname" not in fields:
        raise Damaged("it has no policyName")
    return fields


def _json_object(text: str) -> dict[str, Any]:
    """Returns the outermost object with names in lower case, because kubelets ignore the case."""
    try:
        return _lowered(_mapping(json.loads(text), "the file"))
    except (ValueError, RecursionError) as error:
        # `Damaged` is a ValueError too, and already has a better message.
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"it is not JSON ({str(error)[:80]})") from None


def _policy(fields: Mapping[str, Any]) -> str:
    policy = fields["policyname"]
    if not isinstance(policy, str):
        raise Damaged("policyName is not a string")
    return policy.lower()


def _cpus(value: Any, where: str) -> CpuSet:
    if not isinstance(value, str):
        raise Damaged(f"{where} is not a cpu list")
    try:
        return CpuSet.parse(value)
    except InvalidArgument:
        raise Damaged(f"{where} is {value[:40]!r}, not a cpu list") from None


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return {} if value is None else _mapping(value, name)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{where[:80]} is not an object")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Damaged(f"{where[:80]} is not a list")
    return value


def _number(value: Any, where: str) -> int:
    # Do not use `isinstance`, because it would accept true and false as numbers.
    if type(value) is not int or not 0 <= value < 1 << 60:
        raise Damaged(f"{where} is {str(value)[:40]!r}, not an amount")
    return value


def _node(name: str) -> int:
    if not name.isdecimal() or not name.isascii() or len(name) > 5 or int(name) > MAX_ID:
        raise Damaged(f"NUMA node {name[:40]!r} is not a number")
    return int(name)


def _lowered(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in fields.items()}
