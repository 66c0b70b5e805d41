"""Tests of amounts as text: in the units in which people type them, and without rounding."""

from __future__ import annotations

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.texts import amount_text, amounts_text, profile_text


def test_amounts_have_the_units_that_people_type() -> None:
    amounts = {"cpu_milli": 1_500, "memory_bytes": 1536 * MIB, "extended.license": 2}
    assert amounts_text(amounts) == "1.5 cpu, 1536Mi memory, 2 license"
    assert amounts_text({"managed_memory_bytes": GIB}) == "1Gi managed memory"
    assert profile_text(ResourceProfile(250, 64 * MIB)) == "0.25 cpu, 64Mi memory"
    assert profile_text(None) == "a default slot"


def test_amounts_that_differ_never_look_equal() -> None:
    assert amount_text("cpu_milli", 4_001, 4_000) == "4.001 of 4 cpu"
    assert amount_text("memory_bytes", GIB + 1, GIB) == "1073741825 of 1Gi memory"
