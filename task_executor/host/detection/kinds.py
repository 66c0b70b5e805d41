"""Detects whether the cores of a host are of different kinds (hybrid), and which CPUs are which.

Sources in order: the kernel's lists per core type, cpu_capacity (Arm), base frequency, nominal
performance. ``cpuinfo_max_freq`` is not used, because turbo bins differ between equal cores. Arm
boards report several capacities for cores of one design (the same core clocked differently). So if
the main ID register is readable and shows fewer kinds, it has priority.
"""

from typing import Final

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import CpuKind
from task_executor.host.detection.cpus import CPU
from task_executor.host.detection.reader import TreeReader

# Names of the drivers of performance counters, fastest first.
_NAMED: Final = ("core", "atom", "lowpower")
_VALUES: Final = (
    ("capacity", "cpu_capacity"),
    ("base_frequency", "cpufreq/base_frequency"),
    ("nominal_perf", "acpi_cppc/nominal_perf"),
)
_MIDR: Final = "regs/identification/midr_el1"


def read_kinds(reader: TreeReader, online: CpuSet) -> tuple[CpuKind, ...]:
    """Returns the kinds, fastest first; empty if all CPUs are alike or the kernel does not say."""
    named = _named(reader, online)
    if named:
        return named
    for name, file in _VALUES:
        values = {cpu: reader.integer(f"{CPU}/cpu{cpu}/{file}") for cpu in online}
        known = {cpu: value for cpu, value in values.items() if value is not None}
        # A value that some cpus lack cannot be compared, and one value for all shows no kinds.
        if len(known) == len(values) and len(set(known.values())) > 1:
            if name == "capacity":
                known = _by_design(reader, known)
            return _grouped(name, f"{CPU}/cpuN/{file}", known)
    return ()


def _named(reader: TreeReader, online: CpuSet) -> tuple[CpuKind, ...]:
    kinds = []
    for name in _NAMED:
        source = f"sys/devices/cpu_{name}/cpus"
        cpus = (reader.cpu_list(source) or EMPTY) & online
        if cpus:
            kinds.append(CpuKind(name, cpus, None, source))
    # A single list appears on machines with one type of core whose model could have had two.
    return tuple(kinds) if len(kinds) > 1 else ()


def _by_design(reader: TreeReader, capacities: dict[int, int]) -> dict[int, int]:
    """Returns the capacity per CPU, raised to the highest of its design if designs are known."""
    designs = {cpu: reader.hexadecimal(f"{CPU}/cpu{cpu}/{_MIDR}") for cpu in capacities}
    kinds = set(designs.values())
    # More capacities than designs means that equal cores are clocked differently.
    if None in kinds or not 1 < len(kinds) < len(set(capacities.values())):
        return capacities
    best: dict[int | None, int] = {}
    for cpu, capacity in capacities.items():
        best[designs[cpu]] = max(best.get(designs[cpu], 0), capacity)
    return {cpu: best[designs[cpu]] for cpu in capacities}


def _grouped(name: str, source: str, values: dict[int, int]) -> tuple[CpuKind, ...]:
    return tuple(
        CpuKind(
            name=f"{name}={value}",
            cpus=CpuSet(cpu for cpu, its in values.items() if its == value),
            value=value,
            source=source,
        )
        for value in sorted(set(values.values()), reverse=True)
    )
