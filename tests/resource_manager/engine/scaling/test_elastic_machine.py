"""Random histories of a cluster that grows and shrinks.

Providers fail, are late, bring too little or too late, and lose machines. Every machine stays
known, and no request waits forever.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import ExecutorState, ProvidedExecutorState, RequestState
from resource_manager.engine.explain.provisions import planned_on, providers_view
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.entities import JobState
from resource_manager.engine.model.events import (
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.elastic import PENDING
from tests.resource_manager.engine.scheduling.test_gang_machine import GangsStayWhole
from tests.resource_manager.engine.test_machine import HOSTS, JOBS, MACHINE
from tests.support.engine_cluster import provided
from tests.support.properties import examples

DEFAULT = ResourceProfile(1000, 256 * MIB)
PROVISIONING = Provisioning(
    shapes=(
        ExecutorShape(
            "small",
            "machine",
            {"cpu_milli": 2_000, "memory_bytes": GIB},
            DEFAULT,
            labels=(("zone", "a"),),
            count_max=3,
            start_timeout_ms=5_000,
        ),
        ExecutorShape(
            "large",
            "machine",
            {"cpu_milli": 6_000, "memory_bytes": 4 * GIB, "extended.license-x": 1},
            DEFAULT,
            slots_max=4,
            cost=2.5,
            start_timeout_ms=20_000,
        ),
    ),
    total_min={"cpu_milli": 3_000},
    total_max={"cpu_milli": 24_000},
    idle_timeout_ms=4_000,
    provided_lost_timeout_ms=5_000,
    backoff_max_ms=4_000,
)


class NothingStrays(GangsStayWhole):
    """The same history, with a provider."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster.settings = replace(self.cluster.settings, provisioning=PROVISIONING)
        self.machines: dict[str, str] = {}  # shape of each running machine, registered or not
        self.restart_rm()
        for name in ("host-a", "host-b"):
            self.cluster.register(self.cluster.executors[name])

    def provided(self) -> list[str]:
        return sorted(self.cluster.executors.keys() - set(HOSTS))

    # What the provider does.

    @precondition(lambda self: self.cluster.providers)
    @rule(data=st.data(), fate=st.sampled_from(["done", "done", "fails", "fails halfway", "mute"]))
    def provider_works(self, data: st.DataObject, fate: str) -> None:
        at = data.draw(st.integers(0, len(self.cluster.providers) - 1))
        self._obey(self.cluster.providers.pop(at), fate)

    @rule()
    def provider_obeys(self) -> None:
        while self.cluster.providers:
            self._obey(self.cluster.providers.pop(0), "done")

    def _obey(self, told: StartExecutor | StopExecutor, fate: str) -> None:
        name, at = told.executor_id, self.cluster.at
        if isinstance(told, StartExecutor):
            if fate != "fails":
                self.machines.setdefault(name, told.shape)
            if fate == "done":
                self.cluster.batch(ProvisionStarted(at, name, f"handle of {name}"))
            elif fate != "mute":
                self.cluster.batch(ProvisionFailed(at, name, "no machine is free"))
        elif fate in ("done", "mute"):
            self._destroy(name)
            if fate == "done":
                self.cluster.batch(ProvisionEnded(at, name))
        else:
            self.cluster.batch(ProvisionStopFailed(at, name, "no answer"))

    def _destroy(self, name: str) -> None:
        self.machines.pop(name, None)
        if self.cluster.executors.pop(name, None) is not None:
            self.held = [each for each in self.held if each[0].executor_id != name]
            for sent in [s for s in self.cluster.wire if s.command.executor_id == name]:
                self.cluster.fail(sent)

    @precondition(lambda self: self.machines.keys() - self.cluster.executors.keys())
    @rule(data=st.data(), smaller=st.sampled_from([False, False, True]))
    def comes(self, data: st.DataObject, smaller: bool) -> None:
        waiting = sorted(self.machines.keys() - self.cluster.executors.keys())
        self._boot(data.draw(st.sampled_from(waiting)), smaller)

    def _boot(self, name: str, smaller: bool) -> None:
        shape = self.state.elastic.shapes[self.machines[name]]
        total = {each: amount // (2 if smaller else 1) for each, amount in shape.total.items()}
        self.cluster.register(provided(name, shape, total=total))

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), seen=st.booleans())
    def machine_breaks(self, data: st.DataObject, seen: bool) -> None:
        """A machine ends by itself, seen by its provider or not."""
        name = data.draw(st.sampled_from(sorted(self.machines)))
        self._destroy(name)
        if seen:
            self.cluster.batch(ProvisionEnded(self.cluster.at, name, "it broke"))

    # Other events.

    @rule()
    def provided_ones_report(self) -> None:
        for name in self.provided():
            self.report(name)

    @precondition(lambda self: self.provided())
    @rule(data=st.data())
    def operator_forgets(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.provided()))
        host = self.state.hosts.get(name)
        if host is not None and host.executor.state is ExecutorState.LOST:
            self.cluster.forget(name)

    @rule(seconds=st.integers(1, 6))
    def looks(self, seconds: int) -> None:
        """Time passes, and all executors report."""
        for _ in range(seconds):
            self.cluster.wait(1_000)
            for name in (*HOSTS, *self.provided()):
                self.report(name)
            for job_id in JOBS:
                if self.state.jobs[job_id].state is JobState.ACTIVE:
                    self.cluster.keep_alive(job_id)

    # What must always hold.

    @invariant()
    def everything_can_be_shown(self) -> None:
        view = providers_view(self.state)
        assert len(view.executors) == len(self.state.provisions)
        for request in self.state.requests.values():
            if request.state is RequestState.PENDING and (
                on := planned_on(self.state.queue, self.state.elastic, request)
            ):
                assert self.state.provisions[on].state in PENDING

    @invariant()
    def whatever_runs_is_known_or_comes_back_to_it(self) -> None:
        """An unknown machine was lost by a restart, or reported as stopped.

        It registers with the name of its shape, and is adopted then.
        """
        for name in self.provided():
            host = self.state.hosts.get(name)
            if host is not None:
                assert name in self.state.provisions

    def teardown(self) -> None:
        self._quiet()
        super().teardown()
        self._quiet()
        self._those_who_could_be_served_are()
        for job_id in JOBS:
            self.cluster.end_job(job_id)
        self._quiet()
        self._nothing_is_left_but_the_minimum()

    def _quiet(self) -> None:
        """The provider obeys, what it starts registers, and all executors report."""
        for _ in range(40):
            self.provider_obeys()
            for name in sorted(self.machines.keys() - self.cluster.executors.keys()):
                self._boot(name, smaller=False)
            self.cluster.deliver_all()
            for name in self.provided():
                self.cluster.executors[name].finish_frees()
            self.looks(1)
            self.cluster.deliver_all()
        self.provider_obeys()

    def _those_who_could_be_served_are(self) -> None:
        """No request waits that an available shape could serve."""
        elastic = self.state.elastic
        there = self.state.provision_moves.counted()["cpu_milli"]
        for shape in self.state.queue.classes():
            for name, capacity in elastic.capacities.items():
                one = elastic.shapes[name]
                number = sum(each.shape == name for each in self.state.provisions.values())
                may = not one.count_max or number < one.count_max
                needs = needs_of(shape)
                need = needs.separate if capacity.separate else needs.pooled
                if may and there + one.total["cpu_milli"] <= 24_000 and shape.profile is not None:
                    fits = all(capacity.amounts.get(n, 0) >= a for n, a in need.items())
                    carried = all(capacity.labels.get(n) == v for n, v in shape.labels)
                    assert not (fits and carried), (shape, name)

    def _nothing_is_left_but_the_minimum(self) -> None:
        provisions = self.state.provisions
        assert {each.state for each in provisions.values()} <= {ProvidedExecutorState.REGISTERED}
        assert set(self.machines) == set(provisions)
        there = self.state.provision_moves.retained_total()["cpu_milli"]
        assert there >= 3_000
        for name in provisions:
            total = self.state.hosts[name].executor.registration.total["cpu_milli"]
            assert there - total < 3_000, f"{name} is kept, and no request needs it"


TestElastic = NothingStrays.TestCase
TestElastic.settings = settings(MACHINE, max_examples=examples(40))
