"""Starts the parts of a resource manager in order, and stops them in reverse order.

The steps are: lock the state directory, read the certificates, bind the ports, and become the
leader or wait as a standby. Until the state is read, callers get UNAVAILABLE. If the configuration
is wrong, the process prints one line about the error, and ends. If another resource manager takes
over the leadership, this process starts its program again (`exec`). This ends all calls in
progress.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
)
from finegrain.logs import configure_logging, get_logger
from finegrain.rpc.addresses import check_dialable
from finegrain.rpc.server import GuardedServer
from finegrain.systemd import notify
from resource_manager.engine.executors.reports import EpochSeen
from resource_manager.options import ResourceManagerOptions
from resource_manager.service.dispatch import Dispatcher
from resource_manager.service.executor_link import ExecutorLinks, LinkOptions
from resource_manager.service.identities.host_changes import follow_host_changes
from resource_manager.service.identities.login_socket import SOCKET_FILE, LoginSocket
from resource_manager.service.identities.provider_tokens import ProviderTokens
from resource_manager.service.identities.sharing import (
    check_authority,
    check_authority_shared,
    renew_daily,
    stop_task,
)
from resource_manager.service.messages import stale_database_message
from resource_manager.service.provider_setup import set_up_providers
from resource_manager.service.provisioning import Provisioning
from resource_manager.service.state_dir import locked_state_dir, remove_endpoint, write_endpoint
from resource_manager.service.watch import WatchHub
from resource_manager.service.watchdog import feed_watchdog
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.store import Contested, NotLeader
from resource_manager.web_site import ServeWeb, WebSite
from resource_manager.wiring import (
    Components,
    Identities,
    advertised,
    database_url,
    dialable_address,
    make_components,
    make_server,
    sample_group_use,
    serve_metrics,
)

EXIT_OK, EXIT_FAILED, EXIT_STEPPED_DOWN = 0, 1, 4
EXIT_REPLACED = 5
"""The exit code of `serve` after a standby has led and was replaced. `run` never returns this code:
it starts the program again.
"""
STOP_GRACE_S = 2.0  # time in which calls in progress can end when the server stops
COLLECTOR_THRESHOLDS = (10_000, 10, 10)
"""Thresholds for `gc.set_threshold`.

Each slot creates about 30 objects that stay in memory. With Python's default threshold of 700, the
cyclic collector scanned these objects very often. The scans took a quarter of the time of event
processing.
"""

Ready = Callable[[str, str], None]
"""A function that is called when this resource manager serves or stands by. Its arguments are the
address and the metrics address, which is empty if no metrics are served.
"""

_log = get_logger("finegrain.rm")


@dataclass(frozen=True, slots=True)
class _Running:
    """A resource manager whose ports are bound. `lead` starts to serve calls."""

    components: Components
    server: GuardedServer
    dispatcher: Dispatcher
    provisioning: Provisioning
    state_dir: Path
    address: str
    metrics_address: str
    join_address: str
    web_address: str

    @property
    def database(self) -> DatabaseUrl:
        """The database that the resource manager uses."""
        return DatabaseUrl.parse(database_url(self.components.options, self.state_dir))

    async def lead(self, ready: Callable[[str], None]) -> None:
        """Becomes the leader and starts to serve. A standby first waits until no other process
        leads.

        Args:
            ready: called with a status line for systemd when the resource manager stands by, and
                when it serves.

        Raises:
            FinegrainError: see `Leadership`.
        """
        leadership = self.components.leadership
        if self.components.options.standby:

            def waiting() -> None:
                # The authority is checked before this process can lead, because a leader with
                # another authority would reject all callers.
                check_authority_shared(self.components.own_files, leadership.leader)
                self._write_endpoint()
                ready(f"standing by at {self.address}")

            await leadership.wait_and_take(self.dispatcher, waiting)
        else:
            await leadership.take(self.dispatcher)
        # The authority and the members are in the database. A standby opens the database only when
        # it becomes the leader, so both are read only here.
        await check_authority(self.components.runner, self.components.own_files)
        await self.components.members.load()
        await self.components.sessions.load()
        # From here on, calls are served, and the health service reports that this process serves.
        leadership.begin()
        self.provisioning.begin()
        await self.server.set_serving(True)
        self.components.own_files.write_operator(leadership.address or self.address)
        self._write_endpoint()
        _log.info(
            "serving",
            address=self.address,
            metrics_address=self.metrics_address,
            join_address=self.join_address,
            web_address=self.web_address,
            cluster=self.components.own_files.cluster,
            rm_epoch=self.components.runner.rm_epoch,
            state_dir=str(self.state_dir),
        )
        ready(f"serving at {self.address}")

    def _write_endpoint(self) -> None:
        write_endpoint(
            self.state_dir,
            {
                "address": self.address,
                "metrics_address": self.metrics_address,
                "join_address": self.join_address,
                "web_address": self.web_address,
            },
        )


def run(options: ResourceManagerOptions, web: ServeWeb | None = None) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit code.

    If a standby has led and was replaced, this function does not return: the program starts again
    in this process.

    Args:
        options: the configuration.
        web: serves the HTTP interface; None: there is no HTTP interface.
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
        code = asyncio.run(serve(options, web=web, handle_signals=True))
    else:
        code = uvloop.run(serve(options, web=web, handle_signals=True))
    if code == EXIT_REPLACED and sys.executable:
        _log.warning("restarting_as_standby")
        logging.shutdown()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  the same command line as before
    return code


async def serve(
    options: ResourceManagerOptions,
    *,
    web: ServeWeb | None = None,
    ready: Ready | None = None,
    handle_signals: bool = False,
) -> int:
    """Serves until the process must end, or until the task is cancelled.

    Args:
        options: the configuration.
        web: serves the HTTP interface; None: there is no HTTP interface.
        ready: a function that is called when the resource manager serves calls or stands by. See
            `Ready` for its arguments.
        handle_signals: whether SIGTERM and SIGINT stop the resource manager in order.

    Returns:
        The exit code.
    """
    stopping, end_requested = asyncio.Event(), asyncio.Event()
    is_ready = False

    def end_in_order() -> None:
        end_requested.set()
        stopping.set()

    try:
        async with _resource_manager(options, web) as running:
            if handle_signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, end_in_order)

            def report_status(status: str) -> None:
                nonlocal is_ready
                if ready is not None and not is_ready:
                    ready(running.address, running.metrics_address)
                is_ready = True
                notify("READY=1", f"STATUS={status}")

            code = await _until_the_end(running, stopping, report_status)
            if code != EXIT_REPLACED:
                notify("STOPPING=1")
        # A replaced standby must not start again if it has also received SIGTERM.
        return EXIT_OK if code == EXIT_REPLACED and end_requested.is_set() else code
    except FinegrainError as error:
        _log.error("cannot_serve", reason=error.reason.value, error=error.message)
        return _exit_code(error, options)


@asynccontextmanager
async def _resource_manager(
    options: ResourceManagerOptions, web: ServeWeb | None
) -> AsyncIterator[_Running]:
    if options.advertise_address:
        check_dialable(options.advertise_address, "advertise_address")
    async with AsyncExitStack() as stack:
        # Stage 1: the lock, the certificates and the store. No port is open yet.
        state_dir = stack.enter_context(locked_state_dir(options.state_dir))
        components = await make_components(options, state_dir, stack)
        runner, metrics = components.runner, components.metrics
        links = ExecutorLinks(runner, metrics, LinkOptions(components.own, components.proofs))
        hub = WatchHub(runner, metrics, components.tokens)
        # Stage 2: bind the port. Callers get UNAVAILABLE until this process leads.
        identities = Identities(components)
        server = make_server(components, hub, identities.calls)
        address = await server.start(serving=False)
        components.leadership.address = components.driver.address = advertised(options, address)
        # The server is stopped in two places. This callback is for errors before the second
        # callback is pushed. The second callback (below) runs first, and gives calls in progress
        # time to end.
        stack.push_async_callback(server.stop, 0)
        await identities.serve_joining(stack)
        login = LoginSocket(state_dir / SOCKET_FILE, identities.issuer, components.members)
        await login.start()
        stack.push_async_callback(login.stop)
        for keeps_current in (renew_daily, follow_host_changes, sample_group_use):
            stack.push_async_callback(stop_task, asyncio.create_task(keeps_current(components)))
        # Stage 3: the providers, which need the address of the port.
        providers = set_up_providers(
            options,
            components.providers,
            state_dir=state_dir,
            address=components.leadership.address,
            write_token=ProviderTokens(
                identities.calls, components.members, components.own_files.cluster
            ).write,
        )
        provisioning = Provisioning(runner, metrics, providers)
        # Stage 4: the steps at the end of the process, which run in reverse.
        stack.push_async_callback(runner.stop)
        stack.push_async_callback(links.stop)
        stack.push_async_callback(provisioning.stop)
        # A resource manager that no longer leads must also cancel its calls to executors.
        runner.fatal.add_done_callback(lambda _fatal: links.drop_all())
        runner.fatal.add_done_callback(lambda _fatal: provisioning.drop_all())
        runner.fatal.add_done_callback(lambda _fatal: components.leadership.end())
        # Stop the server before the runner. So calls in progress are still committed.
        stack.push_async_callback(server.stop, STOP_GRACE_S)
        metrics_address = await serve_metrics(components, stack)
        web_address = ""
        if web is not None and options.web_address:
            site = WebSite(
                options.web_address,
                server.local,
                components.own,
                components.sessions,
                components.leadership.refusal,
                lambda: components.leadership.leading_page,
                options.web_certificate,
                options.web_key,
            )
            bound = await stack.enter_async_context(web(site))
            web_address = dialable_address(bound, components.leadership.address) or bound
            components.about.web_address = web_address
            components.sessions.address = options.web_advertise or f"https://{web_address}"
            components.driver.page_address = components.sessions.address
        # The file with the address is removed first, because this callback is pushed last. So no
        # tool finds the address of a port that is closing.
        stack.callback(remove_endpoint, state_dir)
        dispatcher = Dispatcher(links, hub, metrics, provisioning)
        yield _Running(
            components,
            server,
            dispatcher,
            provisioning,
            state_dir,
            address,
            metrics_address,
            identities.join_address,
            web_address,
        )


async def _until_the_end(
    running: _Running, stopping: asyncio.Event, report_status: Callable[[str], None]
) -> int:
    runner = running.components.runner
    watchdog = asyncio.create_task(feed_watchdog(runner, running.components.leadership))
    runner.fatal.add_done_callback(lambda _fatal: stopping.set())
    lead_task = asyncio.create_task(running.lead(report_status))
    end = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({lead_task, end}, return_when=asyncio.FIRST_COMPLETED)
        # If `fatal` has an error, this error is more precise than the error of the task.
        if lead_task.done() and not runner.fatal.done():
            if isinstance(error := lead_task.exception(), Contested):
                runner.fatal.set_result(error)
            lead_task.result()  # raises the error if this process could not become the leader
        await end
    except Contested:
        pass  # reported below, with the command that solves the problem
    finally:
        for task in (watchdog, lead_task, end):
            task.cancel()
        await asyncio.gather(lead_task, end, return_exceptions=True)
    if not runner.fatal.done():
        _log.info("stopping")
        return EXIT_OK
    error = runner.fatal.result()
    message = error.message
    if isinstance(error, EpochSeen | Contested):
        message = stale_database_message(error, running.database)
    code = _exit_code(error, running.components.options)
    if code == EXIT_REPLACED:
        _log.warning("replaced", error=message)
    else:
        _log.error("ended", reason=error.reason.value, error=message)
    return code


def _exit_code(error: FinegrainError, options: ResourceManagerOptions) -> int:
    if isinstance(error, NotLeader):
        return EXIT_REPLACED if options.standby else EXIT_STEPPED_DOWN
    return EXIT_STEPPED_DOWN if isinstance(error, EpochSeen | Contested) else EXIT_FAILED
