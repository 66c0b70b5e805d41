"""Keys that were renamed. The old name is accepted for one minor version, with a warning."""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[tuple[str, str], str] = {
    ("rm", "job_shapes_max"): "job_scheduling_classes_max",
    ("fairness", "service"): "usage_measure",
    ("fairness", "tally_interval"): "usage_interval",
}
"""The new name of each key, by section and old name. Deprecated since 0.2, removed in 0.3."""


def old_names(section: str, key: str) -> list[str]:
    """Returns the former names of a key."""
    return [old for (place, old), new in RENAMED.items() if (place, new) == (section, key)]


def renaming_warning(old: str, new: str) -> str:
    """Returns the warning for the use of an old name; both names are as the user types them."""
    return f"{old} is now called {new}; the next minor version will not accept the old name"
