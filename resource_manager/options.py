"""All options of the resource manager.

The command line sets the options. No default depends on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from finegrain.cpu_policy import HostPolicy
from finegrain.options import ListenOptions, LogOptions
from finegrain.rpc.addresses import MANAGER_DEFAULT, format_address, parse_address
from resource_manager.engine.model.settings import Fairness

JOIN_PORT_DISTANCE = 3
"""Without configuration, the join port is the main port plus this number. Example: main port 7170,
join port 7173.
"""
WEB_PORT_DISTANCE = 2
"""Without configuration, the HTTP interface listens on loopback, at the main port plus this number.
Example: main port 7170, HTTP interface 7172.
"""
DEFAULT_METRICS_ADDRESS = "127.0.0.1:7171"


@dataclass(frozen=True, slots=True)
class ResourceManagerOptions:
    """Options of `finegrain rm serve`. docs/configuration.md describes each option."""

    state_dir: Path
    database_url: str = ""  # empty: use SQLite in the state directory
    listen: ListenOptions = field(
        default_factory=lambda: ListenOptions(
            address=MANAGER_DEFAULT, metrics_address=DEFAULT_METRICS_ADDRESS
        )
    )
    advertise_address: str = ""  # address for other processes; empty: the bound address
    standby: bool = False  # if another process leads: True waits, False ends the process
    # address of the join port. None: its port is the main port plus `JOIN_PORT_DISTANCE`; empty:
    # there is no join port
    join_listen: str | None = None
    # address of the join port for other processes; empty: on the host of the advertised address
    join_advertise: str = ""
    # address of the HTTP interface. None: on loopback, at the main port plus `WEB_PORT_DISTANCE`;
    # empty: there is no HTTP interface
    web_listen: str | None = None
    # PEM file of a certificate for browsers; empty: the certificate of this resource manager
    web_certificate: str = ""
    web_key: str = ""  # PEM file of the key of `web_certificate`
    web_advertise: str = ""  # address of the web page for browsers; empty: the bound address
    log: LogOptions = field(default_factory=LogOptions)
    strategy: str = "pack"  # pack, spread or balanced
    revocation: bool = False  # whether requests that fit nowhere can take back revocable slots
    # time that the tasks of a revoked slot have between SIGTERM and SIGKILL
    revocation_grace_ms: int = 10_000
    report_interval_ms: int = 3_000
    lost_timeout_ms: int = 15_000
    lease_default_ms: int = 30_000
    cpu_milli_min: int = 10
    memory_bytes_min: int = 4 * 1024 * 1024
    job_requests_max: int = 1_000_000  # maximum number of live requests of one job
    job_scheduling_classes_max: int = (
        10_000  # different profiles and labels among one job's pending requests
    )
    requests_max: int = 2_000_000  # maximum number of live requests of all jobs
    infeasible_after_ms: int = 30_000  # a request that fits no executor is rejected after this time
    job_calls_max: int = 64  # maximum number of calls in progress for one job
    # hosts to which executors are allowed to offer slots; empty: only the host of the job master
    offer_targets: tuple[str, ...] = ()
    job_streams_max: int = 32  # maximum number of open watch streams for one job
    job_events_max: int = 100_000
    cluster_events_max: int = 1_000_000
    cluster_events_age_ms: int = 7 * 24 * 3600 * 1000
    ended_retention_ms: int = 24 * 3600 * 1000
    database_lease_ms: int = 1_000  # PostgreSQL: leadership ends after this time without renewal
    # File of providers and executor shapes; None: there are no providers.
    providers_file: Path | None = None
    fairness: Fairness = field(default_factory=Fairness)
    # settings of all hosts. Settings that administrators change by a call have priority.
    cluster_policy: HostPolicy = field(default_factory=HostPolicy)

    @property
    def web_address(self) -> str:
        """Address at which the HTTP interface listens; empty: there is no HTTP interface."""
        if self.web_listen is not None:
            return self.web_listen
        _, port = parse_address(self.listen.address, "listen.address")
        return format_address("127.0.0.1", port + WEB_PORT_DISTANCE if port else 0)

    @property
    def join_address(self) -> str:
        """Address at which the join port listens; empty: there is no join port."""
        if self.join_listen is not None:
            return self.join_listen
        host, port = parse_address(self.listen.address, "listen.address")
        return format_address(host, port + JOIN_PORT_DISTANCE if port else 0)
