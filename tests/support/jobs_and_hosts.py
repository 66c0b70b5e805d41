"""A model cluster in few words: hosts, jobs, requests that end; for tests of who is served when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import GangPlacement, GangSpec, RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    ItemOutcome,
    JobRegistered,
    RequestsSubmitted,
    SlotsReleased,
    SlotsReuseAsked,
)
from resource_manager.engine.model.settings import EngineSettings, Fairness, Provisioning
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

FOREVER_MS = 10**9


class Story:
    """A cluster whose executors answer at once. The books are checked after every step."""

    def __init__(self, provisioning: Provisioning | None = None, **fairness: Any) -> None:
        settings = EngineSettings(
            fairness=Fairness(**fairness),
            provisioning=provisioning or Provisioning(),
            lost_timeout_ms=FOREVER_MS,
            lease_default_ms=FOREVER_MS,
        )
        self.cluster = ModelCluster(settings)
        self.ended: set[str] = set()

    @property
    def state(self) -> Any:
        return self.cluster.state

    def host(self, name: str, cpu: int = 4_000, **more: Any) -> ModelExecutor:
        executor = ModelExecutor(
            name,
            {"cpu_milli": cpu, "memory_bytes": 64 * 1024 * MIB},
            ResourceProfile(1_000, 256 * MIB),
            **more,
        )
        self.cluster.register(executor)
        return executor

    def job(self, *names: str, group: str = "default") -> None:
        for name in names:
            self.cluster.batch(JobRegistered(self.cluster.at, name, name, group, None, "s", "r"))

    def ask(self, job: str, names: Sequence[str], cpu: int = 1_000, **more: Any) -> None:
        specs = tuple(RequestSpec(name, ResourceProfile(cpu, 64 * MIB), **more) for name in names)
        self.act(RequestsSubmitted(self.cluster.at, job, specs))

    def ask_range(self, job: str, range_id: str, count: int, cpu: int = 1_000) -> None:
        spec = RangeSpec(RequestSpec(range_id, ResourceProfile(cpu, 64 * MIB)), 0, count)
        self.act(RequestsSubmitted(self.cluster.at, job, (), ranges=(spec,)))

    def gang(
        self,
        job: str,
        gang_id: str,
        sizes: Sequence[int],
        placement: GangPlacement,
        label: str = "",
    ) -> None:
        specs = tuple(
            RequestSpec(f"{gang_id}-{n}", ResourceProfile(cpu, 64 * MIB), gang_id=gang_id)
            for n, cpu in enumerate(sizes)
        )
        gangs = (GangSpec(gang_id, placement, label),)
        self.act(RequestsSubmitted(self.cluster.at, job, specs, gangs=gangs))

    def end(self, job: str, *names: str) -> None:
        """These slots are given back."""
        self.ended.update(names)
        self.act(SlotsReleased(self.cluster.at, job, tuple((name, 0) for name in names)))

    def reuse(self, job: str, *wishes: tuple[str, str]) -> list[ItemOutcome]:
        slots = tuple((name, self.state.requests[name].generation, to) for name, to in wishes)
        return self.reuse_exactly(job, *slots)

    def reuse_exactly(self, job: str, *slots: tuple[str, int, str]) -> list[ItemOutcome]:
        answer: list[ItemOutcome] = self.act(SlotsReuseAsked(self.cluster.at, job, slots))
        return answer

    def wait(self, seconds: float) -> None:
        self.cluster.wait(int(seconds * 1_000))
        self.settle()

    def act(self, event: Any) -> Any:
        answer = self.cluster.batch(event)
        self.settle()
        return answer

    def settle(self) -> None:
        self.cluster.settle()
        while self.state.unfinished:
            self.cluster.batch()
            self.cluster.settle()
        assert check_invariants(self.state) == []

    def restart(self) -> None:
        """The RM is replaced by one that knows what was stored; executors register again."""
        self.cluster.restart_rm()
        for executor in self.cluster.executors.values():
            self.cluster.register(executor)
        self.settle()

    def running(self, host: str = "") -> list[str]:
        """Slots that run, on one host or all, in order of placing."""
        return [
            slot.allocation_id
            for slot in self.state.slots.values()
            if host in ("", slot.executor_id)
        ]

    def where(self, name: str) -> str:
        """The host of a request; empty: it has none."""
        request = self.state.requests.get(name)
        slot = self.state.slots.of(request) if request is not None else None
        return slot.executor_id if slot is not None else ""

    def history(self, kind: str) -> list[str]:
        """Messages of the cluster's events of one kind."""
        return [each.message for each in self.cluster.store.cluster_events if each.kind == kind]
