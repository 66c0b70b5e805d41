"""A proxy in front of a PostgreSQL server that can break connections at a COMMIT.

The client then does not know whether the transaction was committed. Of the protocol, the proxy
knows only how a COMMIT begins.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
COMMIT = b"COMMIT\0"


class Loss(Enum):
    """What happens to a COMMIT when the proxy breaks the connection."""

    NOTHING = "nothing is lost"
    BEFORE = "it never reaches the server"
    AFTER = "it is done, and the answer never reaches the client"


class PostgresqlProxy:
    """Forwards everything, and breaks connections at the next COMMITs as listed in `losses`."""

    def __init__(self, server_folder: Path, folder: Path) -> None:
        self._server = server_folder / SOCKET
        self.folder = folder
        self.losses: list[Loss] = []
        self.lost: list[Loss] = []
        self._passing: set[asyncio.Task[None]] = set()

    async def serve(self) -> asyncio.Server:
        """Listens in `folder`, on a socket with the name that a server uses."""
        return await asyncio.start_unix_server(self._pass, self.folder / SOCKET)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        with suppress(OSError):
            from_server, to_server = await asyncio.open_unix_connection(str(self._server))
            back = asyncio.create_task(self._copy(from_server, writer))
            try:
                await self._commands(reader, from_server, to_server, back)
            finally:
                back.cancel()
                to_server.close()
        writer.close()

    async def _commands(
        self,
        reader: asyncio.StreamReader,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(1 << 16):
            if COMMIT in data and self.losses:
                loss = self.losses.pop(0)
                if loss is not Loss.NOTHING:
                    self.lost.append(loss)
                if loss is Loss.BEFORE:
                    return
                if loss is Loss.AFTER:
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)
                    to_server.write(data)
                    await from_server.read(1)  # committed
                    return
            to_server.write(data)
            await to_server.drain()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def break_off(self) -> None:
        """Closes every connection."""
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)


@asynccontextmanager
async def postgresql_proxy(server_folder: Path) -> AsyncIterator[PostgresqlProxy]:
    """Runs a proxy for the server whose socket is in `server_folder`."""
    folder = Path(tempfile.mkdtemp(prefix="fg-proxy-"))
    proxy = PostgresqlProxy(server_folder, folder)
    server = await proxy.serve()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.break_off()
        shutil.rmtree(folder, ignore_errors=True)
