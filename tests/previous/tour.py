"""Runs every command that prints JSON on a live cluster with work of all kinds.

`python -m tests.previous.tour FOLDER` with the code of the version whose evidence is wanted (see
make.py): writes cli/NAME.json for each.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import finegrain_client as fg
from tests.e2e.driving import Daemons, eventually, unique
from tests.support.components import REPOSITORY

TRACE = REPOSITORY / "tests/data/traces/nasa-ipsc-1993-first-500.swf.gz"
PROVIDERS = """
[[shape]]
name = "large"
provider = "command"
total = { cpu = 512, memory = "1GiB" }
labels = { zone = "large" }
cost = 2.0
count_max = 1
[shape.command]
start = ["true"]
stop = ["true"]
"""


class Tour:
    """A cluster with two executors and a job, and the output of each command."""

    def __init__(self, daemons: Daemons) -> None:
        self.daemons = daemons
        self.cli = daemons.cli
        self.said: dict[str, Any] = {}

    def say(self, name: str, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
        """Stores the output of a command with `-o json`; NAME is the name of the file."""
        before, _, after = " ".join(words).partition(" -- ")
        command = (after and ["--", *after.split()]) or []
        done = self.cli(*before.split(), "-o", "json", *command, patience_s=120)
        assert done.code in codes, (words, done.code, done.stderr)
        self.said[name] = json.loads(done.stdout)
        return self.said[name]

    def take(self) -> dict[str, Any]:
        """All commands, on a cluster that is started and stopped here."""
        daemons, folder = self.daemons, self.daemons.folder
        providers = folder / "providers.toml"
        providers.write_text(PROVIDERS)
        daemons.manager.command += ("--providers-file", str(providers))
        daemons.manager.start()
        daemons.manager.endpoint()
        for name in ("a", "b"):
            daemons.executor(unique("tour"), "--label", f"zone={name}").start()
        first, second = (each.state_dir.name for each in daemons.executors)
        daemons.await_executors(first, second)
        with self.cli.client() as cluster, cluster.job("nightly", group="medium") as job:
            self._look(job, first)
            self._change(job.job_id, first)
        daemons.executors[1].stop()
        eventually(lambda: self._state(second) == "LOST", f"{second} is lost")
        self.say("forget", f"forget {second} --yes")
        del daemons.executors[1]
        self._without_cluster()
        return self.said

    def _state(self, executor_id: str) -> str:
        rows = self.cli.items("executors")
        return next(str(row["state"]) for row in rows if row["executor_id"] == executor_id)

    def _look(self, job: Any, executor_id: str) -> None:
        small = fg.SlotSpec(cpu_milli=200, memory_bytes=64 * fg.MIB, labels={"zone": "a"})
        (held,) = job.request_slots(small)
        held.granted(60)
        (gone,) = job.request_slots(small)
        gone.granted(60)
        self.say("release", f"release {gone.allocation_id} --yes")
        (filler,) = job.request_slots(replace(small, cpu_milli=600))
        filler.granted(60)
        (never,) = job.request_slots(fg.SlotSpec(cpu_milli=900_000, allow_pending=True))
        wide = fg.SlotSpec(cpu_milli=700_000, allow_pending=True, count=2)
        job.request_slots(fg.GangSpec(wide))
        job.request_slots(fg.SlotSpec(cpu_milli=100_000))
        eventually(lambda: self.cli.json("providers")["executors"], "an executor is asked for")
        self.say("resize", f"resize {held.allocation_id} --cpu 0.5 --no-wait")
        self.say("explain-slot", f"explain {held.allocation_id}")
        self.say("explain", f"explain {never.allocation_id}")
        for command in ("status", "slots", "executors", "providers", "groups", "events"):
            self.say(command, command)
        self.say("executor", f"executors {executor_id}")
        self.say("groups-jobs", "groups --jobs")
        self.say("requests", "requests --all")
        self.say("jobs", "jobs --all")
        self.say("advise", f"advise {job.job_id}")
        self.say("topo", f"topo {executor_id}")
        self.say("policy", f"executors policy {executor_id}")

    def _change(self, job_id: str, executor_id: str) -> None:
        self.say("set", f"executors set {executor_id} --numa-strategy LeastAllocated")
        self.say("set-defaults", "executors set --defaults --default-bind FullPCPUs")
        self.say("group-set", "groups set extra --weight 2 --max-cpu 4 --min-cpu 1")
        self.say("group-delete", "groups delete extra --yes")
        self.say("batch", "batch --threads 2 --name tour --cpu 0.1 --memory 32M -- true")
        self.say("batches", "batches")
        self.say("drain", f"drain {executor_id} --deadline 10m --reason tour --yes")
        self.say("undrain", f"undrain {executor_id}")
        self.say("error", "explain ffffffff", codes=(3,))
        self.say("terminate", f"terminate {job_id} --yes")

    def _without_cluster(self) -> None:
        folder, store = self.daemons.folder, f"sqlite:///{self.daemons.folder}/rm/finegrain.db"
        self.say("version", "version")
        self.say("config-show", "config show")
        self.say("config-check", "config check")
        self.say("detect", "detect")
        self.say("doctor", "doctor", codes=(0, 1))
        self.say("simulate-trace", f"simulate trace {TRACE} --limit 20")
        self.say("db-check", f"db check --database {store}")
        self.say("db-backup", f"db backup {folder}/backup.db --database {store}")
        copy = f"sqlite:///{folder}/copy.db"
        self.say("db-upgrade", f"db upgrade --database {copy}")
        self.say(
            "db-restore", f"db restore {folder}/backup.db --above-epoch 5 --yes --database {copy}"
        )
        self.say("db-raise-epoch", f"db raise-epoch --above-epoch 9 --database {copy}")


@contextmanager
def cluster() -> Iterator[Tour]:
    """A tour; no process or file of it is left."""
    with tempfile.TemporaryDirectory(prefix="fg-home-") as home:
        daemons = Daemons(Path(home))
        tour = Tour(daemons)
        try:
            yield tour
        finally:
            daemons.clean_up()


def main(folder: Path) -> None:
    """Writes the documents of all commands."""
    with cluster() as tour:
        said = tour.take()
        places = {str(tour.daemons.folder): "/srv/finegrain", str(tour.cli.home): "/home/user"}
    places |= {
        sys.prefix: "/opt/finegrain",
        str(REPOSITORY): "/opt/finegrain",
        socket.gethostname(): "host-a",
    }
    (folder / "cli").mkdir()
    for name, document in said.items():
        text = json.dumps(document, indent=1)
        for place, neutral in places.items():
            text = re.sub(rf"(?<![\w/]){re.escape(place)}(?!\w)", neutral, text)
        (folder / f"cli/{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
