"""Marks methods that only this package calls, and that users of the package must not call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_MARK = "finegrain_client_internal"


def internal(function: FunctionT) -> FunctionT:
    """Marks a method that only this package calls. The blocking client does not have the marked
    methods.
    """
    function.__dict__[_MARK] = True
    return function


def is_internal(function: Callable[..., Any]) -> bool:
    """Returns True if `function` is marked with `internal`."""
    return _MARK in function.__dict__
