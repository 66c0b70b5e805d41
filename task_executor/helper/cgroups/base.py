"""Creates, enters, empties and removes groups, as the base of the cgroup drivers.

A slot is a group, and each task of the slot is a child group. Supervisors are in a separate leaf
group. In this code, a group is a mapping from a controller (v2: "unified") to a directory. The
limits are in different files in v1 and v2, so each version has its own driver class.
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
_READ_BYTES, _SHORT_BYTES = 1 << 16, 1 << 10
_RECLAIM_S = 5.0
_USAGE_READ_INTERVAL_S = 0.02
_PAGE_SIZES = ("64KB", "512KB", *(f"{n}MB" for n in (1, 2, 16, 32, 256, 512)), "1GB", "2GB", "16GB")
_THREAD_SCANS = 5
LEAF = "finegrain-daemon"  # v2: if a group becomes an inner node, its processes move to this leaf


class InUse(Fault):
    """Another helper uses the groups of this executor_id."""


class Kernel:
    """All access to cgroup files and signals. So tests can replace the kernel."""

    def read(self, path: str) -> str:
        # Without a file object, a read needs only a third of the system calls.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _content(fd, path)
        finally:
            os.close(fd)

    def write(self, path: str, value: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode() or b"\n")  # a write of zero bytes would have no effect
        finally:
            os.close(fd)

    def write_and_read(self, path: str, value: str) -> str:
        """Writes a value. Returns the value that the file then has, because the kernel can change
        the value.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode() or b"\n")
            os.lseek(fd, 0, os.SEEK_SET)
            return _content(fd, path)
        finally:
            os.close(fd)

    def write_each(self, path: str, values: Iterable[str]) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for value in values:
                os.write(fd, value.encode())
        finally:
            os.close(fd)

    def filter_devices(self, path: str, program: bytes) -> None:
        attach(path, program)

    def write_in_fork(self, path: str, value: str) -> int:
        """Writes in a new process, and returns a pidfd of the new process. If the helper ends, the
        kernel kills the new process.
        """
        me = os.getpid()

        def work() -> None:
            end_with_parent(me)
            self.write(path, value)

        return os.pidfd_open(run_in_fork(work))

    def exists(self, path: str) -> bool:
        return os.access(path, os.F_OK)

    def is_delegated(self, path: str) -> bool:
        """Returns True if systemd has marked this group as delegated. systemd does not change the
        content of such a group.
        """
        try:
            return os.getxattr(path, "user.delegate") == b"1"
        except OSError:
            return False

    def mkdir(self, path: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(path)  # noqa: PTH102

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def rename(self, path: str, new: str) -> None:
        os.rename(path, new)  # noqa: PTH104

    def children(self, path: str) -> list[str]:
        return [entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]

    def kill(self, pid: int, signum: int) -> None:
        os.kill(pid, signum)

    def lock(self, path: str) -> int:
        """Locks a group, and returns a descriptor. The lock is released when the descriptor is
        closed.

        Raises:
            BlockingIOError: another process has the lock.
            FileNotFoundError: another process removed the group at the same moment.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and flock, another process can remove the directory and make it again.
            # The lock would then be on the old directory, which other helpers do not see.
            if os.fstat(fd).st_ino != Path(path).stat().st_ino:
                raise FileNotFoundError(path)
        except OSError:
            os.close(fd)
            raise
        return fd

    def lock_owner(self, path: str) -> str:
        """Describes the process that has locked a group. The description contains its pid and its
        state directory.
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


def _content(fd: int, path: str) -> str:
    text = os.read(fd, _READ_BYTES)
    # The kernel returns long files in parts of nearly a page. In the files of groups, a line has
    # few bytes, so a short part is the last part.
    if len(text) >= _SHORT_BYTES or "/proc/" in path:
        while part := os.read(fd, _READ_BYTES):
            text += part
    return text.decode().strip()


def quota_us(limits: dict[str, Any]) -> int:
    """Returns the CPU microseconds per period of 100 ms; -1 if the CPU time is not limited.

    Example: 500 thousandths of a cpu give 50,000 microseconds.
    """
    milli = limits["cpu_limit_milli"] or limits["cpu_milli"]
    return -1 if milli < 0 else int(milli) * PERIOD_US // 1000


class Driver:
    """Base class of the drivers, and the driver for hosts without cgroups ("none").

    Without cgroups, the processes of a task are the descendants of its supervisor.
    """

    name = "none"
    accounting: tuple[str, ...] = ()  # controllers in which each task has a separate group
    counted: ClassVar[Counted] = {}  # name of a counter -> controller, file, key in the file
    # Controller, file that makes the kernel reclaim memory, file of the limit.
    reclaim_files = ("", "", "")
    # Tuples of controller, file and default value.
    unthrottled: tuple[tuple[str, str, str], ...] = ()
    usage_files: tuple[str, ...] = ()  # files with the memory use that the limit applies to
    # Number of readings of the memory use, after which a limit is refused as too low.
    usage_reads = 1

    def __init__(self, kernel: Kernel, base: Group, reason: str = "", fix: str = "") -> None:
        self.kernel, self.base, self.reason, self.fix = kernel, base, reason, fix
        self.devices_problem = f"{reason}; {fix}"  # empty if device files can be closed
        self.lock_fds: list[int] = []
        self.unit: Group = {}  # v1: groups by which systemd knows the unit of a process

    def report(self) -> dict[str, str]:
        """Returns how each dimension is enforced."""
        names, kill = self.enforced()
        words = {"cpu": "quota", "cpuset": "cgroup", "memory": "hard", "pids": "hard"}
        found = {name: word if name in names else "none" for name, word in words.items()}
        if found["cpuset"] == "none":
            found["cpuset"] = "affinity"
        found["hugepages"] = "hard" if "hugetlb" in names else "none"
        return found | {"kill": kill, "driver": self.name, "reason": self.reason, "fix": self.fix}

    def enforced(self) -> tuple[list[str], str]:
        """Returns the controllers that enforce limits, and the way in which a group is killed."""
        return [], "process tree"

    def prepare(self) -> None:
        """Makes and locks the base group, then makes the groups `shims` and `slots` in it.

        Raises:
            OSError, Fault: the base cannot be made in this place.
            InUse: another helper uses the base.
        """
        # Make the parent first, because the kernel does not make the parents of a group.
        self.make({name: path.rpartition("/")[0] for name, path in self.base.items()})
        self.make(self.base)
        # On v1 several controllers can share one hierarchy, so a directory can occur twice.
        for path in dict.fromkeys(self.base.values()):
            try:
                self.lock_fds.append(self.kernel.lock(path))
            except BlockingIOError:
                raise _in_use(path, self.kernel.lock_owner(path)) from None
        # Make these groups only after the base is locked: before, another helper can use the base.
        for part in ("/shims", "/slots"):
            self.make({name: path + part for name, path in self.base.items()})
        self.devices_problem = self.probe_devices()

    def probe_devices(self) -> str:
        """Returns the reason why device files cannot be closed to tasks, and what to do; empty if
        they can be closed.
        """
        return self.devices_problem

    def unlock(self) -> None:
        while self.lock_fds:
            os.close(self.lock_fds.pop())

    def remove_base(self) -> bool:
        """Removes the base, unless another helper now uses it. The caller must not hold the lock of
        the base.

        Returns:
            True if the base is not empty. The caller should then try again.
        """
        left = False
        for base in dict.fromkeys(self.base.values()):
            with suppress(OSError):
                # If a new helper uses the base again, the new helper has the lock, and this call
                # fails.
                fd = self.kernel.lock(base)
                left |= self._remove_tree(base)
                os.close(fd)
            with suppress(OSError):  # other executors of this host possibly use the parent
                self.kernel.rmdir(base.rpartition("/")[0])
        return left

    def supervisors(self) -> Group:
        """Returns the group of supervisors.

        On v1 the result includes groups outside the executor's service. So systemd does not count
        supervisors and tasks as processes of the service.
        """
        return {name: f"{path}/shims" for name, path in self.base.items()} | self.unit

    def slot(self, name: str) -> Group:
        return {controller: f"{path}/slots/{name}" for controller, path in self.base.items()}

    def task(self, slot: Group, task_id: str) -> Group:
        """Returns the separate groups of a task, below the slot's groups.

        In other hierarchies, the task is a member of the slot's group.
        """
        bases = {self.base[name] for name in self.accounting if name in self.base}
        return {c: f"{path}/task-{task_id}" for c, path in slot.items() if self.base[c] in bases}

    def make(self, group: Group) -> None:
        for path in dict.fromkeys(group.values()):
            self.kernel.mkdir(path)
            self.initialize_group(path, [name for name, at in group.items() if at == path])

    def initialize_group(self, path: str, controllers: Iterable[str]) -> None:
        """Initializes a new group: v1 fills its cpuset, v2 enables controllers for its children.

        Args:
            path: the directory of the group.
            controllers: the controllers of the hierarchy.
        """

    def reuse(self, ended: Group, group: Group) -> bool:
        """Makes the group of an ended task the group of a new task, and resets its counters.

        Returns:
            True if the group is ready. False if the driver does not support reuse, or the reuse has
            failed. The caller must then make the group.
        """
        del ended, group
        return False

    def is_reusable(self, group: Group, counters: Mapping[str, int]) -> bool:
        """Returns True if another task can use the group of an ended task like a new group.

        Args:
            group: the group.
            counters: the counters of the group after the end of the task.
        """
        del group, counters
        return False

    def enter(self, group: Group) -> None:
        """Moves the calling process, which has one thread, into the group."""
        for path in self.entrances(group):
            self.kernel.write(path, "0")

    def entrances(self, group: Group) -> list[str]:
        """Returns the files of a group, one for each hierarchy, to which a process with one thread
        writes "0" to enter the group.
        """
        return [f"{path}/cgroup.procs" for path in dict.fromkeys(group.values())]

    def apply(self, group: Group, limits: dict[str, Any]) -> None:
        """Writes the limits, the memory limit last, and reads each limit back.

        Raises:
            Fault: CARVE_FAILED. The kernel did not accept a limit.
        """

    def limit_memory(self, group: Group, memory_bytes: int) -> None:
        """Limits the memory of a slot or a task, and reads the limit back.

        Raises:
            Fault: CARVE_FAILED (the kernel did not accept the limit) or BELOW_USE (more memory is
                in use).
        """

    def limit_devices(self, group: Group, limits: dict[str, Any]) -> None:
        """Closes the device files that `limits` name. `apply` calls this.

        Raises:
            Fault: CARVE_FAILED. The kernel did not accept the rules.
        """

    def limit_hugepages(self, directory: str, file: str, limits: dict[str, Any]) -> None:
        """Limits all sizes of huge pages. For a size that the slot does not have, the limit is
        0.
        """
        given = limits.get("hugepages") or {}
        for size in _PAGE_SIZES:
            if self.kernel.exists(path := f"{directory}/hugetlb.{size}.{file}"):
                self.put(path, str(given.get(size, 0)))

    def unthrottle(self, group: Group) -> None:
        """Resets the CPU weight and quota of a slot to their defaults before its processes are
        killed.

        A process needs CPU time to freeze and to exit, above all a process with much memory. While
        other slots are busy, a slot with the lowest weight would need minutes.
        """
        for controller, file, value in self.unthrottled:
            with suppress(Fault, OSError, KeyError):
                self.put(f"{group[controller]}/{file}", value)

    def bind(self, group: Group, cpus: str, mems: str) -> None:
        """Sets cpus and memory nodes. `apply` calls this. One write moves all processes."""

    def bind_supervisors(self, dedicated: set[int]) -> None:
        """Binds supervisors to the cpus that are not `dedicated`. If all cpus are dedicated, binds
        supervisors to all cpus.

        Without cgroups, a supervisor runs on the cpus of its slot.
        """

    def bind_tasks(self, group: Group, supervisors: Iterable[int], cpus: str) -> None:
        """Sets the cpu affinity of all threads of a slot, supervisors first, on hosts without
        cgroups.

        New processes inherit the affinity. So after a few scans all threads have the affinity, even
        if a task forks continuously.
        """
        if not (found := set(supervisors)) or self.report()["cpuset"] != "affinity":
            return
        wanted, seen = expand(cpus) or os.sched_getaffinity(0), set[int]()
        for _scan in range(_THREAD_SCANS):
            for thread in found:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, wanted)
            seen |= found
            found = threads(self.pids(group, supervisors)) - seen

    def make_room(self, group: Group, memory_bytes: int) -> Job:
        """Makes the kernel reclaim memory before a limit is lowered. So no task is killed.

        Reclaiming can take long if the disk is slow, so a fork does this work. Then the job checks
        that the memory in use is within the new limit. `apply` undoes the changes of this job.

        Raises:
            Fault: BELOW_USE. More memory is in use than the new limit.
        """
        controller, file, limit = self.reclaim_files
        now = self.count(group, controller, limit)  # None means "max"
        # If the limit is not lowered, no memory must be reclaimed.
        if controller not in group or (now is not None and memory_bytes >= now):
            return
        # This write makes the kernel reclaim memory, but kills no process. In v2, the kernel only
        # throttles a group above this value. In v1, the kernel rejects a limit below the memory in
        # use.
        dropping = self.kernel.write_in_fork(f"{group[controller]}/{file}", str(memory_bytes))
        yield dropping, _RECLAIM_S
        # Stop the reclaiming now, even if it is incomplete, and then check the memory in use.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(dropping, signal.SIGKILL)
        yield dropping, _RECLAIM_S  # wait until the process has ended and cannot write any more
        os.close(dropping)
        for _scan in range(self.usage_reads - 1):
            if self.used(group) <= memory_bytes:
                return
            yield _USAGE_READ_INTERVAL_S
        self.refuse_below_use(group, memory_bytes)

    def used(self, group: Group) -> int:
        """Returns the memory in use. The limit applies to this number of the kernel."""
        return max(self.count(group, self.reclaim_files[0], file) or 0 for file in self.usage_files)

    def refuse_below_use(self, group: Group, memory_bytes: int) -> None:
        """Raises the Fault BELOW_USE if the group uses more memory than `memory_bytes`."""
        if (used := self.used(group)) > memory_bytes:
            message = f"{used} bytes of memory are in use, above the new limit of {memory_bytes}"
            hint = "let tasks free memory, or request more"
            raise Fault("BELOW_USE", f"{message}; {hint}", asked=memory_bytes, used=used)

    def put(self, path: str, value: str) -> None:
        try:
            read = self.kernel.write_and_read(path, value)
            failure = "" if _same(value, read) else f"it reads {read!r}"
        except OSError as error:
            read, failure = "", error.strerror or str(error)
        if failure:
            message = f"{path}: wrote {value!r}, but {failure}"
            raise Fault("CARVE_FAILED", message, file=path, wrote=value, read=read)

    def counters(self, group: Group) -> dict[str, int]:
        """Returns those counters of a group that the kernel has.

        Possible counters are memory_current_bytes, memory_peak_bytes, cpu_usec, pids and oom_kills.
        """
        values = {name: self.count(group, *where) for name, where in self.counted.items()}
        found = {name: value for name, value in values.items() if value is not None}
        if "cpu_nsec" in found:
            found["cpu_usec"] = found.pop("cpu_nsec") // 1000
        return found

    def count(self, group: Group, controller: str, file: str, key: str = "") -> int | None:
        """Returns the number in a file, or in the line of the file that begins with `key`.

        Returns None if the file or the line does not exist, or if the value is "max".
        """
        if controller not in group:
            return None
        try:
            text = self.kernel.read(f"{group[controller]}/{file}")
            if not key:
                return int(text)
            found = dict(line.rpartition(" ")[::2] for line in text.splitlines())
            return int(found[key])
        except (OSError, KeyError, ValueError):
            return None

    def pids(self, group: Group, supervisors: Iterable[int]) -> set[int]:  # noqa: ARG002
        """Returns the live processes of a group and its children.

        Without cgroups, these are the descendants of the supervisors.
        """
        return descendants(supervisors)

    def ask_to_end(self, group: Group, supervisors: Iterable[int]) -> None:
        """Sends SIGTERM to every process of a group."""
        # Signal a shell, which has the lower pid, before its child. Otherwise the shell would start
        # its next command when the child ends.
        for pid in sorted(self.pids(group, supervisors)):
            self.signal(pid, signal.SIGTERM)

    def kill(self, group: Group, supervisors: Iterable[int] = ()) -> Job:
        """Kills all processes of a group. The job ends when no process is left.

        The job repeats the kill, because a process can fork between the listing and the signal.
        """
        supervisors = list(supervisors)
        while pids := self.pids(group, supervisors):
            for pid in pids:
                self.signal(pid, signal.SIGSTOP)  # a stopped process cannot fork
                # List the processes again: a process can fork before it is stopped.
            for pid in self.pids(group, supervisors) | pids:
                self.signal(pid, signal.SIGKILL)
            yield 0.005

    def thaw(self, group: Group) -> None:
        """Thaws a group that an earlier helper has possibly left frozen."""

    def signal(self, pid: int, signum: int) -> None:
        try:
            self.kernel.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            # The process has ended, or belongs to another user; the caller lists the processes
            # again.
            pass

    def remove_unused(self, group: Group) -> bool:
        """Removes groups if they have no process. Returns False if a group is busy."""
        return not any(map(self._remove_tree, dict.fromkeys(group.values())))

    def remove(self, group: Group) -> Job:
        """Removes empty groups and their children, as a job. The job tries again while a group is
        busy. If a group does not exist, this is no error.
        """
        for path in dict.fromkeys(group.values()):
            while self._remove_tree(path):
                yield 0.01

    def _remove_tree(self, path: str) -> bool:
        try:
            try:
                self.kernel.rmdir(path)
            except FileNotFoundError:
                raise
            except OSError:  # the group has children, or is busy
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
    """A driver with cgroups. It reads the processes of a group from the group's files."""

    cpuset: tuple[str, str]  # the controller and the file with the cpus of a group

    def bind_supervisors(self, dedicated: set[int]) -> None:
        controller, here = self.cpuset
        path = f"{(base := self.base.get(controller, ''))}/shims/cpuset.cpus"
        if not base:
            return
        with suppress(FileNotFoundError):  # the group has no such controller
            now = expand(self.kernel.read(path))
            whole = expand(self.kernel.read(f"{base}/{here}"))
            # If all cpus are dedicated, supervisors run on all cpus together with tasks.
            wanted = (whole - dedicated) or whole
            if now != wanted:
                self.put(path, ",".join(map(str, sorted(wanted))))

    def pids(self, group: Group, supervisors: Iterable[int]) -> set[int]:  # noqa: ARG002
        found: set[int] = set()
        paths = list(dict.fromkeys(group.values()))
        while paths:
            path = paths.pop()
            try:
                found.update(int(pid) for pid in self.kernel.read(f"{path}/cgroup.procs").split())
                paths += self.kernel.children(path)
            except OSError:
                continue  # the group was removed during the loop
                # A process of another PID namespace is listed as 0, and cannot receive a signal.
        return found - {0}


def _in_use(base: str, owner: str) -> InUse:
    name = base.rpartition("/")[2]
    message = f"executor_id {name} is already in use on this host, by {owner}"
    hint = "stop that executor, or give this executor another id (--executor-id)"
    return InUse("CONFIGURATION", f"{message}; {hint}", executor_id=name, holder=owner)


def _same(wrote: str, read: str) -> bool:
    # The kernel returns lists in another form: after 0,1 was written, 0-1 is read.
    if _CPU_LIST.fullmatch(wrote) and _CPU_LIST.fullmatch(read):
        return expand(wrote) == expand(read)
    return wrote.split() == read.split()
