"""cgroup v1: one directory per controller, each below our own group there."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from task_executor.helper.cgroups.base import PERIOD_US, CgroupDriver, Counted, Group, quota_us
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault, expand

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "freezer", "pids", "hugetlb", "devices")
_STRAY_SCANS = 5
_EVERYTHING = "a *:* rwm"  # no device is closed
_MAJORS, _MINORS = 512, 256  # of character devices; of majors that are shared (tty, misc, ...)
_FREEZE_STEPS = 100  # of 5 ms; a process in uninterruptible sleep may never freeze


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

    def initialize_group(self, path: str) -> None:
        """Fills a new cpuset from its parent: an empty one admits no process (ENOSPC)."""
        parent = path.rpartition("/")[0]
        for file in ("cpuset.cpus", "cpuset.mems"):
            if self.kernel.exists(f"{path}/{file}") and not self.kernel.read(f"{path}/{file}"):
                if not (whole := self.kernel.read(f"{parent}/{file}")):  # being recreated
                    raise Fault("CARVE_FAILED", f"{parent}/{file} is empty")
                self.put(f"{path}/{file}", whole)
        # Without it the limit of a slot does not count the memory of its tasks' groups.
        hierarchy = f"{path}/memory.use_hierarchy"
        if self.kernel.exists(hierarchy) and self.kernel.read(hierarchy) == "0":
            self.put(hierarchy, "1")

    def apply(self, group: Group, limits: dict[str, Any]) -> None:
        if cpu := group.get("cpu"):
            self.put(f"{cpu}/cpu.cfs_period_us", str(PERIOD_US))
            self.put(f"{cpu}/cpu.cfs_quota_us", str(quota_us(limits)))
            # 1000 milli get the kernel's default of 1024. The kernel accepts 2 to 262144.
            # Best-effort slots get the lowest weight, so that all others are served first.
            shares = 0 if limits.get("best_effort") else limits["cpu_milli"] * 1024 // 1000
            self.put(f"{cpu}/cpu.shares", str(max(2, min(262144, shares))))
        self.bind(group, limits["cpus"], limits["mems"])
        self.limit_devices(group, limits)
        if pids := group.get("pids"):
            self.put(f"{pids}/pids.max", str(limits["pids_max"] or "max"))
        if hugetlb := group.get("hugetlb"):
            self.limit_hugepages(hugetlb, "limit_in_bytes", limits)
        # Memory is last, because what the tasks use can make this write fail.
        self.limit_memory(group, limits["memory_bytes"])

    def limit_memory(self, group: Group, memory_bytes: int) -> None:
        if memory := group.get("memory"):
            files = [f"{memory}/memory.limit_in_bytes", f"{memory}/memory.memsw.limit_in_bytes"]
            if memory_bytes > int(self.kernel.read(files[0])):
                files.reverse()  # memory + swap must never be below memory, not even in between
            for file in filter(self.kernel.exists, files):
                try:
                    self.put(file, str(memory_bytes))
                except Fault:
                    self.refuse_below_use(group, memory_bytes)  # risen since the check
                    raise

    def probe_devices(self) -> str:
        if "devices" not in self.base:
            problem = "the devices controller is not mounted, or was not when the first slot came"
            return f"{problem}; mount it, and restart the helper when it has no slots"
        if self.kernel.read(f"{self.base['devices']}/devices.list") != _EVERYTHING:
            problem = "the executor's own group is closed to some devices"
            return f"{problem}; start it in a group, or a container, that may open all of them"
        return ""

    def limit_devices(self, group: Group, limits: dict[str, Any]) -> None:
        """Writes the list of what may be opened: only such a list can be read back.

        The kernel knows no list with "all of a major but these", so a major that is open but for
        some minors is written minor by minor.
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
        if _EVERYTHING in now:  # a new slot, in which nothing runs yet
            self.kernel.write(f"{directory}/devices.deny", "a")
            now = set()
        # First what is added: running tasks keep what they had and still have.
        self.kernel.write_each(f"{directory}/devices.allow", sorted(wanted - now))
        self.kernel.write_each(f"{directory}/devices.deny", sorted(now - wanted))
        if differ := wanted ^ self._devices(directory):
            message = f"{directory}/devices.list differs from what was written: {min(differ)}"
            raise Fault("CARVE_FAILED", message, file=f"{directory}/devices.list")

    def _devices(self, directory: str) -> set[str]:
        return set(self.kernel.read(f"{directory}/devices.list").splitlines())

    def bind(self, group: Group, cpus: str, mems: str) -> None:
        if cpuset := group.get("cpuset"):
            self._bind(cpuset, "cpuset.cpus", cpus)
            self._bind(cpuset, "cpuset.mems", mems)
            # Processes that the kernel has moved out return once the slot has a cpu again.
            self._return_strays(group, cpuset)

    def _bind(self, path: str, file: str, wanted: str) -> None:
        """Binds a group, after restoring cpus that were offline.

        v1 permanently removes a cpu that goes offline from every group. So this function copies the
        cpus of the level above to each of our own levels. A slot gets those of its cpus that are
        online. v2 does both by itself.
        """
        base, slots = self.base["cpuset"], path.rpartition("/")[0]
        for level in (base.rpartition("/")[0], base, slots):
            whole = self.kernel.read(f"{level.rpartition('/')[0]}/{file}")
            if expand(self.kernel.read(f"{level}/{file}")) < expand(whole):
                self.put(f"{level}/{file}", whole)
        whole = self.kernel.read(f"{slots}/{file}")
        # Cpus that are offline are left out, because v1 rejects a list that contains one.
        here = expand(wanted) & expand(whole)
        cut = "" if here == expand(wanted) else ",".join(map(str, sorted(here)))
        # An empty `wanted` means no restriction. If no granted cpu is online, `wanted` itself is
        # written, and rejected.
        self.put(f"{path}/{file}", cut or wanted or whole)

    def _return_strays(self, group: Group, cpuset: str) -> None:
        """Moves processes back into their slot.

        If a group loses its last cpu, the kernel moves its processes to the level above, where all
        cpus are allowed, and never back.
        """
        above = cpuset.rpartition("/")[0]
        for _scan in range(_STRAY_SCANS):  # they may fork meanwhile
            strays = self.kernel.read(f"{above}/cgroup.procs").split()
            ours = self.pids(group, ()) if strays else ()
            for pid in filter(lambda stray: int(stray) in ours, strays):
                with suppress(ProcessLookupError):
                    self.kernel.write(f"{cpuset}/cgroup.procs", pid)
            if not ours:
                return

    def kill(self, group: Group, _shims: Iterable[int] = ()) -> Job:
        """Freezes, kills and thaws, until the group is empty and no zombie is counted any more."""
        freezer = f"{group['freezer']}/freezer.state" if "freezer" in group else ""
        while self.pids(group, ()):
            if not freezer or not self.kernel.exists(freezer):  # a group made by others
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
                # A process in an uninterruptible sleep does not freeze. After half a second it is
                # killed unfrozen.
                if self.kernel.read(freezer) == "FROZEN":
                    break
                yield 0.005
                # A group can stay FREEZING until the state is written again.
                self.kernel.write(freezer, "FROZEN")
            # The signal takes effect at the thaw. Until then no process of the group can fork.
            for pid in self.pids(group, ()):
                self.signal(pid, signal.SIGKILL)
        except FileNotFoundError:
            return
        finally:
            # Also after an error, because a frozen group could never be emptied.
            self.thaw(group)

    def thaw(self, group: Group) -> None:
        if self.kernel.exists(f"{group.get('freezer')}/freezer.state"):
            self.kernel.write(f"{group['freezer']}/freezer.state", "THAWED")
