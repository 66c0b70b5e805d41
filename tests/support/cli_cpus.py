"""What a scripted cluster says of cpus: a pinned slot, the wish for it, settings of a host."""

from __future__ import annotations

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.resources import MIB
from finegrain_client.types.cpus import CpuWish, SlotCpus, SlotNodeShare
from finegrain_client.types.host_policy import HostLayer, HostPolicy
from finegrain_client.types.topology import HostSettings

WISH = CpuWish(QosClass.LSR, BindPolicy.FULL_PCPUS, numa=NumaPolicy.RESTRICTED, numa_required=True)
PINNED = SlotCpus(
    qos=QosClass.LSR,
    cpus="1",
    bind=BindPolicy.FULL_PCPUS,
    exclusive=ExclusivePolicy.PCPU_LEVEL,
    numa=(SlotNodeShare(0, {"cpu_milli": 1000, "memory_bytes": 256 * MIB}),),
    memory_nodes="0",
    pools=(),
    notes=("NUMANodeLevel was preferred and could not be had",),
)
HOST_POLICY = HostPolicy(
    executor_id="host-a",
    set=HostLayer(
        bind="FullPCPUsOnly",
        numa_strategy=None,
        alignment=None,
        reserved_cpus="0",
        reserved_strict=False,
        default_bind=None,
        default_exclusive=None,
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
