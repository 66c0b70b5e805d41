"""Reads a kubelet's settings for cpus and memory: configuration file, drop-in files, command line.

Drop-in files have priority over the configuration file. Later drop-in files have priority over
earlier drop-in files. Flags have priority over all files. A setting that cannot be parsed is
ignored, with a note.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from task_executor.host.kubelet.quantities import cpu_milli, size_bytes

KIND: Final = "KubeletConfiguration"
_FLAGS: Final = {
    "cpu-manager-policy": "cpuManagerPolicy",
    "cpu-manager-policy-options": "cpuManagerPolicyOptions",
    "kube-reserved": "kubeReserved",
    "memory-manager-policy": "memoryManagerPolicy",
    "reserved-cpus": "reservedSystemCPUs",
    "reserved-memory": "reservedMemory",
    "system-reserved": "systemReserved",
    "topology-manager-policy": "topologyManagerPolicy",
    "topology-manager-scope": "topologyManagerScope",
}
_NO_YAML: Final = (
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
"""YAML constructors raise these errors, in addition to YAML errors, if a value does not match its
tag.
"""
_MAPS: Final = frozenset({"cpuManagerPolicyOptions", "kubeReserved", "systemReserved"})


@dataclass(frozen=True, slots=True)
class KubeletConfiguration:
    """The settings of a kubelet. None or an empty value means that a setting is not set."""

    cpu_manager_policy: str | None = None
    cpu_manager_options: tuple[tuple[str, str], ...] = ()  # sorted by name
    topology_manager_policy: str | None = None
    topology_manager_scope: str | None = None
    memory_manager_policy: str | None = None
    reserved_cpus: CpuSet | None = None
    reserved_cpu_milli: int = 0  # sum of kubeReserved and systemReserved, if no cpus are named
    reserved_memory: tuple[tuple[int, str, int], ...] = ()  # node, resource, bytes
    notes: tuple[str, ...] = ()


def read_configuration(
    documents: Iterable[tuple[str, str]], command: Sequence[str]
) -> KubeletConfiguration:
    """Returns the settings of a kubelet.

    Args:
        documents: the name and the text of the configuration file and of each drop-in file, in
            their sequence.
        command: the arguments of the kubelet's process.
    """
    notes: list[str] = []
    settings: dict[str, Any] = {}
    for name, text in documents:
        settings = _merged(settings, _document(name, text, notes))
    # Apply the flags last, because flags have priority over all files.
    settings |= _settings_from_flags(command)
    return KubeletConfiguration(
        cpu_manager_policy=_choice(settings, "cpuManagerPolicy", notes),
        cpu_manager_options=_options(settings, notes),
        topology_manager_policy=_choice(settings, "topologyManagerPolicy", notes),
        topology_manager_scope=_choice(settings, "topologyManagerScope", notes),
        memory_manager_policy=_choice(settings, "memoryManagerPolicy", notes),
        reserved_cpus=_reserved_cpus(settings, notes),
        reserved_cpu_milli=_reserved_milli(settings, notes),
        reserved_memory=_reserved_memory(settings, notes),
        notes=tuple(notes),
    )


def _document(name: str, text: str, notes: list[str]) -> dict[str, Any]:
    try:
        content = _parsed(text)
    except ValueError as error:
        notes.append(f"the kubelet's {name} cannot be read: {error}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict) or content.get("kind", KIND) != KIND:
        notes.append(f"the kubelet's {name} is not a {KIND}: ignored")
        return {}
    return {str(key): value for key, value in content.items()}


def _parsed(text: str) -> Any:
    """Parses JSON or YAML.

    Raises:
        ValueError: the text is neither JSON nor YAML.
    """
    # Try JSON first, because its parser is faster and needs no library.
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    try:
        import yaml
    except ImportError:
        raise ValueError("it is YAML; install finegrain[task-executor]") from None
    try:
        # Reject aliases: nested aliases can expand a small file to gigabytes, and no kubelet writes
        # aliases.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader)):
            raise ValueError("it has aliases (*name)")
        content = yaml.safe_load(text)
        str(content)  # raises if a number has thousands of digits, which no setting has
    except (yaml.YAMLError, *_NO_YAML) as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())[:120]}") from None
    return content


def _merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings as kubelets do: maps are merged by key, all other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = {**old, **value}
        else:
            merged[key] = value
    return merged


def _settings_from_flags(command: Sequence[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for at, word in enumerate(command):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        key = _FLAGS.get(name.replace("_", "-"))
        # Ignore a flag without a value at the end of the command.
        if key is None or not (equals or command[at + 1 : at + 2]):
            continue
        value = value if equals else command[at + 1]
        if key == "reservedMemory":
            settings[key] = _memory_flag(value)
        elif key in _MAPS:
            settings[key] = _pairs(value)
        else:
            settings[key] = value
    return settings


def _pairs(text: str) -> dict[str, str]:
    """Parses `a=1,b=2`."""
    items = (item.partition("=") for item in text.split(",") if item)
    return {key.strip(): value.strip() for key, _, value in items}


def _memory_flag(text: str) -> list[dict[str, Any]]:
    """Parses `0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1Gi`."""
    parts = (part.partition(":") for part in text.split(";") if part)
    return [{"numaNode": node.strip(), "limits": _pairs(limits)} for node, _, limits in parts]


def _choice(settings: Mapping[str, Any], key: str, notes: list[str]) -> str | None:
    value = settings.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        notes.append(f"the kubelet's {key} is {str(value)[:40]!r}, not a string: ignored")
        return None
    return value.lower()


def _options(settings: Mapping[str, Any], notes: list[str]) -> tuple[tuple[str, str], ...]:
    options = _map(settings, "cpuManagerPolicyOptions", notes)
    # Convert the values to text, because YAML parses an unquoted true as a boolean.
    return tuple(sorted((name, str(value).lower()) for name, value in options.items()))


def _reserved_cpus(settings: Mapping[str, Any], notes: list[str]) -> CpuSet | None:
    value = settings.get("reservedSystemCPUs")
    if value in (None, ""):
        return None
    try:
        return CpuSet.parse(str(value), "reservedSystemCPUs") or None
    except InvalidArgument:
        notes.append(f"the kubelet's reservedSystemCPUs is {str(value)[:40]!r}, not a cpu list")
        return None


def _reserved_milli(settings: Mapping[str, Any], notes: list[str]) -> int:
    together = 0
    for key in ("kubeReserved", "systemReserved"):
        value = _map(settings, key, notes).get("cpu", "0")
        # If there is no entry for cpu, no cpu is reserved. This is no error.
        amount = cpu_milli(value)
        if amount is None:
            notes.append(f"the kubelet's {key} has cpu {str(value)[:40]!r}, not an amount: ignored")
        together += amount or 0
    return together


def _reserved_memory(
    settings: Mapping[str, Any], notes: list[str]
) -> tuple[tuple[int, str, int], ...]:
    found: dict[tuple[int, str], int] = {}
    listed = settings.get("reservedMemory") or []
    for item in listed if isinstance(listed, list) else [None]:
        node = str(item.get("numaNode", "")) if isinstance(item, dict) else ""
        limits = item.get("limits") if isinstance(item, dict) else None
        sizes = {k: size_bytes(v) for k, v in limits.items()} if isinstance(limits, dict) else None
        if not node.isdecimal() or len(node) > 5 or sizes is None or None in sizes.values():
            notes.append("the kubelet's reservedMemory is malformed, so a part of it is ignored")
            continue
        for resource, size in sizes.items():
            found[int(node), str(resource)] = size or 0
    return tuple(sorted((node, resource, size) for (node, resource), size in found.items()))


def _map(settings: Mapping[str, Any], key: str, notes: list[str]) -> dict[str, Any]:
    value = settings.get(key)
    if value is not None and not isinstance(value, dict):
        notes.append(f"the kubelet's {key} is not a map: ignored")
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}
