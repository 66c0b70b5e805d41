"""What a job's requests, slots and tasks share: its identity, its connection, its background work.

Refuses to know any of them, so that they can be read one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain.rpc.channels import JOB_SECRET
from finegrain_client.connection import Connection
from finegrain_client.job.background import Background


@dataclass(slots=True)
class JobContext:
    """One job's. `secret` proves ownership; it is never logged."""

    connection: Connection
    job_id: str
    secret: str = field(default="", repr=False)
    background: Background = field(default_factory=Background)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call for this job."""
        return ((JOB_SECRET, self.secret),)
