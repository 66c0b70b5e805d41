"""The state that a job shares with its requests, slots and tasks.

It consists of the job's identity, its connection and its background tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain.rpc.channels import JOB_SECRET
from finegrain_client.connection import Connection
from finegrain_client.job.background import Background


@dataclass(slots=True)
class JobContext:
    """The shared state of one job. `secret` proves ownership of the job; it is never logged."""

    connection: Connection
    job_id: str
    secret: str = field(default="", repr=False)
    background: Background = field(default_factory=Background)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of every call for this job."""
        return ((JOB_SECRET, self.secret),)
