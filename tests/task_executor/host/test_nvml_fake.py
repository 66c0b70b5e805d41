"""The fake NVML answers as the recorded machines with GPUs did."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import InvalidArgument
from finegrain.resources import GIB
from finegrain.topology import Gpu, GpuLink
from task_executor.host.nvml import GpuInventory
from task_executor.host.nvml_fake import FakeNvml, inventory_from_profile

DATA = Path(__file__).parents[2] / "data" / "gpu_topologies"
PROFILES = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json"))}
MATRICES = [name for name, profile in PROFILES.items() if "matrix" in profile]
# Records without NVLink (nvidia-smi topo -mp, NCCL's XML) do not show the islands.
WITH_NVLINK = [
    name for name in MATRICES if PROFILES[name]["expected"]["nvlink_islands"] is not None
]


def played(name: str) -> tuple[GpuInventory, dict[str, Any]]:
    return FakeNvml.from_file(DATA / f"{name}.json").read(), PROFILES[name]["expected"]


@pytest.mark.parametrize("name", MATRICES)
def test_gpus_and_their_affinity(name: str) -> None:
    inventory, expected = played(name)
    assert len({gpu.uuid for gpu in inventory.gpus}) == expected["gpu_count"]
    for group in expected["affinity_groups"]:
        assert {str(inventory.gpus[index].cpus) for index in group["gpus"]} == {
            group["cpu_affinity"]
        }


@pytest.mark.parametrize("name", WITH_NVLINK)
def test_nvlinks(name: str) -> None:
    inventory, expected = played(name)
    lanes = {f"GPU{gpu.index}": 0 for gpu in inventory.gpus}
    index = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    for link in inventory.links:
        for end in (link.first_uuid, link.second_uuid):
            lanes[f"GPU{index[end]}"] += link.nvlink_count
    assert lanes == expected["nvlink_lanes_per_gpu"]
    joined = [link for link in inventory.links if link.nvlink_count]
    assert islands(inventory.gpus, joined) == [set(each) for each in expected["nvlink_islands"]]


def islands(gpus: tuple[Gpu, ...], links: list[GpuLink]) -> list[set[int]]:
    """Returns the sets of two or more GPUs that can reach each other."""
    island = {gpu.uuid: {gpu.index} for gpu in gpus}
    for link in links:
        merged = island[link.first_uuid] | island[link.second_uuid]
        for gpu in gpus:
            if gpu.index in merged:
                island[gpu.uuid] = merged
    unique: list[set[int]] = []
    for each in island.values():
        if len(each) > 1 and each not in unique:
            unique.append(each)
    return unique


def test_gpus_in_mig_mode_are_offered_by_instance() -> None:
    inventory, expected = played("mig-2-gpus-2-slices")
    for gpu, want in zip(inventory.gpus, expected["gpus"], strict=True):
        assert (gpu.index, gpu.name) == (want["index"], want["name"])
        assert [each.profile for each in gpu.mig_instances] == want["mig"]
        assert gpu.schedulable_as == want["schedulable_as"]
        assert {each.memory_bytes for each in gpu.mig_instances} == {10 * GIB}


def test_the_same_profile_is_the_same_machine() -> None:
    assert played("dgx-a100") == played("dgx-a100")


def test_unknown_schema_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"schema is 'x/9'"):
        inventory_from_profile({"schema": "x/9"}, GIB)
