"""Commands about executors from providers: shapes, limits, and reports of the provider."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.provisions import providers_view
from resource_manager.engine.model.events import (
    Event,
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.scenarios import render
from tests.scenarios.commands import Commands
from tests.scenarios.words import Words
from tests.support.engine_cluster import EngineCluster, provided


class ElasticCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

    def do_shape(self, words: Words) -> Iterator[str]:
        """Adds an executor shape, and starts again with an empty cluster."""
        total = {"cpu_milli": words.number("cpu"), "memory_bytes": words.number("mem") * MIB}
        shape = ExecutorShape(
            name=words.subjects[0],
            provider="story",
            total=total,
            default_profile=ResourceProfile(
                words.number("default_cpu", 1_000), words.number("default_mem", 256) * MIB
            ),
            labels=words.labels(),
            slots_max=words.number("slots_max"),
            cost=words.number("cost", 1),
            count_max=words.number("count_max"),
            start_timeout_ms=words.number("timeout", 60) * 1_000,
        )
        provisioning = self.cluster.settings.provisioning
        self._start_over(replace(provisioning, shapes=(*provisioning.shapes, shape)))
        yield from ()

    def do_elastic(self, words: Words) -> Iterator[str]:
        """Sets limits and times, removes all shapes, and starts again with an empty cluster."""
        given: dict[str, Any] = {}
        for name in ("min", "max"):
            if cpu := words.number(f"{name}_cpu"):
                given[f"total_{name}"] = {"cpu_milli": cpu}
        for word, field in (("idle", "idle_timeout_ms"), ("lost", "provided_lost_timeout_ms")):
            if word in words.values:
                given[field] = words.number(word) * 1_000
        if "planned_max" in words.values:
            given["planned_requests_max"] = words.number("planned_max")
        self._start_over(Provisioning(**given))
        yield from ()

    def _start_over(self, provisioning: Provisioning) -> None:
        self.cluster = EngineCluster(
            jobs=(), settings=self.cluster.settings, provisioning=provisioning
        )

    def do_look(self, words: Words) -> Iterator[str]:
        """Lets time pass second by second, so that the RM can plan in each second."""
        for _ in range(int(words.subjects[0].removesuffix("s")) if words.subjects else 1):
            self.cluster.wait(1_000)
            yield from self._effects()

    def do_started(self, words: Words) -> Iterator[str]:
        name, handle = words.subjects[0], words.values.pop("handle", "")
        yield from self._told(ProvisionStarted(self.cluster.at, name, handle))

    def do_fails(self, words: Words) -> Iterator[str]:
        why = words.values.pop("why", "no machine is free")
        yield from self._told(ProvisionFailed(self.cluster.at, words.subjects[0], why))

    def do_ended(self, words: Words) -> Iterator[str]:
        """The provider reports that nothing of an executor is left."""
        name = words.subjects[0]
        self.cluster.executors.pop(name, None)
        yield from self._told(ProvisionEnded(self.cluster.at, name))

    def do_stop_fails(self, words: Words) -> Iterator[str]:
        why = words.values.pop("why", "no answer")
        yield from self._told(ProvisionStopFailed(self.cluster.at, words.subjects[0], why))

    def do_joins(self, words: Words) -> Iterator[str]:
        """An executor registers with the amounts of its shape, or with other amounts."""
        name = words.subjects[0]
        provision = self.cluster.state.provisions.get(name)
        shape_name = provision.shape if provision else words.values.pop("shape")
        shape = self.cluster.state.elastic.shapes[shape_name]
        total = dict(shape.total)
        total["cpu_milli"] = words.number("cpu", total["cpu_milli"])
        total["memory_bytes"] = words.number("mem", total["memory_bytes"] // MIB) * MIB
        yield from self._register(provided(name, shape, total=total))

    def do_providers(self, words: Words) -> Iterator[str]:
        """Prints the facts that `finegrain providers` shows."""
        yield from render.providers(providers_view(self.cluster.state))

    def _told(self, event: Event) -> Iterator[str]:
        self.cluster.batch(event)
        yield from self._effects()
