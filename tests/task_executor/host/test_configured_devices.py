"""Devices of types that the administrator configured."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.topology import NumaNode
from task_executor.host import configured_devices
from task_executor.host.configured_devices import ConfiguredDevices, check_type, discover
from task_executor.options import DeviceType

Machine = Callable[[Mapping[str, str]], Path]
NODES = tuple(NumaNode(each, CpuSet.parse(str(each)), 1 << 30) for each in (0, 1))


def program(source: str) -> str:
    return shlex.join([sys.executable, "-c", source])


def listed(entries: object) -> ConfiguredDevices:
    text = entries if isinstance(entries, str) else json.dumps(entries)
    return discover([DeviceType("npu", command=program(f"print({text!r})"))], NODES)


def test_each_file_is_a_device(machine: Machine) -> None:
    root = machine({"dev/npu1": "", "dev/npu0": "", "dev/other": ""})
    kind = DeviceType("npu", ("/dev/npu*", "/dev/npu0"), numa_node=1, model="X", vendor="acme")
    first, second = discover([kind], NODES, root).devices
    assert (first.name, first.uuid, first.capacity) == ("npu0", "/dev/npu0", (("npu", 100),))
    assert (first.numa_node, first.model, first.vendor, first.whole_only) == (1, "X", "acme", True)
    assert (second.name, second.uuid) == ("npu1", "/dev/npu1")


def test_capacities_and_shares(machine: Machine) -> None:
    kind = DeviceType("npu", ("/dev/npu0",), capacities=(("npu-memory", 512),), shared=True)
    (device,) = discover([kind], NODES, machine({"dev/npu0": ""})).devices
    assert device.capacity == (("npu", 100), ("npu-memory", 512))
    assert not device.whole_only


def test_a_command_lists_ids_or_json() -> None:
    assert [each.uuid for each in listed("a\n\nb\na").devices] == ["a", "b"]
    entry = {"uuid": "S/N 1", "model": "X", "numa_node": 1, "pci_address": "0000:3b:00.0"}
    (device,) = listed([entry | {"problem": "hot", "capacities": {"npu": 50}}]).devices
    assert (device.uuid, device.model, device.numa_node) == ("S/N 1", "X", 1)
    assert (device.pci_address, device.problem) == ("0000:3b:00.0", "hot")
    assert device.capacity == (("npu", 50),)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ("[", "is not JSON"),
        ("", "lists no devices"),
        ([], "lists no devices"),
        ([1], 'is not an object with a text "uuid"'),
        ([{"uuid": "a", "size": 1}], "'size'"),
        ([{"uuid": "a", "numa_node": "0"}], "numa_node"),
        ([{"uuid": "a", "capacities": {"npu": 101}}], "1 to 100"),
        ([{"uuid": ""}], "1 to 200 characters"),
        ([{"uuid": "a", "files": "/dev/a"}], "files is '/dev/a'; expected up to 16 paths"),
        ([{"uuid": "a", "files": ["a"]}], "expected up to 16 paths"),
        ([{"uuid": "a", "files": ["/dev/a"] * 17}], "expected up to 16 paths"),
    ],
)
def test_output_that_is_no_list_of_devices(entries: object, reason: str) -> None:
    found = listed(entries)
    assert found.devices == ()
    (warning,) = found.warnings
    assert warning.startswith("no devices of type npu: ")
    assert reason in warning


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/no/such/program", "No such file"),
        ("'unbalanced", "No closing quotation"),
        (program("import sys; sys.exit('the card does not answer')"), "the card does not answer"),
        (program("import time; time.sleep(30)"), "longer than"),
    ],
)
def test_a_command_that_fails(command: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configured_devices, "COMMAND_TIMEOUT_S", 2.0)
    found = discover([DeviceType("npu", command=command)], NODES)
    assert found.devices == ()
    assert reason in found.warnings[0]


def test_no_file_and_a_node_that_does_not_exist(machine: Machine) -> None:
    root = machine({"dev/npu0": ""})
    types = [DeviceType("fast", ("/dev/fast*",)), DeviceType("npu", ("/dev/npu0",), numa_node=7)]
    found = discover(types, NODES, root)
    assert [each.numa_node for each in found.devices] == [None]
    assert "no file matches /dev/fast*" in found.warnings[0]
    assert "NUMA node 7" in found.warnings[1]


@pytest.mark.parametrize(
    "kind",
    [
        DeviceType("gpu", ("/dev/x",)),
        DeviceType("gpu-core", ("/dev/x",)),
        DeviceType("rdma", ("/dev/x",)),
        DeviceType("mig-1g.10gb", ("/dev/x",)),
        DeviceType("koordinator.sh/npu", ("/dev/x",)),
        DeviceType("NPU", ("/dev/x",)),
        DeviceType("npu"),
        DeviceType("npu", ("/dev/x",), command="x"),
        DeviceType("npu", ("dev/x",)),
        DeviceType("npu", ("/dev/x",), capacities=(("npu", 200),)),
        DeviceType("npu", ("/dev/x",), capacities=(("npu-memory", 0),)),
        DeviceType("npu", ("/dev/x",), capacities=(("gpu-core", 100),)),
        DeviceType("npu", ("/dev/x",), capacities=(("npu-Memory!", 100),)),
        DeviceType("n" * 40, ("/dev/x",)),
        DeviceType("npu", ("/dev/x",), model="x" * 300),
    ],
)
def test_types_that_no_host_could_have(kind: DeviceType) -> None:
    with pytest.raises(InvalidArgument, match="devices"):
        check_type(kind)


def test_there_is_a_limit_on_all_types_together() -> None:
    command = program("print('\\n'.join(map(str, range(400))))")
    found = discover(
        [DeviceType("fast", command=command), DeviceType("npu", command=command)], NODES
    )
    assert len(found.devices) == configured_devices.DEVICES_MAX
    assert "only the first 112 of 400 devices of type npu" in found.warnings[0]
