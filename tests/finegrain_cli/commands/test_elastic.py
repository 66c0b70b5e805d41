"""Commands about resizes, provisioned executors and gangs: their calls and their output."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from finegrain.errors import Reason
from finegrain.resources import GIB, MIB
from finegrain_cli.commands import elastic
from finegrain_cli.text.output import say
from finegrain_client.errors import ResizeRefused, StillResizing
from finegrain_client.types.status import SlotStatus
from tests.support.cli import CHANGE, GRANTED, PROVIDERS, SLOT, WAITING, FakeCluster, Finegrain
from tests.support.patience import PATIENCE_S

UNSAID = {
    "cpu_milli": None,
    "memory_bytes": None,
    "extended": None,
    "devices": None,
    "cpu_limit_milli": None,
    "wait_for_use": False,
    "wait": True,
    "timeout_s": None,
}


def test_a_resize_says_only_what_was_said(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.request_list[:] = [GRANTED]
    flags = ("--memory", "1G", "--resource", "licence=2", "--timeout", "1500ms")
    result = finegrain("resize", SLOT.allocation_id[:4], *flags)

    assert result.exit_code == 0, result.output
    wanted = {"memory_bytes": GIB, "extended": {"licence": 2}, "timeout_s": 1.5}
    assert cluster.done == [("resize", SLOT.allocation_id, {**UNSAID, **wanted})]
    assert "cpu 0.5, memory 256Mi -> cpu 1.8, memory 256Mi (waiting)" in result.stdout


def test_a_resize_may_wait_for_use_and_not_be_waited_for(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    flags = ("--cpu", "250m", "--cpu-limit", "2", "--wait-for-use", "--no-wait")
    finegrain("resize", SLOT.allocation_id, *flags)

    said = {"cpu_milli": 250, "cpu_limit_milli": 2000, "wait_for_use": True, "wait": False}
    assert cluster.done == [("resize", SLOT.allocation_id, {**UNSAID, **said})]


def test_a_resize_changes_shares_of_any_device(finegrain: Finegrain, cluster: FakeCluster) -> None:
    flags = ("--fpga", "0.5", "--device", "npu=0.25", "--device", "example.com/gpu=2")
    finegrain("resize", SLOT.allocation_id, *flags)

    wanted = {"devices": {"fpga": 50, "npu": 25, "example.com/gpu": 2}}
    assert cluster.done == [("resize", SLOT.allocation_id, {**UNSAID, **wanted})]


def test_a_change_that_waits_is_withdrawn(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("resize", SLOT.allocation_id, "--withdraw")

    assert cluster.done == [("withdraw_resize", SLOT.allocation_id)]
    assert "->" not in result.stdout


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "at least one of --cpu"),
        (("--cpu", "lots"), "--cpu is 'lots'"),
        (("--resource", "licence=some"), "a whole number"),
        (("--device", "npu=lots"), "--device npu is 'lots'"),
        (("--cpu", ""), "'--cpu': it is empty; give a value, or leave the option out"),
    ],
    ids=["nothing", "cpu", "resource", "device", "empty"],
)
def test_a_size_that_is_none(
    finegrain: Finegrain, cluster: FakeCluster, flags: tuple[str, ...], told: str
) -> None:
    result = finegrain("resize", SLOT.allocation_id, *flags)

    assert result.exit_code == 2
    assert told in result.stderr
    assert cluster.done == []


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (ResizeRefused(SLOT, 2, "it uses 200Mi"), 4, Reason.RESIZE_REFUSED),
        (StillResizing(SLOT.allocation_id, 1.0, "no room"), 5, Reason.NOT_YET_CONSIDERED),
    ],
    ids=["refused", "still waiting"],
)
def test_what_becomes_of_it_shows_in_the_exit_code(
    finegrain: Finegrain,
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    error: ResizeRefused | StillResizing,
    code: int,
    reason: Reason,
) -> None:
    def fail(*_args: object, **_size: object) -> None:
        raise error

    monkeypatch.setattr(cluster, "resize", fail)
    result = finegrain("resize", SLOT.allocation_id, "--cpu", "2", "-o", "json")

    assert result.exit_code == code
    assert json.loads(result.stdout)["code"] == reason


def test_what_a_change_waits_for_is_said_when_it_takes_a_while(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "QUIET_S", 0.0)

    said = threading.Event()

    def noted(text: str) -> None:
        say(text)
        said.set()

    def slow(*_args: object, **_size: object) -> SlotStatus:
        assert said.wait(PATIENCE_S)
        return SLOT

    monkeypatch.setattr(elastic, "say", noted)

    monkeypatch.setattr(cluster, "resize", slow)
    result = finegrain("resize", SLOT.allocation_id, "--cpu", "2")

    assert "the resize waits: cpu 0.3 is missing" in result.stderr


def test_providers_tell_shapes_executors_and_why(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.provided = PROVIDERS
    monkeypatch.setenv("COLUMNS", "150")
    text = finegrain("providers").stdout

    assert "maximum    cpu 8\n" in text
    assert "stopped after 1m00s without slots" in text
    assert "1 asked, 1 registered" in text
    assert "3 failed" in text
    assert "start.sh ended with exit code 1" in text
    assert "40 of cpu 0.05, memory 64Mi" in text
    assert "40 requests wait" in text
    assert "not planned: 2 requests: no shape is large enough" in text


def test_without_providers_it_is_said_who_starts_executors(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    assert "only by hand" in finegrain("providers").stdout


def test_what_is_left_of_shapes_that_are_configured_no_longer(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.provided = replace(PROVIDERS, shapes=(), idle_timeout_s=None)
    text = finegrain("providers").stdout

    assert "no shapes are configured" in text
    assert "small-5-3" in text


def test_executors_that_were_asked_for_stand_among_the_others(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.provided = PROVIDERS
    rows = finegrain("executors").stdout.splitlines()
    wide = finegrain("executors", "-o", "wide").stdout

    assert [row.split()[:2] for row in rows[1:]] == [["host-a", "ACTIVE"], ["small-5-3", "ASKED"]]
    assert "PROVIDED AS" in wide
    items = json.loads(finegrain("executors", "-o", "json").stdout)["items"]
    assert [each["executor_id"] for each in items] == ["host-a"]


def test_lists_show_changes_of_size_and_gangs(finegrain: Finegrain, cluster: FakeCluster) -> None:
    wide = finegrain("slots", "-o", "wide").stdout
    assert f"-> cpu 1.8, memory {SLOT.memory_bytes // MIB}Mi (waiting)" in wide
    assert CHANGE.message in wide
    cluster.request_list[:] = [replace(WAITING, reason="WAITING_GANG")]
    shown = finegrain("requests", "-o", "wide").stdout
    assert "WAITING_GANG" in shown
    assert "(spread)" in shown


def test_explain_tells_of_gang_plan_and_change(finegrain: Finegrain, cluster: FakeCluster) -> None:
    text = finegrain("explain", WAITING.allocation_id).stdout

    assert "planned  on small-5-3" in text
    assert "(spread): 1 of 2 members could be placed together now" in text
    assert "one more executor with cpu 64 is missing" in text
    assert "cpu 1.3 more, free 1 of 2" in text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--gang-placement", "spread"), "expected --gang N as well"),
        (("--gang-timeout", "3s"), "expected --gang N as well"),
        (("--gang", "2", "--gang-placement", "same-label"), "same-label:KEY"),
        (("--gang", "2", "--gang-placement", "spread:rack"), "same-label:KEY"),
        (("--gang", "2", "--gang-placement", "near"), "anywhere, same-executor"),
        (("--gang", "2", "--gang-timeout", "soon"), "--gang-timeout is 'soon'"),
    ],
    ids=" ".join,
)
def test_a_gang_that_makes_no_sense(
    finegrain: Finegrain, flags: tuple[str, ...], told: str
) -> None:
    result = finegrain("run", *flags, "--", "true")

    assert result.exit_code == 125
    assert told in result.stderr
