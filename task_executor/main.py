"""Runs the front of one task executor: the command `finegrain executor serve`.

The helper forks for every task, but a process that uses grpc must not fork. So this process starts
the helper before it imports grpc, and this module must not import grpc at module level.

A planned stop (SIGTERM, SIGINT) ends only the front. Slots, tasks, supervisors and the helper
continue, and the next front adopts them. With `stop_tasks_on_exit`, the front first ends all tasks
and frees all slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
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
"""A function that is called when the sockets are bound. It gets the address of the service, and the
address of the metrics (empty: metrics are not served).
"""

log = get_logger(__name__)


def run(options: TaskExecutorOptions) -> int:
    """Serves until SIGTERM or SIGINT.

    Returns:
        The exit status: 0 after a planned stop, 2 for an invalid option, 1 for any other error.
    """
    configure_logging(options.log)
    try:
        # `prepare` starts the helper with a fork. So it runs before the event loop and grpc exist.
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

    To stop the executor as planned, set `stop`, or cancel the asyncio task that runs this function.

    Args:
        options: the options of this executor.
        ready: a function that is called once, as soon as the executor accepts calls, even if the
            executor has not registered with the resource manager yet.
        stop: an event that the caller sets to end the service.

    Raises:
        ConfigurationError, InvalidArgument: the executor cannot start with this configuration.
        Unavailable: the helper does not answer.
        Unauthenticated: the executor could not join the cluster.
    """
    stopping = threading.Event()
    try:
        prepared = await asyncio.to_thread(prepare, options, stopping)
    finally:
        # if this coroutine was cancelled, the thread must not wait longer for a resource manager
        stopping.set()
    await _serve(prepared, ready=ready, stop=stop or asyncio.Event())


async def _serve_until_signal(prepared: Prepared) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    await _serve(prepared, ready=None, stop=stop)


async def _serve(prepared: Prepared, *, ready: Ready | None, stop: asyncio.Event) -> None:
    # Import these modules only now, because they import grpc.
    from task_executor.host.helper_client import HelperClient
    from task_executor.service.front import Front
    from task_executor.service.host_plan import beside_kubelet
    from task_executor.service.host_watch import KubeletWatch

    try:
        helper = await HelperClient.connect(prepared.helper.socket_path)
        try:
            info = await helper.hello()
            kubelet = KubeletWatch(helper.kubelet, prepared.plan.topology)
            # Deduct the capacity that a kubelet uses, because the plan is made for the whole host.
            plan = beside_kubelet(prepared.plan, prepared.options, await kubelet.refresh())
            front = Front(replace(prepared, plan=plan), helper, info, kubelet)
            try:
                await front.start()
            except BaseException:
                await front.abandon()
                raise
            if ready is not None:
                ready(front.address, front.metrics_address)
            try:
                works = [front.run(), stop.wait()]
                # If the helper is a separate systemd unit, systemd restarts it.
                if prepared.helper_is_ours:
                    works.append(_keep_helper(prepared.helper, info.pid))
                await _until_first(*works)
            finally:
                await front.stop()
        except BaseException:
            # If this process started the helper and then failed, stop the helper unless it has
            # slots or tasks.
            if prepared.helper_is_ours:
                await _end_idle_helper(helper)
            raise
        finally:
            await helper.close()
    finally:
        # Closing the directory releases its lock. Do this last: no other front must start while
        # this front still runs.
        prepared.directory.close()


async def _until_first(*works: Coroutine[Any, Any, object]) -> None:
    """Runs all coroutines until one of them ends. Then cancels the others.

    If that coroutine ended with an exception, this function raises the exception.
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
    """Checks every `HELPER_CHECK_S` seconds whether the helper runs, and restarts a helper that has
    ended.

    Tasks are not affected: they continue to run in their supervisors.
    """
    while True:
        await asyncio.sleep(HELPER_CHECK_S)
        if _exists(helper_pid):
            continue
        log.error("helper_exited", pid=helper_pid)
        try:
            # `start_helper` blocks until the helper answers, so it runs in a thread.
            helper_pid = await asyncio.to_thread(start_helper, config)
        except HelperNotStarted as error:
            log.error("helper_not_started", error=str(error))


def _exists(pid: int) -> bool:
    # Signal 0 is never delivered: the kernel only checks whether the process exists.
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
    """Returns uvloop's factory if uvloop is installed. uvloop halves the cost of a call."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
