"""Defines the state that a job shares with its requests, slots and tasks.

This state is the job's identity, its connection and its background tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.connection import Connection
from finegrain_client.job.background import Background

LEASE_DEFAULT_S = 30.0


@dataclass(slots=True)
class JobContext:
    """The shared state of one job.

    Attributes:
        registered: true after the resource manager has accepted the job.
        tokens: allocation tokens, by allocation id and generation. A token is kept only while the
            watch applies the message with which the token arrived.
    """

    connection: Connection
    job_id: str
    registered: bool = False
    background: Background = field(default_factory=Background)
    tokens: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def take_token(self, message: rm.JobEvent | rm.RequestStatus) -> None:
        """Stores the allocation token that has arrived with a slot."""
        if message.token:
            self.tokens[message.slot.allocation_id, message.slot.generation] = message.token
