"""Runs state.txt on the real engine, and stores every batch in real databases.

`python -m tests.previous.fill FOLDER` with the code of the version whose evidence is wanted (see
make.py): writes state.db, state.sql, rows.json and served.json.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.effects import Changes
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.previous.rows import rows_of
from tests.previous.serving import listed, serving
from tests.scenarios.language import Interpreter
from tests.support.engine_cluster import RowStore
from tests.support.postgresql import SUPERUSER, PostgresqlServer

STORY = Path(__file__).with_name("state.txt")


class Recorded(RowStore):
    """Keeps rows in memory for the story, and the same rows in databases."""

    def __init__(self, stores: list[Store]) -> None:
        super().__init__()
        self.stores = stores

    def apply(self, changes: Changes) -> None:
        super().apply(changes)
        for store in self.stores:
            store.commit(changes)


def play(stores: list[Store]) -> Interpreter:
    """The story with its rows in these stores, which lead."""
    interpreter = Interpreter()
    for line in STORY.read_text().splitlines():
        if not isinstance(interpreter.cluster.store, Recorded):  # a setting began a new cluster
            interpreter.cluster.store = Recorded(stores)
        for told in interpreter.run(line) if line else ():
            assert not told.startswith(("error", "refuse")), (line, told)
    assert check_invariants(interpreter.cluster.state) == []
    return interpreter


def main(folder: Path) -> None:
    """Writes the evidence into the folder."""
    server = PostgresqlServer()
    try:
        database = server.create_database()
        stores = [open_store(f"sqlite:///{folder}/state.db"), open_store(server.url(database))]
        for store in stores:
            store.lead("rm.example:7070", address="rm.example:7070")
        play(stores)
        first, second = (rows_of(store.load()) for store in stores)
        assert first == second
        for store in stores:
            store.close()
        _write(folder / "rows.json", first)
        (folder / "state.sql").write_text(dump(server, database))
    finally:
        server.stop()
    (folder / "state.db.lock").unlink()
    _write(folder / "served.json", asyncio.run(serve_a_copy(folder / "state.db")))


async def serve_a_copy(database: Path) -> dict[str, Any]:
    """Returns what clients read from a resource manager on a copy of a database. A copy is needed,
    because the resource manager changes the database.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(database, folder)
        async with serving(f"sqlite:///{folder}/{database.name}") as manager:
            return await listed(manager)


def dump(server: PostgresqlServer, database: str) -> str:
    """Returns the output of pg_dump with INSERT statements, so that any client can load it."""
    program = next(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"))
    done = subprocess.run(
        [
            *(program, "--host", server.folder, "--username", SUPERUSER),
            *("--no-owner", "--no-privileges", "--inserts", database),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    # The random keys of \\restrict are for psql alone, and change each time.
    return "".join(line for line in done.stdout.splitlines(True) if not line.startswith("\\"))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
