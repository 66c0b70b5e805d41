"""Runs the command line in this process against a scripted cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from typer.testing import Result

from finegrain.errors import NotFound, Reason
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values import states
from finegrain.values.explanations import Counterfactual, Dimension, GangSpot
from finegrain.values.isolation import Isolation
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import ProvidedExecutorState
from finegrain.values.usage import Usage
from finegrain_client.types import status as types
from finegrain_client.types.advice import ThreadAdvice
from finegrain_client.types.devices import ExecutorDevices
from finegrain_client.types.explain import (
    CpuVerdict,
    ExecutorVerdict,
    Explanation,
    GangExplanation,
    ResizeExplanation,
)
from finegrain_client.types.fairness import (
    ChoiceStep,
    FlowStatus,
    GroupLimit,
    Reservation,
    ReservedExecutor,
)
from finegrain_client.types.groups import Groups, GroupStatus, UserStatus
from finegrain_client.types.host_policy import HostPolicyStatus
from finegrain_client.types.preview import Preview, PreviewedSetting, PreviewedShare, PreviewedSlot
from finegrain_client.types.providers import ExecutorShape, ProvidedExecutor, Providers
from finegrain_client.types.topology import TopologyReport
from tests.support.cli_cpus import ALIGNED_LSR, HOST_POLICY, PINNED
from tests.support.cli_topology import small_report

Finegrain = Callable[..., Result]
"""Runs `finegrain ARGS...` in this process."""

MOMENT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
SMALL = ResourceProfile(cpu_milli=500, task_heap_memory_bytes=256 * MIB)
LARGE = ResourceProfile(cpu_milli=64_000, task_heap_memory_bytes=GIB, extended=(("licence", 1),))
ENFORCED = Isolation("quota", "cgroup", "hard", "hard", "freezer", "v1")
NOT_ENFORCED = Isolation(
    cpu="none",
    cpuset="none",
    memory="none",
    pids="none",
    kill="none",
    driver="none",
    notes=("cpu time is booked (no cgroups); run it as root",),
)

CHANGE = types.SlotResize(
    resize_number=2,
    profile=replace(SMALL, cpu_milli=1800),
    memory_bytes=256 * MIB,
    cpu_limit_milli=1800,
    state=states.ResizeState.WAITING,
    message="cpu 0.3 more than host-a has free",
)
GANG = types.Gang("01eeeeee-0000-7000-8000-000000000001", states.GangPlacement.SPREAD, "", 30.0)

SLOT = types.SlotStatus(
    allocation_id="01aaaaaa-0000-7000-8000-000000000001",
    generation=2,
    job_id="01bbbbbb-0000-7000-8000-000000000001",
    executor_id="host-a",
    executor_address="127.0.0.1:7180",
    state=states.SlotState.ALLOCATED,
    profile=SMALL,
    memory_bytes=256 * MIB,
    cpu_limit_milli=500,
    pids_max=4096,
    cpus="",
    isolation=ENFORCED,
    allocated_time=MOMENT,
    resize_number=2,
    resizes=(CHANGE,),
)
PINNED_SLOT = replace(SLOT, cpus="1", resize_number=0, resizes=(), assignment=PINNED)
GRANTED = types.RequestStatus(
    allocation_id=SLOT.allocation_id,
    job_id=SLOT.job_id,
    job_name="nightly",
    state=states.RequestState.GRANTED,
    reason="",
    profile=SMALL,
    generation=2,
    arrival_number=1,
    create_time=MOMENT,
    end_time=None,
    slot=SLOT,
    cpu_limit_milli=0,
    pids_max=0,
    required_labels={},
    target_address="",
    allow_pending=False,
    restart_on_loss=False,
    cpu_policy=ALIGNED_LSR,
)
WAITING = replace(
    GRANTED,
    allocation_id="01aaaaaa-0000-7000-8000-000000000002",
    state=states.RequestState.PENDING,
    reason="WAITING_CAPACITY",
    profile=LARGE,
    generation=0,
    arrival_number=2,
    slot=None,
    required_labels={"zone": "a"},
    allow_pending=True,
    gang=GANG,
)
RELEASED = replace(
    GRANTED,
    allocation_id="01cccccc-0000-7000-8000-000000000003",
    state=states.RequestState.RELEASED,
    profile=None,
    end_time=MOMENT,
    slot=None,
)
TOPOLOGY: dict[str, Any] = {
    "online_cpus": "0-1",
    "allowed_cpus": "0-1",
    "isolated_cpus": "",
    "cores": [
        {"cpus": "0", "package_index": 0, "numa_node_id": 0, "l3_index": 0, "kind": ""},
        {"cpus": "1", "package_index": 0, "numa_node_id": 0, "l3_index": 0, "kind": ""},
    ],
    "numa_nodes": [{"numa_node_id": 0, "cpus": "0-1", "memory_bytes": 4 * GIB, "distances": [10]}],
    "devices": [],
    "memory_bytes": 4 * GIB,
    "warnings": [],
}
EXECUTOR = types.ExecutorStatus(
    executor_id="host-a",
    instance_id="01dddddd-0000-7000-8000-000000000001",
    address="127.0.0.1:7180",
    state=states.ExecutorState.ACTIVE,
    draining=False,
    drain_reason="",
    drain_deadline_time=None,
    registration_number=3,
    report_number=17,
    report_time=MOMENT,
    total={"cpu_milli": 2000, "memory_bytes": 3 * GIB},
    reserved={"memory_bytes": GIB},
    allocated={"cpu_milli": 500, "memory_bytes": 256 * MIB},
    available={"cpu_milli": 1500, "memory_bytes": 3 * GIB - 256 * MIB},
    used=Usage(cpu_milli=120, memory_bytes=30 * MIB, tasks=1),
    slots=1,
    slots_max=0,
    labels={"zone": "a"},
    default_slot_profile=SMALL,
    isolation=ENFORCED,
    software_version="0.2.0",
    shared_cpus="0-1",
    protocol_version="1.1",
)
JOB = types.JobStatus(
    job_id=SLOT.job_id,
    name="nightly",
    group="default",
    ended=False,
    end_reason="",
    detached=False,
    lease_s=30.0,
    create_time=MOMENT,
    end_time=None,
    pending_requests=1,
    slots=1,
    allocated={"cpu_milli": 500, "memory_bytes": 256 * MIB},
    last_sequence=4,
    service=12.5,
    share_now=0.25,
    oldest_wait_time=MOMENT,
    owner="user/alice",
)
GROUPS = Groups(
    groups=(
        GroupStatus(
            name="default",
            parent="",
            description="Priority 10 (Default)",
            weight=1.0,
            minimum={},
            maximum={},
            used={"cpu_milli": 500, "memory_bytes": 256 * MIB},
            share_entitled=0.2,
            share_now=0.25,
            service=12.5,
            tally=13.75,
            running=1,
            waiting=1,
            oldest_wait_time=MOMENT,
            jobs=1,
            users=("*",),
        ),
        GroupStatus(
            name="nightly",
            parent="default",
            description="",
            weight=0.5,
            minimum={"cpu_milli": 8_000},
            maximum={"cpu_milli": 64_000, "memory_bytes": GIB, "extended.licence": 0},
            used={},
            share_entitled=0.0,
            share_now=0.0,
            service=0.0,
            tally=0.0,
            running=0,
            waiting=0,
            oldest_wait_time=None,
            jobs=0,
            users=("user/alice", "user/bob"),
        ),
    ),
    service_measure="dominant",
    half_life_s=900.0,
)
USER = UserStatus(
    user="user/alice",
    own_limits=True,
    maximum={"jobs": 5, "cpu_milli": 4_000},
    used={"cpu_milli": 500, "memory_bytes": 256 * MIB},
    slots=1,
    jobs=2,
    requests=3,
)
EVENT = types.ClusterEvent(
    sequence=9,
    event_time=MOMENT,
    kind="SLOT_ALLOCATED",
    executor_id="host-a",
    job_id=JOB.job_id,
    allocation_id=SLOT.allocation_id,
    reason="",
    message="generation 2",
    actor="user/alice",
)
INFO = types.ClusterInfo(
    rm_epoch=5,
    software_version="0.2.0",
    protocol_version="1.0",
    start_time=MOMENT,
    total=EXECUTOR.total,
    reserved=EXECUTOR.reserved,
    allocated=EXECUTOR.allocated,
    available=EXECUTOR.available,
    used=EXECUTOR.used,
    executors={"ACTIVE": 1},
    pending_requests={"WAITING_CAPACITY": 1},
    slots=1,
    jobs=1,
)
CPU = Dimension("cpu_milli", 64_000, 1500, 1500, 2000)
EXPLANATION = Explanation(
    request=WAITING,
    primary_reason="INFEASIBLE_NEVER",
    summary="no executor could host it, even when empty",
    requests_ahead=0,
    executors_considered=1,
    executors_fitting=0,
    executors=(
        ExecutorVerdict(
            "host-a",
            False,
            ("cpu_milli", "TOPOLOGY"),
            (CPU,),
            "too small",
            CpuVerdict("NUMA_UNALIGNED", {"asked cpu_milli": 64_000}, "on no one NUMA node"),
        ),
    ),
    dimensions=(CPU,),
    would_fit_if=(
        Counterfactual("host-a", (CPU,), "cpu 1.5 or less, on host-a"),
        Counterfactual("host-a", (), "numa preferred, on host-a", ("numa",)),
    ),
    blocked_by=(SLOT,),
    snapshot_number=42,
    gang=GangExplanation(
        GANG, 2, 1, (GangSpot("host-a", 1),), "one more executor with cpu 64 is missing", None
    ),
    planned_on="small-5-3",
    resizes=(
        ResizeExplanation(
            CHANGE, (Dimension("cpu_milli", 1300, 1000, 1000, 2000),), "cpu 0.3 is missing"
        ),
    ),
    steps=(
        ChoiceStep(
            group="",
            flow=FlowStatus("default", False, "", 1.0, 402.0, 412.0, 2, 5, False),
            position=2,
            backlogged=2,
            ahead=(FlowStatus("medium", False, "", 4.0, 412.0, 103.0, 8, 60, False),),
            summary="group default is served after group medium: its virtual time is 412.0",
        ),
    ),
    limits=(GroupLimit("nightly", "cpu_milli", 7500, 64_000, 8000),),
    reservation=Reservation(
        allocation_id=WAITING.allocation_id,
        job_id=JOB.job_id,
        gang_id="",
        executors=(ReservedExecutor("host-a", {"cpu_milli": 2000}, {"cpu_milli": 500}),),
        since_time=MOMENT,
        passed_over_since_time=MOMENT,
        summary="it has 2 cpu reserved on host-a; not free yet: 0.5 cpu",
    ),
    held_for_others=(
        Reservation(
            "wide", "other-job", "", (), MOMENT, MOMENT, "wide has capacity reserved on host-b"
        ),
    ),
)
ADVICE = ThreadAdvice(
    job_id=JOB.job_id,
    threads_recommended=530,
    threads_observed=190,
    threads_running=8,
    threads_waiting=2,
    median_s=141.3,
    at_quantile_s=314.678,
    longest_s=469.398,
    share_within_target=0.352,
    target_s=120.0,
    quantile=0.95,
    remarks=("few threads have finished: this is a rough estimate",),
)
NO_PROVIDERS = Providers((), (), {}, {}, {}, None, ())
PROVIDERS = Providers(
    shapes=(
        ExecutorShape(
            name="small",
            provider="process",
            total={"cpu_milli": 2000, "memory_bytes": 4 * GIB},
            labels={"zone": "a"},
            cost=1.5,
            count_max=4,
            executors={"asked": 1, "registered": 1},
            backoff_until_time=None,
            failures=0,
            last_failure="",
        ),
        ExecutorShape(
            name="large",
            provider="command",
            total={"cpu_milli": 64_000, "memory_bytes": 256 * GIB},
            labels={},
            cost=20.0,
            count_max=0,
            executors={},
            backoff_until_time=MOMENT,
            failures=3,
            last_failure="start.sh ended with exit code 1",
        ),
    ),
    executors=(
        ProvidedExecutor(
            executor_id="host-a",
            shape="small",
            state=ProvidedExecutorState.REGISTERED,
            cause="minimum",
            message="",
            ask_time=MOMENT,
            deadline_time=None,
            planned=(),
            planned_requests=0,
            handle="process 4711",
        ),
        ProvidedExecutor(
            executor_id="small-5-3",
            shape="small",
            state=ProvidedExecutorState.ASKED,
            cause="40 requests wait",
            message="",
            ask_time=MOMENT,
            deadline_time=MOMENT,
            planned=("40 of cpu 0.05, memory 64Mi",),
            planned_requests=40,
            handle="",
        ),
    ),
    minimum={"cpu_milli": 2000},
    maximum={"cpu_milli": 8000},
    present={"cpu_milli": 4000, "memory_bytes": 7 * GIB},
    idle_timeout_s=60.0,
    unplanned=("2 requests: no shape is large enough",),
)


def matches(full: str) -> Callable[[str], bool]:
    """Returns a function that tests whether an id begins or ends with a text."""
    return lambda text: full.startswith(text) or full.endswith(text)


@dataclass
class FakeCluster:
    """Returns scripted answers, and records the calls that change something in `done`."""

    executor_list: list[types.ExecutorStatus] = field(default_factory=lambda: [EXECUTOR])
    slot_list: list[types.SlotStatus] = field(default_factory=lambda: [SLOT])
    request_list: list[types.RequestStatus] = field(
        default_factory=lambda: [GRANTED, WAITING, RELEASED]
    )
    provided: Providers = NO_PROVIDERS
    # the answer for any executor; None: the report of a small host
    reported: TopologyReport | None = None
    outcomes: dict[str, ItemOutcome] = field(default_factory=dict)
    done: list[tuple[Any, ...]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def info(self) -> types.ClusterInfo:
        return INFO

    def executors(self) -> list[types.ExecutorStatus]:
        return self.executor_list

    def executor(self, executor_id: str) -> types.ExecutorStatus:
        for each in self.executor_list:
            if each.executor_id == executor_id:
                return replace(each, topology=TOPOLOGY, slot_list=tuple(self.slot_list))
        raise NotFound(f"executor {executor_id} is not known", reason=Reason.EXECUTOR_UNKNOWN)

    def devices(self, executor_id: str = "") -> list[ExecutorDevices]:
        return [ExecutorDevices(executor_id, (), (), False)]

    def topology(self, executor_id: str) -> TopologyReport:
        executor = self.executor(executor_id)
        if self.reported is not None:
            return self.reported
        return small_report(TOPOLOGY, executor.slot_list or ())

    def slots(self, *, executor_id: str = "", job_id: str = "") -> list[types.SlotStatus]:
        return [
            each
            for each in self.slot_list
            if executor_id in ("", each.executor_id) and job_id in ("", each.job_id)
        ]

    def requests(
        self,
        *,
        job_id: str = "",
        states: Iterable[str] = (),
        allocation_ids: Sequence[str] = (),
    ) -> list[types.RequestStatus]:
        wanted = set(states) or {"PENDING", "ALLOCATING", "OFFERED", "GRANTED"}
        return [
            each
            for each in self.request_list
            if each.state in wanted
            and job_id in ("", each.job_id)
            and (not allocation_ids or any(map(matches(each.allocation_id), allocation_ids)))
        ]

    def jobs(
        self, *, include_ended: bool = False, matching: Sequence[str] = ()
    ) -> list[types.JobStatus]:
        return [
            each
            for each in (JOB,)
            if not matching
            or each.name in matching
            or each.job_id.startswith(tuple(matching))
            or each.job_id.endswith(tuple(matching))
        ]

    def events(
        self, *, subject_id: str = "", newest: int = 100, follow: bool = False
    ) -> Iterator[types.ClusterEvent]:
        yield EVENT

    def explain(
        self, allocation_id: str, *, executor_id: str = "", max_executors: int = 0
    ) -> Explanation:
        self.done.append(("explain", allocation_id, executor_id))
        return EXPLANATION

    def drain(
        self, executor_id: str, *, reason: str = "", deadline_s: float | None = None
    ) -> types.ExecutorStatus:
        self.done.append(("drain", executor_id, reason, deadline_s))
        return replace(self.executor(executor_id), draining=True, drain_reason=reason)

    def preview(self, action: str, **_named: Any) -> Preview:
        slot = PreviewedSlot(
            SLOT.allocation_id, SLOT.generation, SLOT.job_id, "train", "ml", "host-a", 3, "host-b"
        )
        moving = int(action in ("DRAIN", "CORDON"))
        if not moving:
            slot = replace(slot, other_executor_id="")
        if action == "SET_HOST_POLICY":
            setting = PreviewedSetting("reserved_cpus", "", "0-1", 1)
            text = "on 1 executor: reserved_cpus none to 0-1"
            return Preview((slot,), 1, 1, 0, 0, (), text, 0, 0, (setting,), 1)
        if action == "SET_GROUP":
            return Preview(
                (), 0, 0, 0, 0, (PreviewedShare("ml", 0.5, 0.25, 0.5, ()),), "shares", 0, 0
            )
        return Preview((slot,), 1, 1, 0, moving, (), "1 slot of 1 job", 0, 0)

    def undrain(self, executor_id: str) -> types.ExecutorStatus:
        self.done.append(("undrain", executor_id))
        return self.executor(executor_id)

    def forget(self, executor_id: str) -> None:
        self.done.append(("forget", executor_id))

    def release(
        self, allocation_ids: Sequence[str], *, grace_s: float | None = None
    ) -> list[ItemOutcome]:
        self.done.append(("release", *allocation_ids, grace_s))
        return [self.outcomes.get(each, ItemOutcome(each)) for each in allocation_ids]

    def resize(self, allocation_id: str, **size: Any) -> types.SlotStatus:
        self.done.append(("resize", allocation_id, size))
        return SLOT

    def withdraw_resize(self, allocation_id: str) -> types.SlotStatus:
        self.done.append(("withdraw_resize", allocation_id))
        return replace(SLOT, resizes=())

    def providers(self) -> Providers:
        return self.provided

    def groups(self) -> Groups:
        return GROUPS

    def set_group(self, name: str, **fields: Any) -> GroupStatus:
        self.done.append(("set_group", name, fields))
        return replace(GROUPS.groups[1], name=name, weight=fields["weight"] or 1.0)

    def change_group_rules(self, name: str, **fields: Any) -> GroupStatus:
        self.done.append(("change_group_rules", name, fields))
        return replace(GROUPS.groups[1], name=name, rules=tuple(fields.get("add", ())))

    def change_group_users(self, name: str, **fields: Any) -> GroupStatus:
        self.done.append(("change_group_users", name, fields))
        return replace(GROUPS.groups[1], name=name, users=tuple(fields.get("allow", ())))

    def users(self) -> list[UserStatus]:
        return [USER]

    def set_user_limits(self, user: str, maximum: dict[str, int | None]) -> UserStatus:
        self.done.append(("set_user_limits", user, maximum))
        return replace(USER, user=user)

    def delete_user_limits(self, user: str) -> None:
        self.done.append(("delete_user_limits", user))

    def host_policy(self, executor_id: str | None) -> HostPolicyStatus:
        if executor_id:
            self.executor(executor_id)
        return replace(HOST_POLICY, executor_id=executor_id or "")

    def set_host_policy(self, executor_id: str | None, **fields: Any) -> HostPolicyStatus:
        self.done.append(("set_host_policy", executor_id, fields))
        return replace(self.host_policy(executor_id), followed_number=None)

    def delete_group(self, name: str) -> None:
        self.done.append(("delete_group", name))

    def advise(
        self, job_id: str, *, target_s: float | None = None, quantile: float | None = None
    ) -> ThreadAdvice:
        self.done.append(("advise", job_id, target_s, quantile))
        return ADVICE

    def terminate_job(self, job_id: str, *, grace_s: float | None = None) -> None:
        self.done.append(("terminate", job_id, grace_s))
