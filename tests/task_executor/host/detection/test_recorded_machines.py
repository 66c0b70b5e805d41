"""Every recorded machine is detected as its expected result says.

``as_schema`` translates our model to schema ``topology/1`` (tests/data/topologies), field by field.
Fields that the record calls ambiguous are not compared, but their detection must not fail.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpuset import CpuSet
from finegrain.topology import Core, HostTopology, HugePages, NumaNode, PciDevice
from task_executor.host.detection import detect

DATA = Path(__file__).parents[3] / "data" / "topologies"
NAMES = [entry["name"] for entry in json.loads((DATA / "index.json").read_text())]

Tree = Callable[[str], Path]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_machine_is_detected_as_expected(name: str, tree: Tree) -> None:
    want = json.loads((DATA / f"{name}.json").read_text())
    got = as_schema(detect(tree(name)))
    for field in ("isolated", "nohz_full"):  # null if the kernel has no such file
        want["cpus"][field] = want["cpus"][field] or ""
    for field in ("memory_kind", "cpulist_differs_from_cpumap"):  # informative, not in the model
        for node in want["numa"]["nodes"]:
            node.pop(field, None)
    for section, ours_of_section in got.items():
        # only machines with books, drawers or clusters have them in their records
        theirs_of_section = want.get(section, [])
        compared = comparable(want, section, ours_of_section, theirs_of_section)
        for path, (ours, theirs) in compared.items():
            assert ours == theirs, f"{path} of {name}"


@pytest.mark.parametrize("name", NAMES)
def test_topology_survives_json(name: str, tree: Tree) -> None:
    topology = detect(tree(name))
    assert HostTopology.from_dict(json.loads(json.dumps(topology.to_dict()))) == topology


def test_ambiguous_fields_are_few_and_known() -> None:
    told = {
        name: set(json.loads((DATA / f"{name}.json").read_text())["ambiguous"]) for name in NAMES
    }
    assert {name: fields for name, fields in told.items() if fields} == {
        "40intel64-4n10c_pci-conflicts": {"packages", "l3", "cores_package_l3"},
        "64amd64-4p2n4ca2co": {"cores", "smt"},
        "8em64t-2s2ca2c-buggynuma": {"numa", "allowed"},
    }


def comparable(
    want: dict[str, Any], section: str, ours: Any, theirs: Any
) -> dict[str, tuple[Any, Any]]:
    """Returns (our value, recorded value) by path, for one section and without ambiguous fields."""
    unsure = set(want["ambiguous"])
    if section in unsure:
        return {}
    if section == "cores":
        dropped = ["package", "l3"] if "cores_package_l3" in unsure else []
        if "numa" in unsure:
            dropped.append("numa_node")
        return {"cores": (without(dropped, ours), without(dropped, theirs))}
    if not isinstance(theirs, dict):
        return {section: (ours, theirs)}
    skipped = {"whole_cores"} if section == "allowed" and "cores" in unsure else set()
    keys = set(theirs) - skipped
    return {f"{section}.{key}": (ours.get(key, "not told"), theirs[key]) for key in sorted(keys)}


def without(keys: list[str], cores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in core.items() if key not in keys} for core in cores]


def as_schema(host: HostTopology) -> dict[str, Any]:
    nodes = [node_as_schema(node) for node in host.numa_nodes] if host.numa_known else []
    widths = sorted({len(core.cpus) for core in host.cores})
    return {
        "cpus": cpus_as_schema(host),
        "smt": {"widths": widths, "max": max(widths), "uniform": len(widths) == 1},
        "packages": [
            {"cpus": str(package.cpus), "physical_package_id": package.physical_package_id}
            for package in host.packages
        ]
        if host.packages_known
        else [],
        "dies": [{"cpus": str(die.cpus), "die_id": die.die_id} for die in host.dies],
        "clusters": [str(cpus) for cpus in host.clusters],
        "books": [str(cpus) for cpus in host.books],
        "drawers": [str(cpus) for cpus in host.drawers],
        "cores_from": "topology" if host.cores_known else "none",
        "cores": [core_as_schema(host, core) for core in host.cores],
        "l3": [{"cpus": str(each.cpus), "size_bytes": each.size_bytes} for each in host.l3_groups],
        "cpu_kinds": [
            {"value": kind.value, "cpus": str(kind.cpus), "source": kind.source}
            for kind in host.cpu_kinds
        ],
        "numa": {
            "sysfs": host.numa_known,
            "node_ids": str(CpuSet(node["id"] for node in nodes)) if nodes else None,
            "nodes": nodes,
        },
        "memory": {
            "meminfo_total_bytes": host.memory_total_bytes,
            "nodes_total_bytes": total([node["memory_bytes"] for node in nodes]),
            "hugepages": hugepages_as_schema(host.hugepages),
        },
        "cgroup": cgroup_as_schema(host),
        "allowed": allowed_as_schema(host),
        "pci": [pci_as_schema(each) for each in host.pci_devices] if host.pci_known else None,
    }


def cpus_as_schema(host: HostTopology) -> dict[str, Any]:
    return {
        "possible": text(host.possible),
        "present": text(host.present),
        "online": str(host.online),
        "online_from": host.online_source,
        "offline": str(host.offline),
        "isolated": str(host.isolated),
        "nohz_full": str(host.nohz_full),
        "allowed": str(host.allowed),
        "online_count": len(host.online),
        "allowed_count": len(host.allowed),
    }


def core_as_schema(host: HostTopology, core: Core) -> dict[str, Any]:
    return {
        "cpus": str(core.cpus),
        "core_id": core.core_id,
        "package": core.package if host.packages_known else None,
        "numa_node": core.numa_node if host.numa_known else None,
        "l3": core.l3_group,
    }


def node_as_schema(node: NumaNode) -> dict[str, Any]:
    told = {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory_bytes": node.memory_bytes,
        "hugepages": hugepages_as_schema(node.hugepages),
        "memory_without_hugepages_bytes": node.normal_memory_bytes,
        "distances": list(node.distances) or None,
        "memory_allowed": node.memory_allowed,
        "kind": str(node.kind),
    }
    return told if node.cpus else told | {"nearest_cpus": str(node.nearest_cpus)}


def cgroup_as_schema(host: HostTopology) -> dict[str, Any]:
    limits = host.limits
    return {
        "version": limits.cgroup_version,
        "cpuset_path": limits.cpuset_path,
        "cpus": text(limits.cpuset_cpus),
        "mems": text(limits.cpuset_nodes),
        "files": limits.cpuset_directory,
        "memory_limit_bytes": limits.memory_limit_bytes,
        "memory_limit_file": limits.memory_limit_file,
        "cpu_quota_cores": quota_cores(host),
        "cpu_quota_file": limits.cpu_quota_file,
    }


def allowed_as_schema(host: HostTopology) -> dict[str, Any]:
    if host.numa_known:
        memory = total([node.memory_bytes for node in host.numa_nodes if node.memory_allowed])
    else:
        memory = host.memory_total_bytes
    known = [each for each in (memory, host.limits.memory_limit_bytes) if each is not None]
    by_node = {str(node.id): str(node.cpus & host.allowed) for node in host.numa_nodes}
    return {
        "cpus": str(host.allowed),
        "cpu_count": len(host.allowed),
        "whole_cores": len(host.whole_cores),
        "memory_nodes": str(host.allowed_nodes) if host.numa_known else None,
        "memory_bytes": memory,
        "memory_usable_bytes": min(known) if known else None,
        "cpu_quota_cores": quota_cores(host),
        "cpus_by_node": {node: cpus for node, cpus in by_node.items() if cpus}
        if host.numa_known
        else {},
    }


def pci_as_schema(device: PciDevice) -> dict[str, Any]:
    told = {
        "busid": device.bus_id,
        "kind": str(device.kind),
        "class": device.pci_class,
        "vendor": device.vendor,
        "device": device.device,
        "numa_node": device.reported_numa_node,
        "local_cpus": text(device.local_cpus),
    }
    names = {key: list(getattr(device, key)) for key in ("net", "infiniband", "drm", "mic")}
    return told | {key: value for key, value in names.items() if value}


def hugepages_as_schema(all_pages: tuple[HugePages, ...]) -> list[dict[str, int]]:
    return [{"size": pages.page_bytes, "count": pages.count} for pages in all_pages]


def quota_cores(host: HostTopology) -> float | None:
    milli = host.limits.cpu_quota_milli
    return None if milli is None else milli / 1000


def total(amounts: list[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def text(cpus: CpuSet | None) -> str | None:
    return None if cpus is None else str(cpus)
