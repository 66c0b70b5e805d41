"""Chooses a cgroup driver: v1 if its controllers are mounted, otherwise v2.

If neither version can be used, no limits are enforced. The isolation report then contains the
reason, and what to do.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups import v1, v2
from task_executor.helper.cgroups.base import LEAF, Driver, Group, InUse, Kernel
from task_executor.helper.protocol import Fault

_ATTEMPTS, _PAUSE_S = 50, 0.02
_PERMANENT_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FIX_V1 = "run the executor as root (cgroup v1 cannot be delegated safely to other users)"
_FIX_V2 = "run it as root, or in a delegated scope: systemd-run --user --scope -p Delegate=yes ..."
_FIX_NO_MOUNT = "mount a cgroup file system with cpu, cpuset, memory and pids controllers"


def choose_driver(config: dict[str, Any], kernel: Kernel, known: Group | None = None) -> Driver:
    """Returns a driver whose base group is ready.

    After a failure, the function tries again for one second: possibly another executor stops and
    removes the common parent group at the same moment.

    Args:
        config: the configuration of the helper.
        kernel: access to cgroup files.
        known: the base group of an earlier helper since the last boot, if it contains this
            executor's slots. If None, the slots go below the group of `holder_pid` (a scope), or
            below the group of this process.

    Raises:
        InUse: another helper with the same executor_id runs on this host.
    """
    if config["isolation"] == "none":
        fix = 'set isolation = "auto" to enforce limits'
        return Driver(kernel, {}, "isolation is configured as none", fix)
    root, parent = config["cgroup_root"].rstrip("/"), config["cgroup_parent"]
    holder = config.get("holder_pid")
    # Stage 1: find the groups of this process. They show which cgroup version is mounted.
    groups = _own_groups(root, parent, kernel, holder or "self")
    own = {name: path for name, path in groups.items() if name in v1.CONTROLLERS}
    if not own and "unified" not in groups:
        return Driver(kernel, {}, "no cgroup controllers are mounted on this host", _FIX_NO_MOUNT)
    kind = v1.V1 if own else v2.V2
    # Stage 2: choose possible places. If an earlier helper has left a known base, use only this
    # base, because it contains the slots.
    if known and ("unified" in known) == (not own) and all(map(kernel.exists, known.values())):
        places = [known]
    else:
        top = "" if parent or holder else _own_groups(root, "/", kernel).get("unified", "")
        on_v2 = [{"unified": path} for path in _v2_places(groups.get("unified", ""), top, kernel)]
        bases = [own] if own else on_v2
        inside = f"finegrain/{config['executor_id']}"
        places = [{name: f"{path}/{inside}" for name, path in base.items()} for base in bases]
    drivers = [kind(kernel, base) for base in places]
    # Stage 3: take the first place that works.
    for driver in drivers:
        # EBUSY means that the parent group contains processes of other programs. So the group
        # cannot become an inner node. After this error, try the next place immediately.
        elsewhere = [] if driver is drivers[-1] else [errno.EBUSY]
        is_known, permanent_errors = driver.base is known, (*_PERMANENT_ERRORS, *elsewhere)
        failure = _prepare(driver, is_known, config["front_pid"], permanent_errors)
        if failure is None:
            # These groups show systemd that supervisors and tasks are part of the scope, and not of
            # the executor's service.
            units = groups.keys() & {"name=systemd", "unified"} if holder and own else set()
            driver.unit = {name: groups[name] for name in units}
            return driver
        # If another helper on this host has the same executor_id, no other place can work.
        if isinstance(failure, InUse):
            break
    for driver in drivers:
        if driver.base is not known:
            driver.remove_base()  # a failed attempt has possibly made the base
    if isinstance(failure, InUse):
        raise failure
    reason = f"cgroup {kind.name} cannot be used: {failure}"
    return Driver(kernel, {}, reason, _FIX_V1 if own else _FIX_V2)


def _v2_places(own: str, top: str, kernel: Kernel) -> list[str]:
    """Returns the groups in which slots can be created, the best group first.

    If systemd has not delegated the helper's own group, slots must not be created there. systemd
    cannot restart a service whose group is an inner node. Root then uses a new group at the top of
    the tree, which systemd does not change.
    """
    if not top:
        return [own]  # the configuration names this group
    is_root = os.geteuid() == 0
    fit = kernel.is_delegated(own) and not own.endswith(".service")
    ours = not is_root or fit or not kernel.exists("/run/systemd/system")
    return [own] * ours + [top] * is_root


def _prepare(
    driver: Driver, is_known: bool, front_pid: int | None, permanent_errors: tuple[int, ...]
) -> Exception | None:
    """Prepares a driver, with retries. If this fails, returns the last error and holds no lock."""
    failure: Exception | None = None
    for attempt in range(_ATTEMPTS):
        time.sleep(_PAUSE_S if attempt else 0)
        try:
            # The groups above a known base are already prepared. Do not change these groups,
            # because other executors possibly use them.
            if not is_known:
                _prepare_parent(driver, front_pid)
            driver.prepare()
            return None
        except (OSError, Fault) as error:
            # Release the lock, because the next attempt opens the directories again. A lock belongs
            # to the open file and not to the process, so the old lock would block the next attempt.
            driver.unlock()
            failure = error
        if getattr(failure, "errno", 0) in permanent_errors:
            break
    return failure


def _prepare_parent(driver: Driver, front_pid: int | None) -> None:
    """Prepares the groups above the base.

    On v2 the parent group becomes an inner node, which must not contain processes. So this function
    moves processes to a leaf group. If the group is delegated to the executor, all processes are
    moved. Otherwise only this process and its ancestors are moved (the processes that started it).
    """
    if driver.name == "v2":
        kernel, own = driver.kernel, driver.base["unified"].rsplit("/", 2)[0]
        here = set(kernel.read(f"{own}/cgroup.procs").split())
        mine = {str(pid) for pid in (os.getpid(), os.getppid(), front_pid)}
        moving = here if kernel.is_delegated(own) else here & mine
        if moving and kernel.exists(f"{own}/cgroup.type"):  # only the root group has no such file
            kernel.mkdir(f"{own}/{LEAF}")
            for pid in moving:
                kernel.write(f"{own}/{LEAF}/cgroup.procs", pid)
        _delegate_others(own, kernel)
        driver.initialize_group(own, ["unified"])


def _delegate_others(own: str, kernel: Kernel) -> None:
    """Enables the controllers hugetlb and dmem in all groups, from the top down to `own`.

    systemd does not know these controllers, so systemd does not change them. Only root can enable
    the controllers. Without these controllers, huge pages and memory of devices are not limited.
    """
    for level in reversed(Path(own).parents):
        for name in ("hugetlb", "dmem"):
            with suppress(OSError):
                kernel.write(f"{level}/cgroup.subtree_control", f"+{name}")


def _own_groups(root: str, parent: str | None, kernel: Kernel, of: int | str = "self") -> Group:
    """Returns, for each controller, the directory of the process's group or of the delegated
    group.
    """
    own: Group = {}
    for line in kernel.read(f"{root}/proc/{of}/cgroup").splitlines():
        _number, controllers, path = line.split(":", 2)
        # On v2 the holder of a scope is in a leaf, and the slots are in the group above this leaf.
        path = path if of == "self" else path.removesuffix(f"/{LEAF}")
        own |= dict.fromkeys(controllers.split(",") if controllers else ["unified"], path)
    groups: Group = {}
    for line in kernel.read(f"{root}/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        mount_root, mount_point = (_unescape(field) for field in left.split()[3:5])
        kind, _source, options = right.split(" ", 2)
        names = {"cgroup": options.split(","), "cgroup2": ["unified"]}.get(kind, [])
        for name in names:
            path = parent or own.get(name, "")
            # A path with ".." is outside of this process's cgroup namespace, so it cannot be used.
            if path and ".." not in path.split("/"):
                inside = path.removeprefix(mount_root.rstrip("/")).strip("/")
                groups.setdefault(name, f"{root}{mount_point}/{inside}".rstrip("/"))
    return groups


def _unescape(field: str) -> str:
    # Replace the escaped backslash last. Otherwise the new backslash could become the start of
    # another escape.
    return field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
