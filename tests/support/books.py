"""Builds rows and snapshots for tests of the stored state.

Every field has a sensible default. So a test names only the fields that matter for the test.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.intervals import IntervalSet
from finegrain.resources import GIB, ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.group_rules import GroupRule
from finegrain.values.isolation import Isolation
from finegrain.values.states import (
    GangPlacement,
    JobCondition,
    JobOutcome,
    ProvidedExecutorState,
    RequestState,
    SlotState,
)
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Executor,
    Gang,
    GangSpec,
    Group,
    HostSetting,
    Job,
    JobEvent,
    JobState,
    Provision,
    RangeSpec,
    Registration,
    Request,
    RequestRange,
    RequestSpec,
    Resize,
    Slot,
    UsageRecord,
    UserLimits,
)

PROFILE = ResourceProfile(
    cpu_milli=1500,
    task_heap_memory_bytes=2 * GIB,
    task_off_heap_memory_bytes=3,
    managed_memory_bytes=4,
    network_memory_bytes=5,
    extended=(("fpga", 2), ("licence", 1)),
)


CPU_POLICY = CpuPolicy(
    QosClass.LSR,
    BindPolicy.FULL_PCPUS,
    bind_required=True,
    exclusive=ExclusivePolicy.PCPU_LEVEL,
    exclusive_required=True,
    numa=NumaPolicy.SINGLE_NUMA_NODE,
    numa_required=True,
)

ASSIGNMENT = CpuAssignment(
    QosClass.LSR,
    CpuSet.of(0, 1, 4),
    BindPolicy.FULL_PCPUS,
    ExclusivePolicy.PCPU_LEVEL,
    (NodeShare(0, (("cpu_milli", 3000), ("memory_bytes", GIB))),),
    CpuSet.of(0),
    (PoolName(0, 0), PoolName(0, -1)),
    ("no core was left",),
)


def job(job_id: str = "job-1", **changes: Any) -> Job:
    """Returns a job. Each of the `changes` overrides the field of its name."""
    values: dict[str, Any] = {
        "name": "nightly",
        "group": "default",
        "lease_ms": 30_000,
        "owner": "a" * 64,
        "request_id_sha256": "b" * 64,
        "arrival_number": 1,
        "create_time_ms": 1_700_000_000_000,
    }
    return Job(job_id=job_id, **(values | changes))


def request(allocation_id: str = "slot-1", job_id: str = "job-1", **changes: Any) -> Request:
    """Returns a pending request of one core; `changes` overrides fields by name."""
    values: dict[str, Any] = {
        "spec": RequestSpec(allocation_id, ResourceProfile(cpu_milli=1000)),
        "arrival_number": 2,
        "create_time_ms": 1_700_000_000_001,
    }
    return Request(job_id=job_id, **(values | changes))


def slot(allocation_id: str = "slot-1", generation: int = 1, **changes: Any) -> Slot:
    """Returns an allocated slot; `changes` overrides fields by name."""
    values: dict[str, Any] = {
        "job_id": "job-1",
        "executor_id": "host-a",
        "profile": PROFILE,
        "cpu_limit_milli": 3000,
        "pids_max": 512,
        "state": SlotState.ALLOCATED,
    }
    return Slot(allocation_id=allocation_id, generation=generation, **(values | changes))


def executor(executor_id: str = "host-a", **changes: Any) -> Executor:
    """Returns an executor with one NUMA node and two labels; `changes` overrides fields by name."""
    registration = Registration(
        executor_id=executor_id,
        instance_id="instance-1",
        address="127.0.0.1:4711",
        total={"cpu_milli": 8000, "memory_bytes": 16 * GIB, "extended.fpga": 4},
        reserved={"memory_bytes": GIB},
        default_profile=PROFILE,
        labels=(("rack", "r1"), ("zone", "näher")),
        slots_max=64,
        shared_cpus="0-7",
        topology='{"nodes":[{"cpus":"0-7","memory_bytes":17179869184}],"smt":true}',
        isolation=Isolation(driver="v2"),
        boot_id="boot-1",
        protocol_version="1.0",
        software_version="0.2.0",
        provided_as="small",
        host_cpus='{"slot_cpus":"0-7"}',
    )
    values: dict[str, Any] = {"registration_number": 3, "first_seen_time_ms": 1_700_000_000_002}
    return Executor(registration=registration, **(values | changes))


def gang(**changes: Any) -> Gang:
    """Returns a gang that waits; `changes` overrides fields by name."""
    values: dict[str, Any] = {
        "job_id": "job-1",
        "arrival_number": 2,
        "waiting_since_time_ms": 1_700_000_000_001,
    }
    return Gang(**(values | changes))


def provision(executor_id: str = "small-3-1", **changes: Any) -> Provision:
    """Returns the record of a requested executor; `changes` overrides fields by name."""
    values: dict[str, Any] = {
        "shape": "small",
        "number": 1,
        "cause": "2 requests of 1 cpu fit no executor",
        "ask_time_ms": 1_700_000_000_003,
    }
    return Provision(executor_id=executor_id, **(values | changes))


def request_range(
    range_id: str = "many", first_index: int = 0, count: int = 1_000, **changes: Any
) -> RequestRange:
    """Returns one part of a range in which no request has ended; `changes` overrides fields by
    name."""
    values: dict[str, Any] = {
        "spec": RangeSpec(RequestSpec(range_id, PROFILE), first_index, count),
        "job_id": "job-1",
        "arrival_number": 10,
        "create_time_ms": 1_700_000_000_005,
    }
    return RequestRange(**(values | changes))


def job_event(sequence: int, job_id: str = "job-1", **changes: Any) -> JobEvent:
    """Returns an entry of a job's log."""
    event = JobEvent(job_id, sequence, 1_700_000_000_003, "slot-1", RequestState.PENDING)
    return replace(event, **changes)


def cluster_event(sequence: int, **changes: Any) -> ClusterEvent:
    """Returns an entry of the cluster's history."""
    return replace(ClusterEvent(sequence, 1_700_000_000_004, "JOB_REGISTERED"), **changes)


def everything() -> Changes:
    """Returns rows of every kind in which each durable field differs from its default."""
    spec = RequestSpec(
        allocation_id="slot-1",
        profile=PROFILE,
        cpu_limit_milli=3000,
        pids_max=512,
        required_labels=(("arch", "x86"), ("rack", "r1")),
        target_address="127.0.0.1:9",
        allow_pending=True,
        restart_on_loss=True,
        gang_id="gang-1",
        cpu_policy=CPU_POLICY,
        restart_on_device_loss=True,
        time_limit_ms=60_000,
        wait_timeout_ms=90_000,
        expected_run_time_ms=30_000,
        priority=-7,
        revocable=True,
    )
    return Changes(
        jobs=[
            job(
                state=JobState.ENDED,
                end_reason="ENDED",
                outcome=JobOutcome.FAILED,
                depends_on=(
                    JobDependency("job-0"),
                    JobDependency("job-9", JobCondition.ANY),
                ),
                priority=11,
                end_time_ms=5,
                last_sequence=9,
                trimmed_sequence=4,
                specified=True,
                witness_allocation_id="slot-1",
            ),
            job("job-2", lease_ms=None, specified=False),
            job("job-3", specified=None),
        ],
        requests=[
            request(
                spec=spec,
                state=RequestState.GRANTED,
                reason="WAITING_CAPACITY",
                message="no host has 2 cores free",
                generation=2,
                end_time_ms=6,
            ),
            request("slot-2", "job-2", spec=RequestSpec("slot-2", None)),
        ],
        slots=[
            slot(
                generation=2,
                cpus="0-1,4",
                allocated_time_ms=7,
                isolation=Isolation(cpu="quota", notes=("no swap limit",)),
                resize_number=5,
                ordered=Resize(4, PROFILE, 4000, assignment=ASSIGNMENT),
                wanted=Resize(5, PROFILE, 5000, wait_for_use=True, arrival_number=9),
                assignment=ASSIGNMENT,
                time_limit_ms=60_000,
                reuse_number=3,
            ),
            slot(
                "slot-2",
                state=SlotState.FREEING,
                isolation=None,
                revocable=True,
                revoked_for="slot-3",
            ),
        ],
        executors=[
            executor(draining=True, drain_reason="disk", drain_deadline_time_ms=8, lost=True),
            executor("host-b"),
        ],
        gangs=[
            gang(spec=GangSpec("gang-1", GangPlacement.SAME_LABEL, "rack", 60_000)),
            gang(spec=GangSpec("gang-2")),
        ],
        provisions=[
            provision(state=ProvidedExecutorState.STOPPING, handle="4711", message="idle for 60 s"),
        ],
        ranges=[
            request_range(
                spec=RangeSpec(
                    replace(spec, allocation_id="many", target_address="", gang_id=""), 5, 10_000
                ),
                ended={
                    (RequestState.CANCELLED, "", ""): IntervalSet([(5, 10), (12, 13)]),
                    (RequestState.LOST, "EXECUTOR_LOST", "host-a is lost"): IntervalSet([(11, 12)]),
                },
            ),
            request_range("none-ended", spec=RangeSpec(RequestSpec("none-ended", None), 0, 1)),
        ],
        groups=[
            Group("default", create_time_ms=4),
            Group(
                "deep",
                "default",
                2.5,
                {"cpu_milli": 1},
                {"cpu_milli": 9},
                "for people",
                5,
                ("*", "user/a"),
                (GroupRule(7, "etl-*", "user/b*", (("team", "ml"),)),),
            ),
        ],
        user_limits=[UserLimits("user/a", {"slots": 2, "jobs": 0}), UserLimits("*")],
        usage_records=[UsageRecord("group/default", "slots", 0.1, 1 / 3, 6, '{"count":1}')],
        host_settings=[
            HostSetting(
                "host-a",
                HostPolicy(
                    HostBindPolicy.FULL_PCPUS_ONLY,
                    NumaStrategy.DISTRIBUTE_EVENLY,
                    NumaPolicy.RESTRICTED,
                    CpuSet.of(0, 4),
                    reserved_strict=True,
                    default_bind=BindPolicy.SPREAD_BY_PCPUS,
                    default_exclusive=ExclusivePolicy.NONE,
                ),
                3,
                7,
            ),
            HostSetting("", HostPolicy(), 4, 8),
        ],
        job_events=[
            job_event(9, state=RequestState.GRANTED, reason="r", message="m", slot={"cpus": "0"}),
            job_event(10, state=RequestState.CANCELLED, count=4),
        ],
        cluster_events=[
            cluster_event(
                1,
                executor_id="host-a",
                job_id="job-1",
                allocation_id="slot-1",
                reason="r",
                message="m",
                actor="operator/ann",
            )
        ],
        counters={"arrival_number": 7, "cluster_sequence": 2**62},
    )


def same_books(left: Snapshot, right: Snapshot) -> bool:
    """Returns whether two snapshots contain the same rows, in any order; epochs may differ."""
    return _rows(left) == _rows(right)


def _rows(books: Snapshot) -> tuple[Any, ...]:
    return (
        sorted(books.jobs, key=lambda each: each.job_id),
        sorted(books.requests, key=lambda each: each.allocation_id),
        sorted(books.slots, key=lambda each: (each.allocation_id, each.generation)),
        sorted(books.executors, key=lambda each: each.executor_id),
        sorted(books.gangs, key=lambda each: each.gang_id),
        sorted(books.provisions, key=lambda each: each.executor_id),
        sorted(books.ranges, key=lambda each: (each.spec.range_id, each.spec.first_index)),
        sorted(books.groups, key=lambda each: each.name),
        sorted(books.usage_records, key=lambda each: each.flow_id),
        sorted(books.host_settings, key=lambda each: each.executor_id),
        books.counters,
        sorted(books.user_limits, key=lambda each: each.user_id),
    )


def books_of(changes: Changes) -> Snapshot:
    """Returns the snapshot that a store contains after only these changes."""
    return Snapshot(
        0,
        changes.jobs,
        changes.requests,
        changes.slots,
        changes.executors,
        changes.gangs,
        changes.provisions,
        changes.ranges,
        changes.groups,
        changes.usage_records,
        changes.host_settings,
        changes.counters,
        changes.user_limits,
    )
