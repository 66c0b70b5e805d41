"""Finds the executor shape as which a provider has started this executor."""

from __future__ import annotations

import os

from finegrain.ids import check_id

PROVIDED_AS_VARIABLE = "FINEGRAIN_PROVIDED_AS"


def provided_as(configured: str) -> str:
    """Returns the executor shape as which a provider started this executor; empty: no provider
    started it.

    Raises:
        InvalidArgument: it is not a valid name.
    """
    name = configured or os.environ.get(PROVIDED_AS_VARIABLE, "")
    return check_id("provided_as", name) if name else ""
