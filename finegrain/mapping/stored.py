"""Defines the JSON form of values that are stored in table rows, job events and checkpoints.

Other versions of the programs read these values. So a class can get new fields with a default, but
any other change needs a migration. Data with an unknown key is rejected.
"""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import CpuPolicy, HostPolicy
from finegrain.devices.device import DeviceShare
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain.resources import PROFILE_FORMS
from finegrain.values.isolation import Isolation

FORMS = {
    **PROFILE_FORMS,
    CpuPolicy: JsonForm(omit="default"),
    HostPolicy: JsonForm(omit="none"),  # None: this layer of the policy leaves the setting unset
    CpuAssignment: JsonForm(omit="default", always="qos"),
    PoolName: JsonForm(as_list=True),
    DeviceShare: JsonForm(omit="default"),
    Isolation: JsonForm(omit="default", ignore_unknown=True),  # other versions can add dimensions
}
"""Differences from the rules of `JsonCodec`, by class. Each package adds its own classes."""

STORED = JsonCodec(FORMS, refuse_unknown=True)
