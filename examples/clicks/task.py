"""Runs a task of `job.toml`: the chain `source+parse` sends clicks, and the chain `window+sink`
counts the clicks.

The tasks find each other with FINEGRAIN_EDGES. The operator `window` listens on a unix socket in
the folder FOLDER, which all tasks share. The operator keeps the clicks of a window in pages of its
managed memory. When the memory pool has no more pages, the operator spills its pages to a file. The
stream of this example ends, so the job ends, too.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from finegrain_client.managed_memory import MemoryPool, PoolEmpty
from finegrain_client.managed_memory.memory_pool import Page

FOLDER = Path(os.environ["FOLDER"])
TASK = json.loads(os.environ["FINEGRAIN_TASK"])
EDGES = json.loads(os.environ["FINEGRAIN_EDGES"])
SUBTASK: int = TASK["subtask_index"]
CLICKS = int(os.environ.get("CLICKS", "1000"))
WINDOW = int(os.environ.get("WINDOW", "100"))


def address(operator: str, subtask: int) -> str:
    """Returns the socket of a subtask in this attempt of the region."""
    return str(FOLDER / f"{operator}-{subtask}-{EDGES['attempt']}.sock")


def connected(path: str) -> socket.socket:
    """Connects to a task. The task may not listen yet, because all tasks of a region start
    together.
    """
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.05)
        else:
            return connection


def send() -> None:
    """Makes clicks (source), extracts the page of each click (parse), and sends the pages."""
    output = EDGES["outputs"][0]
    with connected(address(output["operator"], output["subtasks"][0])).makefile("w") as stream:
        for number in range(CLICKS):
            click = f"{SUBTASK}-{number} GET /page-{number % 7}"
            stream.write(click.split()[2] + "\n")


class Window:
    """The clicks of one window, in order: the spilled clicks in a file, and the later clicks in
    pages.
    """

    def __init__(self, pool: MemoryPool, spill: Path) -> None:
        self._pool, self._spill = pool, spill.open("w+b")
        self._pages: list[Page] = []
        self._used = 0  # bytes of the last page
        self.spilled = 0  # bytes written to the file

    def add(self, line: bytes) -> None:
        """Appends a click."""
        while line:
            if not self._pages or self._used == self._pool.page_bytes:
                self._next_page()
            part = line[: self._pool.page_bytes - self._used]
            self._pages[-1].memory[self._used : self._used + len(part)] = part
            self._used += len(part)
            line = line[len(part) :]

    def _next_page(self) -> None:
        try:
            page = self._pool.allocate()
        except PoolEmpty:
            if not self._pages:
                raise
            for each in self._pages:
                self.spilled += self._spill.write(each.memory)
                each.release()
            self._pages.clear()
            page = self._pool.allocate()
        self._pages.append(page)
        self._used = 0

    def take(self) -> Iterator[bytes]:
        """Yields the clicks, and then empties the window."""
        self._spill.seek(0)
        full, last = self._pages[:-1], self._pages[-1:]
        parts = [bytes(each.memory) for each in full]
        parts += [bytes(each.memory[: self._used]) for each in last]
        yield from (self._spill.read() + b"".join(parts)).splitlines()
        for each in self._pages:
            each.release()
        self._pages.clear()
        self._spill.seek(0)
        self._spill.truncate()


def count() -> None:
    """Counts the pages in windows of each source, and writes the sum and the number of spilled
    bytes (sink).
    """
    producers = EDGES["inputs"][0]["tasks"]
    total: Counter[str] = Counter()
    windows = 0
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address("window", SUBTASK))
        server.listen(len(producers))
        streams = [server.accept()[0].makefile("rb") for _ in producers]
    window = Window(MemoryPool.for_operator("window"), FOLDER / f"spill-{SUBTASK}")
    while streams:
        for stream in list(streams):
            clicks = 0
            for line in itertools.islice(stream, WINDOW):
                window.add(line)
                clicks += 1
            total.update(each.decode() for each in window.take())
            windows += bool(clicks)
            if clicks < WINDOW:
                streams.remove(stream)
    result = {"windows": windows, "pages": total, "spilled_bytes": window.spilled}
    (FOLDER / "pages.json").write_text(json.dumps(result))


if EDGES["inputs"]:
    count()
else:
    send()
