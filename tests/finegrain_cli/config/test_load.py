"""Which source has priority, and which values are refused: flag > environment > file > host's file
> default.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError
from finegrain_cli.config.flags import flags_given
from finegrain_cli.config.load import Flag, check_file, load_configuration

LEASE = Flag("--lease", "rm", "lease", "50s")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The path of each layer's file."""
    found = {
        "host": tmp_path / "etc.toml",
        "user": tmp_path / "xdg/finegrain/config.toml",
        "named": tmp_path / "named.toml",
    }
    found["user"].parent.mkdir(parents=True)
    monkeypatch.setattr("finegrain_cli.config.sources.HOST_FILE", found["host"])
    return found


@pytest.mark.parametrize(
    ("layers", "lease_ms", "origin"),
    [
        ("", 30_000, None),
        ("host", 10_000, "host"),
        ("host user", 20_000, "user"),
        ("host user named", 25_000, "named"),
        ("host user named environment", 40_000, "FINEGRAIN_RM__LEASE"),
        ("host user named environment flag", 50_000, "--lease"),
        ("host flag", 50_000, "--lease"),
        ("user environment", 40_000, "FINEGRAIN_RM__LEASE"),
    ],
)
def test_the_strongest_layer_holds(
    places: dict[str, Path], tmp_path: Path, layers: str, lease_ms: int, origin: str | None
) -> None:
    written = {"host": "10s", "user": "20s", "named": "25s"}
    for name, lease in written.items():
        if name in layers.split():
            places[name].write_text(f'[rm]\nlease = "{lease}"\n')
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    if "environment" in layers:
        environment["FINEGRAIN_RM__LEASE"] = "40s"

    found = load_configuration(
        str(places["named"]) if "named" in layers else "",
        environment=environment,
        flags=[LEASE] if "flag" in layers else [],
    )

    assert found.settings.rm.lease == lease_ms
    assert found.origins.get("rm.lease") == (str(places[origin]) if origin in places else origin)


def test_layers_are_merged_key_by_key(places: dict[str, Path], tmp_path: Path) -> None:
    places["host"].write_text('[rm]\nlease = "10s"\nstrategy = "spread"\n')
    places["user"].write_text('[rm]\nlease = "20s"\n[log]\nlevel = "debug"\n')

    found = load_configuration(environment={"XDG_CONFIG_HOME": str(tmp_path / "xdg")}).settings

    assert (found.rm.lease, found.rm.strategy, found.log.level) == (20_000, "spread", "debug")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[rn]\nlease = 3", "unknown section 'rn', did you mean 'rm'?"),
        ("[rm]\nlaese = 3", "unknown key rm.laese, did you mean 'lease'?"),
        ("[executor]\nxyzzy = 3", "unknown key executor.xyzzy; `finegrain config show` lists all"),
        ("rm = 3", "rm is a table, written [rm]"),
        ("[rm\n", "is not TOML"),
        ('[rm]\nlease = "3 parsecs"', "rm.lease is '3 parsecs'; expected a duration such as"),
        ('[rm]\nlease = "5ms"', "rm.lease is 5ms; expected at least 1s"),
        ('[rm]\nstrategy = "packed"', "rm.strategy is 'packed'; expected one of pack, spread"),
        ("[rm]\nlease = true", "rm.lease is True; expected"),
        ('[executor]\nmemory = "-1"', "executor.memory is '-1'; expected a size such as"),
        ('[executor]\ncpu = "0.0001"', "expected a whole number of thousandths of a core"),
        ("[executor]\ndefault_slot_fraction = 2", "expected at most 1"),
        ("[executor]\nslots_max = -1", "executor.slots_max is -1; expected at least 0"),
        ('[executor]\nlabels = "zone"', "expected KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_file_key_and_way_out(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)

    with pytest.raises(ConfigurationError) as caught:
        check_file(file)

    assert told in caught.value.message
    assert str(file) in caught.value.message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"/nonexistent\.toml cannot be read: No such file"
    ):
        load_configuration("/nonexistent.toml", environment={})


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("FINEGRAIN_RM__LAESE", "did you mean 'lease'"),
        ("FINEGRAIN_RN__LEASE", "did you mean 'rm'"),
    ],
)
def test_unknown_variables_are_refused_too(name: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load_configuration(environment={name: "3s"})


def test_variables_of_flags_and_tasks_are_left_alone() -> None:
    environment = {"FINEGRAIN_MANAGER": "127.0.0.1:1", "FINEGRAIN_TASK_ID": "t", "OTHER__X": "y"}

    assert load_configuration(environment=environment).origins == {}


def test_variables_hold_lists_and_tables_as_text() -> None:
    found = load_configuration(
        environment={
            "FINEGRAIN_EXECUTOR__MANAGER": "a:1, b:2",
            "FINEGRAIN_EXECUTOR__LABELS": "zone=a,disk=ssd",
            "FINEGRAIN_EXECUTOR__MEMORY_POOLS": "managed_memory_bytes=1G",
            "FINEGRAIN_EXECUTOR__ORPHAN_TIMEOUT": "never",
            "FINEGRAIN_EXECUTOR__ALLOW_ROOT_TASKS": "true",
        }
    ).settings.executor

    assert found.manager == ["a:1", "b:2"]
    assert found.labels == {"zone": "a", "disk": "ssd"}
    assert found.memory_pools == {"managed_memory_bytes": 1 << 30}
    assert found.orphan_timeout is None
    assert found.allow_root_tasks is True


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("rm.job_shapes_max", "rm.job_scheduling_classes_max", "7"),
        ("fairness.service", "fairness.usage_measure", "slots"),
        ("fairness.tally_interval", "fairness.usage_interval", "7s"),
    ],
)
def test_an_old_name_of_a_key_still_works_and_says_the_new_one(
    places: dict[str, Path], old: str, new: str, text: str
) -> None:
    section, old_key = old.split(".")
    new_key = new.removeprefix(f"{section}.")
    as_now = {"FINEGRAIN_" + new.upper().replace(".", "__"): text}
    as_before = {"FINEGRAIN_" + old.upper().replace(".", "__"): text}
    expected = load_configuration(environment=as_now)
    assert expected.warnings == ()

    file = places["named"]
    file.write_text(f'[{section}]\n{old_key} = "{text}"\n')
    of_file = load_configuration(str(file), environment={})
    assert getattr(of_file.settings, section) == getattr(expected.settings, section)
    assert of_file.origins == {new: str(file)}
    (warning,) = of_file.warnings
    assert warning.startswith(f"{file}: {old} is now called {new}")

    of_variable = load_configuration(environment=as_before)
    assert of_variable.settings == expected.settings
    assert of_variable.warnings[0].startswith(f"{next(iter(as_before))} is now called")

    given = flags_given((section,), {f"{section}_{old_key}": text})
    of_flag = load_configuration(environment={}, flags=given)
    assert of_flag.settings == expected.settings
    prefix = "--fairness-" if section == "fairness" else "--"
    assert of_flag.warnings[0].startswith(
        f"{prefix}{old_key.replace('_', '-')} is now called {prefix}{new_key.replace('_', '-')};"
    )


def test_both_names_of_a_key_at_once_are_refused(places: dict[str, Path]) -> None:
    file = places["named"]
    file.write_text("[rm]\njob_shapes_max = 7\njob_scheduling_classes_max = 8\n")
    with pytest.raises(ConfigurationError, match=r"keep rm\.job_scheduling_classes_max"):
        load_configuration(str(file), environment={})
    both = {"FINEGRAIN_FAIRNESS__SERVICE": "slots", "FINEGRAIN_FAIRNESS__USAGE_MEASURE": "cpu"}
    with pytest.raises(ConfigurationError, match="keep FINEGRAIN_FAIRNESS__USAGE_MEASURE"):
        load_configuration(environment=both)


def test_types_of_devices_are_sections_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "finegrain.toml"
    path.write_text('[devices.npu]\npaths = ["/dev/npu*"]\n[devices.fast]\ncommand = "list"\n')
    found = check_file(path)
    assert sorted(found.settings.devices) == ["fast", "npu"]
    assert found.origins["devices.npu"] == str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[devices]\nnpu = 1\n", r"devices\.npu is a table"),
        ('[devices.npu]\npahts = ["/dev/npu0"]\n', r"devices\.npu\.pahts, did you mean 'paths'"),
        ("[devices.npu]\nnuma_node = -1\n", r"devices\.npu\.numa_node is -1; expected at least 0"),
    ],
)
def test_mistakes_in_a_type_of_devices(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "finegrain.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        check_file(path)


def test_no_variable_sets_a_type_of_devices() -> None:
    with pytest.raises(ConfigurationError, match="only be set in a file"):
        load_configuration(environment={"FINEGRAIN_DEVICES__NPU": "/dev/npu0"})
