"""The allowed requests for devices, and their meaning (docs/devices.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegrain.devices.names import GPU_SHARED, device_requests
from finegrain.devices.request import has_words
from finegrain.errors import InvalidArgument

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
RECORDED = json.loads((VECTORS / "koordinator_device_request_validation.json").read_text())

ACCEPTED_HERE = {"val-48"}
"""`gpu-core` alone is allowed, although it says nothing about the memory."""


def cases(group: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in group])


@cases(RECORDED["validate"] + RECORDED["by_device_type"])
def test_requests_are_accepted_as_recorded(case: dict[str, Any]) -> None:
    if "error" in case["expect"] and case["id"] not in ACCEPTED_HERE:
        with pytest.raises(InvalidArgument):
            device_requests(case["request"])
        return
    found = device_requests(case["request"])
    by_type = case["expect"].get("by_type")
    if by_type is None:
        assert bool(found) is bool(case["request"])
        return
    assert {each.type: dict(each.totals) for each in found} == {
        type_: {name: each for name, each in amounts.items() if name != GPU_SHARED}
        for type_, amounts in by_type.items()
    }


# conv-04 combines names that are not those of its request.
@cases([case for case in RECORDED["convert"] if case["expect"] is not None])
def test_requests_are_converted_as_recorded(case: dict[str, Any]) -> None:
    expected = dict(case["expect"])
    expected.pop(GPU_SHARED, None)
    (found,) = device_requests(case["request"])
    assert dict(found.totals) == expected


@cases(RECORDED["gpu_count"])
def test_gpus_are_counted_as_recorded(case: dict[str, Any]) -> None:
    (found,) = device_requests(case["request"])
    expected = case["expect"]
    assert (found.count, found.is_shared) == (expected["count"], expected["shared"])
    assert dict(found.amounts) == expected["per_gpu"]


@cases([case for case in RECORDED["gpu_requirements"] if case["expect"].get("requirements")])
def test_what_each_gpu_must_have_is_as_recorded(case: dict[str, Any]) -> None:
    named = dict(case["requests"]["gpu"])
    if {"gpu-memory", "gpu-memory-ratio"} <= named.keys():
        del named["gpu-memory"]  # memory was completed before
    (found,) = device_requests(named)
    expected = case["expect"]["requirements"]
    assert (found.count, found.is_shared) == (expected["num_gpus"], expected["shared"])
    assert dict(found.amounts) == expected["per_gpu"]


@pytest.mark.parametrize(
    ("resources", "same_as"),
    [
        ({"kubernetes.io/gpu": 50}, {"gpu": 50}),
        ({"kubernetes.io/gpu-core": 60, "kubernetes.io/gpu-memory": 4}, None),
        ({"koordinator.sh/rdma": 100}, {"rdma": 100}),
        ({"nvidia.com/mig-1g.10gb": 1}, {"mig-1g.10gb": 100}),
        ({"gpu": 0, "fpga": 100}, {"fpga": 100}),
    ],
)
def test_names_of_other_systems_mean_the_same(
    resources: dict[str, int], same_as: dict[str, int] | None
) -> None:
    expected = same_as or {
        name.removeprefix("kubernetes.io/"): each for name, each in resources.items()
    }
    assert device_requests(resources) == device_requests(expected)


def test_a_vendors_count_asks_for_its_gpus() -> None:
    (found,) = device_requests({"amd.com/gpu": 2})
    assert (found.vendor, found.count) == ("amd", 2)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"gpu": 150}, "the nearest are 100 and 200"),
        ({"gpu-core": 200, "gpu-memory-ratio": 100}, "gpu-core 200 and gpu-memory-ratio 200"),
        ({"gpu-core": 50, "gpu-memory-ratio": 200}, "gpu-core 200 and gpu-memory-ratio 200"),
        ({"gpu-core": 200, "gpu-memory": 64 << 30}, "gpu-memory 64Gi, which is on one GPU"),
        ({"gpu.shared": 2, "gpu-memory-ratio": 101}, "the nearest is 102"),
        ({"gpu.shared": 2, "gpu-memory-ratio": 202}, "the nearest is 200"),
        ({"gpu": 50, "gpu-core": 50}, "gpu alone, or"),
        ({"gpu-memory": 1, "gpu-memory-ratio": 1}, "gpu alone, or"),
        ({"gpu": -1}, "0 or more"),
        ({"Gpu": 1}, "lower-case letters"),
        ({"mig-1g.10gb": 50}, "only whole MIG instances"),
        ({"fpga": 200_000}, "at most 1024 devices"),
        ({"gpu.shared": 2, "gpu-memory": 1}, "at least 1 of each"),
    ],
)
def test_what_can_never_be_placed_is_refused_with_the_nearest_request(
    resources: dict[str, int], expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        device_requests(resources)


@pytest.mark.parametrize(
    ("model", "asked", "same"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA H100 80GB HBM3", "h100 80gb", True),
        ("A100-SXM4-80GB", "A100", True),
        ("NVIDIA H100 80GB HBM3", "H1", False),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-32GB", False),
    ],
)
def test_a_model_is_found_by_its_words(model: str, asked: str, same: bool) -> None:
    assert has_words(model, asked) is same
