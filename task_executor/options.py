"""Defines all options of a task executor. The command line sets the options from the configuration.

No default in this module depends on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from finegrain.options import ListenOptions, LogOptions
from finegrain.resources import MIB
from task_executor.host.network_ports import TASK_PORTS_DEFAULT

DEFAULT_ADDRESS = "127.0.0.1:7180"
DEFAULT_METRICS_ADDRESS = "127.0.0.1:7181"
DEFAULT_KUBELET_DIR = Path("/var/lib/kubelet")


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A type of devices from the configuration. Either `paths` or `command` is set."""

    name: str
    paths: tuple[str, ...] = ()  # paths or patterns of files; each matching file is one device
    command: str = ""  # a command that lists the devices
    # amounts of each device by dimension; the dimension of the type itself is always 100
    capacities: tuple[tuple[str, int], ...] = ()
    shared: bool = False  # True if a slot can have a part of a device
    # the NUMA node of all devices; None if the kernel or the command reports the node
    numa_node: int | None = None
    model: str = ""
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class TaskExecutorOptions:
    """Options of `finegrain executor serve`. docs/configuration.md lists them."""

    state_dir: Path
    # directory of the sockets; use a short path, because a socket path has at most 107 bytes
    run_dir: Path
    # resource managers as "host:port"; empty: use the addresses in the executor's credentials
    managers: tuple[str, ...]
    executor_id: str = ""  # id of the executor; empty: use the name in the executor's certificate
    listen: ListenOptions = field(
        default_factory=lambda: ListenOptions(
            address=DEFAULT_ADDRESS, metrics_address=DEFAULT_METRICS_ADDRESS
        )
    )
    # address that other hosts connect to; empty: the address in `listen`
    advertise_address: str = ""
    # file with the join token; None: the file join.token in `state_dir`
    join_token_file: Path | None = None
    # executor shape that the provider started; empty: read the variable FINEGRAIN_PROVIDED_AS
    provided_as: str = ""
    log: LogOptions = field(default_factory=LogOptions)
    labels: tuple[tuple[str, str], ...] = ()  # labels that requests can require
    reserved_cpus: str = ""  # list of the cpus that are reserved for the system
    reserved_cpus_strict: bool = False  # True if slots in shared pools cannot use reserved cpus
    # memory reserved for the system; None: 5 % of the host, at least 256 MiB, at most 4 GiB
    reserved_memory_bytes: int | None = None
    # share of the host: the executor uses exactly these cpus and reserves none of them
    cpus: str = ""
    # share of the host: the CPU time that slots can book, in thousandths of a core
    cpu_milli: int | None = None
    # share of the host: the memory that slots can book; no part of it is reserved
    memory_bytes: int | None = None
    # bytes of a separate pool for each memory part; empty: no separate pools
    memory_pools: tuple[tuple[str, int], ...] = ()
    # amounts of countable resources, by NAME or NAME@NODE
    extended: tuple[tuple[str, int], ...] = ()
    task_ports: str = TASK_PORTS_DEFAULT  # range of network ports that slots get, or "none"
    # auto: all devices, but no device if `cpus` is set and the GPUs are real; all: all devices;
    # none: no device
    devices: str = "auto"
    open_devices: tuple[str, ...] = ()  # types of devices that every task can open
    device_types: tuple[DeviceType, ...] = ()  # types of devices in addition to the detected types
    gpu_context_bytes: int = 300 * MIB  # memory of a GPU that CUDA uses for each task
    # how to treat GPUs that other programs use: avoid, ignore or auto
    foreign_gpu_use: str = "auto"
    # groups of GPUs, as described in `task_executor/host/gpu_partitions.py`
    gpu_partitions: tuple[str, ...] = ()
    # True if a slot with several whole GPUs must get exactly one partition
    gpu_partitions_only: bool = False
    gpu_parking: str = "off"  # one of the words in `finegrain.devices.parking.MODES`
    mps: bool = False  # True to run MPS daemons for shared NVIDIA GPUs
    fake_gpus: str = ""  # name of the machine whose GPUs are simulated; empty: use the real GPUs
    # policy for the cpus of pinned slots, as a HostBindPolicy; empty if it is not set
    bind_policy: str = ""
    # The strategy that chooses the first NUMA node, as a NumaStrategy; empty if it is not set.
    numa_strategy: str = ""
    # how slots are bound to NUMA nodes: a NumaPolicy except Default; empty if it is not set
    alignment_policy: str = ""
    # bind policy of requests without a bind policy: a BindPolicy except Default and
    # ConstrainedBurst; empty if it is not set
    default_bind_policy: str = ""
    # exclusive policy of requests without an exclusive policy: an ExclusivePolicy except Default;
    # empty if it is not set
    default_exclusive_policy: str = ""
    # CPU time that best-effort slots can book, in percent of the CPU time of their pool
    best_effort_percent: int = 100
    best_effort_squeeze: str = "none"  # how best-effort slots are squeezed: none, cpuset or quota
    # best-effort slots are squeezed when more than this percentage of the host's cpus is busy
    best_effort_squeeze_threshold: int = 65
    # percentage of the host's cpus that best-effort slots always keep
    best_effort_squeeze_minimum: int = 0
    # directory of the kubelet on this host; None: do not look for a kubelet
    kubelet_dir: Path | None = DEFAULT_KUBELET_DIR
    # configuration file of the kubelet; None: config.yaml in `kubelet_dir`
    kubelet_config: Path | None = None
    # fraction of the executor that a default slot gets; None: 1 / number of cores
    default_slot_fraction: float | None = None
    # explicit amounts of a default slot; None: computed from the fraction
    default_slot_cpu_milli: int | None = None
    default_slot_memory_bytes: int | None = None
    # percentages of a default slot's memory by part: task_off_heap, managed, network; the task heap
    # gets the rest
    default_slot_memory_percent: tuple[tuple[str, int], ...] = ()
    # percentage of a default slot's memory that is managed memory; if `memory_pools` is set, this
    # value has no effect, because the pools determine the amount
    default_slot_managed_percent: int = 40
    number_of_slots: int | None = None  # deprecated: use `default_slot_fraction`
    slots_max: int = 0  # maximum number of slots at one time; 0 means no limit
    pids_max: int = 4096  # maximum number of processes of a slot whose request sets no number
    # size of a page of managed memory; operators of job graphs get whole pages
    managed_memory_page_bytes: int = 32 * 1024
    # auto: enforce limits as far as the host allows; none: only count the amounts
    isolation: str = "auto"
    # delegated cgroup in which slots are created; empty: the cgroup of the daemon
    cgroup_parent: str = ""
    # user that runs the tasks if the daemon runs as root; "" or "self" means root
    task_user: str = "nobody"
    allow_root_tasks: bool = False  # True if tasks are allowed to run as root
    task_kill_grace_ms: int = 5_000  # time between SIGTERM and SIGKILL when a task is ended
    # maximum size of the stored output, for each output stream of a task
    output_limit_bytes: int = 64 * 1024 * 1024
    offer_timeout_ms: int = 10_000  # timeout of an offer of a slot to a job master
    # host names and networks to which slots can be offered; empty: all hosts
    offer_targets: tuple[str, ...] = ()
    # after this time without a resource manager, the executor frees all slots; None: the executor
    # keeps its slots
    orphan_timeout_ms: int | None = 600_000
    # socket of a helper that runs as a separate systemd unit; None if the front starts a helper
    helper_socket: Path | None = None
    # state directory of the helper that runs as a separate unit
    helper_state_dir: Path | None = None
    front_user: str = ""  # the user, besides root, who is allowed to connect to `helper_socket`
    # True if a planned stop of the executor ends all tasks (`finegrain up` sets this option)
    stop_tasks_on_exit: bool = False
