"""How values of ours are stored as JSON: in rows, job events and checkpoints.

Programs of several versions read it, so a class may gain fields with a default, and nothing else
changes without a migration. Data with keys that no field has was written by something else, and is
refused.
"""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import CpuPolicy, HostPolicy
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain.resources import PROFILE_FORM, ResourceProfile
from finegrain.values.isolation import Isolation

FORMS = {
    ResourceProfile: PROFILE_FORM,
    CpuPolicy: JsonForm(omit="default"),
    HostPolicy: JsonForm(omit="none"),  # a layer says nothing of what is absent
    CpuAssignment: JsonForm(omit="default", always="qos"),
    PoolName: JsonForm(as_list=True),
    Isolation: JsonForm(omit="default", ignore_unknown=True),  # versions may add dimensions
}
"""What differs from the rule, by class; packages add classes of their own."""

STORED = JsonCodec(FORMS, refuse_unknown=True)
