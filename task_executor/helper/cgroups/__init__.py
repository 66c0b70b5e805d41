"""Choose a driver: v1 if controllers are mounted so, else v2, else none with the reason and the
way out.
"""

from __future__ import annotations

import os
from typing import Any

from task_executor.helper.cgroups import v1, v2
from task_executor.helper.cgroups.base import Driver, Group, Kernel
from task_executor.helper.protocol import Fault

_FIX_V1 = "run the executor as root (cgroup v1 cannot be delegated safely to other users)"
_FIX_V2 = "run it as root or in a scope of its own: systemd-run --user --scope -p Delegate=yes ..."
_FIX_NO_MOUNT = "mount a cgroup file system with cpu, cpuset, memory and pids controllers"


def choose_driver(config: dict[str, Any], kernel: Kernel, known: Group | None = None) -> Driver:
    """A prepared driver.

    `known`: the base of an earlier helper in this boot, which holds our slots.
    """
    if config["isolation"] == "none":
        fix = 'set isolation = "auto" to have limits enforced'
        return Driver(kernel, {}, "isolation is configured as none", fix)
    groups = _own_groups(config["cgroup_root"].rstrip("/"), config["cgroup_parent"], kernel)
    on_v1 = {name: path for name, path in groups.items() if name in v1.CONTROLLERS}
    if not on_v1 and "unified" not in groups:
        return Driver(kernel, {}, "no cgroup controllers are mounted here", _FIX_NO_MOUNT)
    own = on_v1 or {"unified": groups["unified"]}
    base = {name: f"{path}/finegrain/{config['executor_id']}" for name, path in own.items()}
    driver = (v1.V1 if on_v1 else v2.V2)(
        kernel, known if known and known.keys() == base.keys() else base
    )
    try:
        if not on_v1:
            _leave_inner_node(own["unified"], config["front_pid"], kernel)
            driver.open_up(own["unified"])
        driver.make(_parents(driver.base))
        driver.prepare()
    except (OSError, Fault) as error:
        fix = _FIX_V1 if on_v1 else _FIX_V2
        return Driver(kernel, {}, f"cgroup {driver.name} cannot be used: {error}", fix)
    return driver


def _parents(base: Group) -> Group:
    return {name: path.rpartition("/")[0] for name, path in base.items()}


def _own_groups(root: str, parent: str | None, kernel: Kernel) -> Group:
    """Controller -> the directory of our own (or the delegated) group in its hierarchy."""
    own: Group = {}
    for line in kernel.read(f"{root}/proc/self/cgroup").splitlines():
        _number, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(",") if controllers else ["unified"], path)
    groups: Group = {}
    for line in kernel.read(f"{root}/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        mount_root, mount_point = (_unescape(field) for field in left.split()[3:5])
        kind, _source, options = right.split(" ", 2)
        names = {"cgroup": options.split(","), "cgroup2": ["unified"]}.get(kind, [])
        for name in names:
            path = parent or own.get(name, "")
            if path and ".." not in path.split("/"):
                inside = path.removeprefix(mount_root.rstrip("/")).strip("/")
                groups.setdefault(name, f"{root}{mount_point}/{inside}".rstrip("/"))
    return groups


def _unescape(field: str) -> str:
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _leave_inner_node(own: str, front_pid: int | None, kernel: Kernel) -> None:
    """v2: the group that holds our slots becomes an inner node, so we and the front leave it for
    a leaf.
    """
    here = kernel.read(f"{own}/cgroup.procs").split()
    for pid in {os.getpid(), os.getppid(), front_pid} - {None}:
        if str(pid) in here and kernel.exists(f"{own}/cgroup.type"):  # the root group has no type
            kernel.mkdir(f"{own}/finegrain-daemon")
            kernel.write(f"{own}/finegrain-daemon/cgroup.procs", str(pid))
