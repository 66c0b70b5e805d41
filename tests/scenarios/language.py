"""The language of the scenarios: one command per line, `name subject... key=value... flag...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from finegrain.errors import FinegrainError
from resource_manager.engine.explain.lists import list_executors, list_requests, list_slots
from resource_manager.engine.explain.requests import explain
from tests.scenarios import render
from tests.scenarios.cpus import CpuCommands, host_policy
from tests.scenarios.elastic import ElasticCommands
from tests.scenarios.executors import ExecutorCommands
from tests.scenarios.fairness import FairnessCommands
from tests.scenarios.holding import HoldingCommands
from tests.scenarios.jobs import JobCommands
from tests.scenarios.ranges import RangeCommands
from tests.scenarios.words import Words
from tests.support.engine_cluster import EngineCluster

HEARTBEAT_MS = 3_000


class Interpreter(
    JobCommands,
    RangeCommands,
    ExecutorCommands,
    CpuCommands,
    ElasticCommands,
    FairnessCommands,
    HoldingCommands,
):
    """Executes command lines on a cluster, and returns their output."""

    def __init__(self) -> None:
        super().__init__()
        self.copy = self.cluster.store.database.tables

    @classmethod
    def commands(cls) -> list[str]:
        return sorted(name[3:].replace("_", "-") for name in dir(cls) if name.startswith("do_"))

    def run(self, line: str) -> list[str]:
        if line.startswith("#"):
            return []
        words = Words(line)
        command: Callable[[Words], Iterator[str]] = getattr(
            self, "do_" + words.name.replace("-", "_")
        )
        try:
            output = list(command(words))
        except FinegrainError as error:
            self.cluster.effects = []
            return [f"error {error.reason}: {error}"]
        assert not words.values, f"not understood in '{line}': {words.values}"
        return output

    # The resource manager and time.

    def do_settings(self, words: Words) -> Iterator[str]:
        values: dict[str, Any] = {
            name: int(v) if v.isdigit() else None if v == "none" else v
            for name, v in words.values.items()
            if not name.startswith("cluster_")
        }
        layer = {k[8:]: v for k, v in words.values.items() if k.startswith("cluster_")}
        words.values.clear()
        words.values.update(layer)
        if layer:
            values["cluster_policy"] = host_policy(words)
        self.cluster = EngineCluster(jobs=(), **values)
        yield from ()

    def do_restart_rm(self, words: Words) -> Iterator[str]:
        self.cluster.restart_rm(words.number("epoch") or None)
        yield from ()

    def do_backup(self, words: Words) -> Iterator[str]:
        self.copy = self.cluster.store.database.tables.copy()
        yield from ()

    def do_restore(self, words: Words) -> Iterator[str]:
        """Replaces the store's content by the copy, like a copied database file."""
        self.cluster.store.database.tables = self.copy.copy()
        yield from ()

    def do_wait(self, words: Words) -> Iterator[str]:
        """Lets time pass in heartbeats; executors and jobs in `silent=` send nothing."""
        silent = words.names("silent")
        left = words.milliseconds(words.subjects[0])
        while left > 0:
            self.cluster.wait(min(left, HEARTBEAT_MS))
            yield from self._effects()
            left -= HEARTBEAT_MS
            for executor in self.cluster.executors.values():
                if executor.executor_id not in silent and executor.registration_number:
                    self.cluster.report(executor)
                    yield from self._effects()
            for job_id, job in list(self.cluster.state.jobs.items()):
                if job_id not in silent and job.state == "ACTIVE":
                    self.cluster.keep_alive(job_id)

    # Administrators.

    def do_drain(self, words: Words) -> Iterator[str]:
        deadline = words.values.pop("deadline", None)
        ms = words.milliseconds(deadline) if deadline is not None else None
        self.cluster.drain(words.subjects[0], ms, words.values.pop("reason", ""))
        yield from self._effects()

    def do_undrain(self, words: Words) -> Iterator[str]:
        self.cluster.undrain(words.subjects[0])
        yield from self._effects()

    def do_forget(self, words: Words) -> Iterator[str]:
        self.cluster.forget(words.subjects[0])
        yield from self._effects()

    def do_requests(self, words: Words) -> Iterator[str]:
        for view in list_requests(self.cluster.state, limit=1_000).items:
            yield render.request(view)

    def do_slots(self, words: Words) -> Iterator[str]:
        for view in list_slots(self.cluster.state, limit=1_000).items:
            yield render.slot(view)

    def do_executors(self, words: Words) -> Iterator[str]:
        for view in list_executors(self.cluster.state, limit=1_000).items:
            yield render.executor(view)

    def do_explain(self, words: Words) -> Iterator[str]:
        executor_id = words.values.pop("executor", "")
        yield from render.explanation(explain(self.cluster.state, words.subjects[0], executor_id))
