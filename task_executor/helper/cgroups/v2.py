"""Drives cgroup v2, which has one tree for all controllers.

Only leaves contain processes: `finegrain-daemon`, `shims`, and one leaf per task. Slots are inner
nodes and have the limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from task_executor.helper.cgroups.base import PERIOD_US, CgroupDriver, Counted, Group, quota_us
from task_executor.helper.cgroups.devices import program_of
from task_executor.helper.loop import Job
from task_executor.helper.protocol import Fault, expand

CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb", "dmem")


class V2(CgroupDriver):
    name = "v2"
    accounting = ("unified",)
    counted: ClassVar[Counted] = {
        "memory_current_bytes": ("unified", "memory.current", ""),
        "memory_peak_bytes": ("unified", "memory.peak", ""),
        "cpu_usec": ("unified", "cpu.stat", "usage_usec"),
        "pids": ("unified", "pids.current", ""),
        "oom_kills": ("unified", "memory.events", "oom_kill"),
    }

    cpuset = ("unified", "cpuset.cpus.effective")
    reclaim_files = ("unified", "memory.high", "memory.max")
    unthrottled = (
        ("unified", "cpu.weight", "100"),
        ("unified", "cpu.max", f"max {PERIOD_US}"),
    )
    usage_files = ("memory.current",)
    usage_reads = 10  # read several times, because file reads can exceed a soft limit for a moment

    def enforced(self) -> tuple[list[str], str]:
        has = self.kernel.read(f"{self.base['unified']}/cgroup.controllers").split()
        whole = self.kernel.exists(f"{self.base['unified']}/shims/cgroup.kill")
        return has, "cgroup.kill" if whole else "process tree"

    def initialize_group(self, path: str, _controllers: Iterable[str]) -> None:
        """Enables controllers for the children, except in leaves.

        In a slot, the method enables only the controllers that count the use of tasks.
        """
        leaf = path.rpartition("/")[2]
        # A leaf has processes, and a group with processes must not enable controllers for children.
        if leaf in ("shims", "daemon") or leaf.startswith("task-"):
            return
        is_slot = path.startswith(f"{self.base['unified']}/slots/")
        wanted = ("memory", "pids") if is_slot else CONTROLLERS
        on = set(self.kernel.read(f"{path}/cgroup.subtree_control").split())
        for name in self.kernel.read(f"{path}/cgroup.controllers").split():
            if name in wanted and name not in on:
                self.kernel.write(f"{path}/cgroup.subtree_control", f"+{name}")

    def apply(self, group: Group, limits: dict[str, Any]) -> None:
        path = group["unified"]
        has = self.kernel.read(f"{path}/cgroup.controllers").split()
        if "cpu" in has:
            quota = quota_us(limits)
            self.put(f"{path}/cpu.max", f"{quota if quota >= 0 else 'max'} {PERIOD_US}")
            # 1000 milli get the kernel's default weight of 100. The kernel accepts 1 to 10000.
            # Best-effort slots get the lowest weight, so that other slots get CPU time first.
            weight = 0 if limits.get("best_effort") else limits["cpu_milli"] // 10
            self.put(f"{path}/cpu.weight", str(max(1, min(10000, weight))))
        self.bind(group, limits["cpus"], limits["mems"])
        self.limit_devices(group, limits)
        if "pids" in has:
            self.put(f"{path}/pids.max", str(limits["pids_max"] or "max"))
        if "hugetlb" in has:
            self.limit_hugepages(path, "max", limits)
        self.limit_memory(group, limits["memory_bytes"])

    def limit_memory(self, group: Group, memory_bytes: int) -> None:
        path = group["unified"]
        if "memory" in self.kernel.read(f"{path}/cgroup.controllers").split():
            # Forbid swap. The memory limit then applies to all memory of the slot, in the same way
            # as on v1.
            if self.kernel.exists(f"{path}/memory.swap.max"):
                self.put(f"{path}/memory.swap.max", "0")
            self.put(f"{path}/memory.max", str(memory_bytes))
            self.put(f"{path}/memory.high", "max")  # `make_room` has possibly lowered this limit

    def probe_devices(self) -> str:
        try:
            self.kernel.filter_devices(f"{self.base['unified']}/shims", program_of({}))
        except OSError as error:
            problem = f"the kernel does not accept a filter of devices ({error.strerror})"
            return f"{problem}; run the helper as root, on a kernel with CONFIG_CGROUP_BPF"
        return ""

    def limit_devices(self, group: Group, limits: dict[str, Any]) -> None:
        if self.devices_problem:
            return
        try:
            self.kernel.filter_devices(group["unified"], program_of(limits))
        except OSError as error:
            message = f"{group['unified']}: the kernel rejected the device filter: {error.strerror}"
            raise Fault("CARVE_FAILED", message, file=group["unified"]) from None

    def bind(self, group: Group, cpus: str, mems: str) -> None:
        path = group["unified"]
        if "cpuset" in self.kernel.read(f"{path}/cgroup.controllers").split():
            self._bind(path, "cpus", cpus)
            self._bind(path, "mems", mems)

    def _bind(self, path: str, what: str, wanted: str) -> None:
        """Binds a group to cpus or memory nodes, and checks the effective set.

        v2 accepts any list. But if the list cannot be used, the kernel silently uses the list of
        the parent. So the method checks that the effective set is a part of the wanted set.
        """
        self.put(f"{path}/cpuset.{what}", wanted)
        file = f"{path}/cpuset.{what}.effective"
        effective = self.kernel.read(file)
        if wanted and (not effective or not expand(effective) <= expand(wanted)):
            message = f"{file}: {wanted!r} was written, but {effective!r} is in effect"
            raise Fault("CARVE_FAILED", message, file=file, wrote=wanted, read=effective)

    def make(self, group: Group) -> None:
        """Makes a group. If a task exhausts the memory, the kernel kills all processes of this
        task, but no other task.
        """
        super().make(group)
        file = f"{group['unified']}/memory.oom.group"
        if "/task-" in file and self.kernel.exists(file):
            self.put(file, "1")

    def kill(self, group: Group, _supervisors: Iterable[int] = ()) -> Job:
        path = group["unified"]
        if self.kernel.exists(f"{path}/cgroup.kill"):
            while self.pids(group, ()):
                self.kernel.write(f"{path}/cgroup.kill", "1")
                yield 0.005
        else:  # kernels before 5.14 have no cgroup.kill
            yield from super().kill(group)
        # Wait for zombies, too. Until a zombie is reaped, the kernel counts it as a process of the
        # slot.
        while self.count(group, "unified", "pids.current"):
            yield 0.005
