"""Runs the command blocks of the documentation as a reader would: in a shell, on `finegrain up`."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.driving import Cli, eventually
from tests.support.components import REPOSITORY
from tests.support.doc_blocks import REASONS, Block, blocks
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

NOT_RUN = {"hosts": 9, "network": 1, "root": 6, "systemd": 2, "tests": 4}
"""Number of blocks that are not run, by reason. Count a new block here only if it cannot be run."""

TRACES = REPOSITORY / "tests" / "data" / "traces"
CUT_LOGS = {
    "nasa-ipsc-1993.swf.gz": "nasa-ipsc-1993-first-500.swf.gz",
    "wagap-2013-first-half.csv.gz": "wagap-2013-cut.csv",
    "wagap-2013.csv": "wagap-2013-cut.csv",
    "pods.csv": "openb-pods-cut.csv",
    "nodes.csv": "openb-nodes-cut.csv",
    "openb_pod_list_default.csv.gz": "openb-pods-cut.csv",
    "openb_node_list_all_node.csv.gz": "openb-nodes-cut.csv",
}
"""Logs that the pages name, each with the part of it that is in this repository."""

SHELL = """
set -eu
finegrain() {
    case " $* " in
    *" --watch "* | " up "* | *" serve "* | *" web "*)
        # These run until they are stopped. Four seconds show that they start.
        code=0
        timeout --signal=INT 4 "$PYTHON" -m finegrain_cli "$@" || code=$?
        [ "$code" = 0 ] || [ "$code" = 124 ] || return "$code" ;;
    *) "$PYTHON" -m finegrain_cli "$@" ;;
    esac
}
"""
GRAPH = """
import finegrain_client as fg

def make():
    graph = fg.JobGraph("hello", "batch")
    graph.operator("hello")
    return graph
"""
END = """
trap '' TERM
kill 0  # what runs in the background
wait || true
"""


@dataclass
class Reader:
    """A user who follows a page: with a cluster, a folder with a script, and ids to fill in."""

    cli: Cli
    folder: Path
    names: dict[str, str]

    def follow(self, block: Block) -> None:
        """Runs a block, with real ids in place of words in capitals."""
        text = re.sub(
            rf"\b({'|'.join(self.names)})\b", lambda found: self.names[found[0]], block.text
        )
        environment = {**self.cli.environment(), "PYTHON": sys.executable}
        done = subprocess.run(
            ["sh", "-c", SHELL + text + END],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            start_new_session=True,
        )
        assert done.returncode == 0, f"{block}\n{text}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def reader(home: Path, tmp_path: Path) -> Iterator[Reader]:
    """A cluster of two cores on which a small task runs and a request waits."""
    up = Cli(home).start("up", "--task-user", "self", "-o", "json")
    assert up.stdout is not None
    try:
        line = up.stdout.readline()
        assert line, up.communicate()
        told = json.loads(line)
        cli = replace(
            Cli(home, extra={"FINEGRAIN_RM__STATE_DIR": str(tmp_path / "rm")}),
            manager=told["address"],
            credentials_file=Path(told["credentials_file"]),
        )
        for name, cut in CUT_LOGS.items():
            copy_log(TRACES / cut, tmp_path / name)
        (tmp_path / "report.toml").write_bytes((REPOSITORY / "examples/report.toml").read_bytes())
        (tmp_path / "graph.py").write_text(GRAPH)
        script = tmp_path / "work.sh"
        script.write_text("#!/bin/sh\necho $1\n")
        script.chmod(0o755)
        running = cli.start("run", "--cpu", "0.1", "--memory", "32M", "--", "sleep", "1000")
        waiting = cli.start("run", "--cpu", "64", "--allow-pending", "--", "true")
        slot = eventually(lambda: cli.items("slots"), "a task runs")[0]
        request = eventually(lambda: waits(cli), "a request waits")
        (host,) = cli.items("executors")
        assert cli("db", "upgrade").code == 0  # of the manager that this user might run
        names = {
            "REQUEST": request["allocation_id"],
            "SLOT": slot["allocation_id"],
            "JOB": slot["job_id"],
            "HOST": host["executor_id"],
            "host-a": host["executor_id"],
            "FILE": "backup.db",
        }
        yield Reader(cli, tmp_path, names)
        for process in (running, waiting):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
    finally:
        up.terminate()
        up.communicate(timeout=PATIENCE_S)


def waits(cli: Cli) -> dict[str, Any] | None:
    return next((each for each in cli.items("requests") if each["state"] == "PENDING"), None)


def copy_log(log: Path, to: Path) -> None:
    """Copies a log, compressed if its new name says so."""
    content = log.read_bytes()
    if log.suffix == ".gz":
        content = gzip.decompress(content)
    to.write_bytes(gzip.compress(content) if to.suffix == ".gz" else content)


RUN = [block for block in blocks("sh") if not block.reason]
BY_PAGE = [list(of_page) for _, of_page in groupby(RUN, lambda block: block.page)]


@pytest.mark.parametrize("page", BY_PAGE, ids=lambda page: str(page[0].page))
def test_the_commands_of_a_page_work(page: list[Block], reader: Reader) -> None:
    for block in page:
        reader.follow(block)


def test_the_python_example_of_the_readme_works(reader: Reader) -> None:
    (example,) = [block for block in blocks("python") if block.page == "README.md"]

    done = subprocess.run(
        [sys.executable, "-c", example.text],
        env=reader.cli.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert len(done.stdout.split("\n")) == 5


def test_what_is_not_run_is_counted() -> None:
    left_out = Counter(block.reason for block in blocks("sh") if block.reason)

    assert left_out.keys() <= REASONS.keys()
    assert left_out == NOT_RUN
