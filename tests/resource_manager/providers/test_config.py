"""Tests of the providers' file: what it may contain, and the error for everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError
from finegrain.resources import GIB, MIB
from resource_manager.providers.config import read_providers

CPU = min(os.sched_getaffinity(0))

COMMAND_SHAPE = """
[[shape]]
name = "rack"
provider = "command"
total = { cpu = 8, memory = "32GiB" }
[shape.command]
start = ["start-it", "{executor_id}"]
stop = ["stop-it", "{executor_id}"]
"""

PROCESS_SHAPE = f"""
[[shape]]
name = "small"
provider = "process"
[[shape.process.share]]
cpus = "{CPU}"
memory = "64MiB"
"""

WHOLE = f"""
manager = ["rm-1.example:7170", "rm-2.example:7170"]
look_interval = "2s"

[limits]
min = {{ cpu = 0.5 }}
max = {{ cpu = 64, memory = "256GiB", extended = {{ licence = 3 }} }}
idle_timeout = "5m"
lost_timeout = "2m"
plan_interval = "250ms"
planned_requests_max = 500
backoff_min = "2s"
backoff_max = "1m"

[process]
program = ["/opt/finegrain/bin/finegrain"]
executor = {{ task_user = "self" }}

[[shape]]
name = "small"
provider = "process"
labels = {{ zone = "a", disk = "ssd" }}
cost = 0.5
slots_max = 4
default_slot_fraction = 0.25
start_timeout = "30s"
[shape.process]
executor = {{ isolation = "none" }}
[[shape.process.share]]
cpus = "{CPU}"
cpu = 0.5
memory = "64MiB"
[[shape.process.share]]
cpus = "{CPU}"
cpu = "500m"
memory = "64MiB"

[[shape]]
name = "rack"
provider = "command"
total = {{ cpu = 8, memory = "32GiB", extended = {{ licence = 1 }} }}
cost = 3
count_max = 5
[shape.command]
start = ["sbatch", "--job-name={{executor_id}}", "--cpus-per-task={{cpu}}", "{{{{literal}}}}"]
stop = ["scancel", "{{handle}}"]
handle_pattern = 'Submitted batch job (\\d+)'
"""


def read(tmp_path: Path, text: str) -> object:
    return read_providers(written(tmp_path, text))


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "providers.toml"
    file.write_text(text)
    return file


def test_the_whole_file_is_read(tmp_path: Path) -> None:
    read_file = read_providers(written(tmp_path, WHOLE))

    rules = read_file.provisioning
    assert rules.total_min == {"cpu_milli": 500}
    assert rules.total_max == {
        "cpu_milli": 64_000,
        "memory_bytes": 256 * GIB,
        "extended.licence": 3,
    }
    assert rules.idle_timeout_ms == 300_000
    assert rules.provided_lost_timeout_ms == 120_000
    assert rules.plan_interval_ms == 250
    assert rules.planned_requests_max == 500
    assert (rules.backoff_min_ms, rules.backoff_max_ms) == (2_000, 60_000)
    assert read_file.managers == ("rm-1.example:7170", "rm-2.example:7170")
    assert read_file.look_interval_ms == 2_000

    small, rack = rules.shapes
    assert (small.name, small.provider, small.cost, small.slots_max) == ("small", "process", 0.5, 4)
    assert small.labels == (("disk", "ssd"), ("zone", "a"))
    assert small.total == {"cpu_milli": 500, "memory_bytes": 64 * MIB}
    assert small.count_max == 2  # there are no more shares
    assert small.default_profile.cpu_milli == 125
    assert small.default_profile.memory_bytes == 16 * MIB
    assert small.start_timeout_ms == 30_000
    assert rack.total == {"cpu_milli": 8_000, "memory_bytes": 32 * GIB, "extended.licence": 1}
    assert rack.count_max == 5
    assert rack.default_profile.cpu_milli == 1_000  # one default slot per core


def test_totals_of_processes_follow_from_their_shares(tmp_path: Path) -> None:
    agreed = PROCESS_SHAPE.replace(
        'provider = "process"', 'provider = "process"\ntotal = { cpu = 1, memory = "64MiB" }'
    )
    (shape,) = read_providers(written(tmp_path, agreed)).provisioning.shapes
    assert shape.total == {"cpu_milli": 1_000, "memory_bytes": 64 * MIB}


@pytest.mark.parametrize("cores", [1, 3, 7, 64, 96])
def test_a_default_slot_is_a_whole_core(tmp_path: Path, cores: int) -> None:
    text = COMMAND_SHAPE.replace("cpu = 8", f"cpu = {cores}")
    (shape,) = read_providers(written(tmp_path, text)).provisioning.shapes
    assert shape.default_profile.cpu_milli == 1_000
    assert cores * shape.default_profile.memory_bytes <= 32 * GIB


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ("shape = []", "shape", "at least one kind of executor"),
        ("[[shape]]", "shape 1.name", "a text"),
        (COMMAND_SHAPE * 2, "shape 2.name", "each name only once"),
        (COMMAND_SHAPE.replace('"rack"', '"a rack"'), "shape 1.name", "characters"),
        (COMMAND_SHAPE.replace('"command"', '"comand"'), "shape rack.provider", "mean command"),
        (COMMAND_SHAPE.replace("cpu = 8", "cpu = 0"), "shape rack.total.cpu", "more than 0"),
        (
            COMMAND_SHAPE.replace("provider =", "count_max = 0\nprovider ="),
            "shape rack.count_max",
            "without it there is no limit",
        ),
        (COMMAND_SHAPE.replace('"32GiB"', '"32 gigs"'), "shape rack.total.memory", "a size"),
        (COMMAND_SHAPE.replace("{executor_id}", "{host}"), "shape rack.command.start", "{shape}"),
        (COMMAND_SHAPE.replace("{executor_id}", "{handle}"), "shape rack.command.start", "{shape}"),
        (COMMAND_SHAPE.replace("{executor_id}", "{"), "shape rack.command.start", "placeholders"),
        (
            COMMAND_SHAPE.replace("{executor_id}", "{cpu:x}"),
            "shape rack.command.start",
            "has only a name",
        ),
        (
            COMMAND_SHAPE.replace('["start-it", "{executor_id}"]', "[]"),
            "shape rack.command.start",
            "1 or more",
        ),
        (
            COMMAND_SHAPE.replace('["start-it", "{executor_id}"]', '"start it"'),
            "shape rack.command.start",
            "a list of strings",
        ),
        (COMMAND_SHAPE + "handle_pattern = '('", "shape rack.command.handle_pattern", "regular"),
        (COMMAND_SHAPE + 'timeout = "soon"', "shape rack.command.timeout", "a duration"),
        (COMMAND_SHAPE + "tiemout = 3", "shape rack.command.tiemout", ""),
        ("[limits]\nidel_timeout = 3\n" + COMMAND_SHAPE, "limits.idel_timeout", ""),
        (
            "[limits]\nmin = { cpu = 9 }\nmax = { cpu = 8 }\n" + COMMAND_SHAPE,
            "limits.min",
            "no more than max",
        ),
        ("manager = ['nowhere']\n" + COMMAND_SHAPE, "manager", "host:port"),
        (PROCESS_SHAPE.replace('"64MiB"', '"1MiB"'), "shape small.process.share 1.memory", "4MiB"),
        (PROCESS_SHAPE.replace(f'"{CPU}"', '"x"'), "shape small.process.share 1.cpus", "ranges"),
        (PROCESS_SHAPE + "cpu = 2\n", "shape small.process.share 1.cpu", "the capacity of cpus"),
        (
            PROCESS_SHAPE + f'[[shape.process.share]]\ncpus = "{CPU}"\nmemory = "32MiB"\n',
            "shape small.process.share",
            "shares of equal size",
        ),
        (
            PROCESS_SHAPE + f'[[shape.process.share]]\ncpus = "{CPU}"\nmemory = "64MiB"\n',
            "shape.process.share",
            "disjoint",
        ),
        (
            PROCESS_SHAPE.replace(f'"{CPU}"', '"8190"'),
            "shape.process.share",
            "shares of this host",
        ),
        (
            PROCESS_SHAPE.replace(
                "[[shape.p", '[shape.process]\nexecutor = { cpus = "1" }\n[[shape.p'
            ),
            "shape small.process.executor.cpus",
            "the provider sets this key",
        ),
        (
            PROCESS_SHAPE.replace('"process"', '"process"\ntotal = { cpu = 2, memory = "64MiB" }'),
            "shape small.total",
            "as the shares have",
        ),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(
    tmp_path: Path, text: str, field: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)

    assert str(tmp_path / "providers.toml") in caught.value.message
    assert caught.value.details["field"] == field
    assert expected in caught.value.message


def test_a_key_that_nobody_knows_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'idle_timeout'"):
        read(tmp_path, "[limits]\nidel_timeout = 3\n" + COMMAND_SHAPE)


@pytest.mark.parametrize("text", ["= 3", "\x00"])
def test_what_is_no_toml_is_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not TOML"):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_providers(tmp_path / "nothing.toml")


def test_cpu_time_on_the_same_cpus_must_fit_on_them(tmp_path: Path) -> None:
    share = f'[[shape.process.share]]\ncpus = "{CPU}"\ncpu = 0.4\nmemory = "64MiB"\n'
    head = '[[shape]]\nname = "small"\nprovider = "process"\n'

    (shape,) = read_providers(written(tmp_path, head + 2 * share)).provisioning.shapes
    assert shape.count_max == 2
    with pytest.raises(ConfigurationError, match=f"on cpus {CPU} take 1.2 cores of 1"):
        read(tmp_path, head + 3 * share)


def test_shares_of_different_shapes_are_held_against_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"small#1 .* and other#1 .* share cpus"):
        read(tmp_path, PROCESS_SHAPE + PROCESS_SHAPE.replace('"small"', '"other"'))
