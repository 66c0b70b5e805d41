"""The table of `finegrain explain` fits the width of the terminal, and cuts no verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from finegrain_cli.text.explanation import explanation_text
from tests.support.cli import EXPLANATION

VERDICT = (
    "NUMA_UNALIGNED: SingleNUMANode cannot place 4 cpus, 64Mi memory on one NUMA node; free by"
    " node: 0: 3 cpus, 16320Mi memory; 1: 3 cpus, 16320Mi memory; it has slot"
    " 01a22624-735e-7e05-bc5b-93934e372aaa"
)
FEW, MANY = ("cpu_milli",), ("cpu_milli", "memory_bytes", "device.gpu", "extended.licence")


@pytest.mark.parametrize("names", [FEW, MANY])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_verdicts_are_wrapped(
    names: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    one = EXPLANATION.executors[0]
    dimensions = tuple(replace(one.dimensions[0], dimension=name) for name in names)
    hosts = tuple(
        replace(one, executor_id=name, message=VERDICT, dimensions=dimensions)
        for name in ("host-a", "a-long-name-of-an-executor-17")
    )
    only = replace(EXPLANATION, executors=hosts, gang=None)
    text = explanation_text(only)
    without = explanation_text(replace(only, executors=()))
    table = [line for line in text.splitlines() if line not in without.splitlines()]

    assert max(map(len, table)) <= width
    assert " ".join(text.split()).count(VERDICT) == len(hosts)
