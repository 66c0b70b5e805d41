"""Commits one job after the other and prints each, until it is killed."""

import sys

from resource_manager.engine.model.effects import Changes
from resource_manager.storage.opening import open_store
from tests.support.books import job, job_event, request

store = open_store(sys.argv[1], lease_ms=1000)
print("epoch", store.lead("committer"), flush=True)
number = int(sys.argv[2])
while True:
    job_id = f"job-{number}"
    requests = [request(f"{job_id}.{index}", job_id) for index in range(20)]
    store.commit(
        Changes(
            [job(job_id)], requests, job_events=[job_event(1, job_id)], counters={"last": number}
        )
    )
    print(number, flush=True)
    store.maintain()
    number += 1
