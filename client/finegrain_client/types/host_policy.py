"""What the client returns about settings of hosts; see `status.py` for the shape of all values.
Sets of cpus are texts in the kernel's list form ("0-3,8").
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value
from finegrain_client.types.topology import HostSettings


@dataclass(frozen=True, slots=True)
class HostLayer(Value):
    """What one place says about a host; None: nothing."""

    bind: str | None
    numa_strategy: str | None
    alignment: str | None
    reserved_cpus: str | None
    reserved_strict: bool | None
    default_bind: str | None
    default_exclusive: str | None


@dataclass(frozen=True, slots=True)
class HostPolicy(Value):
    """Settings of a host, or (with an empty `executor_id`) those for the cluster.

    An executor whose `followed_number` is below `number` has not heard of the latest ones yet.
    """

    executor_id: str
    set: HostLayer  # at runtime, by operators
    effective: HostSettings
    number: int  # +1 for every change of any; 0: nothing was ever set
    followed_number: int | None  # of what the executor follows; None: not asked for
