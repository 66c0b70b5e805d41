"""`finegrain executor serve`: runs the front of one task executor, from options to exit status.

The helper is started before grpc is imported, because a process that uses grpc must not fork, and
the helper forks for every task. So no module may import grpc at module level here.

A planned stop (SIGTERM, SIGINT) ends only the front. Slots, tasks, shims and the helper continue
and are adopted at the next start, unless `stop_tasks_on_exit` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.logs import configure_logging, get_logger
from task_executor.helper.launch import HelperConfig, HelperNotStarted, start_helper
from task_executor.options import TaskExecutorOptions
from task_executor.service.ports import Helper
from task_executor.service.prepared import Prepared, prepare

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
HELPER_CHECK_S = 1.0

Ready = Callable[[str, str], None]
"""Called with the addresses of the service and of the metrics (empty: none) once both are bound."""

log = get_logger(__name__)


def run(options: TaskExecutorOptions) -> int:
    """Serves until SIGTERM or SIGINT, and returns the exit status.

    Returns:
        0 after a planned stop, 2 for an invalid option, 1 for any other error.
    """
    configure_logging(options.log)
    try:
        # Before the event loop and grpc exist, because this starts the helper with a fork.
        prepared = prepare(options)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve_until_signal(prepared))
    except FinegrainError as error:
        sys.stderr.write(f"finegrain: {error.message}\n")
        return EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_FAILED
    return EXIT_OK


async def serve(
    options: TaskExecutorOptions, ready: Ready | None = None, stop: asyncio.Event | None = None
) -> None:
    """Serves inside a running event loop.

    Setting `stop` or cancelling the task is a planned stop.

    Args:
        options: the options of this executor.
        ready: called once, when the executor accepts calls (it may not have registered yet).
        stop: set by the caller to end the service.

    Raises:
        ConfigurationError, InvalidArgument: the executor cannot start with this configuration.
        Unavailable: the helper does not answer.
    """
    prepared = await asyncio.to_thread(prepare, options)
    await _serve(prepared, ready=ready, stop=stop or asyncio.Event())


async def _serve_until_signal(prepared: Prepared) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    await _serve(prepared, ready=None, stop=stop)


async def _serve(prepared: Prepared, *, ready: Ready | None, stop: asyncio.Event) -> None:
    # Imported only now, because these modules import grpc.
    from task_executor.host.helper_client import HelperClient
    from task_executor.service.front import Front
    from task_executor.service.host_plan import beside_kubelet
    from task_executor.service.host_watch import KubeletWatch

    try:
        helper = await HelperClient.connect(prepared.helper.socket_path)
        try:
            info = await helper.hello()
            kubelet = KubeletWatch(helper.kubelet, prepared.plan.topology)
            # The plan is made for the whole host. What a kubelet has taken is deducted before the
            # start.
            left = beside_kubelet(prepared.plan, prepared.options, await kubelet.refresh())
            front = Front(replace(prepared, plan=left), helper, info, kubelet)
            try:
                await front.start()
            except BaseException:
                await front.abandon()
                raise
            if ready is not None:
                ready(front.address, front.metrics_address)
            try:
                works = [front.run(), stop.wait()]
                # A separate unit is restarted by systemd.
                if prepared.helper_is_ours:
                    works.append(_keep_helper(prepared.helper, info.pid))
                await _until_first(*works)
            finally:
                await front.stop()
        except BaseException:
            # If this process started the helper and then failed, it must not remain idle.
            if prepared.helper_is_ours:
                await _end_idle_helper(helper)
            raise
        finally:
            await helper.close()
    finally:
        # The lock goes last, so that another front cannot start while this one still works.
        prepared.directory.close()


async def _until_first(*works: Coroutine[Any, Any, object]) -> None:
    """Runs all coroutines until one ends, then cancels the others.

    If the first one ended with an exception, that exception is raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_helper(config: HelperConfig, helper_pid: int) -> None:
    """Restarts the helper when it has died. Its tasks are still running in their shims."""
    while True:
        await asyncio.sleep(HELPER_CHECK_S)
        if _lives(helper_pid):
            continue
        log.error("helper_died", pid=helper_pid)
        try:
            # In a thread, because the start waits for the helper's answer.
            helper_pid = await asyncio.to_thread(start_helper, config)
        except HelperNotStarted as error:
            log.error("helper_not_started", error=str(error))


def _lives(pid: int) -> bool:
    # Signal 0 checks only whether the process exists.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process exists and belongs to another user
    return True


async def _end_idle_helper(helper: Helper) -> None:
    """Stops the helper after a failed start, unless it has slots or tasks."""
    with contextlib.suppress(FinegrainError):
        state = await helper.inspect()
        if not state.slots and not state.tasks:
            await helper.stop()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns uvloop's factory if uvloop is installed: it halves the cost of a call."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
