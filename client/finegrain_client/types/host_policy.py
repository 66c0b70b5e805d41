"""Defines the settings that administrators make for hosts. `status.py` describes the form of all
values.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.cpu_policy import HostPolicy
from finegrain.mapping.value import Value
from finegrain_client.types.topology import HostSettings


@dataclass(frozen=True, slots=True)
class HostPolicyStatus(Value):
    """Settings of a host, or settings for the whole cluster if `executor_id` is empty.

    If `followed_number` is below `number`, the executor does not use the latest settings yet.
    """

    executor_id: str
    set: HostPolicy  # the settings that administrators made at runtime
    effective: HostSettings
    number: int  # rises by 1 with every change of a setting; 0 if no setting was changed
    # `number` of the settings that the executor uses; None if it is not known.
    followed_number: int | None
