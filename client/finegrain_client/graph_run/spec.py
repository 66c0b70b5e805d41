"""Defines the specification of a job: a plan, and the group, user and environment of its tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.values.dependencies import JobDependency
from finegrain_client.dependencies import dependencies, dependencies_from_json
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.plan_json import plan_from_json, plan_to_json
from finegrain_client.graph.values import Exchange
from finegrain_client.job.gangs import MEMBERS_MAX
from finegrain_client.specs import check_priority

NEIGHBOURS_MAX = 1_000
"""Maximum number of tasks with which one task exchanges data.

The list of these tasks must fit into an environment variable.
"""


@dataclass(frozen=True, slots=True)
class GraphRunSpec:
    """A plan to run.

    Attributes:
        plan: the plan.
        group: resource group of the job. If it is empty, the rules of the groups choose the group;
            if no rule matches, the group is "default".
        env: environment of all tasks.
        cwd: absolute path of the working directory of all tasks; an empty value means a scratch
            directory for each task.
        user: user that the tasks run as; an empty value means the executor's default.
        priority: order of the job within its group, -100 to 100; the highest is served first.
        job_labels: labels of the job, which the rules of the groups can use.
        after: jobs that must end before the first task starts: a `JobDependency`, or the id of a
            job that must succeed. If a job ends in another way, this job is cancelled.
    """

    plan: Plan
    group: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    priority: int = 0
    after: Sequence[JobDependency | str] = ()
    job_labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", dependencies(self.after))
        check_can_run(self.plan)
        check_priority("priority", self.priority)
        if self.cwd and not Path(self.cwd).is_absolute():
            raise InvalidArgument("cwd", self.cwd, "an absolute path")

    def to_json(self) -> str:
        """Returns the JSON form."""
        return json.dumps(
            {
                "plan": plan_to_json(self.plan),
                "group": self.group,
                "env": dict(self.env),
                "cwd": self.cwd,
                "user": self.user,
                "priority": self.priority,
                "after": [asdict(each) for each in dependencies(self.after)],
                "job_labels": dict(self.job_labels),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> GraphRunSpec:
        """Reads a value that `to_json` returned."""
        data = json.loads(text)
        return cls(
            plan_from_json(data["plan"]),
            data["group"],
            data["env"],
            data["cwd"],
            data["user"],
            data.get("priority", 0),  # absent in state files of earlier versions
            dependencies_from_json(data.get("after", ())),
            data.get("job_labels", {}),
        )


def check_can_run(plan: Plan) -> None:
    """Checks that a plan can run. For example, a plan cannot run if an operator has no program.

    Raises:
        GraphError: the plan cannot run. The error names the operators to change.
    """
    for chain in plan.chains:
        names = tuple(each.name for each in chain.operators)
        if not chain.program:
            raise GraphError(
                f"operator {names[0]} has no program to run; set program for the operator or the "
                "job",
                operators=names,
            )
        if chain.ports and plan.group_of[chain.group].profile.is_default:
            raise GraphError(
                f"operator {names[0]} needs ports, and default slots have none; give the operators "
                "of the job resources, or connect tasks by files or unix sockets",
                operators=names,
            )
    for region in plan.regions:
        if region.slots > MEMBERS_MAX:
            raise GraphError(
                f"region {region.number} ({', '.join(region.chains)}) needs {region.slots} slots "
                f"at the same time; at most {MEMBERS_MAX} are possible; lower the parallelism"
            )
    for edge in plan.edges:
        if not edge.chained and max(edge.channels, edge.subpartitions) > NEIGHBOURS_MAX:
            kind = "blocking" if edge.exchange is Exchange.BLOCKING else "pipelined"
            raise GraphError(
                f"the {kind} edge {edge.name} connects one task with "
                f"{max(edge.channels, edge.subpartitions)} others; at most {NEIGHBOURS_MAX} are "
                "possible; lower the parallelism",
                operators=(edge.producer, edge.consumer),
            )
