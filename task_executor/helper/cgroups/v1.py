"""Drives cgroup v1, where each controller has a separate directory below the executor's group."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from task_executor.helper.cgroups.base import PERIOD_US, CgroupDriver, Counted, Group, quota_us
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault, expand

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "freezer", "pids", "hugetlb", "devices")
_STRAY_SCANS = 5
_LEFT_BYTES_MAX = 1 << 20  # memory of an ended task that the kernel has not freed yet
_UNLIMITED_BYTES = 1 << 60
_EVERYTHING = "a *:* rwm"  # no device is closed
# Number of major numbers of character devices; number of minor numbers within a major number that
# several drivers share.
_MAJORS, _MINORS = 512, 256
# steps of 5 ms; then stop trying, because a process in D state possibly never freezes
_FREEZE_STEPS = 100


class V1(CgroupDriver):
    name = "v1"
    accounting = ("memory", "cpuacct", "freezer", "pids")
    counted: ClassVar[Counted] = {
        "memory_current_bytes": ("memory", "memory.usage_in_bytes", ""),
        "memory_peak_bytes": ("memory", "memory.max_usage_in_bytes", ""),
        "cpu_nsec": ("cpuacct", "cpuacct.usage", ""),
        "pids": ("pids", "pids.current", ""),
        "oom_kills": ("memory", "memory.oom_control", "oom_kill"),
    }

    cpuset = ("cpuset", "cpuset.cpus")
    reclaim_files = ("memory", "memory.limit_in_bytes", "memory.limit_in_bytes")
    unthrottled = (("cpu", "cpu.shares", "1024"), ("cpu", "cpu.cfs_quota_us", "-1"))
    usage_files = ("memory.usage_in_bytes", "memory.memsw.usage_in_bytes")

    def enforced(self) -> tuple[list[str], str]:
        return list(self.base), "freezer" if "freezer" in self.base else "process tree"

    def entrances(self, group: Group) -> list[str]:
        """Returns the files of a group, one for each hierarchy, to which a process with one thread
        writes "0" to enter the group.

        The file `tasks` moves one thread. In measurements after a pause of 100 ms, a write to
        `cgroup.procs` waited 5 to 13 ms in the kernel, and a write to `tasks` waited 0.2 ms. Only
        v1 has the file `tasks`.
        """
        names = {path: name for name, path in group.items()}
        return [
            f"{path}/{'cgroup.procs' if name == 'unified' else 'tasks'}"
            for path, name in names.items()
        ]

    def initialize_group(self, path: str, controllers: Iterable[str]) -> None:
        """Fills a new cpuset from its parent, because an empty cpuset accepts no process
        (ENOSPC).
        """
        parent = path.rpartition("/")[0]
        # `apply` fills the cpuset of a slot.
        is_filled = "cpuset" not in controllers or parent == f"{self.base['cpuset']}/slots"
        for file in () if is_filled else ("cpuset.cpus", "cpuset.mems"):
            if not self.kernel.read(f"{path}/{file}"):
                # the cpuset of the parent is empty while another helper makes the parent again
                if not (whole := self.kernel.read(f"{parent}/{file}")):
                    raise Fault("CARVE_FAILED", f"{parent}/{file} is empty")
                self.put(f"{path}/{file}", whole)
        # Without this setting, the limit of a slot would not count the memory of its tasks' groups.
        if "memory" in controllers:
            hierarchy = f"{path}/memory.use_hierarchy"
            with suppress(FileNotFoundError):
                if self.kernel.read(hierarchy) == "0":
                    self.put(hierarchy, "1")

    def is_reusable(self, group: Group, counters: Mapping[str, int]) -> bool:
        """Returns True if the group has no process, OOM kill or memory limit, and little memory.

        The count of OOM kills cannot be reset. Page cache of the ended task would count as memory
        of the next task.
        """
        limit = self.count(group, "memory", "memory.limit_in_bytes")
        return (
            counters.keys() >= {"cpu_usec", "memory_current_bytes"}
            and counters.get("pids") == 0
            and counters.get("oom_kills") == 0
            and counters["memory_current_bytes"] <= _LEFT_BYTES_MAX
            and limit is not None
            and limit >= _UNLIMITED_BYTES
        )

    def reuse(self, ended: Group, group: Group) -> bool:
        try:
            for old, new in dict.fromkeys(zip(ended.values(), group.values(), strict=True)):
                self.kernel.rename(old, new)
            self.kernel.write(f"{group['memory']}/memory.max_usage_in_bytes", "0")
            self.kernel.write(f"{group['cpuacct']}/cpuacct.usage", "0")
        except OSError:  # the slot was removed, or the new group exists already
            return False
        return True

    def apply(self, group: Group, limits: dict[str, Any]) -> None:
        if cpu := group.get("cpu"):
            self.put(f"{cpu}/cpu.cfs_period_us", str(PERIOD_US))
            self.put(f"{cpu}/cpu.cfs_quota_us", str(quota_us(limits)))
            # 1000 milli get the kernel's default weight of 1024. The kernel accepts 2 to 262144.
            # Best-effort slots get the lowest weight, so that other slots get CPU time first.
            shares = 0 if limits.get("best_effort") else limits["cpu_milli"] * 1024 // 1000
            self.put(f"{cpu}/cpu.shares", str(max(2, min(262144, shares))))
        self.bind(group, limits["cpus"], limits["mems"])
        self.limit_devices(group, limits)
        if pids := group.get("pids"):
            self.put(f"{pids}/pids.max", str(limits["pids_max"] or "max"))
        if hugetlb := group.get("hugetlb"):
            self.limit_hugepages(hugetlb, "limit_in_bytes", limits)
        # Write the memory limit last, because this write fails if the tasks use more memory.
        self.limit_memory(group, limits["memory_bytes"])

    def limit_memory(self, group: Group, memory_bytes: int) -> None:
        if memory := group.get("memory"):
            files = [f"{memory}/memory.limit_in_bytes", f"{memory}/memory.memsw.limit_in_bytes"]
            if memory_bytes > int(self.kernel.read(files[0])):
                files.reverse()  # the limit of memory + swap must not be below the limit of memory
            for file in filter(self.kernel.exists, files):
                try:
                    self.put(file, str(memory_bytes))
                except Fault:
                    # Possibly the kernel refused because the use has grown since the last check.
                    self.refuse_below_use(group, memory_bytes)
                    raise

    def probe_devices(self) -> str:
        if "devices" not in self.base:
            problem = "the devices controller is not mounted, or was mounted after the first slot"
            return f"{problem}; mount it, and restart the helper when it has no slots"
        if self.kernel.read(f"{self.base['devices']}/devices.list") != _EVERYTHING:
            problem = "the executor's own group may not open some devices"
            return f"{problem}; start it in a group, or a container, that may open all devices"
        return ""

    def limit_devices(self, group: Group, limits: dict[str, Any]) -> None:
        """Writes the list of devices that can be opened. A list of closed devices cannot be read
        back.

        The kernel has no rule for "all minor numbers except these". So if only some minor numbers
        of a major number are closed, the method writes a rule for each open minor number.
        """
        if self.devices_problem:
            return
        opened, closed = (limits.get(f"devices_{word}") or {} for word in ("open", "closed"))
        majors = {*opened, *closed}
        wanted = set[str]()
        for kind in "bc":
            if not any(major.startswith(kind) for major in majors):
                wanted.add(f"{kind} *:* rwm")
                continue
            wanted |= {f"{kind} {n}:* rwm" for n in range(_MAJORS) if f"{kind} {n}" not in majors}
        wanted |= {f"{major}:{n} rwm" for major, text in opened.items() for n in expand(text)}
        for major, text in closed.items():
            wanted |= {f"{major}:{n} rwm" for n in set(range(_MINORS)) - expand(text)}
        directory = group["devices"]
        now = self._devices(directory)
        if _EVERYTHING in now:  # the slot is new and has no tasks yet
            self.kernel.write(f"{directory}/devices.deny", "a")
            now = set()
        # Add the new rules before the old rules are removed. So running tasks keep their devices.
        for file, rules in (("devices.allow", wanted - now), ("devices.deny", now - wanted)):
            if rules:
                self.kernel.write_each(f"{directory}/{file}", sorted(rules))
        if differ := wanted ^ self._devices(directory):
            message = f"{directory}/devices.list differs from what was written: {min(differ)}"
            raise Fault("CARVE_FAILED", message, file=f"{directory}/devices.list")

    def _devices(self, directory: str) -> set[str]:
        return set(self.kernel.read(f"{directory}/devices.list").splitlines())

    def bind(self, group: Group, cpus: str, mems: str) -> None:
        if cpuset := group.get("cpuset"):
            self._bind(cpuset, "cpuset.cpus", cpus)
            self._bind(cpuset, "cpuset.mems", mems)
            # When the slot has a cpu again, move back the processes that the kernel had moved out.
            self._return_strays(group, cpuset)

    def _bind(self, path: str, file: str, wanted: str) -> None:
        """Binds a group to cpus or memory nodes, including cpus that were offline and are online
        again.

        If a cpu goes offline, v1 removes it from every group permanently. So the method first
        copies the cpus of the parent group to each group above the slot. Then it writes the wanted
        cpus that are online. On v2, the kernel itself does both steps.
        """
        base, slots = self.base["cpuset"], path.rpartition("/")[0]
        above = base.rpartition("/")[0]
        whole = self.kernel.read(f"{slots}/{file}")
        # A group has no cpu that its parent does not have. So the levels differ only if the lowest
        # differs from the highest.
        if whole != self.kernel.read(f"{above.rpartition('/')[0]}/{file}"):
            for level in (above, base, slots):
                whole = self.kernel.read(f"{level.rpartition('/')[0]}/{file}")
                if expand(self.kernel.read(f"{level}/{file}")) < expand(whole):
                    self.put(f"{level}/{file}", whole)
            whole = self.kernel.read(f"{slots}/{file}")
        # Leave out offline cpus, because v1 rejects a list that contains an offline cpu.
        here = expand(wanted) & expand(whole)
        cut = "" if here == expand(wanted) else ",".join(map(str, sorted(here)))
        # An empty `wanted` means no restriction. If no cpu of `wanted` is online, write `wanted`
        # itself, which the kernel rejects.
        self.put(f"{path}/{file}", cut or wanted or whole)

    def _return_strays(self, group: Group, cpuset: str) -> None:
        """Moves processes back into their slot.

        If a group loses its last cpu, the kernel moves its processes to the parent group. In the
        parent group, the processes can use all cpus. The kernel never moves them back.
        """
        above = cpuset.rpartition("/")[0]
        # scan several times, because processes can fork during a scan
        for _scan in range(_STRAY_SCANS):
            strays = self.kernel.read(f"{above}/cgroup.procs").split()
            ours = self.pids(group, ()) if strays else ()
            for pid in filter(lambda stray: int(stray) in ours, strays):
                with suppress(ProcessLookupError):
                    self.kernel.write(f"{cpuset}/cgroup.procs", pid)
            if not ours:
                return

    def kill(self, group: Group, _supervisors: Iterable[int] = ()) -> Job:
        """Freezes a group, kills its processes and thaws it. Repeats this until the group has no
        process and no zombie.
        """
        freezer = f"{group['freezer']}/freezer.state" if "freezer" in group else ""
        while self.pids(group, ()):
            # Without a freezer, the group was made by another program.
            if not freezer or not self.kernel.exists(freezer):
                yield from super().kill(group)
                continue
            yield from self._frozen_kill(group, freezer)
            yield 0.002
        while self.count(group, "pids", "pids.current"):
            yield 0.005

    def _frozen_kill(self, group: Group, freezer: str) -> Job:
        try:
            self.kernel.write(freezer, "FROZEN")
            for _ in range(_FREEZE_STEPS):
                # A process in uninterruptible sleep does not freeze. After half a second, kill the
                # processes although they are not frozen.
                if self.kernel.read(freezer) == "FROZEN":
                    break
                yield 0.005
                # Write the state again, because otherwise a group can stay FREEZING.
                self.kernel.write(freezer, "FROZEN")
            # Frozen processes receive the signal at the thaw, and cannot fork before the thaw.
            for pid in self.pids(group, ()):
                self.signal(pid, signal.SIGKILL)
        except FileNotFoundError:
            return
        finally:
            # Thaw the group after an error, too: a frozen group never becomes empty.
            self.thaw(group)

    def thaw(self, group: Group) -> None:
        if self.kernel.exists(f"{group.get('freezer')}/freezer.state"):
            self.kernel.write(f"{group['freezer']}/freezer.state", "THAWED")
