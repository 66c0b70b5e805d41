"""Tests of the merge of NUMA hints: its order, and agreement with Koordinator and the kubelet."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpu_policy import NumaPolicy
from resource_manager.engine.cpus.merge import Hint, Merged, Provider, merge, merge_ranked

VECTORS = Path(__file__).parents[3] / "data" / "vectors"

POLICIES = {
    "none": NumaPolicy.NONE,
    "best-effort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "single-numa-node": NumaPolicy.SINGLE_NUMA_NODE,
}

BEST_EFFORT, RESTRICTED = NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED
SINGLE = NumaPolicy.SINGLE_NUMA_NODE


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return data


KOORDINATOR = recorded("koordinator_topology_manager_merge")
KUBELET = recorded("kubelet_topology_manager_merge")

# The kubelet answers with the overlap of masks, although not every resource fits there.
# No slot is placed on an overlap alone here: it goes where every resource fits, or anywhere.
# (Koordinator too takes all nodes if its best mask is only an overlap.)
ONLY_AN_OVERLAP = {
    "tmm-0081",
    "tmm-0203",
    "tmm-0206",
    "tmm-0236",
    "tmm-0275",
    "tmm-0449",
    "tmm-0686",
    "tmm-0824",
    "tmm-0902",
    "tmm-1049",
    "tmm-1235",
    "tmm-1295",
    "tmm-1310",
}


def mask(nodes: list[int] | None) -> int | None:
    return None if nodes is None else sum(1 << node for node in nodes)


def providers(case: dict[str, Any]) -> list[Provider | None]:
    def hints(amount_text: list[dict[str, Any]] | None) -> list[Hint] | None:
        if amount_text is None:
            return None
        return [
            Hint(mask(each["affinity"]), each["preferred"], each.get("score", 0))
            for each in amount_text
        ]

    return [
        None if amount_text is None else {name: hints(its) for name, its in amount_text.items()}
        for amount_text in case["providers"]
    ]


def merged(case: dict[str, Any]) -> Merged:
    distances = case.get("numa_distances") if case.get("prefer_closest_numa") else None

    def remoteness(bits: int) -> int:
        nodes = [node for node in case["numa_nodes"] if bits >> node & 1]
        return sum(distances[one][other] for one in nodes for other in nodes) if distances else 0

    return merge(POLICIES[case["policy"]], providers(case), remoteness=remoteness)


def agrees(found: Merged, case: dict[str, Any]) -> bool:
    """In finegrain, a refusal names no nodes; in the recorded cases, "no particular nodes" means
    all nodes.
    """
    expected = case["expect"]
    if not (found.admitted and expected["admit"]):
        return found.admitted is expected["admit"]
    every = None if case["numa_nodes"] is None else mask(case["numa_nodes"])
    its, ours = mask(expected["affinity"]), found.mask
    same_nodes = (every if its is None else its) == (every if ours is None else ours)
    return same_nodes and found.preferred is expected["preferred"]


def cases(group: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in group])


@cases(KOORDINATOR["merge"])
def test_it_agrees_with_koordinator(case: dict[str, Any]) -> None:
    assert agrees(merged(case), case)


@cases([case for case in KUBELET["merge"] if case["id"] not in ONLY_AN_OVERLAP])
def test_it_agrees_with_the_kubelet(case: dict[str, Any]) -> None:
    assert agrees(merged(case), case)


@cases([case for case in KUBELET["merge"] if case["id"] in ONLY_AN_OVERLAP])
def test_an_overlap_that_no_resource_names_is_no_place(case: dict[str, Any]) -> None:
    found = merged(case)
    assert not agrees(found, case)
    assert case["policy"] == "best-effort"  # a stricter policy refuses it there as well
    assert found.admitted
    assert not found.preferred
    lists = [
        hints
        for provider in providers(case)
        for hints in (provider or {}).values()
        if hints is not None
    ]

    def is_named_by_all(place: int | None) -> bool:
        return all(any(hint.mask in (None, place) for hint in hints) for hints in lists)

    assert not is_named_by_all(mask(case["expect"]["affinity"]))
    assert found.mask is None or is_named_by_all(found.mask)


def test_which_groups_of_koordinators_vectors_are_looked_at() -> None:
    groups = {name for name, value in KOORDINATOR.items() if isinstance(value, list)}
    # NUMA-exclusive: in Koordinator, a pod with a NUMA policy keeps pods that span several nodes
    # away from its nodes, and the reverse. No request of finegrain asks for this: `NUMANodeLevel`
    # separates only slots that have this policy, too.
    assert groups == {"merge", "exclusive"}
    left_out = [case["id"] for case in KOORDINATOR["exclusive"]]
    assert left_out == ["kexcl-03", "kexcl-04", "kexcl-08", "kexcl-09"]


def test_which_groups_of_the_kubelets_vectors_are_looked_at() -> None:
    groups = {name for name, value in KUBELET.items() if isinstance(value, list)}
    # The other groups are steps inside the kubelet's merge: in finegrain, the number of nodes of a
    # best mask that is not preferred does not affect the order.
    assert groups == {"merge", "compare", "max_of_min", "avg_distance", "closest"}


@cases(KUBELET["closest"])
def test_of_as_many_nodes_the_closer_ones_are_taken(case: dict[str, Any]) -> None:
    amount_text = [mask(case["current"]), mask(case["candidate"])]
    assert None not in amount_text

    def remoteness(bits: int) -> int:
        nodes = [node for node in range(len(case["distances"])) if bits >> node & 1]
        return sum(case["distances"][one][other] for one in nodes for other in nodes)

    hints = [Hint(each, preferred=True) for each in amount_text]
    for order in (hints, hints[::-1]):
        found = merge(BEST_EFFORT, [{"cpu": order}], remoteness=remoteness)
        assert found.mask == mask(case[case["expect"]])


def hint(bits: int | None, preferred: bool = True, score: int = 0) -> Hint:
    return Hint(bits, preferred, score)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (hint(0b1110), hint(0b1, preferred=False)),  # preferred goes before narrower
        (hint(0b1000, score=0), hint(0b110, score=9)),  # narrower before the better score
        (hint(0b0011, score=0), hint(0b0101, score=9)),  # closer before the better score
        (hint(0b1100, score=9), hint(0b0011, score=0)),  # the better score before lower bits
        (hint(0b0011, score=5), hint(0b1100, score=5)),  # lower bits
    ],
)
def test_the_order_of_masks(first: Hint, second: Hint) -> None:
    for order in ([first, second], [second, first]):
        found = merge(
            BEST_EFFORT,
            [{"cpu": order}],
            remoteness=lambda bits: 0 if bits in (0b0011, 0b1100) else 1,
        )
        assert found.mask == first.mask


def test_scores_of_all_resources_add_up() -> None:
    cpu = [hint(1, score=5), hint(2, score=4)]
    memory = [hint(1, score=0), hint(2, score=3)]
    assert merge(SINGLE, [{"cpu": cpu}, {"memory": memory}]).mask == 2


def test_without_hints_any_nodes_will_do() -> None:
    for policy in NumaPolicy:
        assert merge(policy, [None, {}, {"cpu": None}]).admitted
        assert merge(policy, []).mask is None


def test_a_resource_that_fits_nowhere_is_named() -> None:
    amount_text = [{"cpu": [hint(1)], "memory_bytes": []}]
    for policy in (RESTRICTED, SINGLE):
        refused = merge(policy, amount_text)
        assert not refused.admitted
        assert refused.unserved == ("memory_bytes",)
    anywhere = merge(BEST_EFFORT, amount_text)
    assert anywhere == Merged(True, None, False, ("memory_bytes",))


hint_lists = st.lists(
    st.builds(
        Hint,
        st.one_of(st.none(), st.integers(1, 15)),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=5,
)


@given(st.lists(st.one_of(st.none(), hint_lists), max_size=3), st.sampled_from(list(POLICIES)))
def test_it_is_what_looking_at_every_combination_finds(
    lists: list[list[Hint] | None], policy: str
) -> None:
    its = POLICIES[policy]
    amount_text: list[Provider | None] = [{str(at): hints} for at, hints in enumerate(lists)]
    found = merge(its, amount_text, remoteness=_remoteness)
    assert (found.admitted, found.mask, found.preferred) == _by_every_combination(its, lists)


@given(st.lists(hint_lists, min_size=1, max_size=3), st.sampled_from([BEST_EFFORT, RESTRICTED]))
def test_the_next_mask_is_what_would_come_first_without_those_before(
    lists: list[list[Hint]], policy: NumaPolicy
) -> None:
    its = {f"r{at}": [each for each in hints if each.mask] for at, hints in enumerate(lists)}
    for found in merge_ranked(policy, [its], remoteness=_remoteness):
        assert found == merge(policy, [its], remoteness=_remoteness)
        its = {name: [h for h in hints if h.mask != found.mask] for name, hints in its.items()}
    assert merge(policy, [its], remoteness=_remoteness).mask is None


def _remoteness(bits: int) -> int:
    return (bits * 5) % 3


def _by_every_combination(
    policy: NumaPolicy, lists: list[list[Hint] | None]
) -> tuple[bool, int | None, bool]:
    if policy is NumaPolicy.NONE:
        return True, None, False
    given_lists = [hints for hints in lists if hints is not None]
    if policy is SINGLE:
        given_lists = [
            [
                each
                for each in hints
                if each.preferred and (each.mask is None or each.mask.bit_count() == 1)
            ]
            for hints in given_lists
        ]
    best: tuple[tuple[object, ...], int | None, bool] | None = None
    for combination in product(*given_lists):
        named = {each.mask for each in combination if each.mask is not None}
        if len(named) > 1:
            continue
        place = next(iter(named), None)
        preferred = all(each.preferred for each in combination)
        points = sum(each.score for each in combination if each.mask is not None)
        size, far = (99, 0) if place is None else (place.bit_count(), _remoteness(place))
        key = (not preferred, size, far, -points, place or 0)
        if best is None or key < best[0]:
            best = key, place, preferred
    if best is None or not (best[2] or policy is BEST_EFFORT):
        return policy is BEST_EFFORT, None, False
    return True, best[1], best[2]
