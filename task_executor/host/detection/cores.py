"""Finds which CPUs form a core, package, die or cluster, and which CPUs share a level 3 cache.

The sets come from sibling maps and not from ids: a core_id can repeat within a package, and package
ids can be -1 or equal. Threads that the kernel reports as siblings count as one core. On AMD
Bulldozer, siblings are two cores of a module that share the front end and the floating point unit.
These two cores must count as one core: different slots with dedicated cpus must not share a module.
If the kernel does not report a level, the result is the simplest layout, with a warning: each CPU
is a core, and there is one package.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import Die, L3Group, Package
from task_executor.host.detection.cpus import CPU
from task_executor.host.detection.reader import TreeReader

_SIZE: Final = re.compile(r"(\d{1,12})([KMG]?)", re.ASCII)
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


@dataclass(frozen=True, slots=True)
class CoreSet:
    """A core before it is assigned to packages, nodes and caches."""

    cpus: CpuSet
    core_id: int | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of the online CPUs.

    Every online CPU is in exactly one core and one package. But some CPUs can be in no L3 group.
    """

    cores: tuple[CoreSet, ...]
    cores_known: bool
    packages: tuple[Package, ...]
    packages_known: bool
    dies: tuple[Die, ...]
    clusters: tuple[CpuSet, ...]
    books: tuple[CpuSet, ...]
    drawers: tuple[CpuSet, ...]
    l3_groups: tuple[L3Group, ...]


def read_layout(reader: TreeReader, online: CpuSet) -> Layout:
    """Returns the grouping of the online CPUs, with warnings for levels that are not reported."""
    # Find the cores first, then the packages. A cpu that is in no sibling map counts as a separate
    # core.
    core_maps = _maps(reader, online, "core_cpus", "thread_siblings")
    cores = _partition(reader, core_maps, "core")
    # Every cpu must be in exactly one core. So no cpu is lost or counted twice.
    lone = online - _covered(cores)
    if lone and online:
        reader.warn(
            f"the kernel does not report the cores of CPUs {lone}, so each counts as a core"
        )
    cores += [CpuSet.of(cpu) for cpu in lone]
    packages = _packages(reader, online)
    unpacked = online - _covered(package.cpus for package in packages)
    packages_known = bool(packages)
    if unpacked:
        reader.warn(
            f"the kernel does not report the packages of CPUs {unpacked}, so they count as one"
        )
        packages.append(Package(unpacked, None))
    return Layout(
        cores=tuple(
            CoreSet(cpus, reader.integer(f"{CPU}/cpu{cpus.min()}/topology/core_id"))
            for cpus in sorted(cores, key=CpuSet.min)
        ),
        cores_known=bool(core_maps),
        packages=tuple(sorted(packages, key=lambda package: package.cpus.min())),
        packages_known=packages_known,
        dies=_dies(reader, online),
        clusters=_distinct(_maps(reader, online, "cluster_cpus")),
        books=_distinct(_maps(reader, online, "book_cpus", "book_siblings")),
        drawers=_distinct(_maps(reader, online, "drawer_cpus", "drawer_siblings")),
        l3_groups=_l3_groups(reader, online, cores),
    )


def _maps(reader: TreeReader, online: CpuSet, *names: str) -> dict[int, CpuSet]:
    """Returns the online siblings of each CPU at one level.

    Args:
        reader: reads the files of the host.
        online: the online CPUs.
        names: the possible names of the file: first the name in new kernels, then names in older
            kernels.
    """
    found = {}
    for cpu in online:
        siblings = _siblings(reader, cpu, names) & online
        if siblings:
            # The map of a CPU must contain the CPU itself. Add the CPU if it is missing.
            found[cpu] = siblings | CpuSet.of(cpu)
    return found


def _siblings(reader: TreeReader, cpu: int, names: Iterable[str]) -> CpuSet:
    for name in names:
        path = f"{CPU}/cpu{cpu}/topology/{name}"
        siblings = reader.cpu_mask(path) or reader.cpu_list(f"{path}_list")
        if siblings:
            return siblings
    return EMPTY


def _partition(reader: TreeReader, maps: dict[int, CpuSet], what: str) -> list[CpuSet]:
    """Returns disjoint sets of CPUs from the sibling maps.

    If maps contradict each other, the map of the lowest CPU is used, with a warning.
    """
    parts: list[CpuSet] = []
    taken = EMPTY
    for cpu, siblings in maps.items():
        # Skip a cpu that is already in the set of a lower cpu.
        if cpu in taken:
            continue
        part = siblings - taken
        # In correct data, all cpus of a set have equal maps. If the maps differ, keep only the cpus
        # with the same map as this cpu.
        if any(maps.get(other, siblings) != siblings for other in siblings):
            reader.warn(f"sibling maps of one {what} contradict one another around CPU {cpu}")
            agreeing = CpuSet(other for other in part if maps.get(other) == siblings)
            part = agreeing | CpuSet.of(cpu)
        parts.append(part)
        taken |= part
    return parts


def _packages(reader: TreeReader, online: CpuSet) -> list[Package]:
    maps = _maps(reader, online, "package_cpus", "core_siblings")

    def label(cpu: int) -> int | None:
        return reader.integer(f"{CPU}/cpu{cpu}/topology/physical_package_id")

    # Packages that overlap contradict each other. In this case, use the ids if all ids are known.
    if _overlap(_distinct(maps)):
        labels = {cpu: label(cpu) for cpu in maps}
        # The id -1 means unknown. Grouping by this id would put unrelated cpus together.
        if None not in labels.values() and -1 not in labels.values():
            reader.warn(
                "package maps contradict one another: CPUs are grouped by physical_package_id"
            )
            return [
                Package(CpuSet(cpu for cpu in maps if labels[cpu] == each), each)
                for each in set(labels.values())
            ]
    return [Package(cpus, label(cpus.min())) for cpus in _partition(reader, maps, "package")]


def _dies(reader: TreeReader, online: CpuSet) -> tuple[Die, ...]:
    dies = []
    for cpus in _distinct(_maps(reader, online, "die_cpus")):
        die_id = reader.integer(f"{CPU}/cpu{cpus.min()}/topology/die_id")
        # A kernel without information about dies reports -1, or has no such file.
        if die_id is not None and die_id >= 0:
            dies.append(Die(cpus, die_id))
    return tuple(dies)


def _l3_groups(reader: TreeReader, online: CpuSet, cores: Iterable[CpuSet]) -> tuple[L3Group, ...]:
    core_of = {cpu: core for core in cores for cpu in core}
    groups: dict[CpuSet, L3Group] = {}
    taken = EMPTY
    for cpu in online:
        for path in _caches(reader, cpu):
            shared = reader.cpu_mask(f"{path}/shared_cpu_map")
            if not shared:
                shared = reader.cpu_list(f"{path}/shared_cpu_list")
            # An empty map (ia64) means that only the threads of one core share the cache.
            cpus = (shared & online if shared else core_of[cpu]) | CpuSet.of(cpu)
            if cpus in groups:
                continue
            if not cpus.isdisjoint(taken):
                reader.warn(f"level 3 cache maps contradict one another around CPU {cpu}")
                # Remove CPUs that are already in another group. So no CPU counts twice.
                cpus = cpus - taken
            if cpu in cpus:
                groups[cpus] = L3Group(cpus, _size(reader.text(f"{path}/size")))
                taken |= cpus
    return tuple(groups.values())


def _caches(reader: TreeReader, cpu: int) -> Iterator[str]:
    """Yields the directories of the CPU's level 3 caches, without instruction caches."""
    base = f"{CPU}/cpu{cpu}/cache"
    for index in reader.numbered(base, "index"):
        path = f"{base}/index{index}"
        if reader.text(f"{path}/level") == "3" and reader.text(f"{path}/type") != "Instruction":
            yield path


def _size(text: str | None) -> int | None:
    """Returns a cache size such as 12288K in bytes."""
    match = _SIZE.fullmatch(text or "")
    return int(match.group(1)) * _UNITS[match.group(2)] if match else None


def _distinct(maps: dict[int, CpuSet]) -> tuple[CpuSet, ...]:
    return tuple(dict.fromkeys(maps.values()))


def _covered(sets: Iterable[CpuSet]) -> CpuSet:
    covered = EMPTY
    for each in sets:
        covered |= each
    return covered


def _overlap(sets: Iterable[CpuSet]) -> bool:
    seen = EMPTY
    for each in sets:
        if not each.isdisjoint(seen):
            return True
        seen |= each
    return False
