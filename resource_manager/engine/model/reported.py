"""The contents of an executor's report: its slots, and slots that ended without a command."""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.condition import DeviceCondition
from finegrain.resources import Amounts, ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.states import SlotState
from resource_manager.engine.model.entities import CpuState


@dataclass(frozen=True, slots=True)
class ReportedSlot:
    """One slot as an executor reports it."""

    allocation_id: str
    generation: int
    job_id: str
    profile: ResourceProfile
    state: SlotState  # ALLOCATED or FREEING
    cpu_limit_milli: int = 0
    pids_max: int = 0
    cpus: str = ""
    isolation: Isolation | None = None
    resize_number: int = 0  # number of the last resize that the executor has carried out
    assignment: CpuAssignment | None = None
    reuse_number: int = 0  # number of the last reuse for which the time limit was started again


@dataclass(frozen=True, slots=True)
class EndedSlot:
    """A slot that ended on its executor without a command."""

    allocation_id: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """One numbered report of an executor; see SlotReport in slots.proto."""

    report_number: int
    rm_epoch: int
    command_number: int
    unchanged: bool = False
    base_report_number: int = 0
    slots: tuple[ReportedSlot, ...] = ()
    available: Amounts = field(default_factory=dict)
    ended: tuple[EndedSlot, ...] = ()
    cpu_state: CpuState | None = None  # None: there is nothing to report, or nothing has changed
    # devices whose condition differs from the condition that the executor registered; empty if
    # `unchanged` is set
    device_conditions: tuple[DeviceCondition, ...] = ()
    # True: the base report, changed by the answered command as ordered, so `slots` is empty
    as_ordered: bool = False
    slot_isolation: Isolation | None = None  # of the slots that the command has allocated
