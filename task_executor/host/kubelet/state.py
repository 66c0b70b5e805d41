"""Describes the state of a kubelet on the same host, and derives settings for slots from this
state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from finegrain.cpu_policy import HostBindPolicy, HostPolicy, NumaPolicy, NumaStrategy
from finegrain.cpuset import EMPTY, CpuSet, union

STATIC: Final = "static"
MEMORY: Final = "memory"
FULL_PCPUS_ONLY: Final = "full-pcpus-only"
ACROSS_NUMA: Final = "distribute-cpus-across-numa"
STRICT_RESERVATION: Final = "strict-cpu-reservation"

_ALIGNMENTS: Final = {
    "besteffort": NumaPolicy.BEST_EFFORT,
    "restricted": NumaPolicy.RESTRICTED,
    "singlenumanode": NumaPolicy.SINGLE_NUMA_NODE,
}
_SCOPES: Final = ("containerlevel", "podlevel")


@dataclass(frozen=True, slots=True)
class KubeletContainer:
    """A container to which the kubelet has given dedicated cpus or memory."""

    pod_uid: str  # empty if the checkpoint names only containers, not pods
    container: str  # name or id of the container; empty for the whole pod
    cpus: CpuSet = EMPTY
    memory_bytes: tuple[tuple[int, int], ...] = ()  # pairs of NUMA node and bytes, sorted by node


@dataclass(frozen=True, slots=True)
class KubeletDevices:
    """Devices of one resource that a kubelet has given to a container.

    `ids` are the ids of the vendor's plug-in: UUIDs of GPUs, or PCI addresses.
    """

    pod_uid: str
    container: str
    resource: str  # for example nvidia.com/gpu
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class KubeletState:
    """A kubelet's settings and allocations, as read from its files.

    `given` and `kept` contain bytes by node and resource ("memory", "hugepages-2Mi", ...). The
    memory manager of the kubelet has given `given` to containers, and reserves `kept` for the
    system.
    """

    cpu_manager_policy: str = ""  # "none" or "static"; empty if it is not known
    cpu_manager_options: tuple[tuple[str, str], ...] = ()  # sorted by name
    topology_manager_policy: str = ""
    topology_manager_scope: str = ""
    memory_manager_policy: str = ""
    reserved_cpus: CpuSet = EMPTY
    containers: tuple[KubeletContainer, ...] = ()  # sorted by pod and container
    given: tuple[tuple[int, str, int], ...] = ()  # sorted
    kept: tuple[tuple[int, str, int], ...] = ()
    devices: tuple[KubeletDevices, ...] = ()  # sorted by pod, container and resource
    notes: tuple[str, ...] = ()

    @property
    def pinned_cpus(self) -> CpuSet:
        """All cpus that are dedicated to containers."""
        return union(container.cpus for container in self.containers)

    @property
    def policy(self) -> HostPolicy:
        """The kubelet's settings that apply to slots.

        The options of the cpu manager apply only under the static policy. The defaults of a kubelet
        (no alignment, no requirements) do not count as settings. So a setting of the cluster can
        apply. Reserved cpus stay in the shared pool unless they are reserved strictly.
        """
        static = self.cpu_manager_policy == STATIC
        # If an option has no effect in the kubelet, it must not apply to slots.
        options = {name for name, value in self.cpu_manager_options if static and value == "true"}
        return HostPolicy(
            bind=HostBindPolicy.FULL_PCPUS_ONLY if FULL_PCPUS_ONLY in options else None,
            numa_strategy=NumaStrategy.DISTRIBUTE_EVENLY if ACROSS_NUMA in options else None,
            alignment=alignment_of(self.topology_manager_policy),
            reserved_cpus=self.reserved_cpus or None,
            reserved_strict=STRICT_RESERVATION in options if self.reserved_cpus else None,
        )

    def taken_bytes(self, node: int, resource: str) -> int:
        """Returns the bytes of one resource on one NUMA node that slots cannot have.

        Ordinary memory that the kubelet reserves for the system is not included, because the
        executor has its own memory reserve for the system.
        """
        # Of the amounts that are reserved for the system, deduct only huge pages, not ordinary
        # memory.
        taken = self.given if resource == MEMORY else (*self.given, *self.kept)
        return sum(size for at, name, size in taken if (at, name) == (node, resource))


def alignment_of(word: str) -> NumaPolicy | None:
    """Returns the NUMA policy for a topology manager policy; None if the policy is "none" or an
    unknown word.

    The function accepts the words of the kubelet's configuration, such as single-numa-node. It also
    accepts the words of node reports, which include the scope, such as SingleNUMANodePodLevel.
    """
    plain = word.lower().replace("-", "")
    for scope in _SCOPES:
        plain = plain.removesuffix(scope)
    return _ALIGNMENTS.get(plain)
