"""Builds the parts of a resource manager and connects them, before any of them runs.

`main` starts and stops the parts in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prometheus_client import Counter

from finegrain.errors import ConfigurationError, InvalidArgument, Unavailable
from finegrain.metrics_http import MetricsServer
from finegrain.rpc.access import CLUSTER_ACCESS, IDENTITY_ACCESS, RESOURCE_MANAGER_ACCESS
from finegrain.rpc.addresses import check_dialable, format_address, parse_address
from finegrain.rpc.allocation_tokens import TokenSigner
from finegrain.rpc.offer_targets import OfferTargets
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.trust import Trust
from finegrain.software_version import software_version
from finegrain.v1.cluster_pb2_grpc import add_ClusterServiceServicer_to_server
from finegrain.v1.identity_pb2_grpc import add_IdentityServiceServicer_to_server
from finegrain.v1.resource_manager_pb2_grpc import (
    ResourceManagerServiceServicer,
    add_ResourceManagerServiceServicer_to_server,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.options import ResourceManagerOptions
from resource_manager.providers.config import ProvidersConfiguration
from resource_manager.service.admission import JobLimits
from resource_manager.service.audit import recorded_methods
from resource_manager.service.cluster_service import About, ClusterServicer
from resource_manager.service.engine_driver import EngineDriver, now
from resource_manager.service.executor_service import ExecutorCalls, ExecutorTerms
from resource_manager.service.group_use import GroupUse, sample_groups
from resource_manager.service.identities.epochs import EpochProofs
from resource_manager.service.identities.identity_service import IdentityCalls
from resource_manager.service.identities.issuing import Issuer
from resource_manager.service.identities.join_service import JoinServer
from resource_manager.service.identities.members import Members
from resource_manager.service.identities.own import OwnFiles, open_own_files
from resource_manager.service.identities.web_sessions import WebSessions
from resource_manager.service.job_service import JobCalls
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.ownership import JobOwners
from resource_manager.service.preparation import settings_of
from resource_manager.service.provider_setup import read_providers
from resource_manager.service.runner import Runner, RunnerLimits
from resource_manager.service.standby import Leadership
from resource_manager.service.state_metrics import observe_state
from resource_manager.service.watch import WatchHub
from resource_manager.storage.lazy_store import LazyStore
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store

DATABASE_FILE = "finegrain.db"


@dataclass(frozen=True, slots=True)
class Components:
    """The objects from which the parts of a resource manager are built."""

    options: ResourceManagerOptions
    settings: EngineSettings
    own_files: OwnFiles
    own: OwnCertificate
    members: Members
    sessions: WebSessions
    proofs: EpochProofs
    tokens: TokenSigner
    metrics: ResourceManagerMetrics
    store: Store
    driver: EngineDriver
    runner: Runner
    leadership: Leadership
    owners: JobOwners
    providers: ProvidersConfiguration
    measured: MeasuredUse
    group_use: GroupUse
    about: About


class Servicer(JobCalls, ExecutorCalls, ResourceManagerServiceServicer):
    """ResourceManagerService: the calls of job masters and of executors."""

    def __init__(self, components: Components, hub: WatchHub, terms: ExecutorTerms) -> None:
        limits = JobLimits(
            components.options.job_calls_max, streams=components.options.job_streams_max
        )
        JobCalls.__init__(
            self,
            components.runner,
            hub,
            components.owners,
            components.settings,
            components.metrics,
            tokens=components.tokens,
            targets=OfferTargets.parse(components.options.offer_targets),
            limits=limits,
        )
        ExecutorCalls.__init__(
            self,
            components.runner,
            terms,
            components.members,
            components.proofs,
            metrics=components.metrics,
            measured=components.measured,
        )


def advertised(options: ResourceManagerOptions, bound: str) -> str:
    """Returns the address at which other processes connect to this resource manager.

    Args:
        options: the configuration. A configured address has priority.
        bound: the address of the port.

    Returns:
        The address; empty if other processes cannot connect to the bound address (for example
        0.0.0.0).

    Raises:
        ConfigurationError: the address would be empty, but a standby needs an address.
    """
    if options.advertise_address:
        return options.advertise_address
    try:
        return check_dialable(bound, "listen.address")
    except InvalidArgument:
        if not options.standby:
            return ""
    raise ConfigurationError(
        f"this resource manager listens at {bound}, to which other hosts cannot connect; name an "
        "address to which they can connect, because a standby needs one (--advertise HOST:PORT)",
        details={"address": bound},
    )


async def make_components(
    options: ResourceManagerOptions, state_dir: Path, stack: AsyncExitStack
) -> Components:
    """Reads the configuration files and opens the database.

    A standby opens its database only when no other process is the leader (`LazyStore`).

    Args:
        options: the configuration.
        state_dir: the locked state directory.
        stack: receives the callback that closes the store at the end.

    Raises:
        FinegrainError: a file, a certificate or the database cannot be used.
    """
    # Stage 1: configuration and certificates. These files are read first. So mistakes in them are
    # reported before a database is opened.
    providers = read_providers(options)
    settings = settings_of(options, providers.provisioning)
    own_files = open_own_files(state_dir)
    own = OwnCertificate(own_files.rm_credentials())
    metrics = ResourceManagerMetrics(software_version())
    # Stage 2: the store. Opening the store blocks, so a thread opens it.
    store: Store
    if options.standby:
        url = database_url(options, state_dir)
        store = LazyStore(url, lambda: _open_store(options, state_dir))
    else:
        store = await asyncio.to_thread(_open_store, options, state_dir)
    stack.push_async_callback(asyncio.to_thread, store.close)
    holder = f"{socket.gethostname()} {options.advertise_address or options.listen.address}"
    lease_s = options.database_lease_ms / 1_000
    # The renewal interval is a quarter of the lease. So several renewals can fail before the lease
    # ends.
    limits = RunnerLimits(renew_interval_s=lease_s / 4, unsure_max_s=lease_s)
    # Stage 3: the parts that use the store.
    driver = EngineDriver(store, settings, metrics, holder=holder)
    runner = Runner(driver, metrics, limits=limits)
    leadership = Leadership(runner, metrics)
    members = Members(runner, now_ms)
    return Components(
        options=options,
        settings=settings,
        own_files=own_files,
        own=own,
        members=members,
        sessions=WebSessions(runner, members.is_denied, now_ms),
        proofs=EpochProofs(lambda: own_files.authority, own),
        tokens=TokenSigner(own),
        metrics=metrics,
        store=store,
        driver=driver,
        runner=runner,
        leadership=leadership,
        owners=JobOwners(runner),
        providers=providers,
        measured=MeasuredUse(now_ms),
        group_use=GroupUse(),
        about=About(software_version(), start_time_ms=now_ms()),
    )


def _open_store(options: ResourceManagerOptions, state_dir: Path) -> Store:
    return open_store(
        database_url(options, state_dir), check_in_load=True, lease_ms=options.database_lease_ms
    )


def database_url(options: ResourceManagerOptions, state_dir: Path) -> str:
    """Returns the URL of the database: the configured URL, else SQLite in the state directory."""
    return options.database_url or sqlite_url((state_dir / DATABASE_FILE).resolve())


def make_server(
    components: Components, hub: WatchHub, identity_calls: IdentityCalls
) -> GuardedServer:
    """Returns the gRPC server with all its services. The port is not bound yet."""
    metrics, refusals = components.metrics, components.driver.refusals

    @cache
    def calls(method: str, status: str) -> Counter:
        return metrics.calls.labels(method.rpartition("/")[2], status)

    refusals.recorded = recorded_methods(ClusterServicer, IdentityCalls)
    server = GuardedServer(
        components.options.listen,
        {**RESOURCE_MANAGER_ACCESS, **CLUSTER_ACCESS, **IDENTITY_ACCESS},
        components.own,
        _trust(components),
        observe=lambda method, status, _seconds: calls(method, status).inc(),
        gate=components.leadership.refusal,
        refused=refusals.add,
    )
    terms = ExecutorTerms(
        report_interval_ms=components.settings.report_interval_ms,
        lost_timeout_ms=components.settings.lost_timeout_ms,
        authorities_sha256=lambda: components.own.credentials.authorities_sha256,
    )
    # ResourceManagerService and ClusterService use the same runner. So their calls are served in
    # one sequence.
    server.add(add_ResourceManagerServiceServicer_to_server, Servicer(components, hub, terms))
    cluster = ClusterServicer(
        components.runner, hub, components.about, components.measured, components.group_use
    )
    server.add(add_ClusterServiceServicer_to_server, cluster)
    server.add(add_IdentityServiceServicer_to_server, identity_calls)

    def end_denied() -> None:
        server.end_denied_streams()
        components.sessions.drop_denied()

    components.members.on_denied = end_denied
    return server


def _trust(components: Components) -> Trust:
    return Trust(
        components.own_files.cluster, is_denied=components.members.is_denied, own=components.own
    )


class Identities:
    """Issues certificates and tokens: the services of identity.proto, with their addresses.

    Attributes:
        join_address: "host:port" of the join port for other processes; empty: there is none.
    """

    def __init__(self, components: Components) -> None:
        self._components = components
        self.join_address = ""
        self.issuer = Issuer(
            lambda: components.own_files.authority,
            lambda: [components.leadership.address] if components.leadership.address else [],
        )
        self.calls = IdentityCalls(
            self.issuer,
            components.members,
            components.sessions,
            lambda: [self.join_address] if self.join_address else [],
        )

    async def serve_joining(self, stack: AsyncExitStack) -> None:
        """Opens the join port, if one is configured. Sets `join_address`.

        Raises:
            ConfigurationError: the address cannot be bound.
        """
        options, components = self._components.options, self._components
        if not options.join_address:
            return
        server = JoinServer(
            options.join_address,
            components.own,
            self.issuer,
            components.members,
            components.leadership.refusal,
            refused=components.driver.refusals.add,
        )
        bound = await server.start()
        stack.push_async_callback(server.stop)
        self.join_address = options.join_advertise or dialable_address(
            bound, components.leadership.address
        )


def dialable_address(bound: str, advertised_address: str) -> str:
    """Returns the address at which other processes reach another port of this process.

    If the port is open at all addresses of this host, the host of the advertised address is used.

    Args:
        bound: the address of the port.
        advertised_address: the advertised address of the main port; empty: unknown.
    """
    try:
        return check_dialable(bound, "address")
    except InvalidArgument:
        if not advertised_address:
            return ""
    host, _ = parse_address(advertised_address)
    return format_address(host, parse_address(bound)[1])


def now_ms() -> int:
    """Returns the present time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def sample_group_use(components: Components) -> None:
    """Samples the use of resource groups until the task is cancelled."""
    await sample_groups(components.runner, components.group_use, components.measured, now)


async def serve_metrics(components: Components, stack: AsyncExitStack) -> str:
    """Starts to serve metrics and health. Returns the address; empty if none is configured."""
    options, runner, metrics = components.options, components.runner, components.metrics
    if not options.listen.metrics_address:
        return ""

    async def refresh() -> None:
        metrics.certificate_end.set(components.own.credentials.not_after)
        with contextlib.suppress(Unavailable):  # the gauges then keep their last values
            await observe_state(metrics, runner, components.measured, components.group_use, now)

    http = MetricsServer(
        options.listen.metrics_address,
        metrics.registry,
        health=lambda: components.leadership.healthy,
        unready=lambda: components.leadership.unready,
        refresh=refresh,
        own=components.own,
        trust=_trust(components),
    )
    address = await http.start()
    stack.push_async_callback(http.stop)
    return address
