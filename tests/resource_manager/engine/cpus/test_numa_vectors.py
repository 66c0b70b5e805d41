"""Compares NUMA amounts, hints and effective policies with Koordinator (tests/data/vectors).

finegrain has no amplified amounts, reservations or priority classes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    PolicyOrigin,
    QosClass,
    settle,
)
from finegrain.cpuset import CpuSet
from resource_manager.engine.cpus.alignment import Case
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.hints import hints, masks_by_size, quantities
from resource_manager.engine.cpus.layout import layout_of_rows
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.numa import positions
from resource_manager.engine.cpus.pinning import candidate_cpus
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.cpus.resolve import Resolved, resolve
from resource_manager.engine.model.host_refusal import HostRefusal

VECTORS = Path(__file__).parents[3] / "data" / "vectors"

NO_POLICY = EffectivePolicy()


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return data


ALLOCATE = recorded("koordinator_numa_allocate")
HINTS = recorded("koordinator_topology_hints")
POLICIES = recorded("koordinator_policy_resolution")


def cases(group: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in group])


def dimension(name: str) -> str:
    name = name.removeprefix("koordinator.sh/")
    return {"cpu_milli": name, "memory": "memory_bytes"}.get(name, f"extended.{name}")


def amounts(amount_text: dict[str, int]) -> dict[str, int]:
    return {dimension(name): amount for name, amount in amount_text.items() if name != "node"}


def books_of(
    vectors: dict[str, Any], case: dict[str, Any], policy: EffectivePolicy = NO_POLICY
) -> CpuLedger:
    """Returns the ledger of a case's host with all its allocations.

    If more is allocated on a NUMA node than the cpus of its pod, the remaining amount counts as a
    pod in the pool.
    """
    node = vectors["nodes"][case["node"]]
    rows = vectors["topologies"][node["topology"]]["cpus"]
    layout = layout_of_rows([tuple(row) for row in rows])
    nodes = []
    for made, amount_text in zip(layout.nodes, node["numa"], strict=True):
        its = amounts(amount_text)
        prefix = "extended."
        nodes.append(
            replace(
                made,
                memory_bytes=its.get("memory_bytes", 0),
                extended=tuple(
                    (name.removeprefix(prefix), amount)
                    for name, amount in its.items()
                    if name.startswith(prefix)
                ),
            )
        )
    layout = replace(layout, nodes=tuple(nodes))
    strategy = NumaStrategy(case["numa_strategy"])
    books = CpuLedger(layout, replace(policy, numa_strategy=strategy))
    for at, pod in enumerate(case["allocated"]):
        cpus = CpuSet.from_bits(CpuSet.parse(pod["cpuset"]).bits & layout.cpus)
        rest = []
        for share in pod["numa"]:
            its = amounts(share)
            mask = layout.nodes[layout.position_of_node[share["node"]]].mask
            its["cpu_milli"] -= (cpus.bits & mask).bit_count() * 1000
            rest.append(
                NodeShare(
                    share["node"], tuple((name, amount) for name, amount in its.items() if amount)
                )
            )
        if cpus:
            books.add(("pinned", at), CpuAssignment(QosClass.LSR, cpus=cpus))
        if any(share.amounts for share in rest):
            books.add(("shared", at), CpuAssignment(QosClass.LS, numa=tuple(rest)))
    return books


def policy_of(request: dict[str, Any]) -> CpuPolicy:
    if not request["cpu_bind"]:
        return CpuPolicy()
    return CpuPolicy(
        QosClass.LSR,
        BindPolicy(request["bind_policy"]),
        request["bind_policy_required"],
        ExclusivePolicy(request["exclusive_policy"]),
    )


def opened(
    books: CpuLedger, request: dict[str, Any]
) -> tuple[CpuRequest, Resolved, int | None] | HostRefusal:
    """Returns the request with its policies resolved, before cpus are chosen, or the refusal."""
    wish = CpuRequest.of(policy_of(request), amounts(request["original_requests"]))
    resolved = resolve(wish.policy, wish.cpu_milli, books.policy, books.layout)
    assert isinstance(resolved, Resolved)
    own = candidate_cpus(books, resolved) if resolved.count else None
    return own if isinstance(own, HostRefusal) else (wish, resolved, own)


def is_amplified(vectors: dict[str, Any], case: dict[str, Any]) -> bool:
    return "amplification_ratios" in vectors["nodes"][case["node"]]


@cases([case for case in ALLOCATE["allocate"] if not is_amplified(ALLOCATE, case)])
def test_cpus_and_amounts_are_split_over_nodes_as_koordinator_does(case: dict[str, Any]) -> None:
    books = books_of(ALLOCATE, case)
    its = opened(books, case["request"])
    found = None
    if not isinstance(its, HostRefusal):
        wish, resolved, own = its
        its_case = Case(books, wish, resolved, own)
        nodes = [books.layout.position_of_node[node] for node in case["request"]["affinity"]]
        found = its_case.assigned_on(its_case.needs(), nodes, ())
    if "error" in case["expect"]:
        assert found is None
        return
    assert found is not None
    assert str(found.cpus) == case["expect"]["cpuset"]
    assert [(share.node, dict(share.amounts)) for share in found.numa] == [
        (share["node"], amounts(share)) for share in case["expect"]["numa"]
    ]


def test_amplified_allocations_are_left_out() -> None:
    left_out = [case["id"] for case in ALLOCATE["allocate"] if is_amplified(ALLOCATE, case)]
    assert left_out == ["nalloc-09", "nalloc-24"]


@cases(HINTS["hints"])
def test_the_same_masks_are_hints(case: dict[str, Any]) -> None:
    books = books_of(HINTS, case)
    its = opened(books, case["request"])
    expected = {
        "cpu_milli" if name == "cpu" else dimension(name): [
            hint["affinity"] for hint in amount_text
        ]
        for name, amount_text in case["expect"]["hints"].items()
    }
    if isinstance(its, HostRefusal):
        assert not any(expected.values())
        return
    wish, resolved, own = its
    asked = quantities(books, dict(wish.amounts), resolved.strategy, own)
    masks = [mask for _, masks in masks_by_size(books.layout, asked.nodes) for mask in masks]
    found = hints(asked, masks, preferred_size=1)
    assert {
        name: [list(positions(hint.mask or 0)) for hint in amount_text]
        for name, amount_text in found.items()
    } == expected


def word(text: str, kind: Any, default: Any) -> Any:
    return kind(text) if text else default


def kubelet_layer(amount_text: dict[str, Any] | None) -> HostPolicy:
    full = amount_text is not None and amount_text["policy"] == "static"
    full = full and (amount_text or {})["options"].get("full-pcpus-only") == "true"
    return HostPolicy(bind=HostBindPolicy.FULL_PCPUS_ONLY if full else None)


def host_policy(
    bind: str = "", numa: str = "", kubelet: dict[str, Any] | None = None
) -> EffectivePolicy:
    own = HostPolicy(bind=word(bind, HostBindPolicy, None), alignment=word(numa, NumaPolicy, None))
    return settle(
        [(PolicyOrigin.CONFIGURATION, own), (PolicyOrigin.KUBELET, kubelet_layer(kubelet))]
    )


EIGHT_CORES = layout_of_rows(
    [tuple(row) for row in POLICIES["topologies"]["2s2n8c16t"]["cpus"]], 32 * 2**30
)


@cases(POLICIES["effective_bind_policy"])
def test_the_bind_policy_in_force(case: dict[str, Any]) -> None:
    required = word(case["pod_required"], BindPolicy, None)
    preferred = word(case["pod_preferred"], BindPolicy, BindPolicy.DEFAULT)
    found = resolve(
        CpuPolicy(QosClass.LSR, required or preferred, required is not None),
        4000,
        host_policy(case["node_label"], kubelet=case["kubelet_cpu_manager"]),
        EIGHT_CORES,
    )
    assert isinstance(found, Resolved)
    assert found.bind == case["expect"]["policy"]
    assert found.bind_required is case["expect"]["required"]


@cases(POLICIES["effective_numa_policy"])
def test_the_numa_policy_in_force(case: dict[str, Any]) -> None:
    """There, policies of a pod are always required."""
    policy = CpuPolicy(numa=word(case["pod_policy"], NumaPolicy, NumaPolicy.DEFAULT))
    host = host_policy(numa=case["node_policy"])
    found = resolve(replace(policy, numa_required=True), 1000, host, EIGHT_CORES)
    assert isinstance(found, HostRefusal)
    assert found.blocker is CpuBlocker.NUMA_POLICY_MISMATCH
    assert case["expect"] == {"error": "numa_policy_mismatch"}


# A request with a fraction of a dedicated cpu is rejected before it is accepted.
PARTS_OF_CPUS = {"adm-09"}


@cases([case for case in POLICIES["admission"] if case["id"] not in PARTS_OF_CPUS])
def test_which_slots_have_cpus_of_their_own(case: dict[str, Any]) -> None:
    pod, expected = case["pod"], case["expect"]["state"]
    spec = pod["resource_spec"] or {}
    required = word(spec.get("requiredCPUBindPolicy", ""), BindPolicy, None)
    preferred = word(spec.get("preferredCPUBindPolicy", ""), BindPolicy, BindPolicy.DEFAULT)
    default = HostPolicy(default_bind=BindPolicy(case["default_bind_policy"]))
    found = resolve(
        CpuPolicy(QosClass(pod["qos"] or "LS"), required or preferred, required is not None),
        pod["requests"]["cpu_milli"],
        settle([(PolicyOrigin.CLUSTER, default)]),
        EIGHT_CORES,
    )
    assert isinstance(found, Resolved)
    assert bool(found.count) is expected["request_cpu_bind"]
    if found.count:
        assert found.count == expected["num_cpus_needed"]
        assert found.bind == expected["preferred_bind_policy"]
        assert found.bind_required is bool(expected["required_bind_policy"])


# Both are about amplified cpus on a host without a topology.
AMPLIFIED = {"nflt-26", "nflt-27"}

LABEL = "node.koordinator.sh/"


@cases([case for case in POLICIES["node_filter"] if case["id"] not in AMPLIFIED])
def test_which_hosts_are_passed_by(case: dict[str, Any]) -> None:
    labels, state = case["node_labels"] or {}, case["state"]
    policy = host_policy(
        labels.get(LABEL + "cpu-bind-policy", ""),
        labels.get(LABEL + "numa-topology-policy", ""),
        POLICIES["nodes"][case["node"]].get("kubelet_cpu_manager"),
    )
    required = word(state["required_bind_policy"], BindPolicy, None)
    preferred = word(state["preferred_bind_policy"], BindPolicy, BindPolicy.DEFAULT)
    wish = CpuPolicy(
        QosClass.LSR if state["request_cpu_bind"] else QosClass.LS,
        required or preferred,
        required is not None,
        numa=word(state["numa_topology_policy"], NumaPolicy, NumaPolicy.DEFAULT),
    )
    books = books_of(POLICIES, case, policy)
    found = assign(books, CpuRequest.of(wish, amounts(state["requests"])))
    if case["expect"]["code"] == "ok":
        assert isinstance(found, CpuAssignment)
        return
    assert isinstance(found, HostRefusal)
    assert [found.blocker.lower()] == case["expect"]["reasons"]
