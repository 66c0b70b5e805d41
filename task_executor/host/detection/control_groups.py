"""Reads the limits of this process's control groups: CPUs, memory nodes, memory and CPU time.

The mounts come from /proc/mounts. The paths of the groups come from /proc/self/cgroup: in v1, one
path per controller; in v2, one path for all controllers. /proc/self/cpuset is read for the cpuset.
The cpuset comes from the nearest group with cpuset files. The limits of memory and CPU time are the
smallest limits of all groups up to the mount's root. In a container with a cgroup namespace, groups
above the namespace cannot be read, so the real limit can be lower.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from finegrain.cpuset import CpuSet, NodeSet
from finegrain.errors import InvalidArgument
from finegrain.topology import Limits
from task_executor.host.detection.reader import TreeReader

_NO_LIMIT: Final = 1 << 62  # v1 prints 9223372036854771712, or a number near it
_CPUSET_FILES: Final = {
    # Effective values include the limits of the parent groups. Other files contain only the values
    # that were written.
    "v2": (("cpuset.cpus.effective",), ("cpuset.mems.effective",)),
    "v1": (("cpuset.effective_cpus", "cpuset.cpus"), ("cpuset.effective_mems", "cpuset.mems")),
    "noprefix": (("effective_cpus", "cpus"), ("effective_mems", "mems")),
}
_V1_QUOTA: Final = ("quota", "period")
_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy. ``flavour`` determines the names of its files."""

    directory: str  # path relative to the root, without a slash at the start or the end
    flavour: str  # one of v1, noprefix and v2
    controllers: frozenset[str]


def read_limits(reader: TreeReader) -> Limits:
    """Returns the limits of this process's control groups; None if a limit is not set."""
    mounts, version = _mounts(reader)
    groups = _groups(reader)
    cpuset = _cpuset(reader, mounts, groups)
    memory_limit, memory_file = _memory_limit(reader, mounts, groups)
    quota, quota_file = _cpu_quota(reader, mounts, groups)
    return Limits(
        cgroup_version=version,
        cpuset_path=cpuset.path if cpuset else None,
        cpuset_cpus=cpuset.cpus if cpuset else None,
        cpuset_nodes=cpuset.nodes if cpuset else None,
        cpuset_directory=cpuset.directory if cpuset else None,
        memory_limit_bytes=memory_limit,
        memory_limit_file=memory_file,
        cpu_quota_milli=quota,
        cpu_quota_file=quota_file,
    )


def read_affinity(reader: TreeReader) -> tuple[CpuSet | None, NodeSet | None]:
    """Returns the CPUs and memory nodes that the kernel allows this process.

    The source is /proc/self/status. This file also shows two restrictions that are not in cgroup
    files: an affinity that the service manager has set, and a cpuset outside of the namespace.
    """
    found: dict[str, CpuSet] = {}
    for line in reader.lines("proc/self/status"):
        name, _, value = line.partition(":")
        if name in {"Cpus_allowed_list", "Mems_allowed_list"}:
            try:
                found[name] = CpuSet.parse(value)
            except InvalidArgument:
                reader.warn(f"/proc/self/status: {name} is not a list, ignored")
    return found.get("Cpus_allowed_list"), found.get("Mems_allowed_list")


def _mounts(reader: TreeReader) -> tuple[list[_Mount], str | None]:
    mounts = []
    kinds = set()
    for line in reader.lines("proc/mounts") or reader.lines("proc/self/mounts"):
        # A line is: device, directory, type, options, and two numbers.
        words = line.split()
        if len(words) < 4 or words[2] not in {"cgroup", "cgroup2", "cpuset"}:
            continue
        directory = words[1]
        for escape, character in _ESCAPES:
            directory = directory.replace(escape, character)
        directory = directory.strip("/")
        options = frozenset(words[3].split(","))
        if words[2] == "cgroup2":
            # On v2, the mount does not name its controllers. A file in the root of the mount names
            # them.
            listed = (reader.text(f"{directory}/cgroup.controllers") or "").split()
            mounts.append(_Mount(directory, "v2", frozenset(listed)))
        elif words[2] == "cpuset":
            mounts.append(_Mount(directory, "noprefix", frozenset({"cpuset"})))
        else:
            flavour = "noprefix" if "noprefix" in options else "v1"
            mounts.append(_Mount(directory, flavour, options))
        kinds.add(words[2])
    version = {
        frozenset({"cpuset"}): "cpuset-fs",
        frozenset({"cgroup"}): "v1",
        frozenset({"cgroup2"}): "v2",
    }.get(frozenset(kinds), "hybrid" if "cgroup2" in kinds else "v1")
    return mounts, version if kinds else None


def _groups(reader: TreeReader) -> dict[str, str]:
    """Returns the path of this process's group by controller. The key "" is the v2 hierarchy."""
    groups = {}
    # Read /proc/self/cpuset first. If /proc/self/cgroup also has a path for the cpuset, the code
    # below uses the path from /proc/self/cgroup.
    cpuset = reader.text("proc/self/cpuset")
    if cpuset:
        groups["cpuset"] = cpuset
    for line in reader.lines("proc/self/cgroup"):
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def _hierarchy(
    mounts: list[_Mount], groups: dict[str, str], controller: str
) -> tuple[_Mount, str] | None:
    """Returns the mount that has the controller, and this process's group in it.

    A controller is attached to only one hierarchy. The function tries v1 first, because on a host
    with both versions, the v2 mount can lack the controller.
    """
    for mount in sorted(mounts, key=lambda mount: mount.flavour == "v2"):
        if controller in mount.controllers:
            path = groups.get("" if mount.flavour == "v2" else controller)
            # The cpuset can be missing in /proc/self/cgroup, but present in /proc/self/cpuset.
            if path is None:
                path = groups.get("cpuset") if controller == "cpuset" else None
            return mount, path or "/"
    return None


def _ancestry(mount: _Mount, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path and the directory of each group, from the group itself up to the mount's
    root."""
    # The kernel prints a group outside of this cgroup namespace with "..". For such a group, use
    # only the root.
    names = [] if ".." in path.split("/") else [name for name in path.split("/") if name]
    for length in range(len(names), -1, -1):
        group = "/".join(names[:length])
        yield f"/{group}", f"{mount.directory}/{group}".strip("/")


@dataclass(frozen=True, slots=True)
class _Cpuset:
    path: str
    directory: str
    cpus: CpuSet
    nodes: NodeSet | None


def _cpuset(reader: TreeReader, mounts: list[_Mount], groups: dict[str, str]) -> _Cpuset | None:
    hierarchy = _hierarchy(mounts, groups, "cpuset")
    if hierarchy is None:
        return None
    mount, path = hierarchy
    cpu_files, node_files = _CPUSET_FILES[mount.flavour]
    for group, directory in _ancestry(mount, path):
        cpus = _first_set(reader, directory, cpu_files)
        # Skip a v1 group that is not initialized. Its set is empty, so it cannot contain a process.
        if cpus:
            return _Cpuset(group, directory, cpus, _first_set(reader, directory, node_files))
    return None


def _first_set(reader: TreeReader, directory: str, files: tuple[str, ...]) -> CpuSet | None:
    for file in files:
        found = reader.cpu_list(f"{directory}/{file}")
        if found:
            return found
    return None


def _memory_limit(
    reader: TreeReader, mounts: list[_Mount], groups: dict[str, str]
) -> tuple[int | None, str | None]:
    """Returns the smallest memory limit of all groups in bytes, and the file that contains it."""
    hierarchy = _hierarchy(mounts, groups, "memory")
    smallest: tuple[int | None, str | None] = (None, None)
    if hierarchy is None:
        return smallest
    mount, path = hierarchy
    name = "memory.max" if mount.flavour == "v2" else "memory.limit_in_bytes"
    for _, directory in _ancestry(mount, path):
        file = f"{directory}/{name}"
        limit = None if reader.text(file) == "max" else reader.integer(file)
        # On v1, a number of 2^62 or more means that there is no limit.
        if limit is None or not 0 <= limit < _NO_LIMIT:
            continue
        if smallest[0] is None or limit < smallest[0]:
            smallest = (limit, file)
    return smallest


def _cpu_quota(
    reader: TreeReader, mounts: list[_Mount], groups: dict[str, str]
) -> tuple[int | None, str | None]:
    """Returns the smallest quota of all groups in thousandths of a CPU, and its file."""
    hierarchy = _hierarchy(mounts, groups, "cpu")
    smallest: tuple[int | None, str | None] = (None, None)
    if hierarchy is None:
        return smallest
    mount, path = hierarchy
    for _, directory in _ancestry(mount, path):
        if mount.flavour == "v2":
            file = f"{directory}/cpu.max"
            words = (reader.text(file) or "").split()
        else:
            file = f"{directory}/cpu.cfs_quota_us"
            words = [reader.text(f"{directory}/cpu.cfs_{each}_us") or "" for each in _V1_QUOTA]
        # Ignore longer numbers, because a kernel never prints a quota of 19 digits or more.
        if len(words) != 2 or not all(word.isdecimal() and len(word) < 19 for word in words):
            continue  # "max" in v2 and -1 in v1: no quota
        quota, period = int(words[0]), int(words[1])
        # Round down the quota. So slots never get more CPU time than the quota.
        if period > 0 and (smallest[0] is None or quota * 1000 // period < smallest[0]):
            smallest = (quota * 1000 // period, file)
    return smallest
