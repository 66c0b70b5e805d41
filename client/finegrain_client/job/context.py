"""Defines the state that a job shares with its requests, slots and tasks.

This state is the job's identity, its connection and its background tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain_client.connection import Connection
from finegrain_client.job.background import Background


@dataclass(slots=True)
class JobContext:
    """The shared state of one job. `registered` is true as soon as the resource manager knows the
    job.
    """

    connection: Connection
    job_id: str
    registered: bool = False
    background: Background = field(default_factory=Background)
