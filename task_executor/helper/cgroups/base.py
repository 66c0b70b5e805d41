"""What cgroup v1 and v2 have in common: a slot is a group, a task a child of it, shims a leaf
beside the slots.

Decides how groups are made, entered, emptied and removed. Refuses to know which words limit what
(v1, v2), who may have a slot, and what runs in it. A group is a mapping from controller (v2:
"unified") to directory.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from task_executor.helper.forks import end_with_parent, run_in_fork
from task_executor.helper.loop import Job
from task_executor.helper.processes import descendants, threads
from task_executor.helper.protocol import Fault, expand

Group = dict[str, str]
Counted = Mapping[str, tuple[str, str, str]]
_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
PERIOD_US = 100_000
_RECLAIM_S = 5.0
_USAGE_READ_INTERVAL_S = 0.02
_PAGE_SIZES = ("64KB", "512KB", *(f"{n}MB" for n in (1, 2, 16, 32, 256, 512)), "1GB", "2GB", "16GB")
_THREAD_SCANS = 5
LEAF = "finegrain-daemon"  # on v2 what runs in a group that we split moves there


class InUse(Fault):
    """Another helper holds the groups of our executor_id."""


class Kernel:
    """The only door to cgroup files and signals, so that tests can stand in for the kernel."""

    def read(self, path: str) -> str:
        return Path(path).read_text().strip()

    def write(self, path: str, value: str) -> None:
        with open(path, "w") as file:  # a zero-byte write would be a silent no-op
            file.write(value or "\n")

    def write_in_fork(self, path: str, value: str) -> int:
        """The same in a process of its own, which ends when we do; a pidfd of it."""
        me = os.getpid()

        def work() -> None:
            end_with_parent(me)
            self.write(path, value)

        return os.pidfd_open(run_in_fork(work))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def is_delegated(self, path: str) -> bool:
        """systemd has promised to leave the inside of this group alone."""
        try:
            return os.getxattr(path, "user.delegate") == b"1"
        except OSError:
            return False

    def mkdir(self, path: str) -> None:
        Path(path).mkdir(exist_ok=True)

    def rmdir(self, path: str) -> None:
        Path(path).rmdir()

    def children(self, path: str) -> list[str]:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]

    def kill(self, pid: int, signum: int) -> None:
        os.kill(pid, signum)

    def lock(self, path: str) -> int:
        """A descriptor that locks a group until it is closed.

        Raises BlockingIOError where another has it, FileNotFoundError if it was removed meanwhile.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino != Path(path).stat().st_ino:
                raise FileNotFoundError(path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def lock_owner(self, path: str) -> str:
        """Who has locked a group, in words; another helper's state directory is in its command."""
        try:
            at = Path(path).stat()
            place = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
            locks = map(str.split, self.read("/proc/locks").splitlines())
            pid = next(lock[4] for lock in locks if lock[1] == "FLOCK" and lock[5] == place)
            state = re.search(r'"state_dir": "([^"]*)"', self.read(f"/proc/{pid}/cmdline"))
        except (OSError, StopIteration):
            return "another process"
        return f"pid {pid}" + (f" with state directory {state[1]}" if state else "")


def quota_us(limits: dict[str, Any]) -> int:
    """Microseconds of cpu per period; -1 without a cap."""
    milli = limits["cpu_limit_milli"] or limits["cpu_milli"]
    return -1 if milli < 0 else int(milli) * PERIOD_US // 1000


class Driver:
    """A driver; by itself the one without cgroups ("none"), which knows tasks by descent from
    their shim.
    """

    name = "none"
    accounting: tuple[str, ...] = ()  # controllers in which a task has a group of its own
    counted: ClassVar[Counted] = {}  # name -> controller, file, key in the file
    reclaim_files = ("", "", "")  # controller, the file whose lowering makes room, the limit's own
    unthrottled: tuple[tuple[str, str, str], ...] = ()  # controller, file, what a usual slot has
    usage_files: tuple[str, ...] = ()  # files of what the limit is held against
    usage_reads = 1  # at those, before it is said that they are above

    def __init__(self, kernel: Kernel, base: Group, reason: str = "", fix: str = "") -> None:
        self.kernel, self.base, self.reason, self.fix = kernel, base, reason, fix
        self.lock_fds: list[int] = []
        self.unit: Group = {}  # v1: by which systemd tells to what unit a process belongs

    def report(self) -> dict[str, str]:
        """What is really enforced, per dimension."""
        names, kill = self.enforced()
        words = {"cpu": "quota", "cpuset": "cgroup", "memory": "hard", "pids": "hard"}
        found = {name: word if name in names else "none" for name, word in words.items()}
        if found["cpuset"] == "none":
            found["cpuset"] = "affinity"
        found["hugepages"] = "hard" if "hugetlb" in names else "none"
        return found | {"kill": kill, "driver": self.name, "reason": self.reason, "fix": self.fix}

    def enforced(self) -> tuple[list[str], str]:
        """The controllers that limit, and how a group is killed."""
        return [], "process tree"

    def prepare(self) -> None:
        """Make the base, take hold of it, make `shims` and `slots`. OSError or Fault when this
        place cannot be used, InUse while another helper does.
        """
        self.make({name: path.rpartition("/")[0] for name, path in self.base.items()})
        self.make(self.base)
        for path in dict.fromkeys(self.base.values()):
            try:
                self.lock_fds.append(self.kernel.lock(path))
            except BlockingIOError:
                raise _in_use(path, self.kernel.lock_owner(path)) from None
        for part in ("/shims", "/slots"):
            self.make({name: path + part for name, path in self.base.items()})

    def unlock(self) -> None:
        while self.lock_fds:
            os.close(self.lock_fds.pop())

    def remove_base(self) -> bool:
        """Remove a base of which we have let go, unless it is another's by now. True while
        something is in it.
        """
        left = False
        for base in dict.fromkeys(self.base.values()):
            with suppress(OSError):
                fd = self.kernel.lock(base)
                left |= self._remove_tree(base)
                os.close(fd)
            with suppress(OSError):  # shared with other executors of this host
                self.kernel.rmdir(base.rpartition("/")[0])
        return left

    def shims(self) -> Group:
        """Also what tells systemd that a shim and its task are no part of our service."""
        return {name: f"{path}/shims" for name, path in self.base.items()} | self.unit

    def slot(self, name: str) -> Group:
        return {controller: f"{path}/slots/{name}" for controller, path in self.base.items()}

    def task(self, slot: Group, task_id: str) -> Group:
        """The task's own groups; in the other hierarchies it is a member of the slot's group."""
        bases = {self.base[name] for name in self.accounting if name in self.base}
        return {c: f"{path}/task-{task_id}" for c, path in slot.items() if self.base[c] in bases}

    def make(self, group: Group) -> None:
        for path in dict.fromkeys(group.values()):
            self.kernel.mkdir(path)
            self.initialize_group(path)

    def initialize_group(self, path: str) -> None:
        """Make a new group usable (v1: cpuset filled; v2: controllers on for the children)."""

    def enter(self, group: Group) -> None:
        """Move the calling process. One write per hierarchy."""
        for path in dict.fromkeys(group.values()):
            self.kernel.write(f"{path}/cgroup.procs", "0")

    def apply(self, group: Group, limits: dict[str, Any]) -> None:
        """Write the limits, memory last, and read each back.

        Raises Fault CARVE_FAILED for one that did not stick.
        """

    def limit_hugepages(self, directory: str, file: str, limits: dict[str, Any]) -> None:
        """Of every size that this kernel has: what the slot was not given, it cannot have."""
        given = limits.get("hugepages") or {}
        for size in _PAGE_SIZES:
            if self.kernel.exists(path := f"{directory}/hugetlb.{size}.{file}"):
                self.put(path, str(given.get(size, 0)))

    def unthrottle(self, group: Group) -> None:
        """Give what is to die the time to do so: to freeze and to leave takes some, the more the
        more memory it has, and beside busy slots one of the lowest weight would wait for minutes.
        """
        for controller, file, value in self.unthrottled:
            with suppress(Fault, OSError, KeyError):
                self.put(f"{group[controller]}/{file}", value)

    def bind(self, group: Group, cpus: str, mems: str) -> None:
        """The part of `apply` that says where a slot runs; one write moves all that runs in it."""

    def bind_shims(self, dedicated: set[int]) -> None:
        """Shims run on what is not in `dedicated`, or on all cpus if nothing else is left. Without
        groups they run where their slot does.
        """

    def bind_tasks(self, group: Group, shims: Iterable[int], cpus: str) -> None:
        """Where no group binds them: the affinity of all threads of a slot, shims first. What they
        fork inherits it, so after a few looks there is nothing new without it, not of a fork bomb.
        """
        if not (found := set(shims)) or self.report()["cpuset"] != "affinity":
            return
        wanted, seen = expand(cpus) or os.sched_getaffinity(0), set[int]()
        for _scan in range(_THREAD_SCANS):
            for thread in found:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, wanted)
            seen |= found
            found = threads(self.pids(group, shims)) - seen

    def make_room(self, group: Group, memory_bytes: int) -> Job:
        """Before memory shrinks: the kernel drops what it can, and what is left must fit, so that
        nothing dies of it. Dropping may take long (a slow disk), so others are served meanwhile.

        Raises Fault BELOW_USE. Whatever this has changed, `apply` of any limits puts right.
        """
        controller, file, limit = self.reclaim_files
        now = self.count(group, controller, limit)  # none: "max"
        if controller not in group or (now is not None and memory_bytes >= now):
            return
        dropping = self.kernel.write_in_fork(f"{group[controller]}/{file}", str(memory_bytes))
        yield dropping, _RECLAIM_S
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(dropping, signal.SIGKILL)
        yield dropping, _RECLAIM_S  # it writes nothing after this
        os.close(dropping)
        for _scan in range(self.usage_reads - 1):
            if self.used(group) <= memory_bytes:
                return
            yield _USAGE_READ_INTERVAL_S
        self.refuse_below_use(group, memory_bytes)

    def used(self, group: Group) -> int:
        """Memory as the limit counts it."""
        return max(self.count(group, self.reclaim_files[0], file) or 0 for file in self.usage_files)

    def refuse_below_use(self, group: Group, memory_bytes: int) -> None:
        """Raises Fault BELOW_USE for a limit that the group is above."""
        if (used := self.used(group)) > memory_bytes:
            message = f"{used} bytes of memory are in use, above the new limit of {memory_bytes}"
            hint = "let tasks give some back, or ask for more"
            raise Fault("BELOW_USE", f"{message}; {hint}", asked=memory_bytes, used=used)

    def put(self, path: str, value: str) -> None:
        try:
            self.kernel.write(path, value)
            read = self.kernel.read(path)
            failure = "" if _same(value, read) else f"it reads {read!r}"
        except OSError as error:
            read, failure = "", error.strerror or str(error)
        if failure:
            message = f"{path}: wrote {value!r}, but {failure}"
            raise Fault("CARVE_FAILED", message, file=path, wrote=value, read=read)

    def counters(self, group: Group) -> dict[str, int]:
        """memory_current_bytes, memory_peak_bytes, cpu_usec, pids, oom_kills: those that the
        kernel counts.
        """
        values = {name: self.count(group, *where) for name, where in self.counted.items()}
        found = {name: value for name, value in values.items() if value is not None}
        if "cpu_nsec" in found:
            found["cpu_usec"] = found.pop("cpu_nsec") // 1000
        return found

    def count(self, group: Group, controller: str, file: str, key: str = "") -> int | None:
        """One number of a file, or of the line of it that begins with key.

        None if there is none.
        """
        if controller not in group:
            return None
        try:
            text = self.kernel.read(f"{group[controller]}/{file}")
            found = dict(line.rpartition(" ")[::2] for line in text.splitlines())
            return int(found[key])
        except (OSError, KeyError, ValueError):
            return None

    def pids(self, group: Group, shims: Iterable[int]) -> set[int]:  # noqa: ARG002
        """Live processes of a group and its children; without cgroups the descendants of the
        shims.
        """
        return descendants(shims)

    def ask_to_end(self, group: Group, shims: Iterable[int]) -> None:
        """Sends SIGTERM to every process of a group."""
        # A shell before its child (the older pid): else it goes on to its next command.
        for pid in sorted(self.pids(group, shims)):
            self.signal(pid, signal.SIGTERM)

    def kill(self, group: Group, shims: Iterable[int] = ()) -> Job:
        """A job that ends when nothing of the group lives. Repeats: a fork may win one round."""
        shims = list(shims)
        while pids := self.pids(group, shims):
            for pid in pids:
                self.signal(pid, signal.SIGSTOP)  # so that what has been seen cannot fork any more
            for pid in self.pids(group, shims) | pids:
                self.signal(pid, signal.SIGKILL)
            yield 0.005

    def thaw(self, group: Group) -> None:
        """Undo a freeze that a helper which was killed may have left behind."""

    def signal(self, pid: int, signum: int) -> None:
        try:
            self.kernel.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            pass  # gone, or it became another user: the caller sees whether it is still there

    def remove(self, group: Group) -> Job:
        """A job that removes empty groups and their children; missing ones are fine. Retries
        while busy.
        """
        for path in dict.fromkeys(group.values()):
            while self._remove_tree(path):
                yield 0.01

    def _remove_tree(self, path: str) -> bool:
        try:
            for child in self.kernel.children(path):
                if self._remove_tree(child):
                    return True
            self.kernel.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            return True
        return False


class CgroupDriver(Driver):
    """What needs files: membership."""

    cpuset: tuple[str, str]  # controller, and the file that says which cpus a group has

    def bind_shims(self, dedicated: set[int]) -> None:
        controller, here = self.cpuset
        path = f"{(base := self.base.get(controller, ''))}/shims/cpuset.cpus"
        if base and self.kernel.exists(path):
            whole = expand(self.kernel.read(f"{base}/{here}"))
            wanted = (whole - dedicated) or whole
            if expand(self.kernel.read(path)) != wanted:
                self.put(path, ",".join(map(str, sorted(wanted))))

    def pids(self, group: Group, shims: Iterable[int]) -> set[int]:  # noqa: ARG002
        found: set[int] = set()
        paths = list(dict.fromkeys(group.values()))
        while paths:
            path = paths.pop()
            try:
                found.update(int(pid) for pid in self.kernel.read(f"{path}/cgroup.procs").split())
                paths += self.kernel.children(path)
            except OSError:
                continue  # removed meanwhile
        return found - {0}


def _in_use(base: str, owner: str) -> InUse:
    name = base.rpartition("/")[2]
    message = f"executor_id {name} is in use on this host, by {owner}"
    hint = "stop that executor, or name this one differently with --executor-id"
    return InUse("CONFIGURATION", f"{message}; {hint}", executor_id=name, holder=owner)


def _same(wrote: str, read: str) -> bool:
    if _CPU_LIST.fullmatch(wrote) and _CPU_LIST.fullmatch(read):
        return expand(wrote) == expand(read)
    return wrote.split() == read.split()
