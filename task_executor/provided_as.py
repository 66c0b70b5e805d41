"""Finds the executor shape that a provider used when it started this executor."""

from __future__ import annotations

import os

from finegrain.ids import check_id

PROVIDED_AS_VARIABLE = "FINEGRAIN_PROVIDED_AS"


def provided_as(configured: str) -> str:
    """Returns the name of the executor shape that a provider used when it started this executor;
    empty if no provider started the executor.

    Raises:
        InvalidArgument: the name of the shape is not valid.
    """
    name = configured or os.environ.get(PROVIDED_AS_VARIABLE, "")
    return check_id("provided_as", name) if name else ""
