"""All options of a task executor. The command line sets them from the configuration.

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
    """A type of devices that the operator configured; either `paths` or `command` is set."""

    name: str
    paths: tuple[str, ...] = ()  # files or patterns; each file is a device
    command: str = ""  # command that lists the devices
    capacities: tuple[tuple[str, int], ...] = ()  # amounts of each device; the type itself has 100
    shared: bool = False  # True: slots can have parts of a device
    numa_node: int | None = None  # node of all devices; None: the kernel or the command reports it
    model: str = ""
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class TaskExecutorOptions:
    """Options of `finegrain executor serve`. docs/configuration.md describes them for operators."""

    state_dir: Path
    run_dir: Path  # sockets; short, since socket paths are limited to 107 bytes
    managers: tuple[str, ...]  # "host:port"; empty: those in the executor's credentials
    executor_id: str = ""  # empty: the name in the executor's certificate
    listen: ListenOptions = field(
        default_factory=lambda: ListenOptions(
            address=DEFAULT_ADDRESS, metrics_address=DEFAULT_METRICS_ADDRESS
        )
    )
    advertise_address: str = ""  # empty: the address that is bound
    join_token_file: Path | None = None  # None: join.token in state_dir
    provided_as: str = ""  # executor shape of its provider; empty: FINEGRAIN_PROVIDED_AS
    log: LogOptions = field(default_factory=LogOptions)
    labels: tuple[tuple[str, str], ...] = ()
    reserved_cpus: str = ""  # cpu list reserved for the system
    reserved_cpus_strict: bool = False  # True: slots in shared pools cannot use them either
    reserved_memory_bytes: int | None = None  # None: 5 %, at least 256 MiB, at most 4 GiB
    cpus: str = ""  # share of the host: exactly these cpus, without a reserve
    cpu_milli: int | None = None  # share of the host: largest cpu time to book
    memory_bytes: int | None = None  # share of the host: its memory, without a reserve
    memory_pools: tuple[tuple[str, int], ...] = ()  # a separate pool for each memory part, in bytes
    extended: tuple[tuple[str, int], ...] = ()  # countable resources by name, or NAME@NODE
    task_ports: str = TASK_PORTS_DEFAULT  # range of network ports for slots, or none
    devices: str = "auto"  # auto: all devices, unless `cpus` is a share of the host; all; none
    open_devices: tuple[str, ...] = ()  # types of devices that every task can open
    device_types: tuple[DeviceType, ...] = ()  # in addition to the detected types
    gpu_context_bytes: int = 300 * MIB  # memory of a GPU that CUDA uses for each task
    foreign_gpu_use: str = "auto"  # GPUs that other programs use: avoid, ignore, auto
    gpu_partitions: tuple[str, ...] = ()  # see `task_executor/host/gpu_partitions.py`
    gpu_partitions_only: bool = False  # True: several whole GPUs of a slot must be a partition
    gpu_parking: str = "off"  # one of `finegrain.devices.parking.MODES`
    mps: bool = False  # True: run MPS daemons for shared NVIDIA GPUs
    fake_gpus: str = ""  # name of a machine whose GPUs are simulated; empty: real GPUs
    bind_policy: str = ""  # a HostBindPolicy; here and in the next four lines, empty: not set
    numa_strategy: str = ""  # a NumaStrategy
    alignment_policy: str = ""  # a NumaPolicy, not Default
    default_bind_policy: str = ""  # a BindPolicy, neither Default nor ConstrainedBurst
    default_exclusive_policy: str = ""  # an ExclusivePolicy, not Default
    best_effort_percent: int = 100  # CPU that best-effort slots may book, in percent of their pool
    best_effort_squeeze: str = "none"  # none, cpuset
    best_effort_squeeze_threshold: int = 65  # largest busy share of the host, in percent
    best_effort_squeeze_minimum: int = 0  # share that best-effort slots keep, in percent
    kubelet_dir: Path | None = DEFAULT_KUBELET_DIR  # None: do not look for a kubelet
    kubelet_config: Path | None = None  # None: config.yaml in kubelet_dir
    default_slot_fraction: float | None = None
    default_slot_managed_percent: int = 40  # part of a default slot's memory; no effect with pools
    number_of_slots: int | None = None  # deprecated: use default_slot_fraction
    slots_max: int = 0
    pids_max: int = 4096  # for each slot whose request does not set it
    managed_memory_page_bytes: int = 32 * 1024  # quotas of operators are multiples of it
    isolation: str = "auto"  # auto, none
    cgroup_parent: str = ""  # delegated subtree; empty: the daemon's own cgroup
    task_user: str = "nobody"  # user of tasks if it runs as root; "" or "self": the daemon's user
    allow_root_tasks: bool = False
    task_kill_grace_ms: int = 5_000
    output_limit_bytes: int = 64 * 1024 * 1024  # for each output stream of a task
    offer_timeout_ms: int = 10_000
    offer_targets: tuple[str, ...] = ()  # host names and networks for offers; empty: all
    orphan_timeout_ms: int | None = 600_000  # None: never
    helper_socket: Path | None = None  # socket of a helper unit; None: the front starts a helper
    helper_state_dir: Path | None = None  # state directory of this helper
    front_user: str = ""  # user that may connect to `helper_socket`
    stop_tasks_on_exit: bool = False  # True: end all tasks when the executor ends (`finegrain up`)
