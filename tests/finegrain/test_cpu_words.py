"""Words of CPU orchestration as people write them."""

from __future__ import annotations

from enum import StrEnum

import pytest

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.cpu_words import policy_text, read_policy, read_word
from finegrain.errors import InvalidArgument


@pytest.mark.parametrize("text", ["LSR", "lsr", " Lsr "])
def test_case_does_not_matter(text: str) -> None:
    assert read_word("qos", text, QosClass) is QosClass.LSR


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (QosClass, "guaranteed", "one of LSE, LSR, LS, BE"),
        (QosClass, "", "one of LSE, LSR, LS, BE"),
        (BindPolicy, "FullPCPU", "did you mean FullPCPUs?"),
        (BindPolicy, "spread", "did you mean SpreadByPCPUs?"),
        (NumaPolicy, "SingleNode", "did you mean SingleNUMANode?"),
        (ExclusivePolicy, "NUMALevel", "did you mean NUMANodeLevel?"),
    ],
)
def test_a_word_that_nobody_knows(kind: type[StrEnum], text: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--x is ") as caught:
        read_word("--x", text, kind)
    assert told in caught.value.message


def test_nothing_is_suggested_that_is_not_meant_here() -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_word("alignment", "default", NumaPolicy, without=(NumaPolicy.DEFAULT,))
    assert caught.value.expected == "one of None, BestEffort, Restricted, SingleNUMANode"


@pytest.mark.parametrize(
    ("text", "required"),
    [("FullPCPUs", None), ("fullpcpus:Required", True), ("FULLPCPUS : preferred", False)],
)
def test_a_strength_stands_behind_a_colon(text: str, required: bool | None) -> None:
    policy = read_policy("--cpu-bind", text, BindPolicy)
    assert policy == (BindPolicy.FULL_PCPUS, required)
    assert read_policy("--cpu-bind", policy_text(*policy), BindPolicy) == policy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FullPCPUs:strict", "FullPCPUs, FullPCPUs:required or FullPCPUs:preferred"),
        ("FullPCPUs:", "FullPCPUs, FullPCPUs:required or FullPCPUs:preferred"),
        ("Default:required", "Default alone: it has the strength that is configured"),
    ],
)
def test_a_strength_that_is_none(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_policy("--cpu-bind", text, BindPolicy)
    assert caught.value.expected == expected
