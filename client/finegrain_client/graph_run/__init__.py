"""Runs the plan of a job graph on a cluster: requests slots, runs tasks, restarts regions.

    job = fg.GraphJob(cluster, graph.compile())
    outcome = await job.run()

The schedule (`finegrain_client.graph.schedule`) decides the next steps. Before the schedule applies
an event, the runner stores the event in a state file, so that another runner can continue the job.
docs/job-graphs.md is the guide.
"""

from finegrain_client.graph_run.graph_job import GraphJob
from finegrain_client.graph_run.operator_use import OperatorsInUse, OperatorUse, read_operator_use
from finegrain_client.graph_run.spec import GraphRunSpec
from finegrain_client.graph_run.status import GraphJobStatus, read_job_status
from finegrain_client.graph_run.values import GraphOutcome, GraphProgress, GraphState

__all__ = [
    "GraphJob",
    "GraphJobStatus",
    "GraphOutcome",
    "GraphProgress",
    "GraphRunSpec",
    "GraphState",
    "OperatorUse",
    "OperatorsInUse",
    "read_job_status",
    "read_operator_use",
]
