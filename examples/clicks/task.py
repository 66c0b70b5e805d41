"""A task of job.toml: the chain source+parse sends clicks, window counts them.

Both find each other in FINEGRAIN_EDGES. The window listens on a unix socket in the folder FOLDER,
which all tasks share. The stream of this example has an end, so the job has one, too.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from pathlib import Path

FOLDER = Path(os.environ["FOLDER"])
TASK = json.loads(os.environ["FINEGRAIN_TASK"])
EDGES = json.loads(os.environ["FINEGRAIN_EDGES"])
SUBTASK: int = TASK["subtask_index"]
CLICKS = int(os.environ.get("CLICKS", "1000"))
WINDOW = 100


def address(operator: str, subtask: int) -> str:
    """Returns the socket of a subtask in this attempt of the region."""
    return str(FOLDER / f"{operator}-{subtask}-{EDGES['attempt']}.sock")


def connected(path: str) -> socket.socket:
    """Connects to a task that may not listen yet: all tasks of a region start together."""
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
    """Makes clicks (source), parses them (parse) and sends the pages."""
    output = EDGES["outputs"][0]
    with connected(address(output["operator"], output["subtasks"][0])).makefile("w") as stream:
        for number in range(CLICKS):
            click = f"{SUBTASK}-{number} GET /page-{number % 7}"
            stream.write(click.split()[2] + "\n")


def count() -> None:
    """Counts pages in windows of 100 clicks of each source, and writes each window and the sum."""
    producers = EDGES["inputs"][0]["tasks"]
    total: Counter[str] = Counter()
    windows = 0
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address(TASK["operators"][0]["operator_id"], SUBTASK))
        server.listen(len(producers))
        streams = [server.accept()[0].makefile("r") for _ in producers]
    while streams:
        for stream in list(streams):
            pages = [line.strip() for _, line in zip(range(WINDOW), stream, strict=False)]
            total.update(pages)
            windows += bool(pages)
            if len(pages) < WINDOW:
                streams.remove(stream)
    (FOLDER / "pages.json").write_text(json.dumps({"windows": windows, "pages": total}))


if EDGES["inputs"]:
    count()
else:
    send()
