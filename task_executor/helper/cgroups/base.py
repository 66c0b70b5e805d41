"""Base of the cgroup drivers: creates, enters, empties and removes groups.

A slot is a group, a task is a child of it, and shims are in a leaf beside the slots. A group is a
mapping from controller (v2: "unified") to directory. The files of limits differ (v1, v2).
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

from task_executor.helper.cgroups.devices import attach
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
LEAF = "finegrain-daemon"  # v2: processes of a group that becomes an inner node move there


class InUse(Fault):
    """Another helper uses the groups of our executor_id."""


class Kernel:
    """All access to cgroup files and signals, so that tests can replace the kernel."""

    def read(self, path: str) -> str:
        return Path(path).read_text().strip()

    def write(self, path: str, value: str) -> None:
        with open(path, "w") as file:  # a zero-byte write would silently do nothing
            file.write(value or "\n")

    def write_each(self, path: str, values: Iterable[str]) -> None:
        with open(path, "wb", buffering=0) as file:
            file.writelines(value.encode() for value in values)  # one call of the kernel each

    def filter_devices(self, path: str, program: bytes) -> None:
        attach(path, program)

    def write_in_fork(self, path: str, value: str) -> int:
        """Writes in a new process, which ends when this one does. Returns a pidfd of it."""
        me = os.getpid()

        def work() -> None:
            end_with_parent(me)
            self.write(path, value)

        return os.pidfd_open(run_in_fork(work))

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def is_delegated(self, path: str) -> bool:
        """True if systemd has marked this group as delegated: it does not change what is inside."""
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
        """Returns a descriptor that locks a group until it is closed.

        Raises BlockingIOError if another process has the lock, FileNotFoundError if the group was
        removed meanwhile.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may remove the directory and make it again between open and flock.
            # The lock would then be on a directory that no helper finds.
            if os.fstat(fd).st_ino != Path(path).stat().st_ino:
                raise FileNotFoundError(path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def lock_owner(self, path: str) -> str:
        """Describes the process that has locked a group.

        A helper's command contains its state directory.
        """
        try:
            at = Path(path).stat()
            place = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
            locks = map(str.split, self.read("/proc/locks").splitlines())
            # A line of /proc/locks, for example: 1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF
            pid = next(lock[4] for lock in locks if lock[1] == "FLOCK" and lock[5] == place)
            state = re.search(r'"state_dir": "([^"]*)"', self.read(f"/proc/{pid}/cmdline"))
        except (OSError, StopIteration):
            return "another process"
        return f"pid {pid}" + (f" with state directory {state[1]}" if state else "")


def quota_us(limits: dict[str, Any]) -> int:
    """Returns CPU microseconds per period of 100 ms: 50,000 for 500 milli; -1 without a cap."""
    milli = limits["cpu_limit_milli"] or limits["cpu_milli"]
    return -1 if milli < 0 else int(milli) * PERIOD_US // 1000


class Driver:
    """Base of the drivers; by itself the driver without cgroups ("none").

    Without cgroups the processes of a task are the descendants of its shim.
    """

    name = "none"
    accounting: tuple[str, ...] = ()  # controllers in which a task has a separate group
    counted: ClassVar[Counted] = {}  # name -> controller, file, key in the file
    reclaim_files = ("", "", "")  # controller, file to lower to make room, file of the limit
    unthrottled: tuple[tuple[str, str, str], ...] = ()  # controller, file, usual value
    usage_files: tuple[str, ...] = ()  # files of the use that the limit applies to
    usage_reads = 1  # how often they are read before the use counts as too high

    def __init__(self, kernel: Kernel, base: Group, reason: str = "", fix: str = "") -> None:
        self.kernel, self.base, self.reason, self.fix = kernel, base, reason, fix
        self.devices_problem = f"{reason}; {fix}"  # why no device file can be closed; "": it can
        self.lock_fds: list[int] = []
        self.unit: Group = {}  # v1: groups that tell systemd which unit a process belongs to

    def report(self) -> dict[str, str]:
        """Returns what is enforced, per dimension."""
        names, kill = self.enforced()
        words = {"cpu": "quota", "cpuset": "cgroup", "memory": "hard", "pids": "hard"}
        found = {name: word if name in names else "none" for name, word in words.items()}
        if found["cpuset"] == "none":
            found["cpuset"] = "affinity"
        found["hugepages"] = "hard" if "hugetlb" in names else "none"
        return found | {"kill": kill, "driver": self.name, "reason": self.reason, "fix": self.fix}

    def enforced(self) -> tuple[list[str], str]:
        """Returns the controllers that limit, and how a group is killed."""
        return [], "process tree"

    def prepare(self) -> None:
        """Makes the base and locks it, then makes `shims` and `slots`.

        Raises OSError or Fault if this place cannot be used, InUse if another helper uses it.
        """
        # The parent exists before the base, because a cgroup cannot be made together with its
        # parents.
        self.make({name: path.rpartition("/")[0] for name, path in self.base.items()})
        self.make(self.base)
        # On v1 several controllers may share one hierarchy, so the same directory can occur twice.
        for path in dict.fromkeys(self.base.values()):
            try:
                self.lock_fds.append(self.kernel.lock(path))
            except BlockingIOError:
                raise _in_use(path, self.kernel.lock_owner(path)) from None
        # Only now: another helper may have its slots in a base that is not locked yet.
        for part in ("/shims", "/slots"):
            self.make({name: path + part for name, path in self.base.items()})
        self.devices_problem = self.probe_devices()

    def probe_devices(self) -> str:
        """Returns why tasks cannot be kept from device files here, and the fix; "" if they can."""
        return self.devices_problem

    def unlock(self) -> None:
        while self.lock_fds:
            os.close(self.lock_fds.pop())

    def remove_base(self) -> bool:
        """Removes an unlocked base, unless another helper has it by now.

        True while it is not empty.
        """
        left = False
        for base in dict.fromkeys(self.base.values()):
            with suppress(OSError):
                # This fails if a new helper has locked the base meanwhile: the base is then in use
                # again.
                fd = self.kernel.lock(base)
                left |= self._remove_tree(base)
                os.close(fd)
            with suppress(OSError):  # other executors of this host may use it
                self.kernel.rmdir(base.rpartition("/")[0])
        return left

    def shims(self) -> Group:
        """Returns the group of shims.

        Its unit (v1) tells systemd that shims and tasks are not part of our service.
        """
        return {name: f"{path}/shims" for name, path in self.base.items()} | self.unit

    def slot(self, name: str) -> Group:
        return {controller: f"{path}/slots/{name}" for controller, path in self.base.items()}

    def task(self, slot: Group, task_id: str) -> Group:
        """Returns the groups that a task has for itself, below the slot's.

        In other hierarchies it is a member of the slot's group.
        """
        bases = {self.base[name] for name in self.accounting if name in self.base}
        return {c: f"{path}/task-{task_id}" for c, path in slot.items() if self.base[c] in bases}

    def make(self, group: Group) -> None:
        for path in dict.fromkeys(group.values()):
            self.kernel.mkdir(path)
            self.initialize_group(path)

    def initialize_group(self, path: str) -> None:
        """Makes a new group usable: v1 fills its cpuset, v2 enables the children's controllers."""

    def enter(self, group: Group) -> None:
        """Moves the calling process, with one write per hierarchy."""
        for path in dict.fromkeys(group.values()):
            self.kernel.write(f"{path}/cgroup.procs", "0")

    def apply(self, group: Group, limits: dict[str, Any]) -> None:
        """Writes the limits, memory last, and reads each back.

        Raises CARVE_FAILED for one that was not accepted.
        """

    def limit_memory(self, group: Group, memory_bytes: int) -> None:
        """Limits the memory of a task within its slot; reads the limit back.

        Raises CARVE_FAILED, or BELOW_USE if the task uses more.
        """

    def limit_devices(self, group: Group, limits: dict[str, Any]) -> None:
        """Closes the device files that `limits` name (a part of `apply`). Raises CARVE_FAILED."""

    def limit_hugepages(self, directory: str, file: str, limits: dict[str, Any]) -> None:
        """Limits every page size of this kernel; a size that the slot was not given is 0."""
        given = limits.get("hugepages") or {}
        for size in _PAGE_SIZES:
            if self.kernel.exists(path := f"{directory}/hugetlb.{size}.{file}"):
                self.put(path, str(given.get(size, 0)))

    def unthrottle(self, group: Group) -> None:
        """Resets the CPU weight and quota of a slot that will be killed to their defaults.

        A process needs CPU time to freeze and to exit, and more of it the more memory it has. A
        slot of the lowest weight would need minutes for this while other slots are busy.
        """
        for controller, file, value in self.unthrottled:
            with suppress(Fault, OSError, KeyError):
                self.put(f"{group[controller]}/{file}", value)

    def bind(self, group: Group, cpus: str, mems: str) -> None:
        """Sets cpus and memory nodes (a part of `apply`); one write moves all processes."""

    def bind_shims(self, dedicated: set[int]) -> None:
        """Binds shims to cpus outside `dedicated`, or to all cpus if no other is left.

        Without cgroups they run where their slot does.
        """

    def bind_tasks(self, group: Group, shims: Iterable[int], cpus: str) -> None:
        """Without cgroups: sets the affinity of all threads of a slot, shims first.

        Forks inherit it, so after a few scans no thread is missed, even of a fork bomb.
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
        """Makes the kernel reclaim memory before the limit shrinks, so that no task is killed.

        Afterwards it checks that the memory in use fits, and raises BELOW_USE if not. Reclaiming
        may take long (a slow disk), so it runs in a fork. `apply` with any limits undoes the
        changes of this function.
        """
        controller, file, limit = self.reclaim_files
        now = self.count(group, controller, limit)  # None: "max"
        # A limit that does not shrink needs no room.
        if controller not in group or (now is not None and memory_bytes >= now):
            return
        # This write reclaims memory and kills no process: v2 only throttles at this file, v1
        # rejects a limit that does not fit.
        dropping = self.kernel.write_in_fork(f"{group[controller]}/{file}", str(memory_bytes))
        yield dropping, _RECLAIM_S
        # Reclaiming ends here even if it is incomplete. The memory in use then decides.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(dropping, signal.SIGKILL)
        yield dropping, _RECLAIM_S  # after this it writes nothing
        os.close(dropping)
        for _scan in range(self.usage_reads - 1):
            if self.used(group) <= memory_bytes:
                return
            yield _USAGE_READ_INTERVAL_S
        self.refuse_below_use(group, memory_bytes)

    def used(self, group: Group) -> int:
        """Returns the memory as the limit counts it."""
        return max(self.count(group, self.reclaim_files[0], file) or 0 for file in self.usage_files)

    def refuse_below_use(self, group: Group, memory_bytes: int) -> None:
        """Raises BELOW_USE if the group uses more than this limit."""
        if (used := self.used(group)) > memory_bytes:
            message = f"{used} bytes of memory are in use, above the new limit of {memory_bytes}"
            hint = "let tasks free memory, or request more"
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
        """Returns those counters of a group that the kernel has.

        They are some of memory_current_bytes, memory_peak_bytes, cpu_usec, pids, oom_kills.
        """
        values = {name: self.count(group, *where) for name, where in self.counted.items()}
        found = {name: value for name, value in values.items() if value is not None}
        if "cpu_nsec" in found:
            found["cpu_usec"] = found.pop("cpu_nsec") // 1000
        return found

    def count(self, group: Group, controller: str, file: str, key: str = "") -> int | None:
        """Returns a number of a file, or of its line that begins with key; None if missing."""
        if controller not in group:
            return None
        try:
            text = self.kernel.read(f"{group[controller]}/{file}")
            found = dict(line.rpartition(" ")[::2] for line in text.splitlines())
            return int(found[key])
        except (OSError, KeyError, ValueError):
            return None

    def pids(self, group: Group, shims: Iterable[int]) -> set[int]:  # noqa: ARG002
        """Returns the live processes of a group and its children.

        Without cgroups, the descendants of the shims.
        """
        return descendants(shims)

    def ask_to_end(self, group: Group, shims: Iterable[int]) -> None:
        """Sends SIGTERM to every process of a group."""
        # A shell (the older pid) before its child: else the shell runs its next command.
        for pid in sorted(self.pids(group, shims)):
            self.signal(pid, signal.SIGTERM)

    def kill(self, group: Group, shims: Iterable[int] = ()) -> Job:
        """A job that ends when no process of the group is left.

        It repeats, because a fork may escape one pass.
        """
        shims = list(shims)
        while pids := self.pids(group, shims):
            for pid in pids:
                self.signal(pid, signal.SIGSTOP)  # so that a known process cannot fork
            # Listed again, because a process may have forked before it was stopped.
            for pid in self.pids(group, shims) | pids:
                self.signal(pid, signal.SIGKILL)
            yield 0.005

    def thaw(self, group: Group) -> None:
        """Undoes a freeze that a killed helper may have left behind."""

    def signal(self, pid: int, signum: int) -> None:
        try:
            self.kernel.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            pass  # ended, or another user's; the caller checks whether it is left

    def remove(self, group: Group) -> Job:
        """A job that removes empty groups and their children.

        It retries while they are busy. Missing ones are fine.
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
    """A driver with cgroups: members of a group are read from its files."""

    cpuset: tuple[str, str]  # controller, and the file with the cpus of a group

    def bind_shims(self, dedicated: set[int]) -> None:
        controller, here = self.cpuset
        path = f"{(base := self.base.get(controller, ''))}/shims/cpuset.cpus"
        if base and self.kernel.exists(path):
            whole = expand(self.kernel.read(f"{base}/{here}"))
            # All cpus are dedicated: shims then run beside tasks, because they must run somewhere.
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
        # A process of another pid namespace is listed as 0. No signal can be sent to it.
        return found - {0}


def _in_use(base: str, owner: str) -> InUse:
    name = base.rpartition("/")[2]
    message = f"executor_id {name} is in use on this host, by {owner}"
    hint = "stop that executor, or name this one differently with --executor-id"
    return InUse("CONFIGURATION", f"{message}; {hint}", executor_id=name, holder=owner)


def _same(wrote: str, read: str) -> bool:
    # The kernel writes lists in its own form: 0,1 reads back as 0-1.
    if _CPU_LIST.fullmatch(wrote) and _CPU_LIST.fullmatch(read):
        return expand(wrote) == expand(read)
    return wrote.split() == read.split()
