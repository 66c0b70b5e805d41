"""The checkpoint of a kubelet's device manager, of all versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finegrain.cpuset import CpuSet
from finegrain.topology import HostTopology
from task_executor.host.kubelet import KubeletTexts, read_kubelet
from task_executor.host.kubelet.checkpoints import Damaged, parse_device_checkpoint
from task_executor.host.kubelet.parsing import DEVICE_STATE
from task_executor.host.kubelet.state import KubeletDevices


def entry(ids: Any, resource: str = "nvidia.com/gpu", pod: str = "pod-1") -> dict[str, Any]:
    return {
        "PodUID": pod,
        "ContainerName": "main",
        "ResourceName": resource,
        "DeviceIDs": ids,
        "AllocResp": "CkIKFk5WSURJQV9WSVNJQkxFX0RFVklDRVM=",
    }


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (["GPU-a", "GPU-b"], {"GPU-a", "GPU-b"}),  # before 1.20
        ({"-1": ["GPU-a"]}, {"GPU-a"}),  # no NUMA node is known
        ({"0": ["GPU-a"], "1": ["GPU-b"]}, {"GPU-a", "GPU-b"}),
        ({"0": ["GPU-a::0", "GPU-a::3"]}, {"GPU-a"}),  # shares of one GPU
        ({"0": None}, set()),
        (None, set()),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_device_ids_of_all_versions(ids: Any, found: set[str], wrapped: bool) -> None:
    content: dict[str, Any] = {"PodDeviceEntries": [entry(ids)], "RegisteredDevices": {}}
    text = json.dumps({"Data": content, "Checksum": 7} if wrapped else content)
    assert parse_device_checkpoint(text) == (
        KubeletDevices("pod-1", "main", "nvidia.com/gpu", frozenset(found)),
    )


def test_a_kubelet_that_has_given_out_nothing() -> None:
    text = '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    assert parse_device_checkpoint(text) == ()


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"Data":[]}', '{"Data":{"PodDeviceEntries":{"a":1}}}', '{"PodDeviceEntries":[1]}'],
)
def test_what_is_no_checkpoint(text: str) -> None:
    with pytest.raises(Damaged):
        parse_device_checkpoint(text)


def test_a_damaged_file_keeps_its_last_content() -> None:
    topology = HostTopology(CpuSet.of(0), CpuSet.of(0), (), ())
    content = {"Data": {"PodDeviceEntries": [entry({"0": ["GPU-a"]})]}, "Checksum": 7}
    first = read_kubelet(KubeletTexts({DEVICE_STATE: json.dumps(content)}), topology)
    assert [each.ids for each in first.state.devices] == [frozenset({"GPU-a"})]
    torn = read_kubelet(KubeletTexts({DEVICE_STATE: '{"Data":'}), topology, first)
    assert torn.state.devices == first.state.devices
    assert any("is damaged" in note for note in torn.state.notes)
    gone = read_kubelet(KubeletTexts({}), topology, torn)
    assert gone.state.devices == ()
