"""Detects whether the cores of a host are of different kinds (hybrid), and the kind of each CPU.

Four sources are tried in this sequence: the kernel's lists for core types, cpu_capacity (Arm), base
frequency, nominal performance. ``cpuinfo_max_freq`` is not used, because equal cores can have
different turbo frequencies. Some Arm boards report several capacities for cores of one design that
have different clock frequencies. So the main ID register has priority if it is readable and shows
fewer kinds.
"""

from typing import Final

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import CpuKind
from task_executor.host.detection.cpus import CPU
from task_executor.host.detection.reader import TreeReader

# Names of the drivers of performance counters. The driver of the fastest cores is first.
_NAMED: Final = ("core", "atom", "lowpower")
_VALUES: Final = (
    ("capacity", "cpu_capacity"),
    ("base_frequency", "cpufreq/base_frequency"),
    ("nominal_perf", "acpi_cppc/nominal_perf"),
)
_MIDR: Final = "regs/identification/midr_el1"


def read_kinds(reader: TreeReader, online: CpuSet) -> tuple[CpuKind, ...]:
    """Returns the kinds, the fastest first; empty if all CPUs are equal or kinds are unknown."""
    named = _named(reader, online)
    if named:
        return named
    for name, file in _VALUES:
        values = {cpu: reader.integer(f"{CPU}/cpu{cpu}/{file}") for cpu in online}
        known = {cpu: value for cpu, value in values.items() if value is not None}
        # If some cpus have no value, or all have the same value, this source shows no kinds.
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
    # A machine with only one list has only one type of cores.
    return tuple(kinds) if len(kinds) > 1 else ()


def _by_design(reader: TreeReader, capacities: dict[int, int]) -> dict[int, int]:
    """Returns the capacity of each CPU.

    Cores of one design get the highest capacity of the design.
    """
    designs = {cpu: reader.hexadecimal(f"{CPU}/cpu{cpu}/{_MIDR}") for cpu in capacities}
    kinds = set(designs.values())
    # If there are more capacities than designs, cores of the same design have different clock
    # frequencies.
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
