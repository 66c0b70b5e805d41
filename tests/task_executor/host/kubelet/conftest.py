"""The files of kubelets, and the host that they describe."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.cpuset import CpuSet
from finegrain.topology import Core, HostTopology, NumaNode, Package
from task_executor.host.kubelet import KubeletTexts

DATA = Path(__file__).parents[3] / "data" / "kubelet"
STATES = ("cpu_manager_state", "memory_manager_state")


@pytest.fixture
def host() -> HostTopology:
    """Returns a host with two packages, each one a NUMA node with four cores of two threads. The
    numbers of sibling threads differ by 8.
    """
    nodes = (CpuSet.parse("0-3,8-11"), CpuSet.parse("4-7,12-15"))
    return HostTopology(
        online=CpuSet.parse("0-15"),
        allowed=CpuSet.parse("0-15"),
        cores=tuple(
            Core(CpuSet.of(cpu, cpu + 8), core_id=cpu % 4, package=cpu // 4, numa_node=cpu // 4)
            for cpu in range(8)
        ),
        numa_nodes=tuple(NumaNode(at, cpus, 32 << 30) for at, cpus in enumerate(nodes)),
        packages=tuple(Package(cpus, at) for at, cpus in enumerate(nodes)),
    )


def kubelet(version: str) -> KubeletTexts:
    """Returns the files of a kubelet of this version, as the helper would read them."""
    folder = DATA / version
    texts = {name: (folder / name).read_text() for name in STATES if (folder / name).exists()}
    if (folder / "config.yaml").exists():
        texts["config"] = (folder / "config.yaml").read_text()
    for path in sorted(folder.glob("*.conf")):
        texts[f"config/{path.name}"] = path.read_text()
    command = folder / "cmdline"
    return KubeletTexts(texts, {}, tuple(command.read_text().split()) if command.exists() else ())
