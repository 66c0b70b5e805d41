"""Commands about executors that are asked for: what may be, what their provider says, who comes."""

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
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor
from tests.scenarios import render
from tests.scenarios.words import Words


class ElasticCommands:
    """Part of the stage; the rest is in language.py."""

    cluster: ModelCluster

    def _effects(self) -> Iterator[str]:
        raise NotImplementedError

    def _register(self, executor: ModelExecutor) -> Iterator[str]:
        raise NotImplementedError

    def do_shape(self, words: Words) -> Iterator[str]:
        """One more shape that can be asked for; the cluster begins anew."""
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
        self._begin_anew(replace(provisioning, shapes=(*provisioning.shapes, shape)))
        yield from ()

    def do_elastic(self, words: Words) -> Iterator[str]:
        """Limits and times of what is asked for, without shapes; the cluster begins anew."""
        given: dict[str, Any] = {}
        for name in ("min", "max"):
            if cpu := words.number(f"{name}_cpu"):
                given[f"total_{name}"] = {"cpu_milli": cpu}
        for word, field in (("idle", "idle_timeout_ms"), ("lost", "provided_lost_timeout_ms")):
            if word in words.values:
                given[field] = words.number(word) * 1_000
        if "planned_max" in words.values:
            given["planned_requests_max"] = words.number("planned_max")
        self._begin_anew(Provisioning(**given))
        yield from ()

    def _begin_anew(self, provisioning: Provisioning) -> None:
        self.cluster = ModelCluster(replace(self.cluster.settings, provisioning=provisioning))

    def do_look(self, words: Words) -> Iterator[str]:
        """So much time passes, in single seconds, that the RM looks at what is wanted."""
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
        """A provider says that nothing is left of an executor."""
        name = words.subjects[0]
        self.cluster.executors.pop(name, None)
        yield from self._told(ProvisionEnded(self.cluster.at, name))

    def do_stop_fails(self, words: Words) -> Iterator[str]:
        why = words.values.pop("why", "no answer")
        yield from self._told(ProvisionStopFailed(self.cluster.at, words.subjects[0], why))

    def do_comes(self, words: Words) -> Iterator[str]:
        """An executor that was asked for registers, as promised or with other amounts."""
        name = words.subjects[0]
        provision = self.cluster.state.provisions.get(name)
        shape_name = provision.shape if provision else words.values.pop("shape")
        shape = self.cluster.state.elastic.shapes[shape_name]
        total = dict(shape.total)
        total["cpu_milli"] = words.number("cpu", total["cpu_milli"])
        total["memory_bytes"] = words.number("mem", total["memory_bytes"] // MIB) * MIB
        executor = ModelExecutor(name, total, shape.default_profile, shape.labels, shape.slots_max)
        executor.provided_as = shape_name
        yield from self._register(executor)

    def do_providers(self, words: Words) -> Iterator[str]:
        """Everything that `finegrain providers` tells."""
        yield from render.providers(providers_view(self.cluster.state))

    def _told(self, event: Event) -> Iterator[str]:
        self.cluster.batch(event)
        yield from self._effects()
