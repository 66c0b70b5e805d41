"""Runs batches: one command for each of many threads of work, in any number of slots.

    spec = fg.BatchSpec(500, ["./work.sh", "{index}"], slot=fg.SlotSpec(cpu_milli=250))
    async with fg.connect() as cluster:
        outcome = await fg.BatchJob(cluster, spec, results_dir="results").run()
        outcome.check()

Guarantees: every command runs *at least once*, and every thread of work has *exactly one* result.
This holds even if processes are killed or a command runs twice. See docs/batch.md.
"""

from finegrain_client.batch.job import LEASE_DEFAULT_S, BatchJob
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.status import (
    BatchStatus,
    default_folder,
    default_state_file,
    read_status,
    read_thread_results,
    state_files,
)
from finegrain_client.batch.values import (
    BatchFailed,
    BatchOutcome,
    BatchState,
    Estimate,
    Progress,
    ThreadResult,
    ThreadState,
)

__all__ = [
    "LEASE_DEFAULT_S",
    "BatchFailed",
    "BatchJob",
    "BatchOutcome",
    "BatchSpec",
    "BatchState",
    "BatchStatus",
    "Estimate",
    "Progress",
    "ThreadResult",
    "ThreadState",
    "default_folder",
    "default_state_file",
    "read_status",
    "read_thread_results",
    "state_files",
]
