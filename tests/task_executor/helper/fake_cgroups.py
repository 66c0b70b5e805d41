"""Kernels in memory that enforce cgroup rules at every call, as Linux 6.1 does.

A call that breaks a rule raises the kernel's error: processes in inner nodes (EBUSY), cpusets
without cpus (ENOSPC), cpus that do not exist (ERANGE), groups that are not empty (EBUSY), a child's
quota above its parent's (EINVAL), memory + swap below memory (EINVAL). Memory is `held` (it cannot
be reclaimed) or page cache, which is reclaimed when a limit needs it. A limit below the held memory
is refused (v1), or kills a process (v2); `killed` has these kills.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from tempfile import TemporaryDirectory

from task_executor.helper.cgroups.base import Kernel
from task_executor.helper.protocol import expand


def fail(code: int, path: str) -> OSError:
    return OSError(code, errno.errorcode[code], path)


class FakeKernel(Kernel):
    """Directories and files are dictionaries. `me` is the pid of the process that moves when "0" is
    written.
    """

    usage_file = ""
    lists: tuple[str, ...] = ("/cgroup.procs",)
    """Files that move a process."""

    def __init__(self, me: int = 100) -> None:
        self.me = me
        self.files: dict[str, str] = {}
        self.members: dict[str, set[int]] = {}
        self.inodes: dict[str, TemporaryDirectory[str]] = {}  # real ones, for real locks
        self.before_mkdir: Callable[[str], None] = lambda path: None
        self.zombies: dict[str, int] = {}
        self.signals: list[tuple[int, int]] = []
        self.ignore_writes: set[str] = set()
        self.read_only = False
        self.delegated: set[str] = set()
        self.on_kill: Callable[[int], None] = lambda pid: None
        self.held: dict[str, int] = {}  # bytes by directory, a part of the memory in use there
        self.killed: list[str] = []
        self.before_write: Callable[[str, str], None] = lambda path, value: None
        self.programs: dict[str, bytes] = {}  # filters of devices, by group
        self.filter_error = 0

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.members

    def is_delegated(self, path: str) -> bool:
        return path in self.delegated

    def children(self, path: str) -> list[str]:
        if path not in self.members:
            raise fail(errno.ENOENT, path)
        return sorted(p for p in self.members if p.rpartition("/")[0] == path)

    def read(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        if name == "cgroup.procs" and directory in self.members:
            return "\n".join(map(str, sorted(self.members[directory])))
        if name == "pids.current" and directory in self.members:
            below = [p for p in self.members if f"{p}/".startswith(f"{directory}/")]
            return str(sum(len(self.members[p]) + self.zombies.get(p, 0) for p in below))
        if path not in self.files:
            raise fail(errno.ENOENT, path)
        return self.files[path]

    def write_and_read(self, path: str, value: str) -> str:
        self.write(path, value)
        return self.read(path)

    def lock(self, path: str) -> int:
        if path not in self.members:
            raise fail(errno.ENOENT, path)
        if path not in self.inodes:
            self.inodes[path] = TemporaryDirectory()
        return super().lock(self.inodes[path].name)

    def mkdir(self, path: str) -> None:
        self.before_mkdir(path)
        if path in self.members:
            return
        if self.read_only:
            raise fail(errno.EACCES, path)
        if path.rpartition("/")[0] not in self.members:
            raise fail(errno.ENOENT, path)
        self.members[path] = set()
        self.populate(path)

    def rmdir(self, path: str) -> None:
        if path not in self.members:
            raise FileNotFoundError(path)
        if self.members[path] or self.children(path):
            raise fail(errno.EBUSY, path)
        del self.members[path]
        self.inodes.pop(path, None)
        self.files = {p: v for p, v in self.files.items() if p.rpartition("/")[0] != path}

    def write_in_fork(self, path: str, value: str) -> int:
        with suppress(OSError):
            self.write(path, value)
        if (pid := os.fork()) == 0:
            os._exit(0)
        pidfd = os.pidfd_open(pid)
        os.waitpid(pid, 0)
        return pidfd

    def use(self, directory: str, *, held: int, cache: int) -> None:
        """Sets how much memory the tasks below the directory use."""
        self.held[directory] = held
        self.files[f"{directory}/{self.usage_file}"] = str(held + cache)

    def reclaim(self, directory: str, goal: int) -> int:
        """Reclaims page cache as far as the goal needs; returns the memory that is in use
        afterwards.
        """
        used = int(self.files[f"{directory}/{self.usage_file}"])
        left = min(used, max(goal, self.held.get(directory, 0)))
        self.files[f"{directory}/{self.usage_file}"] = str(left)
        return left

    def write(self, path: str, value: str) -> None:
        self.before_write(path, value.strip())
        if not self.exists(path.rpartition("/")[0]):
            raise FileNotFoundError(path)
        if path not in self.files and not path.endswith(self.lists):
            raise fail(errno.ENOENT, path)
        if path not in self.ignore_writes:
            self.accept(path, value.strip())

    def write_each(self, path: str, values: Iterable[str]) -> None:
        for value in values:
            self.write(path, value)

    def filter_devices(self, path: str, program: bytes) -> None:
        if self.filter_error or path not in self.members:
            raise fail(self.filter_error or errno.ENOENT, path)
        self.programs[path] = program

    def kill(self, pid: int, signum: int) -> None:
        self.signals.append((pid, signum))
        if signum == signal.SIGKILL:
            self.on_kill(pid)
            for members in self.members.values():
                members.discard(pid)

    def move(self, pid: int, directory: str, hierarchy: str) -> None:
        for path, members in self.members.items():
            if path.startswith(hierarchy):
                members.discard(pid)
        self.members[directory].add(pid)

    def populate(self, path: str) -> None:
        raise NotImplementedError

    def accept(self, path: str, value: str) -> None:
        raise NotImplementedError


class FakeV2(FakeKernel):
    """One tree. The helper runs in `own` (a group below the root), which was delegated with
    `controllers`.
    """

    usage_file = "memory.current"

    def __init__(
        self,
        own: str = "/user.scope",
        controllers: str = "cpu cpuset memory pids",
        kill: bool = True,
    ) -> None:
        super().__init__()
        self.has_kill = kill
        self.root = "/sys/fs/cgroup"
        self.files["/proc/self/cgroup"] = f"0::{own}"
        self.files["/proc/self/mountinfo"] = f"30 1 0:26 / {self.root} rw - cgroup2 cgroup2 rw"
        self.members[self.root] = set()
        self.files[f"{self.root}/cgroup.controllers"] = controllers
        self.files[f"{self.root}/cgroup.subtree_control"] = controllers
        self.files[f"{self.root}/cpuset.cpus.effective"] = "0-3"
        self.files[f"{self.root}/cpuset.mems.effective"] = "0"
        self.own = self.root + own.rstrip("/")
        if self.own != self.root:
            self.mkdir(self.own)
        self.members[self.own].add(self.me)

    def populate(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        new = {"cgroup.subtree_control": "", "cgroup.type": "domain", "cgroup.freeze": "0"}
        new |= {"cpu.stat": "usage_usec 2500\nuser_usec 2000"}
        if self.has_kill:
            new["cgroup.kill"] = ""
        for name, content in new.items():
            self.files[f"{path}/{name}"] = content
        self.files[f"{path}/cgroup.controllers"] = ""
        for controller in self.files[f"{parent}/cgroup.subtree_control"].split():
            self.give(path, controller)

    def give(self, path: str, controller: str) -> None:
        has = self.files[f"{path}/cgroup.controllers"].split()
        self.files[f"{path}/cgroup.controllers"] = " ".join(sorted({*has, controller}))
        memory = {"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0"}
        memory |= {"memory.high": "max"}
        memory |= {"memory.current": "4096", "memory.peak": "8192"}
        memory |= {"memory.events": "oom 0\noom_kill 0", "memory.stat": "anon 4096\nfile 0"}
        parent = path.rpartition("/")[0]
        effective = {
            f"cpuset.{what}.effective": self.files.get(f"{parent}/cpuset.{what}.effective", "")
            for what in ("cpus", "mems")
        }
        files = {
            "cpu": {"cpu.max": "max 100000", "cpu.weight": "100"},
            "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""} | effective,
            "memory": memory,
            "pids": {"pids.max": "max"},
            "hugetlb": {"hugetlb.2MB.max": "max", "hugetlb.1GB.max": "max"},
            "dmem": {"dmem.max": "drm/0000:03:00.0/vram max"},
        }[controller]
        for name, content in files.items():
            self.files.setdefault(f"{path}/{name}", content)

    def accept(self, path: str, value: str) -> None:
        directory, _, name = path.rpartition("/")
        if name == "cgroup.procs":
            if self.files[f"{directory}/cgroup.subtree_control"] and directory != self.root:
                raise fail(errno.EBUSY, path)
            return self.move(int(value) or self.me, directory, self.root)
        if name == "cgroup.subtree_control":
            return self.enable(directory, value.removeprefix("+"))
        if name == "cgroup.kill":
            for group in self.members:
                if f"{group}/".startswith(f"{directory}/"):
                    self.members[group].clear()
            return None
        if name in ("cpuset.cpus", "cpuset.mems"):
            whole = self.files[f"{directory.rpartition('/')[0]}/{name}.effective"]
            inside = expand(value) & expand(whole)
            self.files[f"{path}.effective"] = ",".join(map(str, sorted(inside))) or whole
        if name in ("memory.max", "memory.high") and value != "max":
            value = str(int(value) // 4096 * 4096)
            if self.reclaim(directory, int(value)) > int(value) and name == "memory.max":
                self.killed.append(directory)
        self.files[path] = value
        return None

    def enable(self, directory: str, controller: str) -> None:
        if self.members[directory] and directory != self.root:
            raise fail(errno.EBUSY, f"{directory}/cgroup.subtree_control")
        if controller not in self.files[f"{directory}/cgroup.controllers"].split():
            raise fail(errno.ENOENT, f"{directory}/cgroup.subtree_control")
        on = self.files[f"{directory}/cgroup.subtree_control"].split()
        self.files[f"{directory}/cgroup.subtree_control"] = " ".join(sorted({*on, controller}))
        for child in self.children(directory):
            self.give(child, controller)


class FakeV1(FakeKernel):
    """Hierarchies below /sys/fs/cgroup; some are co-mounted ("cpu,cpuacct"). In each, the helper
    runs in the group `own`.
    """

    usage_file = "memory.usage_in_bytes"
    lists = ("/cgroup.procs", "/tasks")

    def __init__(self, hierarchies: tuple[str, ...], own: str = "/box") -> None:
        super().__init__()
        lines, mounts = [], []
        for number, controllers in enumerate(hierarchies, 1):
            top = f"/sys/fs/cgroup/{controllers}"
            lines.append(f"{number}:{controllers}:{own}")
            mounts.append(
                f"{number} 1 0:{number} / {top} rw shared:9 - cgroup cgroup rw,{controllers}"
            )
            self.members[top] = set()
            self.populate(top)
            for name, whole in (("cpus", "0-3"), ("mems", "0")):
                if f"{top}/cpuset.{name}" in self.files:
                    self.files[f"{top}/cpuset.{name}"] = whole
            self.mkdir(top + own)
            for name, whole in (("cpus", "0-3"), ("mems", "0")):
                if f"{top}{own}/cpuset.{name}" in self.files:
                    self.files[f"{top}{own}/cpuset.{name}"] = whole
        self.files["/proc/self/cgroup"] = "\n".join(lines)
        self.files["/proc/self/mountinfo"] = "\n".join(mounts)

    def populate(self, path: str) -> None:
        above = self.files.get(f"{path.rpartition('/')[0]}/devices.list", "a *:* rwm")
        known = {
            "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1", "cpu.shares": "1024"},
            "cpuacct": {"cpuacct.usage": "2500000"},
            "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
            "memory": {
                "memory.limit_in_bytes": str(1 << 62),
                "memory.memsw.limit_in_bytes": str(1 << 62),
                "memory.usage_in_bytes": "4096",
                "memory.max_usage_in_bytes": "8192",
                "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
            },
            "freezer": {"freezer.state": "THAWED"},
            "pids": {"pids.max": "max"},
            "devices": {"devices.allow": "", "devices.deny": "", "devices.list": above},
            "hugetlb": {f"hugetlb.{size}.limit_in_bytes": str(1 << 62) for size in ("2MB", "1GB")},
        }
        for controller in path.split("/")[4].split(","):
            for name, content in known.get(controller, {}).items():
                self.files[f"{path}/{name}"] = content

    def accept(self, path: str, value: str) -> None:
        directory, _, name = path.rpartition("/")
        parent = directory.rpartition("/")[0]
        if name in ("cgroup.procs", "tasks"):
            if self.files.get(f"{directory}/cpuset.cpus") == "":
                raise fail(errno.ENOSPC, path)
            hierarchy = "/".join(path.split("/")[:5])
            return self.move(int(value) or self.me, directory, f"{hierarchy}/")
        if name in ("cpuset.cpus", "cpuset.mems"):
            if not expand(value) <= expand(self.files[f"{parent}/{name}"]):
                raise fail(errno.EACCES, path)
            if any(
                not expand(self.files[f"{c}/{name}"]) <= expand(value)
                for c in self.children(directory)
            ):
                raise fail(errno.EBUSY, path)
        if name == "cpu.cfs_quota_us":
            above = int(self.files.get(f"{parent}/{name}", "-1"))
            if 0 < above < int(value):
                raise fail(errno.EINVAL, path)
        if name in ("devices.allow", "devices.deny"):
            return self.list_device(f"{directory}/devices.list", value, name.endswith("allow"))
        limits = {n: int(self.files.get(f"{directory}/{n}", 0)) for n in _LIMIT_FILES} | {
            name: value
        }
        if name in _LIMIT_FILES and int(limits[_LIMIT_FILES[1]]) < int(limits[_LIMIT_FILES[0]]):
            raise fail(errno.EINVAL, path)
        if name in _LIMIT_FILES and self.reclaim(directory, int(value)) > int(value):
            raise fail(errno.EBUSY, path)
        self.files[path] = value
        return None

    def list_device(self, path: str, value: str, allow: bool) -> None:
        """Changes the device list of a group whose parent allows all devices."""
        listed = self.files[path].splitlines()
        if value == "a":
            self.files[path] = "a *:* rwm" if allow else ""
        elif listed != ["a *:* rwm"]:  # the kernel does not list exceptions
            left = [each for each in listed if each != value]
            self.files[path] = "\n".join([*left, value] if allow else left)


_LIMIT_FILES = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
