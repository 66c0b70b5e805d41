"""Tests of amounts as text: in the units in which people type them, and without rounding."""

from __future__ import annotations

import pytest

from finegrain.resources import GIB, MIB, Amounts, ResourceProfile
from resource_manager.engine.model.texts import (
    amount_text,
    amounts_text,
    largest_text,
    profile_text,
)


def test_amounts_have_the_units_that_people_type() -> None:
    amounts = {"cpu_milli": 1_500, "memory_bytes": 1536 * MIB, "extended.license": 2}
    assert amounts_text(amounts) == "1.5 cpu, 1536Mi memory, 2 license"
    assert amounts_text({"managed_memory_bytes": GIB}) == "1Gi managed memory"
    assert profile_text(ResourceProfile(250, 64 * MIB)) == "0.25 cpu, 64Mi memory"
    assert profile_text(None) == "a default slot"


def test_amounts_that_differ_never_look_equal() -> None:
    assert amount_text("cpu_milli", 4_001, 4_000) == "4.001 of 4 cpu"
    assert amount_text("memory_bytes", GIB + 1, GIB) == "1073741825 of 1Gi memory"


GPUS = {"device.gpu-core": 250, "device.gpu-memory-ratio": 250}


@pytest.mark.parametrize(
    ("requested", "largest", "text"),
    [
        ({"cpu_milli": 64_000}, {"cpu_milli": 2_000}, "cpu: requested 64, largest executor 2"),
        (
            {"cpu_milli": 500, "memory_bytes": 4 * GIB},
            {"memory_bytes": 2 * GIB + 300 * MIB + 1},
            "memory: requested 4Gi, largest executor 2.2Gi",
        ),
        (
            {"extended.license": 3},
            {"extended.license": 0},
            "license: requested 3, largest executor 0",
        ),
        (
            GPUS,
            dict.fromkeys(GPUS, 100),
            "gpu: requested 2.5, largest executor 1",
        ),
    ],
    ids=str,
)
def test_a_refusal_names_what_is_short(requested: Amounts, largest: Amounts, text: str) -> None:
    assert largest_text(requested, largest) == text


def test_unequal_parts_of_gpus_are_named_each() -> None:
    parts = {"device.gpu-core": 50, "device.gpu-memory-ratio": 25}

    assert amounts_text(parts) == "50 gpu-core, 25 gpu-memory-ratio"
    assert amounts_text({"cpu_milli": 500, **GPUS}) == "0.5 cpu, 2.5 gpu"
