"""Provides the blocking client, for programs without an event loop. This client has the same names
and arguments as the asyncio client.

    from finegrain_client import SlotSpec, blocking

    with blocking.connect() as cluster, cluster.job("hello") as job:
        (request,) = job.request_slots(SlotSpec(cpu_milli=500))
        print(request.granted().run(["echo", "hello"]).wait().check().stdout)

A private event loop runs in a dedicated thread. Functions that are passed as `output` are called on
this thread. Such a function must not block, and must not call this package.

`python -m tests.support.blocking_client` generates `generated.py`, `generated_batch.py` and
`generated_graph_run.py` from the asyncio classes.
"""

from typing import TYPE_CHECKING, Any

from finegrain_client.blocking.generated import (
    Cluster,
    Job,
    Request,
    RequestRange,
    Slot,
    Task,
    connect,
)
from finegrain_client.blocking.granted import AsGranted, as_granted
from finegrain_client.blocking.handle import Lost

if TYPE_CHECKING:
    from finegrain_client.blocking.generated_batch import BatchJob
    from finegrain_client.blocking.generated_graph_run import GraphJob

__all__ = [
    "AsGranted",
    "BatchJob",
    "Cluster",
    "GraphJob",
    "Job",
    "Lost",
    "Request",
    "RequestRange",
    "Slot",
    "Task",
    "as_granted",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Imports the runners on first use; see `finegrain_client.__getattr__`."""
    if name == "BatchJob":
        from finegrain_client.blocking.generated_batch import BatchJob

        return BatchJob
    if name == "GraphJob":
        from finegrain_client.blocking.generated_graph_run import GraphJob

        return GraphJob
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
