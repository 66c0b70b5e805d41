"""Shares: the parts of this host that the process provider gives to executors. Each share belongs
to at most one executor at a time.

An executor gets exactly the cpus and the memory of its share, and at most the cpu time of the
share. The cpus of two shares must be disjoint or equal. If several shares have the same cpus, these
cpus must provide the cpu time of all these shares together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from finegrain.config_table import ConfigTable
from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.resources import CPU_MILLI, MEMORY_BYTES, MEMORY_GRAIN_BYTES, Amounts, round_down

CPU_MILLI_MIN = 10
MEMORY_BYTES_MIN = 64 * MEMORY_GRAIN_BYTES


@dataclass(frozen=True, slots=True)
class Share:
    """One part of this host. `name`, such as "small#2", is unique across all shapes.

    `cpus` is a list of cpus in the kernel's format. `cpu_milli` limits the cpu time. If it is None,
    only the number of cpus limits the cpu time.
    """

    name: str
    cpus: str
    cpu_milli: int | None
    memory_bytes: int

    @property
    def cpu_set(self) -> CpuSet:
        return CpuSet.parse(self.cpus)

    @property
    def total(self) -> Amounts:
        """The amounts that an executor with this share registers."""
        whole = 1000 * len(self.cpu_set)
        # An executor cannot use more cpu time than its cpus have.
        cpu_milli = whole if self.cpu_milli is None else min(whole, self.cpu_milli)
        return {
            CPU_MILLI: cpu_milli,
            MEMORY_BYTES: round_down(self.memory_bytes, MEMORY_GRAIN_BYTES),
        }


def read_shares(table: ConfigTable, shape: str) -> tuple[Share, ...]:
    """Decodes the shares of one shape ([[shape.process.share]]). All shares of a shape must have
    the same size.

    Raises:
        ConfigurationError: a value is invalid, there are no shares, or their sizes differ.
    """
    shares = []
    for number, each in enumerate(table.tables("share", path=f"shape {shape}.process.share"), 1):
        cpus = each.text("cpus")
        try:
            cpu_set = CpuSet.parse(cpus)
        except InvalidArgument as error:
            each.wrong("cpus", cpus, error.expected)
        if not cpu_set:
            each.wrong("cpus", cpus, "one cpu or more, such as 0-3")
        # The key "cpu" is decoded after the cpus, because their number limits the cpu time.
        cpu_milli = each.cpu("cpu") if "cpu" in each else None
        if cpu_milli is not None and not CPU_MILLI_MIN <= cpu_milli <= 1000 * len(cpu_set):
            each.wrong(
                "cpu", cpu_milli / 1000, f"0.01 to {len(cpu_set)}, the capacity of cpus {cpus}"
            )
        memory_bytes = each.size("memory")
        if memory_bytes < MEMORY_BYTES_MIN:
            each.wrong("memory", memory_bytes, f"{MEMORY_BYTES_MIN} bytes (4MiB) or more")
        each.end()
        shares.append(Share(f"{shape}#{number}", str(cpu_set), cpu_milli, memory_bytes))
    if not shares:
        table.wrong("share", "missing", "one [[shape.process.share]] or more, with cpus and memory")
    # The planning of new executors assumes one size for all executors of a shape, so all shares of
    # the shape must have this size.
    if any(share.total != shares[0].total for share in shares):
        table.wrong(
            "share",
            "; ".join(f"{share.name}: {dict(share.total)}" for share in shares),
            "shares of equal size; executors of another size need another shape",
        )
    return tuple(shares)


def overlap(shares: Sequence[Share]) -> str:
    """Returns the reason why these shares cannot be used at the same time, as a text for people.
    The text is empty if they can be used at the same time.

    Cost: quadratic in the number of shares.
    """
    # There are few pairs, because administrators write the shares by hand.
    for one, other in combinations(shares, 2):
        common = one.cpu_set & other.cpu_set
        if not common:
            continue
        # A share without a limit (None) takes all time of its cpus, so no other share can use these
        # cpus.
        if one.cpu_set != other.cpu_set or None in (one.cpu_milli, other.cpu_milli):
            return f"{one.name} ({one.cpus}) and {other.name} ({other.cpus}) share cpus {common}"
    together: dict[str, int] = {}
    for share in shares:
        together[share.cpus] = together.get(share.cpus, 0) + share.total[CPU_MILLI]
    for cpus, cpu_milli in together.items():
        whole = 1000 * len(CpuSet.parse(cpus))
        if cpu_milli > whole:
            return f"the shares on cpus {cpus} take {cpu_milli / 1000:g} cores of {whole // 1000}"
    return ""


def missing_here(shares: Sequence[Share]) -> str:
    """Returns what these shares need and this host lacks, as a text for people. The text is empty
    if the host lacks nothing.
    """
    # Executors inherit the cpu affinity of this process, so they cannot use other cpus.
    allowed = CpuSet(os.sched_getaffinity(0))
    for share in shares:
        if absent := share.cpu_set - allowed:
            return f"{share.name}: cpus {absent} are not among those of this process ({allowed})"
    wanted = sum(share.memory_bytes for share in shares)
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > present:
        return f"the shares need {wanted} bytes of memory, but this host has {present}"
    return ""
