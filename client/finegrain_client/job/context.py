"""What a job's requests, slots and tasks share: identity, connection and background tasks.

It imports none of them, so that each of those modules can be read alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain_client.connection import Connection
from finegrain_client.job.background import Background


@dataclass(slots=True)
class JobContext:
    """The shared state of one job. `registered` is true once the resource manager knows the job."""

    connection: Connection
    job_id: str
    registered: bool = False
    background: Background = field(default_factory=Background)
