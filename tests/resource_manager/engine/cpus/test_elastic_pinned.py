"""Executors that are asked for, for requests whose cpus amounts alone do not say to fit."""

from __future__ import annotations

from typing import Any

from finegrain.cpu_policy import CpuPolicy, ExclusivePolicy, HostPolicy, NumaPolicy, QosClass
from finegrain.errors import Reason
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.explain.provisions import providers_view
from resource_manager.engine.explain.waiting_reasons import pending_reason
from resource_manager.engine.model.entities import (
    GangPlacement,
    GangSpec,
    RequestSpec,
    RequestState,
)
from resource_manager.engine.model.events import (
    HostPolicySet,
    ProvisionEnded,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.support.cpu_hosts import BE, LSE, LSR, CpuStory, host

ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
NODE_EACH = CpuPolicy(
    QosClass.LSR, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL, exclusive_required=True
)


class ElasticStory(CpuStory):
    """A provider that starts hosts of two NUMA nodes with eight cpus each."""

    def __init__(self, **more: Any) -> None:
        made = host()
        totals = {name: made.total[name] for name in ("cpu_milli", "memory_bytes")}
        shape = ExecutorShape("big", "test", totals, made.default_profile)
        self.policy: dict[str, Any] | None = more.pop("policy", None)
        super().__init__(provisioning=Provisioning(shapes=(shape,), **more))

    def wait_long(self) -> None:
        """Time for the next look, and more."""
        for _ in range(3):
            self.cluster.wait(1_000)
            for executor in self.cluster.executors.values():
                self.cluster.report(executor)
        self.sound()

    def asked_for(self) -> list[str]:
        """Executors that have not come."""
        pending = (each for each in self.state.provisions.values())
        return [each.executor_id for each in pending if each.state in ("ASKED", "STARTED")]

    def come(self) -> int:
        """Whoever was asked for comes; how many."""
        names = self.asked_for()
        for name in names:
            self.cluster.register(host(name, provided_as="big", policy=self.policy))
            self.settle()
        return len(names)

    def is_granted(self, name: str) -> bool:
        return bool(self.state.requests[name].state is RequestState.GRANTED)

    def gang(
        self,
        name: str,
        *members: int,
        policy: CpuPolicy = ONE_NODE,
        placement: GangPlacement = GangPlacement.ANYWHERE,
    ) -> Any:
        specs = tuple(
            RequestSpec(
                f"{name}-{at}", ResourceProfile(cpu, 64 * MIB), gang_id=name, cpu_policy=policy
            )
            for at, cpu in enumerate(members)
        )
        gangs = (GangSpec(name, placement),)
        answer = self.cluster.batch(RequestsSubmitted(self.cluster.at, "job", specs, gangs=gangs))
        self.settle()
        return answer


def test_executors_are_asked_for_by_amounts_and_then_by_what_the_last_one_was() -> None:
    story = ElasticStory()
    for at in range(6):
        story.ask(f"r{at}", 5_000, ONE_NODE)  # three by amounts, two by nodes
    story.wait_long()
    assert story.come() == 2
    assert sum(story.is_granted(f"r{at}") for at in range(6)) == 4
    story.wait_long()
    assert story.come() == 1
    assert all(story.is_granted(f"r{at}") for at in range(6))
    for at in range(4):
        story.ask(f"s{at}", 5_000, ONE_NODE)
    story.wait_long()
    assert story.come() == 2  # as is known by now
    assert all(story.is_granted(f"s{at}") for at in range(4))


def test_a_shape_whose_nodes_are_too_small_is_not_asked_for_again_and_again() -> None:
    story = ElasticStory(idle_timeout_ms=2_000)
    story.ask("wide", 10_000, ONE_NODE)
    story.wait_long()
    assert story.come() == 1
    assert not story.is_granted("wide")
    backoff = story.state.elastic.backoffs["big"]
    assert "its cpus and NUMA nodes do not suit" in backoff.last_failure
    for _ in range(20):
        story.wait_long()
        for name, each in list(story.state.provisions.items()):
            if each.state == "STOPPING":
                story.cluster.batch(ProvisionEnded(story.cluster.at, name))
                story.cluster.executors.pop(name, None)
    assert story.state.elastic.number == 1
    assert pending_reason(story.state, story.state.requests["wide"]) == Reason.INFEASIBLE_NEVER
    (why,) = providers_view(story.state).unplanned
    assert "the last one of shape big that came had cpus and NUMA nodes that do not suit" in why
    assert "put 10 cpus" in why
    (outcome,) = story.ask("another", 10_000, ONE_NODE)
    assert outcome.reason == Reason.INFEASIBLE_NEVER
    story.ask("narrow", 8_000, ONE_NODE)
    story.wait_long()
    assert story.come() == 1
    assert story.is_granted("narrow")


def test_what_the_cluster_is_set_to_counts_for_those_to_come() -> None:
    story = ElasticStory()
    story.ask("first", 10_000, LSR)
    story.wait_long()
    story.come()
    assert story.is_granted("first")
    aligned = HostPolicy(alignment=NumaPolicy.SINGLE_NUMA_NODE)
    story.cluster.batch(HostPolicySet(story.cluster.at, "", aligned))
    (outcome,) = story.ask("second", 10_000, LSR)
    assert outcome.reason == Reason.INFEASIBLE_NEVER
    story.cluster.batch(HostPolicySet(story.cluster.at, "", HostPolicy(alignment=NumaPolicy.NONE)))
    story.ask("third", 10_000, LSR)
    story.wait_long()
    assert story.come() == 1
    assert story.is_granted("third")


def test_a_gang_does_not_count_on_hosts_whose_nodes_do_not_suit_its_members() -> None:
    story = ElasticStory()
    story.ask("a", 5_000, ONE_NODE)
    story.ask("b", 5_000, ONE_NODE)
    story.wait_long()
    assert story.come() == 1  # six cpus are left there, three on each node
    story.gang("g", 4_000, 4_000)
    story.wait_long()
    assert story.come() == 1
    assert story.is_granted("g-0")
    story.gang("h", 3_000, 3_000)
    story.wait_long()
    assert story.asked_for() == []
    assert story.is_granted("h-0")


def test_a_gang_whose_members_no_node_of_theirs_could_have_is_impossible() -> None:
    story = ElasticStory()
    story.gang("g", 8_000, 8_000)
    story.wait_long()
    assert story.come() == 1
    assert story.is_granted("g-1")
    (outcome, _) = story.gang("h", 9_000, 1_000)
    assert outcome.reason == Reason.INFEASIBLE_NEVER


def test_members_that_differ_do_not_count_on_a_host_that_suits_them_one_kind_at_a_time() -> None:
    story = ElasticStory()
    story.ask("first", 1_000, BE)
    story.wait_long()
    assert story.come() == 1
    story.gang("g", 2_000, 2_000, 4_000, policy=NODE_EACH)  # a node each, and it has two
    story.wait_long()
    assert story.come() == 1
    assert all(story.is_granted(f"g-{at}") for at in range(3))


def test_executors_are_not_asked_for_that_members_do_not_suit_together() -> None:
    story = ElasticStory(idle_timeout_ms=2_000)
    story.ask("first", 1_000, BE)
    story.wait_long()
    assert story.come() == 1
    members = (2_000, 2_000, 4_000)
    on_one = GangPlacement.SAME_EXECUTOR
    answer = story.gang("g", *members, policy=NODE_EACH, placement=on_one)
    assert {outcome.reason for outcome in answer} == {Reason.INFEASIBLE_NEVER}
    story.wait_long()
    assert story.asked_for() == []
    story.gang("h", 2_000, 4_000, policy=NODE_EACH, placement=on_one)
    assert story.is_granted("h-0")


def test_best_effort_slots_are_planned_on_the_cpus_of_executors_once_more() -> None:
    story = ElasticStory()
    story.ask("idle", 12_000, BE)
    story.ask("busy", 12_000, LSE)
    story.wait_long()
    assert story.come() == 1
    assert story.is_granted("idle")
    assert story.is_granted("busy")
    story.cluster.batch(SlotsReleased(story.cluster.at, "job", (("idle", 0), ("busy", 0))))
    story.settle()
