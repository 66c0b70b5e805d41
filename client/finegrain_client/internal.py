"""Marks methods that only this package calls. They are not for users of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_MARK = "finegrain_client_internal"


def internal(function: FunctionT) -> FunctionT:
    """Marks a method that only this package calls: the blocking client does not have it."""
    function.__dict__[_MARK] = True
    return function


def is_internal(function: Callable[..., Any]) -> bool:
    """Returns whether `function` is marked with `internal`."""
    return _MARK in function.__dict__
