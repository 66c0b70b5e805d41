"""Fills a database through the store with the rows of a large cluster, for benchmarks.

The rows are realistic. All executors have the detected topology of a real machine with 64 cpus, but
differ in ids, addresses and memory. Each job has fifty slots. The log of each job has the grants of
the job, and the history of the cluster has each slot. This module measures nothing.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from finegrain.ids import new_id
from finegrain.resources import GIB, KIB, MIB, ResourceProfile
from finegrain.rpc.wire_topology import topology_from_proto, topology_to_proto
from finegrain.v1 import resources_pb2
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Executor,
    Job,
    JobEvent,
    Registration,
    Request,
    RequestSpec,
    Slot,
)
from resource_manager.storage.store import Store
from task_executor.host.detection.assemble import detect

TOPOLOGIES = Path(__file__).parent.parent / "tests" / "data" / "topologies"
MACHINE = "64amd64-4p2n4ca2co"  # four sockets, eight NUMA nodes, 64 cpus

SLOTS_PER_JOB = 50
SLOTS_PER_COMMIT = 5_000
TIME_MS = 1_700_000_000_000
TOTAL = {"cpu_milli": 64_000, "memory_bytes": 256 * GIB}
PROFILES = tuple(
    ResourceProfile(
        cpu_milli=cpu, task_heap_memory_bytes=memory * MIB, managed_memory_bytes=managed
    )
    for cpu in (500, 1_000, 2_000, 4_000)
    for memory in (256, 1_024, 2_048)
    for managed in (0, 512 * MIB)
)
TOO_LARGE = ResourceProfile(cpu_milli=500_000, task_heap_memory_bytes=GIB)
"""This profile fits on no host. A request for it waits indefinitely if it has `allow_pending`."""

ISOLATION = Isolation(
    cpu="quota",
    cpuset="cgroup",
    memory="hard",
    pids="hard",
    kill="cgroup.kill",
    driver="v2",
    notes=("swap is accounted for",),
)


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of rows to write."""

    executors: int = 0
    slots: int = 0  # granted
    queued: int = 0  # requests that wait


@cache
def machine() -> resources_pb2.HostTopology:
    """Returns the topology that detection finds on `MACHINE`."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(TOPOLOGIES / f"{MACHINE}.tar.xz") as packed,
    ):
        packed.extractall(folder, filter="data")
        return topology_to_proto(detect(Path(folder)))


def topology_of(number: int) -> resources_pb2.HostTopology:
    """Returns the topology of executor `number`: `MACHINE` with slightly different memory."""
    topology = resources_pb2.HostTopology()
    topology.CopyFrom(machine())
    for node in topology.numa_nodes:
        node.memory_bytes -= number * 4 * KIB
    topology.memory_bytes -= number * 32 * KIB
    return topology


def host_id(number: int) -> str:
    """Returns the id of executor `number`."""
    return f"host-{number:05d}.cluster.example"


def instance_id(number: int) -> str:
    """Returns the instance id of executor `number`, which is equal in every run of the
    benchmark.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_OID, host_id(number)))


def executor(number: int, address: str) -> Executor:
    """Returns the row of executor `number`."""
    topology = json.dumps(topology_from_proto(topology_of(number), "topology"))
    registration = Registration(
        executor_id=host_id(number),
        instance_id=instance_id(number),
        address=address or f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7180",
        total=dict(TOTAL),
        reserved={"memory_bytes": 4 * GIB},
        default_profile=ResourceProfile(cpu_milli=1_000, task_heap_memory_bytes=4 * GIB),
        labels=(("rack", f"r{number // 40}"), ("zone", "abc"[number % 3])),
        shared_cpus="0-63",
        topology=topology,
        isolation=ISOLATION,
        boot_id=new_id(),
        protocol_version="1.0",
        software_version="0.2.0",
    )
    return Executor(registration, registration_number=1, first_seen_time_ms=TIME_MS)


def fill(store: Store, size: Size, *, address: str = "") -> None:
    """Writes all rows. The store must have the leadership.

    Args:
        store: the database.
        size: numbers of rows.
        address: the address that all executors have; empty: each executor has its own address.
    """
    for first in range(0, size.executors, 1_000):
        numbers = range(first, min(size.executors, first + 1_000))
        store.commit(Changes(executors=[executor(number, address) for number in numbers]))
    arrivals = iter(range(1, 10**9))
    for changes in _granted(size, arrivals):
        store.commit(changes)
        store.maintain()
    for changes in _queued(size, arrivals):
        store.commit(changes)
        store.maintain()
    counters = {"arrival_number": next(arrivals), "cluster_sequence": 3 * size.slots}
    store.commit(Changes(counters=counters))


def _job(arrival_number: int) -> Job:
    return Job(
        job_id=new_id(),
        name=f"nightly report {arrival_number}",
        group="default",
        lease_ms=None,  # no client keeps the job alive here
        owner=uuid.uuid4().hex * 2,
        request_id_sha256=uuid.uuid4().hex * 2,
        arrival_number=arrival_number,
        create_time_ms=TIME_MS,
        specified=True,
    )


def _granted(size: Size, arrivals: Iterator[int]) -> Iterator[Changes]:
    changes = Changes()
    job = _job(0)
    for number in range(size.slots):
        if number % SLOTS_PER_JOB == 0:
            job = _job(next(arrivals))
            changes.jobs.append(job)
        _grant(changes, job, number, number % size.executors, next(arrivals))
        if len(changes.slots) == SLOTS_PER_COMMIT:
            yield changes
            changes = Changes()
    yield changes


def _grant(changes: Changes, job: Job, number: int, host: int, arrival_number: int) -> None:
    profile = PROFILES[number % len(PROFILES)]
    spec = RequestSpec(new_id(), profile, restart_on_loss=bool(number % 2))
    job.witness_allocation_id = job.witness_allocation_id or spec.allocation_id
    request = Request(spec, job.job_id, arrival_number, TIME_MS, RequestState.GRANTED, generation=1)
    slot = Slot(
        spec.allocation_id,
        generation=1,
        job_id=job.job_id,
        executor_id=host_id(host),
        profile=profile,
        cpu_limit_milli=profile.cpu_milli,
        pids_max=0,
        state=SlotState.ALLOCATED,
        allocated_time_ms=TIME_MS,
        isolation=ISOLATION,
    )
    job.last_sequence += 1
    changes.requests.append(request)
    changes.slots.append(slot)
    changes.job_events.append(
        JobEvent(
            job.job_id,
            job.last_sequence,
            TIME_MS,
            spec.allocation_id,
            RequestState.GRANTED,
            slot=slot_to_dict(slot, "10.0.0.1:7180"),
        )
    )
    about = ClusterEvent(0, TIME_MS, "slot_granted", host_id(host), job.job_id, spec.allocation_id)
    for step in range(3):
        changes.cluster_events.append(replace(about, sequence=3 * number + step + 1))


def _queued(size: Size, arrivals: Iterator[int]) -> Iterator[Changes]:
    if not size.queued:
        return
    job = _job(next(arrivals))
    changes = Changes(jobs=[job])
    for _ in range(size.queued):
        spec = RequestSpec(new_id(), TOO_LARGE, allow_pending=True)
        job.witness_allocation_id = job.witness_allocation_id or spec.allocation_id
        changes.requests.append(Request(spec, job.job_id, next(arrivals), TIME_MS))
        if len(changes.requests) == SLOTS_PER_COMMIT:
            yield changes
            changes = Changes()
    yield changes


def topology_text_bytes() -> int:
    """Returns the size of one executor's topology as compact JSON."""
    return len(json.dumps(topology_from_proto(machine(), "topology"), separators=(",", ":")))
