"""The engine's view of an executor's cpus and NUMA nodes, as a message."""

from __future__ import annotations

import json

from finegrain.rpc.wire import amounts_to_proto, topology_dict_to_proto
from finegrain.rpc.wire_cpus import effective_policy_to_proto, host_cpus_to_proto
from finegrain.v1 import cluster_pb2, cpus_pb2
from resource_manager.engine.explain.topology import TopologyView
from resource_manager.engine.model.entities import NO_CPU_STATE
from resource_manager.service.wire.cpus import cpu_state_to_proto
from resource_manager.service.wire.encoding import slot_status_of_view


def topology_response(view: TopologyView) -> cluster_pb2.GetTopologyResponse:
    """The whole report."""
    known, seen = view.executor.registration, view.executor.cpu_state
    told = json.loads(known.host_cpus or "{}")
    return cluster_pb2.GetTopologyResponse(
        executor_id=known.executor_id,
        topology=topology_dict_to_proto(json.loads(known.topology)),
        host_cpus=host_cpus_to_proto(known.host_cpus) if told else None,
        cpu_state=cpu_state_to_proto(seen) if seen != NO_CPU_STATE else None,
        policy=effective_policy_to_proto(view.policy),
        zones=[
            cluster_pb2.ZoneStatus(
                numa_node_id=zone.node,
                total=amounts_to_proto(zone.total),
                allocated=amounts_to_proto(zone.allocated),
                available=amounts_to_proto(zone.available),
            )
            for zone in view.zones
        ],
        slots=[slot_status_of_view(each) for each in view.slots],
        pools=[
            cluster_pb2.PoolStatus(
                pool=cpus_pb2.PoolName(
                    package_index=pool.name.package, numa_node_id=pool.name.node
                ),
                shared_cpus=str(pool.shared),
                best_effort_cpus=str(pool.best_effort),
            )
            for pool in view.pools.members
        ],
        lost_cpus=[
            cluster_pb2.LostCpus(allocation_id=allocation_id, generation=generation, cpus=str(cpus))
            for allocation_id, generation, cpus in view.lost_cpus
        ],
    )
