"""Checks whether control groups can enforce the limits of slots: version, controllers, access.

The result is about the control group of the calling process. A daemon that systemd starts has
another control group. To check access, the module creates and removes a group, but moves no
process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from finegrain_cli.doctor.findings import Finding, ok, warn

NAME = "cgroups"
ROOT = Path("/")
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "freezer", "pids", "devices")
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
V2_CONTROL_FILES = ("cgroup.procs", "cgroup.subtree_control")
SCOPE = "systemd-run --user --scope -p Delegate=yes finegrain executor serve ..."
NONE_MEANS = "executors run with isolation none: amounts are booked, but not enforced"


@dataclass(frozen=True, slots=True)
class Groups:
    """The cgroups of the calling process: one cgroup for each v1 controller, and the v2 cgroup."""

    v1: dict[str, Path] = field(default_factory=dict)
    v2: Path | None = None

    @property
    def version(self) -> str:
        """One of "v1", "v2", "none" and "hybrid". With "hybrid", both versions are mounted, and the
        v1 controllers are used.
        """
        if self.v1:
            return "hybrid" if self.v2 else "v1"
        return "v2" if self.v2 else "none"


def examine_cgroups(root: Path = ROOT) -> Iterator[Finding]:
    """Checks the version and the controllers, and whether groups can be created.

    Args:
        root: the root directory. Tests pass a fake directory.
    """
    groups = read_groups(root)
    if groups.version == "none":
        fix = "mount cgroup2 at /sys/fs/cgroup, or give the container its host's control groups"
        yield warn(NAME, f"no control groups are mounted; {NONE_MEANS}", fix)
    elif groups.v1:
        yield from _v1(groups)
    elif groups.v2 is not None:
        yield from _v2(groups.v2)


def read_groups(root: Path = ROOT) -> Groups:
    """Reads the mounts and groups of this process from /proc/self, because hosts can have unusual
    mount points.
    """
    # Stage 1: the group of this process in each hierarchy. A line is "4:cpu,cpuacct:/path". In the
    # unified hierarchy (v2), the line has no names: "0::/path".
    own: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        _number, names, path = line.split(":", 2)
        for name in names.split(",") if names else ["unified"]:
            own[name] = path
    # Stage 2: the mount points of these hierarchies.
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        mount_root, mount_point = left.split()[3:5]
        kind, _source, options = right.split(" ", 2)

        def place(name: str, top: str = mount_root, point: str = mount_point) -> Path:
            # In a container the mount shows only the subtree below `top`. The path of a group
            # begins with `top`, but below the mount point this beginning is absent.
            inside = own.get(name, "/").removeprefix(top.rstrip("/"))
            return root / f"{point}/{inside}".lstrip("/")

        if kind == "cgroup":
            for name in options.split(","):
                if name in V1_CONTROLLERS:
                    v1.setdefault(name, place(name))
        elif kind == "cgroup2" and v2 is None:
            v2 = place("unified")
    return Groups(v1, v2)


def _v1(groups: Groups) -> Iterator[Finding]:
    yield ok(NAME, f"version 1 ({groups.version}), controllers {', '.join(sorted(groups.v1))}")
    missing = [name for name in V1_CONTROLLERS if name not in groups.v1]
    if missing:
        yield warn(
            "cgroup controllers",
            f"without {', '.join(missing)}: the limits of these controllers are not enforced",
            f"mount them: mount -t cgroup -o {missing[0]} cgroup /sys/fs/cgroup/{missing[0]}",
        )
    refused = {name: why for name, path in groups.v1.items() if (why := _cannot_make(path))}
    if not refused:
        yield ok("isolation", "v1: groups can be created in every hierarchy; limits are enforced")
        return
    name, why = next(iter(refused.items()))
    fix = "run executors as root: version 1 cannot be delegated safely to other users"
    if os.geteuid() == 0:
        fix = (
            f"make {groups.v1[name]} writable (in a container: run it with its cgroups mounted rw)"
        )
    yield warn(
        "isolation", f"no group can be created in {groups.v1[name]}: {why}; {NONE_MEANS}", fix
    )


def _v2(own: Path) -> Iterator[Finding]:
    offered = " ".join(_lines(own / "cgroup.controllers")).split()
    yield ok(NAME, f"version 2, own group {own}, controllers {', '.join(offered) or 'none'}")
    missing = [name for name in V2_CONTROLLERS if name not in offered]
    if missing:
        yield warn(
            "cgroup controllers",
            f"{own} has no {', '.join(missing)}: the limits of these controllers are not enforced",
            "delegate them: Delegate=cpu cpuset memory pids in the unit of the user manager "
            "(systemctl edit user@.service) or of the executor",
        )
    # Check these files, too, because an executor also moves processes and enables controllers.
    closed = [each for each in V2_CONTROL_FILES if not os.access(own / each, os.W_OK)]
    why = f"{closed[0]} is not writable" if closed else _cannot_make(own)
    if why:
        fix = f"run executors as root, or in a delegated scope: {SCOPE}"
        yield warn("isolation", f"{own} is not delegated to this user: {why}; {NONE_MEANS}", fix)
    elif not missing:
        yield ok("isolation", "v2: the group is delegated to this user; limits are enforced")


def _cannot_make(parent: Path) -> str:
    """Returns the reason why no group can be created below `parent`, or an empty text if a group
    can be created.
    """
    probe = parent / f"finegrain-doctor-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
