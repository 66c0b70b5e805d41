"""Huge pages have one name in requests and another name in the kernel."""

from __future__ import annotations

import pytest

from finegrain.hugepages import kernel_limits, page_bytes, resource_name


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (64 << 10, "hugepages-64Ki"),
        (2 << 20, "hugepages-2Mi"),
        (512 << 20, "hugepages-512Mi"),
        (1 << 30, "hugepages-1Gi"),
        (16 << 30, "hugepages-16Gi"),
    ],
)
def test_names_go_both_ways(size: int, name: str) -> None:
    assert resource_name(size) == name
    assert page_bytes(name) == size


@pytest.mark.parametrize(
    "name",
    ["", "gpu", "hugepages-", "hugepages-2", "hugepages-2M", "hugepages-0Mi", "xhugepages-2Mi"],
)
def test_other_resources_are_no_huge_pages(name: str) -> None:
    assert page_bytes(name) is None


def test_the_kernel_is_told_bytes() -> None:
    asked = (("gpu", 1), ("hugepages-1Gi", 3), ("hugepages-2Mi", 10))
    assert kernel_limits(asked) == {"1GB": 3 << 30, "2MB": 20 << 20}
