"""The model of the configuration: for every key its name, unit, default and help.

`config show` prints it, docs/configuration.md is generated from it, and the daemons' options are
made from its values. Amounts are typed with units ("256M", "0.5", "10m"). Decoded values and
defaults are in bytes, thousandths of a core and milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.cpu_words import read_word
from finegrain.errors import InvalidArgument
from finegrain.units import parse_bytes, parse_cpu_milli, parse_duration_ms
from resource_manager import options as rm
from resource_manager.engine.model.settings import Fairness
from task_executor import options as executor

LISTEN = "address for calls, HOST:PORT; port 0: the kernel chooses"
METRICS_LISTEN = 'address for metrics and health, HOST:PORT; "none": no such port'

_FAIRNESS = Fairness()


class Kind(StrEnum):
    """What a number counts, if people type it with a unit."""

    SIZE = "bytes"
    CPU = "thousandths of a core"
    DURATION = "milliseconds"


def _reader(parse: Callable[[str, str], int]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if value is None:
            return value
        try:
            return parse("value", str(value))
        except InvalidArgument as error:
            raise ValueError(f"expected {error.expected}") from None

    return BeforeValidator(read)


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _pairs(value: Any) -> Any:
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(separator and key.strip() for key, separator, _ in parts):
            raise ValueError("expected KEY=VALUE[,KEY=VALUE...]")
        return {key.strip(): text.strip() for key, _, text in parts}
    return value


def _word(kind: type[StrEnum], *without: StrEnum) -> BeforeValidator:
    """Decodes a word of a vocabulary; an empty text means that it is not set."""

    def read(value: Any) -> Any:
        if not value or not isinstance(value, str):
            return value
        try:
            return str(read_word("value", value, kind, without=without))
        except InvalidArgument as error:
            raise ValueError(f"expected {error.expected}") from None

    return BeforeValidator(read)


Size = Annotated[int, _reader(parse_bytes), Kind.SIZE]
Cpu = Annotated[int, _reader(parse_cpu_milli), Kind.CPU]
Duration = Annotated[int, _reader(parse_duration_ms), Kind.DURATION]
DurationOrNever = Annotated[
    int | None,
    _reader(parse_duration_ms),
    Kind.DURATION,
    # The last validator runs first, so the parser never sees "never".
    BeforeValidator(lambda value: None if value == "never" else value),
]
HalfLife = Annotated[
    int | None,
    _reader(parse_duration_ms),
    Kind.DURATION,
    BeforeValidator(lambda value: None if value in ("never", "none") else value),
]
Words = Annotated[list[str], BeforeValidator(_split)]
Labels = Annotated[dict[str, str], BeforeValidator(_pairs)]
Sizes = Annotated[dict[str, Size], BeforeValidator(_pairs)]
Counts = Annotated[dict[str, int], BeforeValidator(_pairs)]
HostBind = Annotated[str, _word(HostBindPolicy)]
Strategy = Annotated[str, _word(NumaStrategy)]
Alignment = Annotated[str, _word(NumaPolicy, NumaPolicy.DEFAULT)]
DefaultBind = Annotated[str, _word(BindPolicy, BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST)]
DefaultExclusive = Annotated[str, _word(ExclusivePolicy, ExclusivePolicy.DEFAULT)]


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class ClientSection(Section):
    """How commands reach the resource manager."""

    manager: Words = Field([], description="addresses of resource managers, tried in turn")
    token_file: str = Field("", description="file with the token to show")
    tls_ca: str = Field("", description="certificate authority that the server is checked against")
    tls_certificate: str = Field("", description="client certificate to show")
    tls_key: str = Field("", description="key of the client certificate")
    insecure: bool = Field(False, description="send the token in clear beyond loopback")


class LogSection(Section):
    """How the daemons log, on standard error."""

    level: str = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="least level: debug, info, warning, error",
    )
    format: str = Field(
        "auto",
        pattern="^(auto|json|text)$",
        description="json, text, or auto: JSON unless on a terminal",
    )


class ListenSection(Section):
    """Where a daemon listens, shared by both."""

    listen: str = Field("", description=LISTEN)
    metrics_listen: str = Field("", description=METRICS_LISTEN)
    tls_ca: str = Field("", description="demand client certificates signed by this authority")
    tls_certificate: str = Field("", description="server certificate")
    tls_key: str = Field("", description="key of the server certificate")
    insecure: bool = Field(False, description="listen beyond loopback without TLS")
    reflection: bool = Field(False, description="serve gRPC reflection")
    cluster_token_file: str = Field(
        "", description="file with the cluster token; default: cluster.token of the RM's state_dir"
    )


class RmSection(ListenSection):
    """The resource manager."""

    listen: str = Field(rm.DEFAULT_ADDRESS, description=LISTEN)
    metrics_listen: str = Field(rm.DEFAULT_METRICS_ADDRESS, description=METRICS_LISTEN)
    state_dir: str = Field("", description="directory of tokens, lock and SQLite database")
    database: str = Field("", description="URL of the database; default: SQLite in state_dir")
    standby: bool = Field(
        False, description="wait while another RM leads on this database, then take over"
    )
    advertise: str = Field(
        "", description="address that others reach it at; default: the bound one"
    )
    user_token_file: str = Field(
        "", description="file with the user token; default: user.token in state_dir"
    )
    executor_tls_ca: str = Field(
        "", description="authority that executors are checked against; default: tls_ca"
    )
    executor_tls_certificate: str = Field(
        "", description="client certificate to show executors; default: tls_certificate"
    )
    executor_tls_key: str = Field("", description="key of that certificate; default: tls_key")
    user_token_group: str = Field("", description="group that may read user.token")
    strategy: str = Field(
        "pack",
        pattern="^(pack|spread)$",
        description="fill the first hosts by name that have room (pack), or hosts evenly (spread)",
    )
    report_interval: Duration = Field(3_000, ge=50, description="how often executors report")
    lost_timeout: Duration = Field(
        15_000, ge=200, description="silence after which an executor is lost"
    )
    lease: Duration = Field(30_000, ge=1_000, description="default lease of a job")
    cpu_min: Cpu = Field(10, ge=1, description="least cpu of a specified request")
    memory_min: Size = Field(4 << 20, ge=1, description="least memory of a specified request")
    job_requests_max: int = Field(1_000_000, ge=1, description="live requests of one job")
    job_scheduling_classes_max: int = Field(
        10_000, ge=1, description="different profiles and labels that one job waits with"
    )
    requests_max: int = Field(2_000_000, ge=1, description="live requests of all jobs")
    infeasible_after: Duration = Field(
        30_000,
        ge=0,
        description="a waiting request that no executor could host is rejected after this time "
        "without a change of executors; 0: at once",
    )
    job_calls_max: int = Field(64, ge=1, description="calls of one job that wait for an answer")
    job_streams_max: int = Field(32, ge=1, description="open watch streams of one job")
    job_events_max: int = Field(100_000, ge=100, description="events kept per job")
    cluster_events_max: int = Field(1_000_000, ge=100, description="events kept of the cluster")
    cluster_events_age: Duration = Field(
        604_800_000, ge=1_000, description="greatest age of those events"
    )
    ended_retention: Duration = Field(86_400_000, ge=0, description="how long ended ids are kept")
    database_lease: Duration = Field(1_000, ge=200, description="leadership lease on PostgreSQL")
    providers_file: str = Field(
        "", description="file of executors that can be asked for; default: none is asked for"
    )


class FairnessSection(Section):
    """How the resource manager shares capacity between resource groups and jobs."""

    usage_measure: str = Field(
        _FAIRNESS.usage_measure,
        pattern="^(dominant|slots|cpu)$",
        description="what a slot's time counts: its largest share of the cluster (dominant), 1 "
        "(slots), or its cores (cpu)",
    )
    order: str = Field(
        _FAIRNESS.order,
        pattern="^(fair|arrival)$",
        description="who comes first: who has received least by weight (fair), or who came first "
        "(arrival)",
    )
    half_life: HalfLife = Field(
        _FAIRNESS.half_life_ms,
        ge=1_000,
        description='in this time received service counts half; or "never": it counts for ever',
    )
    lookahead: Duration = Field(
        _FAIRNESS.lookahead_ms,
        ge=0,
        description="what runs counts as if it had run so much longer; 0: only what it has run",
    )
    starvation_timeout: Duration = Field(
        _FAIRNESS.starvation_timeout_ms,
        ge=1_000,
        description="who is passed over for so long gets capacity reserved",
    )
    starvation_placements: int = Field(
        _FAIRNESS.starvation_placements,
        ge=0,
        description="likewise who is passed over by so many placements; 0: only time counts",
    )
    reservations_max: int = Field(
        _FAIRNESS.reservations_max, ge=0, description="reservations at one time"
    )
    reserved_part_max: float = Field(
        _FAIRNESS.reserved_part_max,
        ge=0,
        le=1,
        description="part of any resource of the cluster that all reservations but that of who was "
        "passed over longest hold together at most; 1: all of it",
    )
    usage_interval: Duration = Field(
        _FAIRNESS.usage_interval_ms,
        ge=100,
        description="how often usage is stored; what was used since is lost in a crash",
    )


class ExecutorSection(ListenSection):
    """The task executor."""

    listen: str = Field(executor.DEFAULT_ADDRESS, description=LISTEN)
    metrics_listen: str = Field(executor.DEFAULT_METRICS_ADDRESS, description=METRICS_LISTEN)
    state_dir: str = Field("", description="directory of identity, checkpoint and task logs")
    run_dir: str = Field("", description="directory of sockets; a short path")
    manager: Words = Field([], description="addresses of resource managers, tried in turn")
    manager_tls_ca: str = Field("", description="authority that the RM is checked against")
    manager_tls_certificate: str = Field("", description="client certificate to show the RM")
    manager_tls_key: str = Field("", description="key of that certificate")
    manager_insecure: bool = Field(False, description="send the token in clear beyond loopback")
    executor_id: str = Field("", description="its name in the cluster; default: the host name")
    advertise: str = Field(
        "", description="address that others reach it at; default: the bound one"
    )
    labels: Labels = Field({}, description="labels that requests can require")
    provided_as: str = Field(
        "", description="shape of a provider that started it; default: $FINEGRAIN_PROVIDED_AS"
    )
    reserved_cpus: str = Field("", description="cpus kept for the system, for example 0,32")
    reserved_cpus_strict: bool = Field(
        False,
        description="keep all slots off reserved_cpus; else only those with cpus of their own",
    )
    reserved_memory: Size | None = Field(
        None, description="memory kept for the system; default 5 %, 256 MiB to 4 GiB"
    )
    cpus: str = Field("", description="share: exactly these cpus")
    cpu: Cpu | None = Field(None, description="share: book no more cpu than this")
    memory: Size | None = Field(None, description="share: exactly this much memory")
    memory_pools: Sizes = Field({}, description="separate pools per memory part")
    extended: Counts = Field(
        {}, description="countable resources by name; they are booked, no device is given to a task"
    )
    bind_policy: HostBind = Field(
        "",
        description="demanded of slots with cpus of their own: FullPCPUsOnly (whole cores), "
        "SpreadByPCPUs (one thread per core), None; default: a kubelet's, else the cluster's",
    )
    numa_strategy: Strategy = Field(
        "",
        description="NUMA node to take first: MostAllocated, LeastAllocated, DistributeEvenly; "
        "default likewise",
    )
    alignment_policy: Alignment = Field(
        "",
        description="how slots lie on NUMA nodes: None, BestEffort, Restricted, SingleNUMANode; "
        "default likewise",
    )
    default_bind_policy: DefaultBind = Field(
        "",
        description="bind policy of requests that name none: FullPCPUs, SpreadByPCPUs, None; "
        "default: the cluster's",
    )
    default_exclusive_policy: DefaultExclusive = Field(
        "",
        description="exclusive policy of requests that name none: PCPULevel, NUMANodeLevel, None; "
        "default: the cluster's",
    )
    best_effort_percent: int = Field(
        100,
        ge=0,
        le=1000,
        description="cpu for best-effort slots, in percent of what their cpus can give",
    )
    best_effort_squeeze: str = Field(
        "none",
        pattern="^(none|cpuset)$",
        description="give best-effort slots fewer cpus (cpuset) while others are busy",
    )
    best_effort_squeeze_threshold: int = Field(
        65, ge=1, le=100, description="percent of the host that may be busy before that"
    )
    best_effort_squeeze_minimum: int = Field(
        0, ge=0, le=100, description="percent of the host that best-effort slots keep then"
    )
    kubelet_dir: str = Field(
        "/var/lib/kubelet",
        description="directory of a kubelet on this host, whose pinned cpus are left to it; "
        '"none": it is not looked for',
    )
    kubelet_config: str = Field(
        "", description="configuration file of that kubelet; default: config.yaml in kubelet_dir"
    )
    default_slot_fraction: float | None = Field(
        None, gt=0, le=1, description="share of the executor that an unknown request gets"
    )
    number_of_slots: int | None = Field(
        None, ge=1, description="deprecated: use default_slot_fraction = 1 / number"
    )
    slots_max: int = Field(0, ge=0, description="most slots at one time; 0: no limit")
    pids_max: int = Field(4096, ge=1, description="processes per slot where not asked otherwise")
    isolation: str = Field(
        "auto",
        pattern="^(auto|none)$",
        description="limits as far as the host allows (auto), or books only (none)",
    )
    cgroup_parent: str = Field("", description="delegated cgroup; default: the daemon's own")
    task_user: str = Field(
        "nobody", description='user that tasks run as, where the daemon is root; "self": root, too'
    )
    allow_root_tasks: bool = Field(False, description="let tasks run as uid 0")
    task_kill_grace: Duration = Field(5_000, ge=0, description="between SIGTERM and SIGKILL")
    output_limit: Size = Field(64 << 20, ge=1024, description="kept output per stream and task")
    offer_timeout: Duration = Field(10_000, ge=100, description="for offers to a target address")
    orphan_timeout: DurationOrNever = Field(
        600_000, description='without an RM, slots are freed after this; or "never"'
    )
    helper_socket: str = Field(
        "", description="of a helper in a unit of its own; default: the executor starts one"
    )
    helper_state_dir: str = Field("", description="directory of that helper and of task logs")
    front_user: str = Field("", description="who may use helper_socket, besides root")
    stop_tasks_on_exit: bool = Field(
        False, description="free all slots at a planned stop, instead of taking them up again"
    )


class Settings(Section):
    """The whole file."""

    client: ClientSection = Field(default_factory=ClientSection)
    log: LogSection = Field(default_factory=LogSection)
    rm: RmSection = Field(default_factory=RmSection)
    fairness: FairnessSection = Field(default_factory=FairnessSection)
    executor: ExecutorSection = Field(default_factory=ExecutorSection)
