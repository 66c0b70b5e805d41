"""Tests a reboot or a power cut: requests keep their place in the queue."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import finegrain_client as fg
from tests.systemd_host.machine import eventually
from tests.systemd_host.stories import ANSWER_S, cluster

MEMORY_BYTES = 64 * fg.MIB
NOTE = Path("/var/lib/finegrain/reboot-story.json")  # survives, like the state directories


def before() -> None:
    """Makes three requests, which together need more than the host. The first one is granted and
    must be lost; the second one is granted and must restart; the third one waits. Returns when all
    of this is durable, so the host may lose power at any moment.
    """
    with cluster() as each:
        (executor,) = eventually(each.executors, "the executor has registered")
        total = executor.total["cpu_milli"]
        with each.job("reboot", detached=True) as job:
            lost = fg.SlotSpec(cpu_milli=100, memory_bytes=MEMORY_BYTES)
            again = replace(lost, cpu_milli=total - 100, restart_on_loss=True)
            requests = job.request_slots([lost, again, replace(again, cpu_milli=total - 50)])
            for request in requests[:2]:
                request.granted(timeout_s=ANSWER_S).run(["sleep", "100000"])
            ids = {r.allocation_id: r.arrival_number for r in each.requests(job_id=job.job_id)}
            note = {"job_id": job.job_id, "arrival": ids}
            note["order"] = [request.allocation_id for request in requests]
            note["boot_id"] = _boot_id()
    with NOTE.open("w") as file:
        json.dump(note, file)
        file.flush()
        os.fsync(file.fileno())
    os.sync()
    print("ready for the cut", flush=True)


def after() -> None:
    """The slots are reported as lost; the request with `restart_on_loss` has its old place and gets
    a new slot.
    """
    note = json.loads(NOTE.read_text())
    assert note["boot_id"] != _boot_id(), "this host has not been restarted"
    with cluster() as each, each.attach_job(note["job_id"]) as job:
        eventually(lambda: len(job.requests) == 2, "the job's story has been told")
        lost_id, again_id, later_id = note["order"]
        again, later = _by_id(job, again_id), _by_id(job, later_id)
        eventually(lambda: again.generation == 2 and again.slot, "it is granted a second time")
        slot = again.granted(timeout_s=ANSWER_S)
        assert slot.run(["echo", "again"]).wait(ANSWER_S).check().stdout == b"again\n"
        (lost,) = each.requests(states=[fg.RequestState.LOST], allocation_ids=[lost_id])
        assert later.state is fg.RequestState.PENDING, later
        found = {r.allocation_id: r.arrival_number for r in each.requests(job_id=job.job_id)}
        for id_ in (again_id, later_id):
            assert found[id_] == note["arrival"][id_], "it has lost its place in line"
        print(f"   the other one: {lost.state} ({lost.reason})")
        slot.release()
        assert later.granted(timeout_s=ANSWER_S).run(["true"]).wait(ANSWER_S).ok
        job.end()
    NOTE.unlink()


def _by_id(job: fg.blocking.Job, allocation_id: str) -> fg.blocking.Request:
    return next(r for r in job.requests if r.allocation_id == allocation_id)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
