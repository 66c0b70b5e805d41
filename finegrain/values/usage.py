"""What slots use, and what NUMA nodes have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class Usage(Value):
    """What slots really use, measured; never what is booked."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    tasks: int = 0


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Zone(Value):
    """What slots can have of one NUMA node, have, and could have. Slots that are bound to no node
    are not counted, beside dedicated cpus: they weigh on the host's total alone.
    """

    node: int  # its id
    total: Mapping[str, int]
    allocated: Mapping[str, int]
    available: Mapping[str, int]
