"""Serves the web page of a simulated cluster, with the real server of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from finegrain.identity import Identity, Role
from finegrain_cli.web.page_server import PageServer
from finegrain_client.retry import RetryPolicy
from tests.support.page_cluster import PageCluster

T = TypeVar("T")


class _Connection:
    """What the server of the page needs of a client's connection."""

    def __init__(self, cluster: PageCluster, role: Role) -> None:
        self._cluster, self.policy = cluster, RetryPolicy()
        who = Identity("simulated", role, "root")
        self.own = SimpleNamespace(credentials=SimpleNamespace(who=who))

    async def call_cluster(self, call: Callable[[Any, float], Awaitable[T]]) -> T:
        return await call(self._cluster, 30.0)

    def acquire_executor(self, address: str, executor_id: str) -> Any:
        stub = SimpleNamespace(
            ListTasks=partial(self._cluster.tasks_of, executor_id),
            WatchTask=self._cluster.WatchTask,
        )
        return SimpleNamespace(stub=stub)

    def release_executor(self, link: Any) -> None:
        """Does nothing, because no channel is kept."""

    call_manager = call_cluster
    call_identities = call_cluster


@asynccontextmanager
async def page_of(cluster: PageCluster, role: Role = Role.OPERATOR) -> AsyncIterator[PageServer]:
    """Serves the page of a cluster on loopback."""
    async with PageServer(cast("Any", _Connection(cluster, role)), "127.0.0.1", 0) as server:
        yield server


@dataclass
class Served:
    """A page that is served by another thread."""

    server: PageServer
    loop: asyncio.AbstractEventLoop

    def address(self, path: str = "/") -> str:
        """Returns an address of a view. It is valid once."""
        base, _, code = self.server.new_address().partition("/#")
        return f"{base}{path}#{code}"

    def change(self, call: Callable[..., None], *values: Any) -> None:
        """Changes the cluster in the thread of the server."""
        self.loop.call_soon_threadsafe(call, *values)


@contextmanager
def serving(cluster: PageCluster, role: Role = Role.OPERATOR) -> Iterator[Served]:
    """Serves the page of a cluster in another thread."""
    ready: Future[Served] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        async with page_of(cluster, role) as server:
            served = Served(server, asyncio.get_running_loop())
            ending.append(ended)
            ready.set_result(served)
            await ended.wait()

    ending: list[asyncio.Event] = []
    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    served = ready.result()
    try:
        yield served
    finally:
        served.loop.call_soon_threadsafe(ending[0].set)
        thread.join()


def main(arguments: Sequence[str]) -> None:
    """Serves the page until Ctrl-C: `python -m tests.support.page_serving HOSTS [TEXT]`."""

    async def serve() -> None:
        hosts = int(arguments[0]) if arguments else 5
        cluster = PageCluster(hosts, texts=arguments[1] if len(arguments) > 1 else "")
        async with page_of(cluster) as server:
            while True:
                print(server.new_address(), flush=True)
                await asyncio.sleep(50)

    asyncio.run(serve())


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
