"""Each kind of constraint: a host that violates it, and what `explain` shows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from finegrain.cpu_policy import CpuPolicy, NumaPolicy
from finegrain.devices.names import device_requests
from finegrain.neighbors import read_rule
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import ExecutorState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import Refusal, ReservedCapacity
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.fit import CONSTRAINTS, Fit
from tests.support.devices import gpu_host
from tests.support.engine_cluster import LSR, EngineCluster
from tests.support.engine_cluster.calls import JOB

SSD = (("disk", "ssd"),)
"""The labels of the only host."""

WANTED = RequestSpec("waits", ResourceProfile(2_000, GIB), required_labels=SSD, allow_pending=True)

ONE_NODE = replace(LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)

Violate = Callable[[EngineCluster, Host], RequestSpec]
"""Makes the only host violate a constraint; returns what is asked for."""


def _lost(cluster: EngineCluster, host: Host) -> RequestSpec:
    host.executor.state = ExecutorState.LOST
    return WANTED


def _draining(cluster: EngineCluster, host: Host) -> RequestSpec:
    host.executor.draining, host.executor.drain_reason = True, "new kernel"
    return WANTED


def _unreachable(cluster: EngineCluster, host: Host) -> RequestSpec:
    host.reach.unreachable, host.reach.cause = True, "connection refused"
    return WANTED


def _other_labels(cluster: EngineCluster, host: Host) -> RequestSpec:
    return replace(WANTED, required_labels=(("disk", "tape"),))


def _too_little_free(cluster: EngineCluster, host: Host) -> RequestSpec:
    host.book(host.booking_of(ResourceProfile(15_000, GIB)), 1)
    return WANTED


def _too_large(cluster: EngineCluster, host: Host) -> RequestSpec:
    return replace(WANTED, profile=ResourceProfile(17_000, GIB))


def _slot_limit(cluster: EngineCluster, host: Host) -> RequestSpec:
    cluster.submit("first")
    host.executor.registration = replace(host.executor.registration, slots_max=1)
    return WANTED


def _refused(cluster: EngineCluster, host: Host) -> RequestSpec:
    key = cluster.state.queue.class_of(WANTED).key
    host.refusals[key] = Refusal(failures=1, until_ms=1 << 60, state_seen=None)
    return WANTED


def _reserved(cluster: EngineCluster, host: Host) -> RequestSpec:
    host.reserved = ReservedCapacity({"cpu_milli": 16_000}, 1, {})
    return WANTED


def _scattered(cluster: EngineCluster, host: Host) -> RequestSpec:
    for number in range(2):
        cluster.submit(f"large-{number}", cpu_milli=5_000, policy=ONE_NODE)
    return replace(WANTED, profile=ResourceProfile(4_000, 64 * MIB), cpu_policy=ONE_NODE)


def _with_devices(**resources: int) -> RequestSpec:
    return replace(
        WANTED, profile=ResourceProfile(1_000, 64 * MIB, devices=device_requests(resources))
    )


def _shares_left(cluster: EngineCluster, host: Host) -> RequestSpec:
    shares = replace(_with_devices(gpu=50), required_labels=())
    cluster.submit(*(replace(shares, allocation_id=f"half-{number}") for number in range(2)))
    # The sum of free shares is large enough, but no whole GPU is free.
    cluster.release("half-0")
    return _with_devices(gpu=100)


def _other_model(cluster: EngineCluster, host: Host) -> RequestSpec:
    [gpu] = device_requests({"gpu": 100})
    return replace(
        WANTED, profile=ResourceProfile(1_000, 64 * MIB, devices=(replace(gpu, model="A100"),))
    )


def _unenforced(cluster: EngineCluster, host: Host) -> RequestSpec:
    profile = replace(WANTED.profile or ResourceProfile(), isolation=(("memory", "kernel"),))
    return replace(WANTED, profile=profile)


def _lower_level(cluster: EngineCluster, host: Host) -> RequestSpec:
    [gpu] = device_requests({"gpu": 50})
    strict = replace(gpu, isolation=(("gpu-memory", "mps"),))
    return replace(WANTED, profile=ResourceProfile(1_000, 64 * MIB, devices=(strict,)))


def _ruled(rule: str, *, apart: bool) -> RequestSpec:
    policy = CpuPolicy(neighbors=(read_rule("rule", rule, apart=apart),), neighbor_job=JOB)
    return replace(WANTED, cpu_policy=policy)


def _not_apart(cluster: EngineCluster, host: Host) -> RequestSpec:
    cluster.submit("first", cpu_policy=CpuPolicy(slot_labels=(("app", "db"),)))
    return _ruled("app=db", apart=True)


def _not_near(cluster: EngineCluster, host: Host) -> RequestSpec:
    return _ruled("app=db@numa", apart=False)


EXAMPLES: dict[str, tuple[str, list[tuple[Violate, tuple[str, ...], str]]]] = {
    "Available": (
        "now",
        [
            (_lost, ("LOST",), "is lost"),
            (_draining, ("DRAINING",), "is draining: new kernel"),
            (_unreachable, ("UNREACHABLE",), "commands do not reach it: connection refused"),
        ],
    ),
    "CarriesLabels": ("ever", [(_other_labels, ("LABEL_MISMATCH",), "lacks a required label")]),
    "EnoughFree": (
        "ever",
        [
            (_too_little_free, ("INSUFFICIENT_CPU_MILLI",), "short by 1 cpu (requested 2"),
            (_too_large, ("TOTAL_TOO_SMALL", "INSUFFICIENT_CPU_MILLI"), "even when empty"),
        ],
    ),
    "EnforcesLimits": (
        "ever",
        [(_unenforced, ("ISOLATION",), "cannot enforce the limit of memory (memory: none, but")],
    ),
    "SlotsLeft": ("now", [(_slot_limit, ("SLOT_LIMIT",), "has 1 of at most 1 slots")]),
    "NotRefused": ("now", [(_refused, ("REFUSED",), "refused an equal slot recently")]),
    "NotReserved": ("now", [(_reserved, ("HELD",), "reserved for a starved request")]),
    "DevicesSuit": (
        "ever",
        [
            (_shares_left, ("DEVICES",), "gpu0 is nearest, short by 50 gpu-core (free 50"),
            (_other_model, ("DEVICES",), "the host has no A100 GPUs"),
            (
                _lower_level,
                ("DEVICES",),
                "gpu-memory enforced by mps; others have gpu-memory: none",
            ),
        ],
    ),
    "NearAndApart": (
        "now",
        [
            (_not_apart, ("NOT_APART",), "has slot first, which the rule apart app=db@host"),
            (_not_near, ("NOT_NEAR",), "has no slot that the rule near app=db@numa:required"),
        ],
    ),
    "CpusSuit": ("ever", [(_scattered, ("TOPOLOGY",), "NUMA_UNALIGNED: SingleNUMANode")]),
}
"""For each kind of constraint: whether it also applies to an empty host, and hosts that violate it.
Each such host has a function that makes it, the blockers, and a part of the message.
"""


def test_there_is_an_example_of_each_kind() -> None:
    assert {type(each).__name__ for each in CONSTRAINTS} == EXAMPLES.keys()
    for each in CONSTRAINTS:
        assert each.of_size == (EXAMPLES[type(each).__name__][0] == "ever")


@pytest.mark.parametrize(
    ("kind", "violate", "blockers", "message"),
    [(kind, *example) for kind, (_, examples) in EXAMPLES.items() for example in examples],
)
def test_the_obstacle_is_named_and_nothing_else(
    kind: str, violate: Violate, blockers: tuple[str, ...], message: str
) -> None:
    cluster = EngineCluster.settled(gpu_host(gpus=1, labels=SSD))
    host = cluster.state.hosts["host-a"]
    assert Fit(cluster.state.queue.class_of(WANTED)).fits(HostView.now(host))

    spec = violate(cluster, host)

    verdict = Fit(cluster.state.queue.class_of(spec)).verdict(HostView.now(host))
    assert not verdict.fits
    assert verdict.blockers == blockers
    assert {type(each.constraint).__name__ for each in verdict.obstacles} == {kind}
    texts = [
        each.constraint.text(each, verdict.requested, verdict.at) for each in verdict.obstacles
    ]
    assert message in "; ".join(texts)
