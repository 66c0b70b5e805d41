"""Tasks of job graphs are sent only to executors that know operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from finegrain_client.graph_run.executor_versions import ExecutorVersions, is_suitable
from finegrain_client.types.status import ExecutorStatus
from tests.support.cli import EXECUTOR


class Cluster:
    """Has executors by id and protocol version, and counts how often they are listed."""

    def __init__(self, **versions: str) -> None:
        self.versions, self.calls = versions, 0

    async def executors(self) -> list[ExecutorStatus]:
        self.calls += 1
        return [
            replace(EXECUTOR, executor_id=name, protocol_version=version)
            for name, version in self.versions.items()
        ]


@pytest.mark.parametrize(
    ("version", "suitable"),
    [("1.0", False), ("", False), ("1.1", True), ("1.10", True), ("2.0", True), ("new", False)],
)
def test_operators_are_known_since_version_1_1(version: str, suitable: bool) -> None:
    assert is_suitable(version) is suitable


async def test_an_old_executor_is_named_and_asked_for_again_after_its_upgrade() -> None:
    cluster = Cluster(old="1.0", new="1.1", unknown="")
    versions = ExecutorVersions(cast("Any", cluster))
    assert await versions.refusal("new") == ""
    assert await versions.refusal("new") == ""
    assert cluster.calls == 1
    assert (await versions.refusal("old")).startswith("executor old speaks version 1.0 of the")
    assert "version 1.0" in await versions.refusal("unknown")
    assert await versions.refusal("lost") == ""
    cluster.versions["old"] = "1.2"
    assert await versions.refusal("old") == ""
