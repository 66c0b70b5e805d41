"""Starts and stops a resource manager: opens what it needs in order, closes it in reverse.

Order: the state directory is locked, tokens are read, the port is bound (callers get UNAVAILABLE
until the books are read), then leadership is taken, or waited for by a standby. Everything wrong
with the configuration ends the process with one clear line. A standby that led and was replaced
begins anew as a fresh program: nothing of what it had under way can outlast that.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from finegrain.errors import (
    ConfigurationError,
    FinegrainError,
    InvalidArgument,
    Unavailable,
)
from finegrain.logs import configure_logging, get_logger
from finegrain.metrics_http import MetricsServer
from finegrain.rpc.access import CLUSTER_ACCESS, RESOURCE_MANAGER_ACCESS, TokenHashes
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.tokens import Tokens, sha256_hex
from finegrain.systemd import notify
from finegrain.v1.cluster_pb2_grpc import add_ClusterServiceServicer_to_server
from finegrain.v1.resource_manager_pb2_grpc import (
    ResourceManagerServiceServicer,
    add_ResourceManagerServiceServicer_to_server,
)
from resource_manager.engine.epochs import EpochSeen
from resource_manager.engine.settings import EngineSettings
from resource_manager.options import ResourceManagerOptions
from resource_manager.service.admission import JobLimits
from resource_manager.service.books import Books, now
from resource_manager.service.books_metrics import observe_books
from resource_manager.service.cluster_service import About, ClusterServicer
from resource_manager.service.dispatch import Dispatcher
from resource_manager.service.executor_link import ExecutorLinks, LinkOptions
from resource_manager.service.executor_service import ExecutorCalls, ExecutorTerms
from resource_manager.service.job_service import JobCalls
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.ownership import JobSecrets
from resource_manager.service.preparation import (
    PreparedTokens,
    prepare_tokens,
    settings_of,
    software_version,
)
from resource_manager.service.runner import Runner, RunnerLimits
from resource_manager.service.standby import Leadership
from resource_manager.service.state_dir import locked_state_dir, remove_endpoint, write_endpoint
from resource_manager.service.watch import WatchHub
from resource_manager.service.watchdog import feed_watchdog
from resource_manager.service.way_out import out_of_the_past
from resource_manager.storage.late_store import LateStore
from resource_manager.storage.location import DatabaseUrl, sqlite_url
from resource_manager.storage.store import NotLeader, Store, open_store

DATABASE_FILE = "finegrain.db"
EXIT_OK, EXIT_FAILED, EXIT_STEPPED_DOWN = 0, 1, 4
EXIT_REPLACED = 5
"""Of `serve` only: a standby led and was replaced; `run` begins anew."""
STOP_GRACE_S = 2.0
COLLECTOR_THRESHOLDS = (10_000, 10, 10)
"""Every slot leaves some thirty objects that stay: with Python's own 700 the cyclic collector looks
at them so often that it took a quarter of the time to step events."""

Ready = Callable[[str, str], None]
"""Called with address and metrics address (empty: none) once calls are served, or stood by for."""

_log = get_logger("finegrain.rm")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What most parts of a resource manager are made with."""

    options: ResourceManagerOptions
    settings: EngineSettings
    prepared_tokens: PreparedTokens
    metrics: ResourceManagerMetrics
    store: Store
    books: Books
    runner: Runner
    leadership: Leadership
    secrets: JobSecrets

    @property
    def tokens(self) -> Tokens:
        """What callers show."""
        return self.prepared_tokens.tokens


class _Servicer(JobCalls, ExecutorCalls, ResourceManagerServiceServicer):
    """ResourceManagerService: what job masters and what executors use of it."""

    def __init__(self, parts: _Parts, hub: WatchHub, terms: ExecutorTerms) -> None:
        limits = JobLimits(parts.options.job_calls_max, streams=parts.options.job_streams_max)
        JobCalls.__init__(
            self, parts.runner, hub, parts.secrets, parts.settings, parts.metrics, limits=limits
        )
        ExecutorCalls.__init__(self, parts.runner, terms, parts.metrics)


@dataclass(frozen=True, slots=True)
class _Running:
    """A resource manager whose ports are bound; `lead` makes it serve."""

    parts: _Parts
    server: GuardedServer
    dispatcher: Dispatcher
    state_dir: Path
    address: str
    metrics_address: str

    @property
    def database(self) -> DatabaseUrl:
        """Which one it uses."""
        return DatabaseUrl.parse(_database_url(self.parts.options, self.state_dir))

    async def lead(self, ready: Callable[[str], None]) -> None:
        """Serves from now on; a standby may have to wait before. `ready` is told how it stands.

        Raises:
            FinegrainError: see `Leadership`.
        """
        leadership = self.parts.leadership
        if self.parts.options.standby:

            def waiting() -> None:
                self.parts.prepared_tokens.check_shared(leadership.leader)
                write_endpoint(self.state_dir, self.address, self.metrics_address)
                ready(f"standing by at {self.address}")

            await leadership.wait_and_take(self.dispatcher, waiting)
        else:
            await leadership.take(self.dispatcher)
        await self.parts.secrets.unlock()
        leadership.begin()
        await self.server.set_serving(True)
        write_endpoint(self.state_dir, self.address, self.metrics_address)
        _log.info(
            "serving",
            address=self.address,
            metrics_address=self.metrics_address,
            rm_epoch=self.parts.runner.rm_epoch,
            state_dir=str(self.state_dir),
        )
        ready(f"serving at {self.address}")


def run(options: ResourceManagerOptions) -> int:
    """Serves until SIGTERM or SIGINT; answers with the exit code. Blocks.

    A standby that led and was replaced does not return: the program begins anew in this process.
    """
    try:
        configure_logging(options.log)
    except InvalidArgument as error:
        print(f"finegrain rm: {error.message}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        code = asyncio.run(serve(options, handle_signals=True))
    else:
        code = uvloop.run(serve(options, handle_signals=True))
    if code == EXIT_REPLACED and sys.executable:
        _log.warning("beginning_anew")
        logging.shutdown()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  the same words as before
    return code


async def serve(
    options: ResourceManagerOptions,
    *,
    ready: Ready | None = None,
    handle_signals: bool = False,
) -> int:
    """Serves until it has to end, or until the task is cancelled; answers with the exit code.

    Args:
        options: everything it can be told.
        ready: told the addresses once calls are served.
        handle_signals: SIGTERM and SIGINT end it in order.
    """
    stopping, asked = asyncio.Event(), asyncio.Event()
    told = False

    def end_in_order() -> None:
        asked.set()
        stopping.set()

    try:
        async with _resource_manager(options) as running:
            if handle_signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, end_in_order)

            def tell(status: str) -> None:
                nonlocal told
                if ready is not None and not told:
                    ready(running.address, running.metrics_address)
                told = True
                notify("READY=1", f"STATUS={status}")

            code = await _until_the_end(running, stopping, tell)
            if code != EXIT_REPLACED:
                notify("STOPPING=1")
        # Whoever was told to end while it closed does not begin anew.
        return EXIT_OK if code == EXIT_REPLACED and asked.is_set() else code
    except FinegrainError as error:
        _log.error("cannot_serve", reason=error.reason.value, error=error.message)
        return _exit_code(error, options)


@asynccontextmanager
async def _resource_manager(options: ResourceManagerOptions) -> AsyncIterator[_Running]:
    if options.advertise_address:
        check_dialable(options.advertise_address, "advertise_address")
    async with AsyncExitStack() as stack:
        state_dir = stack.enter_context(
            locked_state_dir(options.state_dir, options.user_token_group)
        )
        parts = await _parts(options, settings_of(options), state_dir, stack)
        runner, metrics = parts.runner, parts.metrics
        links = ExecutorLinks(
            runner,
            metrics,
            LinkOptions(
                parts.tokens.cluster,
                options.executor_tls or options.listen.tls,
                options.listen.insecure,
            ),
        )
        hub = WatchHub(runner, metrics)
        server = _server(parts, hub)
        address = await server.start(serving=False)
        parts.leadership.address = parts.books.address = _advertised(options, address)
        stack.push_async_callback(server.stop, 0)
        stack.push_async_callback(runner.stop)
        stack.push_async_callback(links.stop)
        # Whoever may not command any more does not end what it began, either.
        runner.fatal.add_done_callback(lambda _fatal: links.drop_all())
        runner.fatal.add_done_callback(lambda _fatal: parts.leadership.end())
        # Callers go first; what they have begun is still written.
        stack.push_async_callback(server.stop, STOP_GRACE_S)
        metrics_address = await _serve_metrics(parts, stack)
        stack.callback(remove_endpoint, state_dir)
        dispatcher = Dispatcher(links, hub, metrics)
        yield _Running(parts, server, dispatcher, state_dir, address, metrics_address)


def _advertised(options: ResourceManagerOptions, bound: str) -> str:
    """Where others call this one; empty where that cannot be told from the port that is bound."""
    if options.advertise_address:
        return options.advertise_address
    try:
        return check_dialable(bound, "listen.address")
    except InvalidArgument:
        if not options.standby:
            return ""
    raise ConfigurationError(
        f"this resource manager listens at {bound}, which says nothing to others; a standby needs "
        "an address to tell them: --advertise HOST:PORT",
        details={"address": bound},
    )


async def _parts(
    options: ResourceManagerOptions,
    settings: EngineSettings,
    state_dir: Path,
    stack: AsyncExitStack,
) -> _Parts:
    tokens = prepare_tokens(options, state_dir)
    metrics = ResourceManagerMetrics(software_version())
    store: Store
    if options.standby:
        url = _database_url(options, state_dir)
        store = LateStore(url, lambda: _open_store(options, state_dir))
    else:
        store = await asyncio.to_thread(_open_store, options, state_dir)
    stack.push_async_callback(asyncio.to_thread, store.close)
    holder = f"{socket.gethostname()} {options.advertise_address or options.listen.address}"
    lease_s = options.database_lease_ms / 1_000
    limits = RunnerLimits(renew_interval_s=lease_s / 4, unsure_max_s=lease_s)
    books = Books(store, settings, metrics, holder=holder)
    runner = Runner(books, metrics, limits=limits)
    leadership = Leadership(runner, metrics)
    secrets = JobSecrets(runner)
    return _Parts(options, settings, tokens, metrics, store, books, runner, leadership, secrets)


def _open_store(options: ResourceManagerOptions, state_dir: Path) -> Store:
    return open_store(_database_url(options, state_dir), lease_ms=options.database_lease_ms)


def _database_url(options: ResourceManagerOptions, state_dir: Path) -> str:
    return options.database_url or sqlite_url((state_dir / DATABASE_FILE).resolve())


def _server(parts: _Parts, hub: WatchHub) -> GuardedServer:
    listen, tokens, metrics = parts.options.listen, parts.tokens, parts.metrics
    server = GuardedServer(
        listen,
        {**RESOURCE_MANAGER_ACCESS, **CLUSTER_ACCESS},
        TokenHashes(sha256_hex(tokens.cluster), sha256_hex(tokens.user)),
        observe=lambda method, status, _seconds: metrics.calls.labels(
            method.rpartition("/")[2], status
        ).inc(),
        gate=parts.leadership.refusal,
    )
    terms = ExecutorTerms(
        report_interval_ms=parts.settings.report_interval_ms,
        lost_timeout_ms=parts.settings.lost_timeout_ms,
        user_token_sha256=sha256_hex(tokens.user),
        loopback_only=listen.tls is None and not listen.insecure,
    )
    about = About(software_version(), start_time_ms=time.time_ns() // 1_000_000)
    server.add(add_ResourceManagerServiceServicer_to_server, _Servicer(parts, hub, terms))
    server.add(add_ClusterServiceServicer_to_server, ClusterServicer(parts.runner, hub, about))
    return server


async def _serve_metrics(parts: _Parts, stack: AsyncExitStack) -> str:
    options, runner, metrics = parts.options, parts.runner, parts.metrics
    if not options.listen.metrics_address:
        return ""

    async def refresh() -> None:
        with contextlib.suppress(Unavailable):  # what is known already is shown all the same
            await runner.read(lambda state: observe_books(metrics, state, now()))

    http = MetricsServer(
        options.listen.metrics_address,
        metrics.registry,
        health=lambda: parts.leadership.healthy,
        unready=lambda: parts.leadership.unready,
        refresh=refresh,
        insecure=options.listen.insecure,
    )
    address = await http.start()
    stack.push_async_callback(http.stop)
    return address


async def _until_the_end(
    running: _Running, stopping: asyncio.Event, tell: Callable[[str], None]
) -> int:
    runner = running.parts.runner
    watchdog = asyncio.create_task(feed_watchdog(runner, running.parts.leadership))
    runner.fatal.add_done_callback(lambda _fatal: stopping.set())
    leading = asyncio.create_task(running.lead(tell))
    end = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({leading, end}, return_when=asyncio.FIRST_COMPLETED)
        if leading.done() and not runner.fatal.done():
            leading.result()
        await end
    finally:
        for task in (watchdog, leading, end):
            task.cancel()
        await asyncio.gather(leading, end, return_exceptions=True)
    if not runner.fatal.done():
        _log.info("stopping")
        return EXIT_OK
    error = runner.fatal.result()
    told = error.message
    if isinstance(error, EpochSeen):
        told = out_of_the_past(error, running.database)
    code = _exit_code(error, running.parts.options)
    if code == EXIT_REPLACED:
        _log.warning("replaced", error=told)
    else:
        _log.error("ended", reason=error.reason.value, error=told)
    return code


def _exit_code(error: FinegrainError, options: ResourceManagerOptions) -> int:
    if isinstance(error, NotLeader):
        return EXIT_REPLACED if options.standby else EXIT_STEPPED_DOWN
    return EXIT_STEPPED_DOWN if isinstance(error, EpochSeen) else EXIT_FAILED
