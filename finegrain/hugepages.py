"""Huge pages as a countable resource: their names, here and in the kernel.

Decides the notation. Refuses to know which sizes a host has and how many pages of each.

A slot asks for a number of pages, by the resource names that Kubernetes uses for bytes of them:
`hugepages-2Mi` and `hugepages-1Gi`, and likewise for other sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "hugepages-"
_UNITS: Final = (("Gi", "GB", 1 << 30), ("Mi", "MB", 1 << 20), ("Ki", "KB", 1 << 10))
_NAME: Final = re.compile(r"hugepages-([1-9]\d{0,3})([KMG]i)", re.ASCII)


def resource_name(page_bytes: int) -> str:
    """`hugepages-2Mi` for 2097152. The size is one that kernels have: a power of two, 1 KiB on."""
    unit, _, size = _unit(page_bytes)
    return f"{PREFIX}{page_bytes // size}{unit}"


def page_bytes(name: str) -> int | None:
    """The inverse; None for the name of any other resource."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    sizes = {unit: size for unit, _, size in _UNITS}
    return int(match[1]) * sizes[match[2]]


def kernel_limits(extended: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Bytes by page size as the kernel names it (`2MB`), of countable resources by name."""
    limits = {}
    for name, count in extended:
        if size := page_bytes(name):
            _, unit, unit_bytes = _unit(size)
            limits[f"{size // unit_bytes}{unit}"] = size * count
    return limits


def _unit(size: int) -> tuple[str, str, int]:
    return next((each for each in _UNITS if size % each[2] == 0), _UNITS[-1])
