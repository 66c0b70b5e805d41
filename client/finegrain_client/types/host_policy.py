"""What the client returns about settings of hosts; see `status.py` for the shape of all values."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_policy import HostPolicy
from finegrain.mapping.value import Value
from finegrain_client.types.topology import HostSettings


@dataclass(frozen=True, slots=True)
class HostPolicyStatus(Value):
    """Settings of a host, or (with an empty `executor_id`) those for the cluster.

    An executor whose `followed_number` is below `number` has not heard of the latest ones yet.
    """

    executor_id: str
    set: HostPolicy  # at runtime, by operators
    effective: HostSettings
    number: int  # +1 for every change of any; 0: nothing was ever set
    followed_number: int | None  # of what the executor follows; None: not asked for
