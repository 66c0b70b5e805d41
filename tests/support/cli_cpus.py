"""Cpu answers of the scripted cluster: a pinned slot, a cpu policy and the settings of a host."""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment, NodeShare
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import MIB
from finegrain_client.types.host_policy import HostPolicyStatus
from finegrain_client.types.topology import HostSettings

ALIGNED_LSR = CpuPolicy(
    QosClass.LSR, BindPolicy.FULL_PCPUS, numa=NumaPolicy.RESTRICTED, numa_required=True
)
PINNED = CpuAssignment(
    qos=QosClass.LSR,
    cpus=CpuSet.parse("1"),
    bind=BindPolicy.FULL_PCPUS,
    exclusive=ExclusivePolicy.PCPU_LEVEL,
    numa=(NodeShare(0, (("cpu_milli", 1000), ("memory_bytes", 256 * MIB))),),
    memory_nodes=CpuSet.parse("0"),
    pools=(),
    notes=("NUMANodeLevel was preferred and could not be had",),
)
HOST_POLICY = HostPolicyStatus(
    executor_id="host-a",
    set=HostPolicy(
        bind=HostBindPolicy.FULL_PCPUS_ONLY,
        reserved_cpus=CpuSet.parse("0"),
        reserved_strict=False,
    ),
    effective=HostSettings(
        bind="FullPCPUsOnly",
        numa_strategy="MostAllocated",
        alignment="Restricted",
        reserved_cpus="0-1",
        strictly_reserved_cpus="1",
        default_bind="FullPCPUs",
        default_exclusive="None",
        origins={
            "bind": "operator",
            "numa_strategy": "configuration",
            "alignment": "kubelet",
            "reserved_cpus": "operator",
            "default_bind": "cluster",
            "default_exclusive": "built-in",
        },
    ),
    number=7,
    followed_number=6,
)
