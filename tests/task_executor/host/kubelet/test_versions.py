"""Reads the files of kubelets of many versions."""

from __future__ import annotations

import pytest

from finegrain.cpu_policy import HostBindPolicy, HostPolicy, NumaPolicy, NumaStrategy
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import HostTopology
from task_executor.host.kubelet import KubeletState, read_kubelet
from task_executor.host.kubelet.state import alignment_of
from tests.task_executor.host.kubelet.conftest import DATA, kubelet

VERSIONS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
POD_A = "0d3c2b6e-8f5a-4d0e-9a6e-1c55d1c8a001"
POD_B = "7a1f9c04-2b61-4a57-b1fd-6a0f3c9be002"
GIB = 1 << 30


def state(version: str, host: HostTopology) -> KubeletState:
    return read_kubelet(kubelet(version), host).state


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_about_a_sound_kubelet_is_strange(version: str, host: HostTopology) -> None:
    assert state(version, host).notes == ()


@pytest.mark.parametrize(
    ("version", "pinned"),
    [
        ("none", ""),
        ("v1.9", "1-3,9-11"),
        ("v1.14", "2-3,10-11"),
        ("v1.23", "4-5,12-13"),
        ("v1.27", "2-5,10-13"),
        ("v1.32", ""),
        ("v1.36", "2-7,10-13"),
        ("v1.37", "4-7,12-15"),
    ],
)
def test_every_form_of_the_state_tells_the_pinned_cpus(
    version: str, pinned: str, host: HostTopology
) -> None:
    assert str(state(version, host).pinned_cpus) == pinned


def test_by_flags_alone(host: HostTopology) -> None:
    """Two reserved halves of a cpu are one cpu: a thread of the first core, as a kubelet chooses
    it.
    """
    found = state("v1.9", host)
    assert found.cpu_manager_policy == "static"
    assert found.reserved_cpus == CpuSet.of(0)
    assert [container.pod_uid for container in found.containers] == ["", ""]
    assert found.policy == HostPolicy(reserved_cpus=CpuSet.of(0), reserved_strict=False)


def test_amounts_become_cpus_whole_cores_first(host: HostTopology) -> None:
    assert state("v1.14", host).reserved_cpus == CpuSet.of(0, 8)  # 1.6 cpus
    assert state("v1.27", host).reserved_cpus == CpuSet.of(0, 8)  # 1.5 cpus


def test_whole_cores_and_one_numa_node(host: HostTopology) -> None:
    found = state("v1.23", host)
    assert found.policy == HostPolicy(
        bind=HostBindPolicy.FULL_PCPUS_ONLY,
        alignment=NumaPolicy.SINGLE_NUMA_NODE,
        reserved_cpus=CpuSet.parse("0-1,8-9"),
        reserved_strict=False,
    )
    assert (found.topology_manager_policy, found.topology_manager_scope) == (
        "single-numa-node",
        "pod",
    )
    (container,) = found.containers
    assert (container.pod_uid, container.container) == (POD_A, "server")
    assert container.memory_bytes == ((1, 8 * GIB),)


def test_what_the_memory_manager_keeps_is_told_by_node(host: HostTopology) -> None:
    found = state("v1.23", host)
    assert found.memory_manager_policy == "static"
    assert found.kept == (
        (0, "memory", GIB),
        (1, "hugepages-2Mi", 64 << 20),
        (1, "memory", 612 << 20),
    )
    assert found.taken_bytes(0, "memory") == 0
    assert found.taken_bytes(1, "memory") == 8 * GIB
    assert found.taken_bytes(1, "hugepages-2Mi") == (128 + 64) << 20
    assert found.taken_bytes(0, "hugepages-2Mi") == 0


def test_evenly_over_numa_nodes(host: HostTopology) -> None:
    policy = state("v1.27", host).policy
    assert policy.numa_strategy is NumaStrategy.DISTRIBUTE_EVENLY
    assert policy.bind is None  # the option is set to false
    assert policy.alignment is NumaPolicy.RESTRICTED


def test_drop_in_files_and_flags_go_before_the_file(host: HostTopology) -> None:
    found = state("v1.32", host)
    assert found.cpu_manager_policy == "static"
    assert dict(found.cpu_manager_options) == {
        "full-pcpus-only": "true",
        "strict-cpu-reservation": "true",
    }
    assert found.topology_manager_policy == "best-effort"
    assert found.policy == HostPolicy(
        bind=HostBindPolicy.FULL_PCPUS_ONLY,
        alignment=NumaPolicy.BEST_EFFORT,
        reserved_cpus=CpuSet.of(0, 8),
        reserved_strict=True,
    )


def test_pods_that_have_cpus_and_memory_as_a_whole(host: HostTopology) -> None:
    found = state("v1.36", host)
    cpus = {(each.pod_uid, each.container): str(each.cpus) for each in found.containers}
    assert cpus == {
        (POD_A, "server"): "2-3,10-11",
        (POD_B, ""): "4-7,12-13",
        (POD_B, "main"): "4-5,12",
        (POD_B, "helper"): "13",
    }
    (whole,) = (each for each in found.containers if (each.pod_uid, each.container) == (POD_B, ""))
    assert whole.memory_bytes == ((0, 3 * GIB // 2 + 1), (1, 3 * GIB // 2))


def test_a_kubelet_that_gives_nothing_away_says_nothing(host: HostTopology) -> None:
    found = state("none", host)
    assert found.policy == HostPolicy()
    assert found.reserved_cpus == EMPTY


@pytest.mark.parametrize(
    ("word", "alignment"),
    [
        ("none", None),
        ("", None),
        ("best-effort", NumaPolicy.BEST_EFFORT),
        ("restricted", NumaPolicy.RESTRICTED),
        ("single-numa-node", NumaPolicy.SINGLE_NUMA_NODE),
        ("SingleNUMANodePodLevel", NumaPolicy.SINGLE_NUMA_NODE),
        ("SingleNUMANodeContainerLevel", NumaPolicy.SINGLE_NUMA_NODE),
        ("RestrictedContainerLevel", NumaPolicy.RESTRICTED),
        ("BestEffortPodLevel", NumaPolicy.BEST_EFFORT),
        ("None", None),
        ("unheard-of", None),
    ],
)
def test_alignment_has_one_meaning_whatever_its_scope(
    word: str, alignment: NumaPolicy | None
) -> None:
    assert alignment_of(word) is alignment
