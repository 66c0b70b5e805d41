"""Converts the names of huge pages in requests, where huge pages are countable resources, to the
kernel's names and back.

A slot requests a number of pages. The resource names are the names that Kubernetes uses for bytes
of huge pages: `hugepages-2Mi`, `hugepages-1Gi`, and so on for other sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "hugepages-"
_UNITS: Final = (("Gi", "GB", 1 << 30), ("Mi", "MB", 1 << 20), ("Ki", "KB", 1 << 10))
_NAME: Final = re.compile(r"hugepages-([1-9]\d{0,3})([KMG]i)", re.ASCII)


def resource_name(page_bytes: int) -> str:
    """Returns `hugepages-2Mi` for 2097152. The size must be a power of two, at least 1 KiB."""
    unit, _, size = _unit(page_bytes)
    return f"{PREFIX}{page_bytes // size}{unit}"


def page_bytes(name: str) -> int | None:
    """Returns the page size in bytes of a resource name; None for any other resource."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    sizes = {unit: size for unit, _, size in _UNITS}
    return int(match[1]) * sizes[match[2]]


def kernel_limits(extended: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Returns byte limits by the kernel's name of the page size (`2MB`).

    Countable resources other than huge pages are ignored.
    """
    limits = {}
    for name, count in extended:
        if size := page_bytes(name):
            # The kernel writes "MB" where Kubernetes writes "Mi". Both are powers of 1024.
            _, unit, unit_bytes = _unit(size)
            limits[f"{size // unit_bytes}{unit}"] = size * count
    return limits


def _unit(size: int) -> tuple[str, str, int]:
    return next((each for each in _UNITS if size % each[2] == 0), _UNITS[-1])
