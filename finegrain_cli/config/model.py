"""Defines the model of the configuration: for every key, its name, unit, default and help.

`config show` and docs/configuration.md list the keys of this model. Users type amounts with units
("256M", "0.5", "10m"). Decoded values and defaults are in bytes, thousandths of a core and
milliseconds.
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
from finegrain.resources import MIB
from finegrain.rpc.addresses import MANAGER_DEFAULT
from finegrain.units import parse_bytes, parse_cpu_milli, parse_duration_ms
from finegrain.values.bounds import GRACE_MS_MAX, OUTPUT_BYTES_MAX, PIDS_MAX
from resource_manager import options as rm
from resource_manager.engine.model.settings import Fairness
from task_executor import options as executor

LISTEN = "address for calls, HOST:PORT; port 0: the kernel chooses a port"
METRICS_LISTEN = 'address for metrics and health, HOST:PORT; "none": no metrics port'

_FAIRNESS = Fairness()


class Kind(StrEnum):
    """The base unit of a number that people type with a unit."""

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
    """Decodes a word of the enum `kind`. An empty text means that the key is not set."""

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
    # pydantic runs the last validator first. So this validator replaces "never" before the parser
    # runs.
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
    """A table of the file. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class ClientSection(Section):
    """The settings with which commands find the resource manager."""

    manager: Words = Field(
        [], description="addresses of resource managers, HOST:PORT, tried one after another"
    )
    credentials: str = Field(
        "", description="credentials file, with the certificate to show to the cluster"
    )


class LogSection(Section):
    """The settings of the daemons' logs, which go to standard error."""

    level: str = Field(
        "info",
        pattern="^(debug|info|warning|error)$",
        description="lowest level to log: debug, info, warning, error",
    )
    format: str = Field(
        "auto",
        pattern="^(auto|json|text)$",
        description="format of the log: json, text, or auto (text on a terminal, otherwise JSON)",
    )


class ListenSection(Section):
    """The addresses at which a daemon listens. Both daemons have these keys."""

    listen: str = Field("", description=LISTEN)
    metrics_listen: str = Field("", description=METRICS_LISTEN)
    reflection: bool = Field(False, description="serve gRPC reflection")


class RmSection(ListenSection):
    """The resource manager."""

    listen: str = Field(MANAGER_DEFAULT, description=LISTEN)
    metrics_listen: str = Field(rm.DEFAULT_METRICS_ADDRESS, description=METRICS_LISTEN)
    join_listen: str = Field(
        "",
        description='address at which new members join with a token, HOST:PORT; "none": no join '
        "port; default: the host of listen, and its port plus 3",
    )
    join_advertise: str = Field(
        "",
        description="address at which other hosts reach the join port; default: the bound "
        "address, but with the host of advertise if the bound address is a wildcard",
    )
    web_listen: str = Field(
        "",
        description='address of the HTTP interface, HOST:PORT; "none": no HTTP interface; default: '
        "127.0.0.1, and the port of listen plus 2",
    )
    web_certificate: str = Field(
        "",
        description="PEM file with the certificate that the HTTP interface shows; default: the "
        "certificate of the resource manager, which browsers do not know",
    )
    web_key: str = Field("", description="PEM file with the key of web_certificate")
    web_advertise: str = Field(
        "",
        description="address of the web page for browsers, such as https://finegrain.example.org; "
        "default: https://, and the address of web_listen",
    )
    state_dir: str = Field("", description="directory for certificates, lock and SQLite database")
    database: str = Field("", description="URL of the database; default: SQLite in state_dir")
    standby: bool = Field(
        False,
        description="wait while another resource manager leads on this database, then take over",
    )
    advertise: str = Field(
        "",
        description="address at which other hosts reach this daemon; default: the address at "
        "which it listens",
    )
    strategy: str = Field(
        "pack",
        pattern="^(pack|spread|balanced)$",
        description="fill hosts in use before empty hosts (pack), load all hosts evenly (spread), "
        "or keep the free cpu and memory of each host in proportion (balanced)",
    )
    revocation: str = Field(
        "off",
        pattern="^(off|on)$",
        description="take slots that are revocable back for requests that fit on no executor (on), "
        "or never (off)",
    )
    revocation_grace: Duration = Field(
        10_000,
        ge=0,
        le=GRACE_MS_MAX,
        description="time that the tasks of a revoked slot have between SIGTERM and SIGKILL",
    )
    report_interval: Duration = Field(
        3_000, ge=50, description="time between two reports of an executor"
    )
    lost_timeout: Duration = Field(
        15_000, ge=200, description="time without a report after which an executor is lost"
    )
    lease: Duration = Field(30_000, ge=1_000, description="default lease of a job")
    cpu_min: Cpu = Field(10, ge=1, description="smallest cpu of a request with a resource profile")
    memory_min: Size = Field(
        4 << 20, ge=1, description="smallest memory of a request with a resource profile"
    )
    job_requests_max: int = Field(
        1_000_000, ge=1, description="maximum number of requests of one job that have not ended"
    )
    job_scheduling_classes_max: int = Field(
        10_000,
        ge=1,
        description="maximum number of combinations of profile and labels among one job's waiting "
        "requests",
    )
    requests_max: int = Field(
        2_000_000,
        ge=1,
        description="maximum number of requests of all jobs together that have not ended",
    )
    infeasible_after: Duration = Field(
        30_000,
        ge=0,
        description="reject a request that no executor could host after the executors have not "
        "changed for this time; 0: at once",
    )
    job_calls_max: int = Field(
        64, ge=1, description="maximum number of calls of one job that wait for an answer"
    )
    offer_targets: Words = Field(
        [],
        description="host names and networks (10.0.0.0/8) to which job masters may have slots "
        "offered; default: only the host from which the request comes",
    )
    job_streams_max: int = Field(
        32, ge=1, description="maximum number of open watch streams of one job"
    )
    job_events_max: int = Field(
        100_000, ge=100, description="maximum number of events that are kept for each job"
    )
    cluster_events_max: int = Field(
        1_000_000, ge=100, description="maximum number of events that are kept for the cluster"
    )
    cluster_events_age: Duration = Field(
        604_800_000, ge=1_000, description="longest time for which events of the cluster are kept"
    )
    ended_retention: Duration = Field(
        86_400_000, ge=0, description="time for which an ended job and its ids are kept"
    )
    database_lease: Duration = Field(
        1_000, ge=200, description="duration of the leadership lease on PostgreSQL"
    )
    bind_policy: HostBind = Field(
        "",
        description="policy of all hosts that slots with dedicated cpus must follow, unless it is "
        "set at runtime or by the host: FullPCPUsOnly (whole cores), SpreadByPCPUs (one thread per "
        "core), None",
    )
    numa_strategy: Strategy = Field(
        "",
        description="NUMA node to use first, on all hosts that do not set it: MostAllocated, "
        "LeastAllocated, DistributeEvenly",
    )
    alignment_policy: Alignment = Field(
        "",
        description="how slots are placed on NUMA nodes, on all hosts that do not set it: None, "
        "BestEffort, Restricted, SingleNUMANode",
    )
    default_bind_policy: DefaultBind = Field(
        "",
        description="bind policy of requests that name no bind policy, on all hosts that do not "
        "set it: FullPCPUs, SpreadByPCPUs, None",
    )
    default_exclusive_policy: DefaultExclusive = Field(
        "",
        description="exclusive policy of requests that name no exclusive policy, on all hosts that "
        "do not set it: PCPULevel, NUMANodeLevel, None",
    )
    providers_file: str = Field(
        "",
        description="file that defines executors to start on demand; default: no executors are "
        "started",
    )


class FairnessSection(Section):
    """How the resource manager shares capacity between resource groups and jobs."""

    usage_measure: str = Field(
        _FAIRNESS.usage_measure,
        pattern="^(dominant|slots|cpu)$",
        description="usage of a slot per second; dominant: the largest of its shares of the "
        "cluster's resources; slots: 1; cpu: its cores",
    )
    order: str = Field(
        _FAIRNESS.order,
        pattern="^(fair|arrival)$",
        description="job that is served first: the job with the least usage relative to its "
        "weight (fair), or the job that arrived first (arrival)",
    )
    half_life: HalfLife = Field(
        _FAIRNESS.half_life_ms,
        ge=1_000,
        description='past usage counts half after this time; "never": past usage always counts in '
        "full",
    )
    lookahead: Duration = Field(
        _FAIRNESS.lookahead_ms,
        ge=0,
        description="count running slots as if they had already run for this additional time; 0: "
        "count only the actual time",
    )
    starvation_timeout: Duration = Field(
        _FAIRNESS.starvation_timeout_ms,
        ge=1_000,
        description="reserve capacity for a request that has waited for this time while other "
        "requests were placed",
    )
    starvation_placements: int = Field(
        _FAIRNESS.starvation_placements,
        ge=0,
        description="also reserve capacity for a request after this number of placements of other "
        "requests; 0: only the waiting time counts",
    )
    reservations_max: int = Field(
        _FAIRNESS.reservations_max, ge=0, description="maximum number of reservations at one time"
    )
    reserved_part_max: float = Field(
        _FAIRNESS.reserved_part_max,
        ge=0,
        le=1,
        description="largest fraction of any resource of the cluster for all reservations "
        "together, without the reservation of the longest starved request; 1: the whole cluster",
    )
    usage_interval: Duration = Field(
        _FAIRNESS.usage_interval_ms,
        ge=100,
        description="time between two writes of usage to the database; a crash loses the usage "
        "since the last write",
    )
    slots_max: int = Field(
        _FAIRNESS.slots_max,
        ge=0,
        description="maximum number of slots in the whole cluster at one time; 0: no limit",
    )


class ExecutorSection(ListenSection):
    """The task executor."""

    listen: str = Field(executor.DEFAULT_ADDRESS, description=LISTEN)
    metrics_listen: str = Field(executor.DEFAULT_METRICS_ADDRESS, description=METRICS_LISTEN)
    state_dir: str = Field("", description="directory for identity, checkpoint and task logs")
    run_dir: str = Field("", description="directory for sockets; must be a short path")
    manager: Words = Field(
        [],
        description="addresses of resource managers, HOST:PORT, tried one after another; default: "
        "the addresses in the executor's credentials",
    )
    join_token_file: str = Field(
        "",
        description="file with the token for the first start; default: join.token in state_dir",
    )
    executor_id: str = Field(
        "",
        description="name of the executor in the cluster; its join token must have the same name; "
        "default: the name in the token",
    )
    advertise: str = Field(
        "",
        description="address at which other hosts reach this daemon; default: the address at "
        "which it listens",
    )
    labels: Labels = Field({}, description="labels that requests can require")
    provided_as: str = Field(
        "",
        description="executor shape, if a provider started it; default: $FINEGRAIN_PROVIDED_AS",
    )
    reserved_cpus: str = Field(
        "", description="cpus that are kept for the system, for example 0,32"
    )
    reserved_cpus_strict: bool = Field(
        False,
        description="let no slot run on reserved_cpus; otherwise slots without dedicated cpus may "
        "run on these cpus",
    )
    reserved_memory: Size | None = Field(
        None,
        description="memory that is kept for the system; default: 5 %, at least 256 MiB, at most "
        "4 GiB",
    )
    cpus: str = Field("", description="share of the host: exactly these cpus")
    cpu: Cpu | None = Field(
        None, description="share of the host: the cpu time that slots can book, in cores"
    )
    memory: Size | None = Field(
        None, description="share of the host: the memory that slots can book"
    )
    memory_pools: Sizes = Field(
        {},
        description="size of a separate pool for each memory part; default: one pool for all parts",
    )
    extended: Counts = Field(
        {},
        description="countable resources, NAME=COUNT, or NAME@NODE=COUNT on a NUMA node; the "
        "executor only counts them, and gives no device to a task",
    )
    task_ports: str = Field(
        "20000-29999",
        pattern=r"^(none|\d{1,5}-\d{1,5})$",
        description="network ports that slots can request, without the ports that the kernel "
        'gives to outgoing connections; "none": slots get no ports',
    )
    devices: str = Field(
        "auto",
        pattern="^(auto|all|none)$",
        description="devices that slots can have: all devices of the host (all), no devices "
        "(none), or all devices unless the executor has a share of the cpus (auto)",
    )
    gpu_context_memory: Size = Field(
        300 * MIB,
        description="memory of an NVIDIA GPU that CUDA takes for each task before the task "
        "allocates any",
    )
    foreign_gpu_use: str = Field(
        "auto",
        pattern="^(auto|avoid|ignore)$",
        description="reaction when a pod, or a process of no slot, uses a device; avoid: give the "
        "device no new work; ignore: ignore the use; auto: avoid, but ignore processes if the "
        "executor runs in a container (process ids there differ from the ids on the host)",
    )
    open_devices: Words = Field(
        [], description="types of devices that every task can open, such as rdma; default: none"
    )
    gpu_partitions: Words = Field(
        [],
        description="sets of GPUs for slots with several whole GPUs: minor numbers, score and "
        "bandwidth in GB/s, such as 0+1:2:400; sets with the highest score come first; default: "
        "the best connected GPUs",
    )
    gpu_partitions_only: bool = Field(
        False,
        description="give a slot with several whole GPUs only one of the sets in gpu_partitions",
    )
    mps: bool = Field(
        False,
        description="run NVIDIA's Multi-Process Service for shared GPUs, so that the driver limits "
        "memory and compute of each process",
    )
    gpu_parking: str = Field(
        "off",
        pattern="^(off|same-gpu|any-gpu)$",
        description="whether slots can give up NVIDIA GPUs while their processes stay (finegrain "
        "slot park), with NVIDIA's cuda-checkpoint; off: no; same-gpu: yes, and each slot later "
        "gets the same GPUs again; any-gpu: yes, and a slot with one GPU may later get another "
        "GPU of the same model",
    )
    fake_gpus: str = Field(
        "",
        description="pretend to have the GPUs of this machine, such as dgx-a100; default: the "
        "real GPUs",
    )
    bind_policy: HostBind = Field(
        "",
        description="policy that slots with dedicated cpus must follow: FullPCPUsOnly (whole "
        "cores), SpreadByPCPUs (one thread per core), None; default: the policy of a kubelet on "
        "this host, otherwise the policy of the cluster",
    )
    numa_strategy: Strategy = Field(
        "",
        description="NUMA node to use first: MostAllocated, LeastAllocated, DistributeEvenly; "
        "default: the strategy of a kubelet on this host, otherwise the strategy of the cluster",
    )
    alignment_policy: Alignment = Field(
        "",
        description="how slots are placed on NUMA nodes: None, BestEffort, Restricted, "
        "SingleNUMANode; default: the policy of a kubelet on this host, otherwise the policy of "
        "the cluster",
    )
    default_bind_policy: DefaultBind = Field(
        "",
        description="bind policy of requests that name no bind policy: FullPCPUs, SpreadByPCPUs, "
        "None; default: the policy of the cluster",
    )
    default_exclusive_policy: DefaultExclusive = Field(
        "",
        description="exclusive policy of requests that name no exclusive policy: PCPULevel, "
        "NUMANodeLevel, None; default: the policy of the cluster",
    )
    best_effort_percent: int = Field(
        100,
        ge=0,
        le=1000,
        description="cpu time that best-effort slots can book, in percent of the cpu time of "
        "their pool",
    )
    best_effort_squeeze: str = Field(
        "none",
        pattern="^(none|cpuset|quota)$",
        description="while other slots are busy, confine best-effort slots to fewer cpus "
        "(cpuset), limit their CPU time (quota), or do nothing (none)",
    )
    best_effort_squeeze_threshold: int = Field(
        65,
        ge=1,
        le=100,
        description="percentage of the cpus that all slots and the system together may use before "
        "best-effort slots are squeezed",
    )
    best_effort_squeeze_minimum: int = Field(
        0, ge=0, le=100, description="percentage of the cpus that best-effort slots always keep"
    )
    kubelet_dir: str = Field(
        "/var/lib/kubelet",
        description="directory of a kubelet on this host; slots do not get the cpus that the "
        'kubelet has given to containers; "none": do not look for a kubelet',
    )
    kubelet_config: str = Field(
        "", description="configuration file of the kubelet; default: config.yaml in kubelet_dir"
    )
    default_slot_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="fraction of the executor that a request without a resource profile gets",
    )
    default_slot_cpu: Cpu | None = Field(
        None,
        description="cpu that a request without a resource profile gets; default: from "
        "default_slot_fraction",
    )
    default_slot_memory: Size | None = Field(
        None,
        description="memory that a request without a resource profile gets; default: from "
        "default_slot_fraction",
    )
    default_slot_memory_percent: Counts = Field(
        {},
        description="percentages of the memory of a default slot by part: task_off_heap, managed, "
        "network; the task heap gets the rest; no effect with memory_pools",
    )
    default_slot_managed_percent: int = Field(
        40,
        ge=0,
        le=100,
        description="percentage of the memory of a default slot that is managed memory, which "
        "operators of job graphs share; no effect with memory_pools",
    )
    number_of_slots: int | None = Field(
        None, ge=1, description="deprecated: use default_slot_fraction = 1 / number"
    )
    slots_max: int = Field(0, ge=0, description="maximum number of slots at one time; 0: no limit")
    pids_max: int = Field(
        4096,
        ge=1,
        le=PIDS_MAX,
        description="maximum number of processes per slot, unless the request sets another number",
    )
    managed_memory_page: Size = Field(
        32 * 1024,
        ge=4096,
        multiple_of=4096,
        description="size of a page of managed memory; operators of job graphs get whole pages",
    )
    isolation: str = Field(
        "auto",
        pattern="^(auto|none)$",
        description="enforce limits as far as the host allows (auto), or only count the amounts "
        "(none)",
    )
    cgroup_parent: str = Field(
        "", description="delegated cgroup for slots; default: the cgroup of the daemon"
    )
    task_user: str = Field(
        "nobody", description='user that runs tasks if the daemon is root; "self": root itself'
    )
    allow_root_tasks: bool = Field(False, description="let tasks run as uid 0")
    task_kill_grace: Duration = Field(
        5_000, ge=0, le=GRACE_MS_MAX, description="time between SIGTERM and SIGKILL of a task"
    )
    output_limit: Size = Field(
        64 << 20,
        ge=1024,
        le=OUTPUT_BYTES_MAX,
        description="maximum size of the stored output of each stream of a task. If there is more "
        "output, a task of finegrain run waits until its output was passed on. Of other tasks, "
        "the executor keeps the first and the last part",
    )
    offer_timeout: Duration = Field(
        10_000, ge=100, description="timeout of a slot offer to a target address"
    )
    offer_targets: Words = Field(
        [],
        description="host names and networks (10.0.0.0/8) to which this executor may offer slots; "
        "default: all that the resource manager allows",
    )
    orphan_timeout: DurationOrNever = Field(
        600_000, description='free all slots after this time without a resource manager; or "never"'
    )
    helper_socket: str = Field(
        "",
        description="socket of a helper that runs as a separate unit; default: the executor "
        "starts a helper",
    )
    helper_state_dir: str = Field(
        "",
        description="directory in which a helper in a separate unit keeps its state and task logs",
    )
    front_user: str = Field("", description="user that may use helper_socket, besides root")
    stop_tasks_on_exit: bool = Field(
        False,
        description="free all slots at a planned stop; otherwise the slots continue, and the next "
        "start of the executor adopts them",
    )


class DeviceTypeSection(Section):
    """Devices of a type that executors do not detect. TYPE is the name of the type in requests."""

    paths: Words = Field(
        [], description="paths or patterns of files, such as /dev/npu*; each file is a device"
    )
    command: str = Field(
        "",
        description="program with arguments that prints the devices, instead of paths: one id per "
        "line, or a JSON array",
    )
    capacities: Counts = Field(
        {},
        description="amounts of each device by name; default: TYPE = 100, which is a whole device",
    )
    shared: bool = Field(False, description="let slots have parts of a device")
    numa_node: int | None = Field(
        None, ge=0, description="NUMA node of the devices; default: as the kernel reports it"
    )
    model: str = Field("", description="model of the devices, which requests can ask for")
    vendor: str = Field("", description="vendor of the devices")


class Settings(Section):
    """All sections of the file."""

    client: ClientSection = Field(default_factory=ClientSection)
    log: LogSection = Field(default_factory=LogSection)
    rm: RmSection = Field(default_factory=RmSection)
    fairness: FairnessSection = Field(default_factory=FairnessSection)
    executor: ExecutorSection = Field(default_factory=ExecutorSection)
    devices: dict[str, DeviceTypeSection] = Field({})
