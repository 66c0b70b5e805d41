"""Tests what providers receive about the resource manager, and which settings prevent a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError
from finegrain.options import ListenOptions
from resource_manager.main import EXIT_FAILED, serve
from resource_manager.options import ResourceManagerOptions
from resource_manager.service.provider_setup import read_providers, set_up_providers
from resource_manager.service.provisioning import Providers
from tests.support.providers import halves

COMMANDS = """
[[shape]]
name = "far"
provider = "command"
total = { cpu = 1, memory = "1GiB" }
[shape.command]
start = ["true"]
stop = ["true"]
"""


def set_up(
    folder: Path, text: str, *, address: str = "127.0.0.1:7170", standby: bool = False
) -> Providers:
    file = folder / "providers.toml"
    file.write_text(text)
    options = ResourceManagerOptions(
        state_dir=folder, providers_file=file if text else None, standby=standby
    )
    return set_up_providers(
        options,
        read_providers(options),
        state_dir=folder,
        address=address,
    )


async def close(providers: Providers) -> None:
    for each in providers.by_name.values():
        await each.close()


async def test_shapes_find_their_providers(tmp_path: Path) -> None:
    providers = set_up(tmp_path, halves(1) + COMMANDS)

    assert providers.of_shape == {"half": "process", "far": "command"}
    assert providers.find("far-1-1", "far") == ("command", providers.by_name["command"])
    await close(providers)


async def test_without_a_file_ours_are_there_to_stop_what_they_started(tmp_path: Path) -> None:
    providers = set_up(tmp_path, "")

    assert set(providers.by_name) == {"process", "command"}
    assert providers.of_shape == {}
    assert await providers.by_name["process"].stop("half-1-1", "half", "") == ""
    await close(providers)


async def test_executors_have_to_know_where_we_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set --advertise HOST:PORT, or manager in"):
        set_up(tmp_path, COMMANDS, address="")

    await close(set_up(tmp_path, 'manager = ["rm.example:7170"]\n' + COMMANDS, address=""))
    await close(set_up(tmp_path, "", address=""))


async def test_a_standby_needs_the_directory_that_both_use(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"set \[process\] directory to the same path for both"
    ):
        set_up(tmp_path, halves(1), standby=True)

    named = halves(1).replace("[process]", f'[process]\ndirectory = "{tmp_path / "shared"}"')
    await close(set_up(tmp_path, named, standby=True))


async def test_a_resource_manager_does_not_start_with_a_file_that_cannot_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "providers.toml"
    file.write_text(COMMANDS.replace('"1GiB"', '"much"'))
    options = ResourceManagerOptions(
        state_dir=tmp_path / "rm", listen=ListenOptions("127.0.0.1:0"), providers_file=file
    )

    assert await serve(options) == EXIT_FAILED

    assert f"{file}: shape far.total.memory is 'much'; expected a size" in caplog.text
