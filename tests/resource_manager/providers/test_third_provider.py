"""Tests of a third-party provider: found by its entry point, configured, called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from finegrain.config_table import ConfigTable
from finegrain.errors import ConfigurationError
from resource_manager.providers import registry
from resource_manager.providers.config import make_providers, read_providers
from resource_manager.providers.provider import (
    ConfiguredShape,
    Observation,
    Presence,
    Provider,
    ProviderContext,
    ProviderKind,
    ReadShape,
    Started,
)
from tests.support.providers import provider_context

FILE = """
[cloud]
region = "north"

[[shape]]
name = "vm"
provider = "cloud"
total = { cpu = 4, memory = "16GiB" }
[shape.cloud]
machine = "large"
"""


class Cloud:
    """A provider with one machine per name, in memory."""

    def __init__(self, region: str, machines: Mapping[str, str], around: ProviderContext) -> None:
        self.region, self.machines, self.around = region, machines, around
        self.running: dict[str, str] = {}

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        self.running.setdefault(executor_id, self.machines[shape])
        return Started(f"{self.region}/{executor_id}")

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        self.running.pop(executor_id, None)
        return ""

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        return Observation(Presence.RUNS if executor_id in self.running else Presence.ENDED)

    def owns(self, executor_id: str) -> bool:
        return False

    def noted(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass


class CloudKind:
    """The configuration of `Cloud`."""

    def read_common(self, table: ConfigTable) -> dict[str, str]:
        settings = {"region": table.text("region", "eu-1")}
        table.end()
        return settings

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        return ReadShape(table.choice("machine", ["small", "large"]))

    def check(self, common: Any, shapes: Mapping[str, Any], file: Path) -> None:
        pass

    def make(
        self, common: Any, shapes: Sequence[ConfiguredShape], provider_context: ProviderContext
    ) -> Provider:
        machines = {each.shape.name: each.settings for each in shapes}
        return Cloud(common["region"], machines, provider_context)


class Broken:
    """A provider that cannot be created."""

    def __init__(self) -> None:
        raise RuntimeError("a library is missing")


def install(monkeypatch: pytest.MonkeyPatch, **kinds: type[Any]) -> None:
    def entry_points(*, group: str, name: str = "") -> list[EntryPoint]:
        assert group == "finegrain.providers"
        found = [Installed(each, f"{__name__}:{each}", group) for each in kinds]
        return [each for each in found if name in ("", each.name)]

    class Installed(EntryPoint):
        def load(self) -> Any:
            return kinds[self.name]

    monkeypatch.setattr(registry, "entry_points", entry_points)


async def test_it_is_configured_and_called_like_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, cloud=CloudKind)
    kind: ProviderKind = registry.find_kind("cloud")
    file = tmp_path / "providers.toml"
    file.write_text(FILE)

    read = read_providers(file)
    made = make_providers(read, provider_context(tmp_path / "rm"))

    assert isinstance(kind, CloudKind)
    assert [each.provider for each in read.provisioning.shapes] == ["cloud"]
    assert set(made) == {"process", "command", "cloud"}
    started = await made["cloud"].start("vm-1-1", "vm", again=False)
    assert started.handle == "north/vm-1-1"
    assert (await made["cloud"].status("vm-1-1", "vm", "")).presence is Presence.RUNS
    for each in made.values():
        await each.close()


def test_its_keys_are_held_to_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, cloud=CloudKind)
    file = tmp_path / "providers.toml"
    file.write_text(FILE.replace("machine =", "machin ="))
    with pytest.raises(ConfigurationError, match=r"shape vm\.cloud\.machine is missing"):
        read_providers(file)
    file.write_text(FILE + "disk = 3\n")
    with pytest.raises(ConfigurationError, match=r"unknown key shape vm\.cloud\.disk"):
        read_providers(file)


def test_one_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, cloud=Broken)
    file = tmp_path / "providers.toml"
    file.write_text(FILE)
    with pytest.raises(ConfigurationError, match=r"cannot be loaded: .*a library is missing"):
        read_providers(file)


def test_one_that_is_not_installed_is_told_with_those_that_are(tmp_path: Path) -> None:
    file = tmp_path / "providers.toml"
    file.write_text(FILE)
    with pytest.raises(ConfigurationError, match="expected one of command, process"):
        read_providers(file)
