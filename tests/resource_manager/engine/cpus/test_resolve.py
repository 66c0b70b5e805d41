"""Tests which policy applies: that of the request, of the host, or the configured default."""

import pytest

from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    QosClass,
)
from resource_manager.engine.cpus.layout import CpuLayout, layout_of_rows
from resource_manager.engine.cpus.request import CpuBlocker
from resource_manager.engine.cpus.resolve import Resolved, resolve
from resource_manager.engine.model.host_refusal import HostRefusal
from tests.support.cpu_layouts import machine

SMT = machine(1, 1, 4, 2)
NO_SMT = machine(1, 1, 4, 1)
HYBRID = layout_of_rows([(0, 0, 0, 0), (1, 0, 0, 0), (2, 1, 0, 0)])

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
FULL_ONLY = EffectivePolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY)
SPREAD_ONLY = EffectivePolicy(bind=HostBindPolicy.SPREAD_BY_PCPUS)
ANY = EffectivePolicy()
PCPU, NODE = ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL


def pinned(
    bind: BindPolicy = BindPolicy.DEFAULT,
    required: bool = False,
    exclusive: ExclusivePolicy = ExclusivePolicy.DEFAULT,
    exclusive_required: bool = False,
) -> CpuPolicy:
    return CpuPolicy(QosClass.LSR, bind, required, exclusive, exclusive_required)


def settled(
    policy: CpuPolicy, host: EffectivePolicy = ANY, layout: CpuLayout = SMT, milli: int = 4000
) -> Resolved:
    found = resolve(policy, milli, host, layout)
    assert isinstance(found, Resolved), found
    return found


def refused(
    policy: CpuPolicy, host: EffectivePolicy = ANY, layout: CpuLayout = SMT, milli: int = 4000
) -> HostRefusal:
    found = resolve(policy, milli, host, layout)
    assert isinstance(found, HostRefusal), found
    assert found.lasting
    return found


def test_who_says_nothing_gets_what_is_configured() -> None:
    host = EffectivePolicy(default_bind=SPREAD, default_exclusive=PCPU)
    found = settled(pinned(), host)
    assert (found.bind, found.bind_required) == (SPREAD, False)
    assert (found.exclusive, found.exclusive_required) == (PCPU, False)
    found = settled(pinned(required=True, exclusive_required=True), host)
    assert (found.bind, found.bind_required) == (SPREAD, True)
    assert (found.exclusive, found.exclusive_required) == (PCPU, True)


def test_what_the_host_demands_is_required_of_all_slots_with_dedicated_cpus() -> None:
    found = settled(pinned(), SPREAD_ONLY)
    assert (found.bind, found.bind_required) == (SPREAD, True)
    assert settled(pinned(FULL), FULL_ONLY).needs_whole_cores
    overridden = settled(pinned(SPREAD), FULL_ONLY)
    assert overridden.needs_whole_cores
    assert overridden.notes == ("SpreadByPCPUs was preferred: the host demands FullPCPUsOnly",)


@pytest.mark.parametrize(("wanted", "host"), [(SPREAD, FULL_ONLY), (FULL, SPREAD_ONLY)])
def test_two_different_ones_that_are_required_refuse_each_other(
    wanted: BindPolicy, host: EffectivePolicy
) -> None:
    refusal = refused(pinned(wanted, required=True), host)
    assert refusal.blocker is CpuBlocker.BIND_POLICY_CONFLICT
    assert wanted in refusal.text
    assert host.bind in refusal.text


def test_whole_cores_need_a_number_of_cpus_that_they_can_make_up() -> None:
    by_host = refused(pinned(), FULL_ONLY, milli=3000)
    assert by_host.blocker is CpuBlocker.SMT_ALIGNMENT
    assert "the host demands" in by_host.text
    assert "multiple of 2 cpus" in by_host.text
    by_request = refused(pinned(FULL, required=True), milli=3000)
    assert "the request requires" in by_request.text
    assert settled(pinned(FULL), milli=3000).count == 3
    assert settled(pinned(), FULL_ONLY, NO_SMT, milli=3000).count == 3
    assert settled(pinned(), FULL_ONLY, HYBRID, milli=3000).count == 3
    assert refused(pinned(), FULL_ONLY, HYBRID, milli=4000).blocker is CpuBlocker.SMT_ALIGNMENT


def test_pools_know_no_single_cpus_and_no_host_pins_them() -> None:
    for host in (ANY, FULL_ONLY, SPREAD_ONLY):
        assert settled(CpuPolicy(), host, milli=1500).count == 0
        assert settled(CpuPolicy(QosClass.BE), host, milli=1500).count == 0
    found = settled(CpuPolicy(QosClass.BE, FULL, exclusive=PCPU))
    assert (found.bind, found.exclusive) == (BindPolicy.NONE, ExclusivePolicy.NONE)
    assert len(found.notes) == 2
    burst = CpuPolicy(bind=BindPolicy.CONSTRAINED_BURST, bind_required=True)
    assert settled(burst, FULL_ONLY).bind is BindPolicy.CONSTRAINED_BURST


def test_without_hardware_threads_only_whole_cores_and_nodes_mean_anything() -> None:
    for policy in (pinned(SPREAD, required=True), pinned(exclusive=PCPU, exclusive_required=True)):
        assert refused(policy, layout=NO_SMT).blocker is CpuBlocker.SMT_NEEDED
    found = settled(pinned(SPREAD, exclusive=PCPU), layout=NO_SMT)
    assert (found.bind, found.exclusive) == (BindPolicy.NONE, ExclusivePolicy.NONE)
    assert len(found.notes) == 2
    configured = EffectivePolicy(default_bind=SPREAD, default_exclusive=PCPU)
    assert settled(pinned(), configured, NO_SMT).notes == ()
    found = settled(pinned(FULL, True, NODE, True), layout=NO_SMT)
    assert (found.bind, found.exclusive) == (FULL, NODE)
    assert settled(pinned(), SPREAD_ONLY, NO_SMT).bind_required is False


@pytest.mark.parametrize("asked", [each for each in NumaPolicy if each is not NumaPolicy.DEFAULT])
@pytest.mark.parametrize("required", [True, False])
def test_a_numa_policy_of_the_request_holds_where_the_host_has_none(
    asked: NumaPolicy, required: bool
) -> None:
    found = settled(CpuPolicy(numa=asked, numa_required=required))
    assert (found.numa, found.numa_required) == (asked, required)


@pytest.mark.parametrize(
    "aligned", [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]
)
def test_the_hosts_alignment_goes_before_a_preference_and_not_before_a_must(
    aligned: NumaPolicy,
) -> None:
    host = EffectivePolicy(alignment=aligned)
    assert settled(CpuPolicy(), host).numa is aligned
    assert settled(CpuPolicy(), host).numa_required
    for asked in NumaPolicy:
        if asked in (NumaPolicy.DEFAULT, aligned):
            assert settled(CpuPolicy(numa=asked, numa_required=True), host).notes == ()
            continue
        found = settled(CpuPolicy(numa=asked), host)
        assert found.numa is aligned
        assert asked in found.notes[0]
        if aligned is NumaPolicy.BEST_EFFORT:
            continue
        refusal = refused(CpuPolicy(numa=asked, numa_required=True), host)
        assert refusal.blocker is CpuBlocker.NUMA_POLICY_MISMATCH
        assert asked in refusal.text
        assert aligned in refusal.text


@pytest.mark.parametrize("asked", [each for each in NumaPolicy if each is not NumaPolicy.DEFAULT])
def test_a_host_that_aligns_if_possible_demands_nothing(asked: NumaPolicy) -> None:
    host = EffectivePolicy(alignment=NumaPolicy.BEST_EFFORT)
    found = settled(CpuPolicy(numa=asked, numa_required=True), host)
    assert (found.numa, found.numa_required, found.notes) == (asked, True, ())
