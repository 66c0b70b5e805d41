"""Removes private data from answers. Only the owner of a job and administrators are allowed to see
this data.

The resource manager never receives the commands, environments and outputs of tasks. Job masters
send these to the executors, and an executor shows them only to the owner of the task and to
administrators. So the only private field in answers is the address of a job master.
"""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.rpc.access import Caller
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.state import State


def hide_private_fields(
    requests: Iterable[rm_pb2.RequestStatus], state: State, caller: Caller
) -> None:
    """Clears the private fields of requests whose job does not belong to the caller.

    Administrators see all fields.
    """
    if caller.is_operator:
        return
    for each in requests:
        if not caller.owns(state.jobs[each.job_id].owner):
            each.request.ClearField("target_address")
