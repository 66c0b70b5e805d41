"""A cluster for tests of the engine: real engine and rows, executors in memory, a manual clock.

cluster = EngineCluster.settled(host("host-a", cpu_milli=4_000), numa_host("host-b"))
cluster.submit("r1", "r2", cpu_milli=2_000)
cluster.wait(1_000)
assert cluster.where("r1") == "host-a"
"""

from finegrain.cpu_policy import PLAIN
from tests.support.engine_cluster.calls import BE, LSE, LSR
from tests.support.engine_cluster.cluster import FOREVER_MS, EngineCluster
from tests.support.engine_cluster.conversation import START_TIME_MS, OnTheWire
from tests.support.engine_cluster.executor import Command, FakeExecutor
from tests.support.engine_cluster.hosts import (
    NODE_MEMORY_BYTES,
    host,
    numa_host,
    provided,
    topology,
)
from tests.support.engine_cluster.store import RowStore

__all__ = [
    "BE",
    "FOREVER_MS",
    "LSE",
    "LSR",
    "NODE_MEMORY_BYTES",
    "PLAIN",
    "START_TIME_MS",
    "Command",
    "EngineCluster",
    "FakeExecutor",
    "OnTheWire",
    "RowStore",
    "host",
    "numa_host",
    "provided",
    "topology",
]
