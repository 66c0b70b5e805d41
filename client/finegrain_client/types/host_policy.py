"""Values about settings of hosts; see `status.py` for the form of all values."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_policy import HostPolicy
from finegrain.mapping.value import Value
from finegrain_client.types.topology import HostSettings


@dataclass(frozen=True, slots=True)
class HostPolicyStatus(Value):
    """Settings of a host, or (with an empty `executor_id`) those for the whole cluster.

    An executor whose `followed_number` is below `number` has not received the latest ones yet.
    """

    executor_id: str
    set: HostPolicy  # at runtime, by operators
    effective: HostSettings
    number: int  # +1 for every change of any setting; 0: nothing was ever set
    followed_number: int | None  # number of those that the executor uses; None: not requested
