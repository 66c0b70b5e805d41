"""Draws new sizes for a slot, which may grow in one dimension and shrink in another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, cast

from finegrain.resources import MIB, ResourceProfile

FACTORS = (0.5, 0.5, 1.0, 1.0, 1.5, 2.0)
CPU_MILLI_MAX = 16_000  # larger than every host, so some requests are infeasible
CPU_MILLI_MIN = 100
MEMORY_MIN = 8 * MIB


def resized(rng: Random, slot: Mapping[str, object]) -> tuple[ResourceProfile, int]:
    """Returns a random profile near the slot's, and a cpu limit (0: the cpu of the profile)."""
    profile = ResourceProfile.from_dict(cast("Mapping[str, Any]", slot["profile"]))
    cpu = min(CPU_MILLI_MAX, max(CPU_MILLI_MIN, int(profile.cpu_milli * rng.choice(FACTORS))))
    memory = max(MEMORY_MIN, int(profile.task_heap_memory_bytes * rng.choice(FACTORS)))
    extended = profile.extended
    if rng.random() < 0.1:
        extended = () if extended else (("license", 1),)
    wanted = replace(profile, cpu_milli=cpu, task_heap_memory_bytes=memory, extended=extended)
    limited = rng.random() < 0.2
    assignment = cast("Mapping[str, Any]", slot.get("assignment") or {})
    if assignment.get("cpus"):  # dedicated cpus: only whole ones
        return replace(wanted, cpu_milli=max(1_000, cpu // 1_000 * 1_000)), 0
    return wanted, 2 * cpu if limited and assignment.get("qos") != "BE" else 0
