"""The options by which a command describes its slot."""

from __future__ import annotations

import pytest

from finegrain.errors import InvalidArgument
from finegrain_cli.run.options import RunOptions
from finegrain_cli.slot_options import slot_spec
from finegrain_client import SlotSpec
from tests.support.cli import Finegrain


def test_cpus_are_asked_for_in_the_words_of_the_field() -> None:
    spec = slot_spec(
        cpu="4",
        qos="lsr",
        cpu_bind="fullpcpus",
        cpu_exclusive="pcpulevel:required",
        numa="SingleNUMANode:preferred",
        resources=[],
        labels=[],
    )
    assert spec == SlotSpec(
        cpu_milli=4000,
        qos="LSR",
        cpu_bind="FullPCPUs",
        cpu_exclusive="PCPULevel:required",
        numa="SingleNUMANode:preferred",
    )


def test_without_a_word_of_cpus_nothing_is_wanted_of_them() -> None:
    assert slot_spec(cpu="1", resources=[], labels=[]) == SlotSpec(cpu_milli=1000)


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--qos", "guaranteed", "expected one of LSE, LSR, LS, BE"),
        ("--cpu-bind", "FullPCPU", "did you mean FullPCPUs?"),
        ("--cpu-bind", "FullPCPUs:must", "FullPCPUs:required or FullPCPUs:preferred"),
        ("--cpu-exclusive", "cores", "expected one of Default, None, PCPULevel, NUMANodeLevel"),
        ("--numa", "SingleNode", "did you mean SingleNUMANode?"),
    ],
)
@pytest.mark.parametrize("command", ["run", "batch --threads 3"])
def test_words_that_are_none_are_told_with_the_option(
    finegrain: Finegrain, command: str, option: str, text: str, told: str
) -> None:
    result = finegrain(*command.split(), option, text, "--", "true")
    assert result.exit_code == (125 if command == "run" else 2)
    assert f"{option} is '{text}'" in result.stderr
    assert told in result.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [(("/home/alice/plans/train.sh", "--key=k"), "train.sh"), (("sleep", "9"), "sleep")],
)
def test_the_name_of_a_job_that_all_users_see_has_no_folders_and_no_arguments(
    finegrain: Finegrain, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], name: str
) -> None:
    run: list[RunOptions] = []

    def ran(options: RunOptions) -> int:
        run.append(options)
        return 0

    monkeypatch.setattr("finegrain_cli.run.running.run_command", ran)
    assert finegrain("run", "--", *command).exit_code == 0
    assert finegrain("run", "--name", "mine", "--", *command).exit_code == 0
    assert [each.name for each in run] == [name, "mine"]
    assert {each.argv for each in run} == {command}


def test_the_option_is_named_where_nobody_runs_a_command() -> None:
    with pytest.raises(InvalidArgument) as caught:
        slot_spec(numa="one", resources=[], labels=[])
    assert caught.value.field == "--numa"
