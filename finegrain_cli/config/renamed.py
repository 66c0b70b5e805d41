"""Keys that got another name. The old one is accepted for one minor version, with a warning."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[tuple[str, str], str] = {
    ("rm", "job_shapes_max"): "job_scheduling_classes_max",
    ("fairness", "service"): "usage_measure",
    ("fairness", "tally_interval"): "usage_interval",
}
"""New name by section and old name; from 0.2 on, to be dropped with 0.3."""


def old_names(section: str, key: str) -> list[str]:
    """The names that a key had before."""
    return [old for (place, old), new in RENAMED.items() if (place, new) == (section, key)]


def renaming_warning(old: str, new: str) -> str:
    """What whoever uses an old name is told; both names as the user writes them."""
    return f"{old} is now called {new}; the old name goes with the next minor version"
