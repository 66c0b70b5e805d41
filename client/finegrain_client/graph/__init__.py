"""Defines job graphs of operators and edges, and compiles them to a plan of slots, tasks and
memory.

    graph = fg.JobGraph("clicks", "streaming")
    source = graph.operator("source", parallelism=4)
    sink = graph.operator("sink", parallelism=4)
    graph.connect(source, sink)
    print(fg.graph.describe(graph.compile()))

This package is pure: it reads no clock and does no I/O. docs/job-graphs.md is the guide.
"""

from finegrain_client.graph.chains import Obstacle
from finegrain_client.graph.drawing import Drawing, describe, draw
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.job_file import parse_job_file
from finegrain_client.graph.job_graph import JobGraph
from finegrain_client.graph.plan import (
    ChainPlan,
    EdgePlan,
    GroupPlan,
    OperatorPlan,
    Plan,
    RegionPlan,
    RestartPolicy,
)
from finegrain_client.graph.plan_json import plan_from_json, plan_to_json
from finegrain_client.graph.profiles import ManagedShare, SlotProfile
from finegrain_client.graph.spreading import Spread
from finegrain_client.graph.values import (
    EdgeSpec,
    Exchange,
    JobMode,
    JobOptions,
    OperatorSpec,
    Output,
    Pattern,
    ResourceSpec,
)

__all__ = [
    "ChainPlan",
    "Drawing",
    "EdgePlan",
    "EdgeSpec",
    "Exchange",
    "GraphError",
    "GroupPlan",
    "JobGraph",
    "JobMode",
    "JobOptions",
    "ManagedShare",
    "Obstacle",
    "OperatorPlan",
    "OperatorSpec",
    "Output",
    "Pattern",
    "Plan",
    "RegionPlan",
    "ResourceSpec",
    "RestartPolicy",
    "SlotProfile",
    "Spread",
    "describe",
    "draw",
    "parse_job_file",
    "plan_from_json",
    "plan_to_json",
]
