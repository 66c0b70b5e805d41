"""A large job graph for the simulated cluster of the web page."""

from __future__ import annotations

import random
from collections.abc import Callable

from finegrain.v1 import task_executor_pb2 as te

LAYERS = 12
EXIT = {"running": None, "finished": te.TaskExit(), "failed": te.TaskExit(exit_code=3)}
STATES = ("finished", "running", "running", "failed")


def graph_tasks(chains: int, job_id: str, text: Callable[[str], str]) -> list[te.TaskStatus]:
    """Returns a task of each chain of a random graph without circles. Each chain but the first ones
    gets data from one to three earlier chains.

    Args:
        chains: number of chains.
        job_id: the job.
        text: writes a text that people choose.
    """
    pick = random.Random(7)
    per_layer = max(chains // LAYERS, 1)
    tasks = []
    for number in range(chains):
        edges = []
        if number >= per_layer:
            first = max(number // per_layer - 2, 0) * per_layer
            earlier = range(first, number // per_layer * per_layer)
            producers = pick.sample(earlier, k=min(pick.randint(1, 3), len(earlier)))
            edges = [
                te.ChainEdge(
                    chain=text(f"chain-{each}"),
                    parallelism=2,
                    is_input=True,
                    is_blocking=each % 5 == 0,
                )
                for each in producers
            ]
        state = STATES[min(number * len(STATES) // chains, 2)] if number != 9 else "failed"
        ended = EXIT[state]
        tasks.append(
            te.TaskStatus(
                task_id=f"task-{number}",
                allocation_id="slot-0-1",
                generation=1,
                job_id=job_id,
                state=te.TASK_STATE_RUNNING if ended is None else te.TASK_STATE_EXITED,
                exit=ended,
                argv=["work"],
                operators=[
                    te.OperatorStatus(
                        operator_id=text(f"chain-{number}"),
                        enforcement=te.QUOTA_ENFORCEMENT_DECLARED,
                    )
                ],
                parallelism=2,
                place=te.GraphPlace(
                    chain=text(f"chain-{number}"),
                    slot_sharing_group=text("default"),
                    region=1,
                    edges=edges,
                ),
            )
        )
    return tasks
