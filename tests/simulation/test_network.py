"""Tests of a call and its answer while processes crash and restart."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.simulation.network import Loop, Network, Node, Reply, Unreached

ANSWER_MS = 200  # time that the target takes for an answer
WAIT_MS = 1_000


@pytest.fixture
def loop() -> Loop:
    return Loop()


def asked(loop: Loop) -> tuple[Node, Node, list[Any]]:
    """Returns a caller, its target, and the list of answers that the caller gets."""
    caller, target = Node("caller", loop), Node("target", loop)
    for node in (caller, target):
        node.up, node.life = True, 1
    heard: list[Any] = []

    def serve(reply: Reply) -> None:
        target.after(ANSWER_MS, lambda: reply("answer"))

    Network(loop, Random(0)).call(caller, target, serve, heard.append, WAIT_MS)
    return caller, target, heard


def test_an_answer_reaches_whoever_asked_once(loop: Loop) -> None:
    _, _, heard = asked(loop)
    loop.run_until(2 * WAIT_MS)
    assert heard == ["answer"]


def test_an_answer_is_nobodys_once_the_life_that_asked_is_over(loop: Loop) -> None:
    caller, _, heard = asked(loop)
    loop.run_until(ANSWER_MS // 2)
    caller.life += 1
    loop.run_until(2 * WAIT_MS)
    assert heard == []


def test_whoever_is_asked_and_dies_answers_no_more(loop: Loop) -> None:
    _, target, heard = asked(loop)
    loop.run_until(ANSWER_MS // 2)
    target.life += 1
    loop.run_until(2 * WAIT_MS)
    assert [type(each) for each in heard] == [Unreached]
