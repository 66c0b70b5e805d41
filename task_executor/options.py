"""Everything a task executor can be told.

Filled by the command line; holds no defaults that read a host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from finegrain.options import ListenOptions, LogOptions, TlsOptions

DEFAULT_ADDRESS = "127.0.0.1:7180"
DEFAULT_METRICS_ADDRESS = "127.0.0.1:7181"
DEFAULT_KUBELET_DIR = Path("/var/lib/kubelet")


@dataclass(frozen=True, slots=True)
class TaskExecutorOptions:
    """Options of `finegrain executor serve`; docs/configuration.md lists them for people."""

    state_dir: Path
    run_dir: Path  # sockets; short, since socket paths are limited to 107 bytes
    managers: tuple[str, ...]  # "host:port" of RMs
    executor_id: str = ""  # empty: host name
    listen: ListenOptions = field(
        default_factory=lambda: ListenOptions(
            address=DEFAULT_ADDRESS, metrics_address=DEFAULT_METRICS_ADDRESS
        )
    )
    advertise_address: str = ""  # empty: the bound one
    manager_tls: TlsOptions | None = None
    manager_insecure: bool = False  # tokens may be sent in clear beyond loopback
    cluster_token_file: Path | None = None  # goes before FINEGRAIN_JOIN_TOKEN
    usual_token_file: Path | None = None  # where neither is given; None: in state_dir
    provided_as: str = ""  # shape as which a provider started us; empty: FINEGRAIN_PROVIDED_AS
    log: LogOptions = field(default_factory=LogOptions)
    labels: tuple[tuple[str, str], ...] = ()
    reserved_cpus: str = ""  # cpu list kept for the system
    reserved_cpus_strict: bool = False  # True: nor do slots without cpus of their own run there
    reserved_memory_bytes: int | None = None  # None: 5 %, at least 256 MiB, at most 4 GiB
    cpus: str = ""  # share: exactly these cpus, no second reserve
    cpu_milli: int | None = None  # share: book no more cpu time than this
    memory_bytes: int | None = None  # share: exactly this much memory, no second reserve
    memory_pools: tuple[tuple[str, int], ...] = ()  # separate pools per memory part, in bytes
    extended: tuple[tuple[str, int], ...] = ()  # countable resources by name
    bind_policy: str = ""  # a HostBindPolicy; empty here and in the next four: not said
    numa_strategy: str = ""  # a NumaStrategy
    alignment_policy: str = ""  # a NumaPolicy, not Default
    default_bind_policy: str = ""  # a BindPolicy, neither Default nor ConstrainedBurst
    default_exclusive_policy: str = ""  # an ExclusivePolicy, not Default
    best_effort_percent: int = 100  # cpu that best-effort slots may book, of that of the others
    best_effort_squeeze: str = "none"  # none, cpuset
    best_effort_squeeze_threshold: int = 65  # percent of the host that may be busy before
    best_effort_squeeze_minimum: int = 0  # percent of the host that they keep
    kubelet_dir: Path | None = DEFAULT_KUBELET_DIR  # None: no kubelet is looked for
    kubelet_config: Path | None = None  # its configuration; None: config.yaml in kubelet_dir
    default_slot_fraction: float | None = None
    number_of_slots: int | None = None  # deprecated: use default_slot_fraction
    slots_max: int = 0
    pids_max: int = 4096  # per slot, where the request does not say
    isolation: str = "auto"  # auto, none
    cgroup_parent: str = ""  # delegated subtree; empty: the daemon's own group
    task_user: str = "nobody"  # as root: whom tasks run as; "" or "self": the daemon's own user
    allow_root_tasks: bool = False
    task_kill_grace_ms: int = 5_000
    output_limit_bytes: int = 64 * 1024 * 1024  # per stream and task
    offer_timeout_ms: int = 10_000
    orphan_timeout_ms: int | None = 600_000  # None: never
    helper_socket: Path | None = None  # of a helper in a unit of its own; None: the front starts it
    helper_state_dir: Path | None = None  # of that helper
    front_user: str = ""  # who may use that socket
    stop_tasks_on_exit: bool = False  # `finegrain up`: leave nothing behind
