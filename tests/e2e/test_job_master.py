"""The work of a job master through the client, on real processes: batches, waits, losses, leases,
offers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter

import pytest

import finegrain_client as fg
from tests.e2e.driving import (
    SOON_LOST,
    Daemons,
    Small,
    eventually,
    gone,
    processes_that_name,
    slot_groups,
    unique,
)
from tests.support.patience import PATIENCE_S

MASTER = """
import asyncio, json, sys
import finegrain_client as fg

async def main():
    mark, lease_s, detached = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "detached"
    async with fg.connect() as cluster:
        async with cluster.job("master", lease_s=lease_s, detached=detached) as job:
            slots = []
            for request in await job.request_slots(fg.SlotSpec(cpu_milli=100, count=2)):
                slots.append(await request.granted())
                await slots[-1].run(["sh", "-c", f"sleep 1000; : {mark}"])
            print(job.job_id, flush=True)
            await asyncio.sleep(1000)

asyncio.run(main())
"""


def start_master(small: Small, mark: str, lease_s: float, *, detached: bool = False) -> str:
    """Starts a job master in a separate process, which gets two slots and starts a task in each.
    Kills it with kill -9 when both tasks run. Returns the job id.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", MASTER, mark, str(lease_s), "detached" if detached else ""],
        env=small.cli.environment(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    return line.decode().strip()


async def test_many_slots_of_many_sizes_in_one_batch(small: Small) -> None:
    specs = [
        fg.SlotSpec(cpu_milli=20 + index, memory_bytes=(8 + index) * fg.MIB) for index in range(25)
    ]
    async with small.connect() as cluster, cluster.job("batch") as job:
        requests = await job.request_slots(specs)
        slots = [await each.granted(PATIENCE_S) for each in requests]
        assert [slot.profile.cpu_milli for slot in slots] == [spec.cpu_milli for spec in specs]
        assert [slot.memory_bytes for slot in slots] == [spec.memory_bytes for spec in specs]
        listed = await cluster.slots(job_id=job.job_id)
        assert {each.allocation_id for each in listed} == {slot.allocation_id for slot in slots}
        where = Counter(slot.executor_id for slot in slots)
        for executor in await cluster.executors():
            assert executor.slots == where[executor.executor_id]
        tasks = [await slot.run(["sh", "-c", "echo $FINEGRAIN_ALLOCATION_ID"]) for slot in slots]
        said = [(await task.wait(PATIENCE_S)).check().stdout.decode().strip() for task in tasks]
        assert said == [slot.allocation_id for slot in slots]
        assert all(outcome.ok for outcome in await job.release(slots))


async def test_what_fits_of_a_batch_is_granted_and_the_rest_waits_its_turn(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("partly") as job:
        requests = await job.request_slots(fg.SlotSpec(cpu_milli=800, count=4))
        first = [await each.granted(PATIENCE_S) for each in requests[:2]]
        assert {slot.executor_id for slot in first} == set(small.names)
        with pytest.raises(fg.StillWaiting):
            await requests[2].granted(0.2)
        explanation = await requests[3].explain()
        assert explanation.primary_reason == fg.Reason.WAITING_CAPACITY
        assert explanation.executors_fitting == 0
        assert explanation.requests_ahead == 1
        await first[0].release()
        third = await requests[2].granted(PATIENCE_S)
        assert third.executor_id == first[0].executor_id
        with pytest.raises(fg.StillWaiting):
            await requests[3].granted(0.2)


async def test_fragments_are_told_from_want_of_capacity(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("fragments") as job:
        for each in await job.request_slots(fg.SlotSpec(cpu_milli=600, count=2)):
            await each.granted(PATIENCE_S)
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=700))
        with pytest.raises(fg.StillWaiting):
            await request.granted(0.2)
        assert (await request.explain()).primary_reason == fg.Reason.WAITING_FRAGMENTED


async def test_unknown_slots_share_a_host_as_its_default_profile_says(small: Small) -> None:
    """Each host has room for a whole number of slots of every size."""
    async with small.connect() as cluster, cluster.job("unknown") as job:
        default = (await cluster.executors())[0].default_slot_profile
        per_host = 1000 // default.cpu_milli
        requests = await job.request_slots(fg.SlotSpec(count=2 * per_host + 1))
        slots = [await each.granted(PATIENCE_S) for each in requests[:-1]]
        assert {slot.profile for slot in slots} == {default}
        assert Counter(slot.executor_id for slot in slots) == dict.fromkeys(small.names, per_host)
        with pytest.raises(fg.StillWaiting):
            await requests[-1].granted(0.3)


async def test_specified_and_unknown_requests_do_not_mix(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("mixed") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=100))
        with pytest.raises(fg.FinegrainError) as refused:
            await job.request_slots(fg.SlotSpec())
        assert refused.value.reason == fg.Reason.MIXED_KNOWN_AND_UNKNOWN
        await request.granted(PATIENCE_S)
        assert len(await cluster.requests(job_id=job.job_id)) == 1


async def test_labels_choose_the_host(small: Small) -> None:
    async with small.connect() as cluster, cluster.job("labels") as job:
        wish = fg.SlotSpec(cpu_milli=50, memory_bytes=8 * fg.MIB, labels={"zone": "b"}, count=4)
        slots = [await each.granted(PATIENCE_S) for each in await job.request_slots(wish)]
        assert {slot.executor_id for slot in slots} == {small.names[1]}
        with pytest.raises(fg.RequestRejected) as refused:
            await job.request_slots(fg.SlotSpec(cpu_milli=50, labels={"zone": "nowhere"}))
        assert "zone" in refused.value.message
        patient = fg.SlotSpec(cpu_milli=50, labels={"zone": "nowhere"}, allow_pending=True)
        (request,) = await job.request_slots(patient)
        with pytest.raises(fg.StillWaiting):
            await request.granted(0.2)


async def test_a_slot_is_offered_by_its_executor_too(small: Small) -> None:
    # A user's certificate is also valid for servers; an administrator's certificate is not.
    alice = await asyncio.to_thread(small.log_in, "user/alice")
    async with fg.connect(credentials=alice) as cluster, cluster.job("offers") as job:
        address = await job.serve_offers("127.0.0.1:0")
        spec = fg.SlotSpec(cpu_milli=50, memory_bytes=16 * fg.MIB, target_address=address, count=5)
        for request in await job.request_slots(spec):
            slot = await request.granted(PATIENCE_S)
            task = await slot.run(["echo", "offered"])
            assert (await task.wait(PATIENCE_S)).check().stdout == b"offered\n"


async def test_an_offer_that_nobody_answers_is_taken_back(daemons: Daemons) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    name = unique("e2e-offer")
    daemons.executor(name, "--offer-timeout", "500ms").start()
    daemons.await_executors(name)
    async with daemons.connect() as cluster, cluster.job("nobody home") as job:
        spec = fg.SlotSpec(cpu_milli=100, target_address="127.0.0.1:1")
        (request,) = await job.request_slots(spec)
        async for event in cluster.events(subject_id=request.allocation_id, follow=True):
            if event.reason == "OFFER_NOT_ACCEPTED":
                break


@pytest.mark.slow
def test_a_master_that_was_killed_loses_its_slots_when_its_lease_ends(small: Small) -> None:
    mark = unique("leased")
    job_id = start_master(small, mark, lease_s=6)
    assert processes_that_name(mark)
    eventually(gone(mark), "its tasks are gone")
    (job,) = small.cli.items("jobs", job_id)
    assert (job["ended"], job["end_reason"]) == (True, "LEASE_EXPIRED")
    eventually(lambda: not small.slot_groups(), "its slots are gone")


@pytest.mark.slow
async def test_a_detached_job_needs_no_master(small: Small) -> None:
    mark = unique("detached")
    job_id = start_master(small, mark, lease_s=1, detached=True)
    async with small.connect() as cluster:
        async with cluster.attach_job(job_id) as job:
            assert len(job.requests) == 2
            assert [await each.granted(PATIENCE_S) for each in job.requests]
        assert len(processes_that_name(mark)) >= 2
        other = await asyncio.to_thread(small.log_in, "user/eve")
        with pytest.raises(fg.PermissionDenied) as refused:
            async with (
                fg.connect(small.cluster.address, credentials=other) as others,
                others.attach_job(job_id),
            ):
                pass
        assert refused.value.reason == fg.Reason.NOT_OWNER
        async with cluster.attach_job(job_id) as job:
            await job.end(grace_s=0)
    eventually(gone(mark), "its tasks are gone")


@pytest.mark.slow
async def test_a_slot_whose_executor_dies_is_placed_again(daemons: Daemons) -> None:
    daemons.manager.start(*SOON_LOST)
    daemons.manager.endpoint()
    names = [unique("e2e-first"), unique("e2e-second")]
    executors = {name: daemons.executor(name) for name in names}
    executors[names[0]].start()
    daemons.await_executors(names[0])
    async with daemons.connect() as cluster, cluster.job("stubborn") as job:
        specs = [
            fg.SlotSpec(cpu_milli=100, restart_on_loss=restart, memory_bytes=16 * fg.MIB)
            for restart in (True, False)
        ]
        requests = await job.request_slots(specs)
        stubborn, given_up = [await each.granted(PATIENCE_S) for each in requests]
        task = await given_up.run(["sleep", "1000"])
        executors[names[1]].start()
        daemons.await_executors(*names)
        executors[names[0]].kill()
        with pytest.raises(fg.SlotLost):
            await task.wait(PATIENCE_S)
        assert given_up.error is not None
        assert given_up.error.reason == fg.Reason.EXECUTOR_LOST
        await stubborn.lost.wait()
        again = await requests[0].granted(PATIENCE_S)
        assert (again.executor_id, again.generation) == (names[1], 2)
        assert (await (await again.run(["echo", "on"])).wait(PATIENCE_S)).check().stdout == b"on\n"
        executors[names[0]].start()
        daemons.await_executors(*names)
        eventually(lambda: not slot_groups(names[0]), "what nobody owns any more is freed")
        with daemons.cli.client() as check:
            eventually(
                lambda: all(
                    each.available == each.total
                    for each in check.executors()
                    if each.executor_id == names[0]
                ),
                "the executor that came back has everything",
            )


async def test_countable_resources_are_counted(daemons: Daemons) -> None:
    daemons.manager.start()
    daemons.manager.endpoint()
    name = unique("e2e-licences")
    daemons.executor(name, "--resource", "licence=2").start()
    daemons.await_executors(name)
    async with daemons.connect() as cluster, cluster.job("licences") as job:
        spec = fg.SlotSpec(cpu_milli=50, memory_bytes=8 * fg.MIB, extended={"licence": 1}, count=3)
        requests = await job.request_slots(spec)
        slots = [await each.granted(PATIENCE_S) for each in requests[:2]]
        with pytest.raises(fg.StillWaiting):
            await requests[2].granted(0.3)
        explanation = await requests[2].explain()
        assert "licence" in explanation.executors[0].message
        with pytest.raises(fg.RequestRejected):
            await job.request_slots(fg.SlotSpec(cpu_milli=50, extended={"licence": 3}))
        await slots[0].release()
        await requests[2].granted(PATIENCE_S)
    outcome = daemons.cli.run("--resource", "licence=2", "--", "echo", "two")
    assert (outcome.code, outcome.stdout) == (0, b"two\n")
