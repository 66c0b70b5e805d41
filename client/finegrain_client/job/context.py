"""What a job's requests, slots and tasks share: identity, connection and background tasks.

It imports none of them, so that each of those modules can be read alone.
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
