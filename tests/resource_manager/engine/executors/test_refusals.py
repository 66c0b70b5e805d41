"""What an executor refused is tried again at the end of the pause, though nothing else happens."""

from __future__ import annotations

import pytest

from resource_manager.engine.model.entities import GangPlacement
from resource_manager.engine.model.events import RequestsCancelled
from tests.support.cpu_hosts import LSR, host
from tests.support.jobs_and_hosts import Story

LABELS = (("disk", "ssd"),)


def ask(story: Story, kind: str) -> list[str]:
    """Submits work of one kind; returns the names of its slots."""
    match kind:
        case "range":
            story.ask_range("job", "r", 2)
            return ["r.0", "r.1"]
        case "gang":
            story.gang("job", "g", [1_000, 1_000], GangPlacement.ANYWHERE)
            return ["g-0", "g-1"]
        case "gang of one label":
            story.gang("job", "g", [1_000, 1_000], GangPlacement.SAME_LABEL, "disk")
            return ["g-0", "g-1"]
        case "labelled":
            story.ask("job", ["r"], required_labels=LABELS)
        case "pinned":
            story.ask("job", ["r"], cpu_policy=LSR)
        case _:
            story.ask("job", ["r"])
    return ["r"]


@pytest.mark.parametrize(
    ("kind", "pause_s"),
    [  # each slot that is refused doubles the pause
        ("plain", 1),
        ("labelled", 1),
        ("pinned", 1),
        ("range", 2),
        ("gang", 2),
        ("gang of one label", 2),
    ],
)
def test_whatever_was_refused_is_tried_again_when_the_pause_ends(kind: str, pause_s: int) -> None:
    story = Story()
    executor = host("host-a", labels=LABELS)
    story.cluster.register(executor)
    story.job("job")
    executor.broken |= {"r", "r.0", "r.1", "g-0", "g-1"}
    names = ask(story, kind)
    assert story.running() == []
    executor.broken.clear()
    story.wait(pause_s - 0.001)
    assert story.running() == []
    story.wait(0.001)
    assert sorted(story.running()) == names


def test_of_two_pauses_on_one_executor_each_ends_at_its_time() -> None:
    """The first one ends with another refusal, and its next pause is longer than the second."""
    story = Story()
    executor = story.host("host-a")
    executor.broken |= {"one", "two"}
    story.job("job")
    story.ask("job", ["one"], cpu=1_000)
    story.wait(0.4)
    story.ask("job", ["two"], cpu=2_000)
    executor.broken.remove("two")
    story.wait(0.6)
    assert story.running() == []
    story.wait(0.399)
    assert story.running() == []
    story.wait(0.001)
    assert story.running() == ["two"]


def test_a_pause_ends_between_an_earlier_one_of_a_cancelled_request_and_a_later_one() -> None:
    story = Story()
    executor = story.host("host-a")
    executor.broken |= {"one", "two", "three"}
    story.job("job")
    story.ask("job", ["one"], cpu=1_000)
    story.wait(0.4)
    story.ask("job", ["two"], cpu=2_000)
    story.wait(0.3)
    story.ask("job", ["three"], cpu=3_000)
    executor.broken -= {"one", "two"}
    story.act(RequestsCancelled(story.cluster.at, "job", ("one",)))
    story.wait(0.3)
    assert story.running() == []
    story.wait(0.4)
    assert story.running() == ["two"]
