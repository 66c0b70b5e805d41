"""Sets how many examples a property test runs.

`pytest --all` runs all examples of each property. The quick run runs only a part of them
(tests/conftest.py chooses the Hypothesis profile).
"""

from __future__ import annotations

from hypothesis import settings

QUICK_EXAMPLES, FULL_EXAMPLES = 20, 100
"""`max_examples` of the two Hypothesis profiles."""

EXAMPLES_MIN = 5


def register_profiles() -> None:
    """Registers the profiles `quick` and `full`. Neither has a deadline per example.

    A deadline would measure the machine, not the code.
    """
    for name, count in ("quick", QUICK_EXAMPLES), ("full", FULL_EXAMPLES):
        settings.register_profile(name, deadline=None, print_blob=True, max_examples=count)


def examples(full: int) -> int:
    """Returns `full`, or the quick profile's fraction of it in the quick run.

    For `@settings(max_examples=examples(150))`: a plain number there would override the profile.
    """
    return max(EXAMPLES_MIN, full * settings().max_examples // FULL_EXAMPLES)
