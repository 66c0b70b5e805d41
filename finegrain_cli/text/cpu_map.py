"""Draws the cpus of an executor's host as text. One character for each cpu shows the use of the
cpu.

Each package contains its NUMA nodes, and each node contains rows of cores with one character per
hardware thread. A wider gap marks a change of the last-level cache. Lines have at most 96 columns
for any number of cpus. Programs should read the report (`-o json`), not this map.

Example of a row that starts with cpu 8, with two threads per core; A is a pinned slot:

           8 AA ss ss  ss ss
"""

from __future__ import annotations

import string
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.devices.device import GPU_MEMORY_RATIO
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, DEVICE_PREFIX, MEMORY_BYTES
from finegrain.units import format_bytes, format_cpu
from finegrain_cli.text.columns import profile_text
from finegrain_cli.text.explanation import amount_text, dimension_name

if TYPE_CHECKING:
    from finegrain.values.usage import Zone
    from finegrain_client.types.status import SlotStatus
    from finegrain_client.types.topology import TopologyReport

WIDTH: Final = 96
LABEL: Final = 9  # width of a row's label, which is the row's first cpu, right-aligned

ID_LENGTH_MIN: Final = 8

NODE_UNKNOWN: Final = -1
"""The node id that an executor reports if it does not know the NUMA node of a device."""

SHARED, RESERVED, STRICT, KUBELET = "s", "r", "x", "k"
ISOLATED, OFFLINE, FOREIGN, UNLETTERED = "i", "-", ".", "*"
LETTERS: Final = string.ascii_uppercase + string.digits + "abcdefghjlmnopqtuvwyz"
"""Marks of pinned slots. The letters that this text leaves out mark other uses of cpus (`SHARED`,
`RESERVED`, ...).
"""


@dataclass(frozen=True, slots=True)
class _Core:
    cpus: tuple[int, ...]
    cache: int
    kind: str


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters that mark cpus in the map. Each pinned slot has a character, in order of the
    slots' first cpus. Each other use of cpus has a character, too.
    """

    slots: tuple[tuple[str, SlotStatus], ...]
    others: tuple[tuple[str, CpuSet], ...]  # sorted by priority, highest first

    @classmethod
    def of(cls, report: TopologyReport) -> Marks:
        """Returns the marks for a report."""
        pinned = sorted((each for each in report.slots if each.cpus), key=_place)
        letters = iter(LETTERS)
        now, announced, settings = report.now, report.announced, report.settings
        kubelet = now.kubelet.containers if now is not None and now.kubelet is not None else ()
        reserved = CpuSet.parse(settings.reserved_cpus)
        strict = CpuSet.parse(settings.strictly_reserved_cpus)
        shared = union(CpuSet.parse(each.shared_cpus) for each in report.pools)
        kept_back = CpuSet.parse(announced.reserved_cpus) if announced is not None else EMPTY
        isolated = CpuSet.parse(
            announced.isolated_cpus
            if announced is not None
            else report.topology.get("isolated_cpus", "")
        )
        return cls(
            slots=tuple((next(letters, UNLETTERED), each) for each in pinned),
            others=(
                (OFFLINE, CpuSet.parse(now.offline_cpus) if now is not None else EMPTY),
                (KUBELET, union(CpuSet.parse(each.cpus) for each in kubelet)),
                (STRICT, strict | (kept_back - shared)),
                (RESERVED, reserved - strict),
                (ISOLATED, isolated),
                (SHARED, shared),
            ),
        )

    def by_cpu(self) -> dict[int, str]:
        """Returns the character of every cpu that has a mark.

        The mark of offline cpus has the highest priority. The marks of pinned slots have the second
        highest priority.
        """
        offline = self.others[0][1]
        found: dict[int, str] = {}
        # Set the marks with the lowest priority first, so that marks of higher priority overwrite
        # them.
        for mark, cpus in reversed(self.others):
            found |= dict.fromkeys(cpus, mark)
        for mark, slot in self.slots:
            found |= dict.fromkeys(CpuSet.parse(slot.cpus) - offline, mark)
        return found


def drawing(report: TopologyReport, marks: Marks) -> list[str]:
    """Returns the lines of the map: packages, NUMA nodes and cores."""
    topology, by_cpu = report.topology, marks.by_cpu()
    cores = [
        (int(each["package_index"]), int(each["numa_node_id"]), _core(each))
        for each in topology.get("cores", ())
    ]
    zones = {zone.node: zone for zone in report.zones}
    memory = {
        int(each["numa_node_id"]): int(each.get("memory_bytes", 0))
        for each in topology.get("numa_nodes", ())
    }
    lines = []
    for package in sorted({each[0] for each in cores}):
        lines.append(f"package {package}")
        for node in sorted({each[1] for each in cores if each[0] == package}):
            here = [core for at, of, core in cores if (at, of) == (package, node)]
            lines.append(f"  {_node_line(node, zones.get(node), memory.get(node, 0))}")
            lines += _rows(here, by_cpu)
            lines += _devices_at(topology, node)
    with_cpus = {each[1] for each in cores}
    for node in sorted(memory.keys() - with_cpus):
        lines.append(f"{_node_line(node, zones.get(node), memory[node])}, no cpus")
        lines += _devices_at(topology, node)
    if elsewhere := _devices_at(topology, NODE_UNKNOWN):
        lines += ["NUMA node not known", *elsewhere]
    return lines


def _devices_at(topology: Mapping[str, Any], node: int) -> list[str]:
    """Returns the names of devices for slots at a NUMA node: "gpu0, gpu1"."""
    names = [
        f"{each['kind']}{each.get('minor', 0)}"
        for each in topology.get("devices", ())
        if each.get("capacity") and int(each.get("numa_node_id", 0)) == node
    ]
    return _folded(f"       {', '.join(names)}", indent=7) if names else []


def legend(report: TopologyReport, marks: Marks) -> list[str]:
    """Returns the meaning of each character that occurs in the map."""
    by_cpu = marks.by_cpu()
    drawn = set(by_cpu.values())
    shown = list(_pinned(report, marks))
    words = {
        SHARED: "the shared pool: LS slots, and BE slots",
        RESERVED: "reserved: in the shared pool, not dedicated to slots",
        STRICT: "reserved strictly: no slot runs there",
        KUBELET: "assigned by a kubelet to its containers",
        ISOLATED: "isolated from load balancing: only for slots with dedicated cpus",
        OFFLINE: "offline",
    }
    others = {mark: cpus for mark, cpus in marks.others if mark in drawn and cpus}
    for mark, text in words.items():
        if mark in others:
            shown += _folded(f"  {mark}  {text}, cpus {others[mark]}", indent=5)
    if any(each.cpu not in by_cpu for each in report.cpus):
        shown.append(f"  {FOREIGN}  not this executor's")
    return shown


def settings_lines(report: TopologyReport) -> list[str]:
    """Returns the effective settings with their origins, and the settings of a kubelet."""
    settings = report.settings
    known = {
        "bind": settings.bind,
        "alignment": settings.alignment,
        "numa_strategy": settings.numa_strategy,
        "default_bind": settings.default_bind,
        "default_exclusive": settings.default_exclusive,
        "reserved_cpus": settings.reserved_cpus,
    }
    parts = [
        f"{name.replace('_', ' ')} {value} ({settings.origins.get(name, 'built-in')})"
        for name, value in known.items()
        if value
    ]
    lines = _folded(f"{'settings':<11}{', '.join(parts)}", indent=11)
    if report.now is not None and (kubelet := report.now.kubelet) is not None:
        options = ", ".join(
            name if value == "true" else f"{name}={value}"
            for name, value in sorted(kubelet.cpu_manager_options.items())
        )
        told = [
            f"cpu manager {kubelet.cpu_manager_policy or 'none'}"
            + (f" ({options})" if options else ""),
            f"topology manager {kubelet.topology_manager_policy or 'none'}"
            + (f" (by {kubelet.topology_manager_scope})" if kubelet.topology_manager_scope else ""),
        ]
        if kubelet.memory_manager_policy:
            told.append(f"memory manager {kubelet.memory_manager_policy}")
        if kubelet.reserved_cpus:
            told.append(f"reserved cpus {kubelet.reserved_cpus}")
        if kubelet.containers:
            count = len(kubelet.containers)
            told.append(f"{count} container{'s' if count > 1 else ''} with dedicated cpus")
        lines += _folded(f"{'kubelet':<11}{', '.join(told)}", indent=11)
    return lines


def remarks(report: TopologyReport) -> list[str]:
    """Returns warnings about the current state: lost cpus, squeezed slots, notes."""
    lost = [
        f"slot {each.allocation_id} has lost cpus {each.cpus}, which are offline or assigned by a "
        "kubelet"
        for each in report.lost_cpus
    ]
    now = report.now
    if now is None:
        return lost
    if now.squeezed_cpus:
        lost.append(f"BE slots are confined to cpus {now.squeezed_cpus} while other slots are busy")
    return lost + list(now.notes)


def _place(slot: SlotStatus) -> tuple[int, str]:
    return next(iter(CpuSet.parse(slot.cpus))), slot.allocation_id


def _core(data: Mapping[str, Any]) -> _Core:
    return _Core(
        tuple(CpuSet.parse(data.get("cpus", ""))),
        int(data.get("l3_index", -1)),
        str(data.get("kind", "")),
    )


def _node_line(node: int, zone: Zone | None, memory_bytes: int) -> str:
    title = f"NUMA node {node}" if node >= 0 else "no NUMA node"
    parts = list(_amounts(zone)) if zone is not None else []
    if memory_bytes and not any(part.startswith("memory") for part in parts):
        parts.insert(0, f"memory {format_bytes(memory_bytes)}")
    return f"{title}: {', '.join(parts)}" if parts else title


def _amounts(zone: Zone) -> Iterator[str]:
    for name in sorted(
        zone.total, key=lambda name: (name != CPU_MILLI, name != MEMORY_BYTES, name)
    ):
        total, free = zone.total[name], zone.available.get(name, 0)
        if name == CPU_MILLI:
            yield f"cpu {format_cpu(free)} of {format_cpu(total)} free"
        elif name == BEST_EFFORT_CPU_MILLI:
            if name in zone.allocated:
                yield f"best-effort cpu {format_cpu(free)} of {format_cpu(total)} free"
        elif name == MEMORY_BYTES:
            yield f"memory {format_bytes(free)} of {format_bytes(total)} free"
        elif name != DEVICE_PREFIX + GPU_MEMORY_RATIO:  # gpu-memory shows the same capacity
            amounts = f"{amount_text(name, free)} of {amount_text(name, total)}"
            yield f"{dimension_name(name)} {amounts} free"


def _rows(cores: Sequence[_Core], by_cpu: Mapping[int, str]) -> list[str]:
    """Returns rows of cores. A new row begins when the kind of core changes, or when the row is
    full.
    """
    first: dict[str, int] = {}
    for core in cores:
        first[core.kind] = min(core.cpus[0], first.get(core.kind, core.cpus[0]))
    # Sort the kinds of cores by the lowest cpu of each kind.
    cores = sorted(cores, key=lambda core: (first[core.kind], core.cpus))
    # Pad cores with fewer threads, so that columns stay aligned.
    width = max(len(core.cpus) for core in cores)
    lines: list[str] = []
    before: _Core | None = None
    for core in cores:
        cell = "".join(by_cpu.get(cpu, FOREIGN) for cpu in core.cpus).ljust(width)
        gap = "  " if before is not None and before.cache != core.cache else " "
        new_kind = before is None or before.kind != core.kind
        if new_kind or len(lines[-1]) + len(gap) + width > WIDTH:
            if new_kind and core.kind:
                lines.append(f"    {core.kind}")
            lines.append(f"{core.cpus[0]:>{LABEL - 1}} {cell}")
        else:
            lines[-1] += f"{gap}{cell}"
        before = core
    return [line.rstrip() for line in lines]


def _pinned(report: TopologyReport, marks: Marks) -> Iterator[str]:
    """Yields a line for each pinned slot. Long lines are folded."""
    short = ShortIds(text for each in report.slots for text in (each.allocation_id, each.job_id))
    for mark, slot in marks.slots:
        assignment = slot.assignment
        parts = [f"cpus {slot.cpus}"]
        qos = "-"
        if assignment is not None:
            qos = str(assignment.qos)
            chosen = [
                str(each) for each in (assignment.bind, assignment.exclusive) if each != "None"
            ]
            parts[0] += f" ({', '.join(chosen)})" if chosen else ""
            if assignment.numa:
                parts.append("nodes " + ",".join(str(share.node) for share in assignment.numa))
        parts.append(profile_text(slot.profile.to_dict()))
        if slot.state != "ALLOCATED":
            parts.append(str(slot.state or "state unknown"))
        title = f"{qos:<3} {short.of(slot.allocation_id)} of job {short.of(slot.job_id)}: "
        yield from _folded(f"  {mark}  {title}{', '.join(parts)}", indent=9)


class ShortIds:
    """Shortens ids to their first 8 characters, or to more characters if a shortened id would not
    be unique.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = sorted(set(ids))

    def of(self, known: str) -> str:
        """Returns the shortened form of one of the ids.

        In a sorted list of all ids, the id that has the longest common beginning with `known` is a
        neighbor of `known`. So the method compares `known` only with its two neighbors.
        """
        at = bisect_left(self._ids, known)
        near = self._ids[max(at - 1, 0) : at] + self._ids[at + 1 : at + 2]
        # Add one character at a time, until no neighbor begins with the same characters.
        length = ID_LENGTH_MIN
        while length < len(known) and any(each.startswith(known[:length]) for each in near):
            length += 1
        return known[:length]


def _folded(line: str, indent: int) -> list[str]:
    """Breaks a line that is too long at the commas between the parts of the line.

    If a part is too long for a line, the function also breaks the line within a list of numbers.
    """
    lines = []
    while len(line) > WIDTH:
        end = line.rfind(", ", indent, WIDTH) + 1 or line.rfind(",", indent, WIDTH) + 1
        if not end:
            break
        lines.append(line[:end])
        line = " " * indent + line[end:].lstrip()
    return [*lines, line]
