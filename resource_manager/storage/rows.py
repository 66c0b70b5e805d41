"""Maps each entity to its table. Lists the columns whose attribute has another name, or that need a
special text form.

All other columns are mapped by name and type; see `finegrain/mapping/rows.py` for the rules, and
`texts.py` for values that are stored as JSON. Runtime attributes (`unstored`) have no column. The
engine computes them again after a start.
"""

from __future__ import annotations

from finegrain.mapping.rows import WORD
from resource_manager.engine.model.audit import AuditEntry
from resource_manager.engine.model.entities import (
    SLOT_RUNTIME,
    ClusterEvent,
    Executor,
    Gang,
    Group,
    HostSetting,
    Job,
    JobEvent,
    Provision,
    Request,
    RequestRange,
    Slot,
    UsageRecord,
    UserLimits,
)
from resource_manager.storage import tables
from resource_manager.storage.codecs import codec, move_codec
from resource_manager.storage.texts import SLOT_OF_EVENT

JOBS = codec(
    tables.jobs,
    Job,
    exceptions={"group_name": "group", "end_reason": ("end_reason", WORD)},
    unstored="lease_until_ms acknowledged_sequence arrivals live_requests slot_keys durations "
    "run_times",
)

REQUESTS = codec(
    tables.requests,
    Request,
    exceptions={"reason": ("reason", WORD)},
    parts="spec",
    unstored="waiting_until_ms",
)

REQUEST_MOVES = move_codec(REQUESTS, "state", "reason", "message", "generation", "end_time_ms")

RANGES = codec(
    tables.request_ranges,
    RequestRange,
    exceptions={"range_id": "spec.request.allocation_id"},
    parts="spec spec.request",
    unstored="spec.request.target_address spec.request.gang_id",
)

GANGS = codec(tables.gangs, Gang, parts="spec", unstored="state members waiting_until_ms")

SLOTS = codec(
    tables.slots,
    Slot,
    unstored=SLOT_RUNTIME,
)

SLOT_MOVES = move_codec(
    SLOTS, "cpus", "state", "allocated_time_ms", "isolation", "reuse_number", "revoked_for"
)

EXECUTORS = codec(
    tables.executors,
    Executor,
    parts="registration",
    unstored=(
        "state report_number report_at_ms report_time_ms reported_available "
        "cpu_state device_conditions command_number drain_deadline_at_ms"
    ),
)

PROVISIONS = codec(
    tables.provisions, Provision, unstored="deadline_at_ms idle_since_ms stop_failures"
)

GROUPS = codec(tables.groups, Group)
USER_LIMITS = codec(tables.user_limits, UserLimits)
TALLIES = codec(tables.tallies, UsageRecord)
HOST_SETTINGS = codec(tables.host_settings, HostSetting)

JOB_EVENTS = codec(
    tables.job_events,
    JobEvent,
    exceptions={"reason": ("reason", WORD), "slot": ("slot", SLOT_OF_EVENT)},
)

CLUSTER_EVENTS = codec(
    tables.cluster_events,
    ClusterEvent,
    exceptions={"kind": ("kind", WORD), "reason": ("reason", WORD)},
)

AUDIT = codec(tables.audit, AuditEntry)
