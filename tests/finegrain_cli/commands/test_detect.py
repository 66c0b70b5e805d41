"""`finegrain detect`: what an executor here would report."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import Finegrain


def test_detection_offers_what_the_host_allows(finegrain: Finegrain) -> None:
    found = json.loads(finegrain("detect", "-o", "json").stdout)

    assert found["kind"] == "HostDetection"
    assert 0 < found["total"]["cpu_milli"] == found["capacity"]["cpu_milli_total"]
    assert found["total"]["memory_bytes"] == found["capacity"]["memory_bytes_total"]


def test_shares_of_the_configuration_hold(
    finegrain: Finegrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_EXECUTOR__CPU", "0.25")
    monkeypatch.setenv("FINEGRAIN_EXECUTOR__MEMORY", "128M")

    found = json.loads(finegrain("detect", "-o", "json").stdout)

    assert found["total"] == {
        "cpu_milli": 250,
        "best_effort_cpu_milli": 250,
        "memory_bytes": 128 << 20,
        "extended.ports": 10_000,
    }


def test_a_share_that_is_not_here_is_refused(
    finegrain: Finegrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_EXECUTOR__CPUS", "60000")

    result = finegrain("detect")

    assert result.exit_code == 2
    assert "cpus is '60000'" in result.stderr


def test_the_text_says_what_is_offered(finegrain: Finegrain) -> None:
    text = finegrain("detect").stdout

    assert "offered to slots:" in text
    assert "default slot: cpu" in text
