"""Implements the demo's job master, which counts words in real files with the public client.

Map tasks run in slots of many sizes. Reduce tasks read the output of map tasks from standard input.
The demo also shows the explanation of a waiting request, and a drained executor. It shows a task
that exceeds the memory of its slot, and a slot with a dedicated cpu. Two slots share a fake GPU,
and another slot has two fake GPUs and a fake NIC near them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import finegrain_client as fg
from finegrain.cpuset import CpuSet
from finegrain_cli.demo.program import Program
from finegrain_cli.demo.report import DemoLog
from finegrain_cli.text.executor_map import executor_text
from finegrain_cli.text.explanation import explanation_text

MAPS = 16
REDUCES = 3
GRANT_TIMEOUT_S = 20.0
PRINT_AFFINITY = "import os; print(*sorted(os.sched_getaffinity(0)), sep=',')"
PRINT_DEVICES = "import os; print(os.environ['FINEGRAIN_DEVICES'])"
EAT_MEMORY = "held = []\nwhile True: held.append(bytearray(1 << 20))"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Input of the job. `share_milli` is the CPU of each executor, in thousandths of a core."""

    program: Program
    share_milli: int
    steady_executor: str
    drained_executor: str
    dedicated_cpus: bool = False  # True if executors have whole cpus, to which slots can be pinned

    @property
    def map_specs(self) -> list[fg.SlotSpec]:
        """The slots of the map tasks, in 16 sizes. A slot has 4 to 11.5 % of an executor's cpu, and
        32 to 62 MiB.

        All slots together need more than the capacity of one executor.
        """
        return [
            fg.SlotSpec(
                cpu_milli=self.share_milli * (40 + 5 * index) // 1000,
                memory_bytes=(32 + 2 * index) * fg.MIB,
            )
            for index in range(MAPS)
        ]

    def chunks(self) -> list[list[str]]:
        """Returns the files of each map task."""
        return [[str(path) for path in self.program.files[index::MAPS]] for index in range(MAPS)]


async def count_words(cluster: fg.Cluster, plan: DemoPlan, log: DemoLog) -> Counter[str]:
    """Runs the whole demo, and returns the counts of words."""
    async with cluster.job("wordcount") as job:
        slots = await _carve(job, plan, log)
        tasks = [
            await slot.run([plan.program.python, plan.program.script, "map", str(REDUCES), *chunk])
            for slot, chunk in zip(slots, plan.chunks(), strict=True)
        ]
        # This request needs more capacity than is free now. So it waits until map tasks have ended.
        big = await _waiting_request(job, plan, log)
        await cluster.drain(plan.drained_executor, reason="demo")
        log.progress(
            f"drained {plan.drained_executor}: its tasks continue, and it gets no new slots"
        )
        lines = await _finish_maps(slots, tasks, log)
        slot = await big.granted(GRANT_TIMEOUT_S)
        log.progress(f"capacity became free, and the waiting request got {_where(slot)}")
        log.expect(
            slot.executor_id == plan.steady_executor, "a new slot was placed on a drained executor"
        )
        await slot.release()
        words = await _reduce(job, plan, lines, log)
        await _exceed_memory_limit(job, plan, log)
        await _dedicated_cpu(cluster, job, plan, log)
        await _shared_and_joint_devices(cluster, job, plan, log)
    await cluster.undrain(plan.drained_executor)
    log.progress(f"undrained {plan.drained_executor}")
    return words


async def _carve(job: fg.Job, plan: DemoPlan, log: DemoLog) -> list[fg.Slot]:
    requests = await job.request_slots(plan.map_specs)
    slots = [await request.granted(GRANT_TIMEOUT_S) for request in requests]
    homes = Counter(slot.executor_id for slot in slots)
    spread = ", ".join(f"{count} on {home}" for home, count in sorted(homes.items()))
    log.progress(f"carved {len(slots)} slots of {len(slots)} sizes: {spread}")
    for slot, spec in zip(slots, plan.map_specs, strict=True):
        log.expect(
            slot.profile.cpu_milli == spec.cpu_milli and slot.memory_bytes == spec.memory_bytes,
            f"slot {slot.allocation_id} differs from its request",
        )
    return slots


async def _waiting_request(job: fg.Job, plan: DemoPlan, log: DemoLog) -> fg.Request:
    (request,) = await job.request_slots(
        fg.SlotSpec(cpu_milli=plan.share_milli * 8 // 10, memory_bytes=64 * fg.MIB)
    )
    try:
        await request.granted(0.3)
        log.expect(False, "the request that should wait was granted at once")
    except fg.StillWaiting:
        explanation = await request.explain()
        log.progress("one more request must wait; finegrain explain prints:")
        for line in explanation_text(explanation).splitlines():
            log.progress("  " + line)
        log.expect(explanation.executors_fitting == 0, "explain says that it fits")
        log.expect(bool(explanation.would_fit_if), "explain names no change that would fit")
    return request


async def _finish_maps(
    slots: Sequence[fg.Slot], tasks: Sequence[fg.Task], log: DemoLog
) -> list[str]:
    """Waits for the map tasks, and releases each slot when its task ends. Returns all output
    lines.
    """

    async def finish(index: int) -> list[str]:
        result = (await tasks[index].wait()).check()
        log.record(f"map {index}", slots[index], result)
        done = sum(each.what.startswith("map") for each in log.records)
        if done % 4 == 0:
            log.progress(f"maps done: {done}/{len(tasks)}")
        await slots[index].release()
        return result.stdout.decode().splitlines()

    outputs = await asyncio.gather(*(finish(index) for index in range(len(tasks))))
    return [line for output in outputs for line in output]


async def _reduce(job: fg.Job, plan: DemoPlan, lines: list[str], log: DemoLog) -> Counter[str]:
    requests = await job.request_slots(
        [
            fg.SlotSpec(
                cpu_milli=plan.share_milli * (200 + 50 * part) // 1000,
                memory_bytes=(48 + 8 * part) * fg.MIB,
            )
            for part in range(REDUCES)
        ]
    )

    async def reduce(part: int) -> Counter[str]:
        slot = await requests[part].granted(GRANT_TIMEOUT_S)
        log.expect(slot.executor_id == plan.steady_executor, "a reduce ran on a drained executor")
        # Each map task wrote REDUCES lines: one line for each part. So every REDUCES-th line
        # belongs to this part.
        data = "\n".join(lines[part::REDUCES]).encode()
        task = await slot.run([plan.program.python, plan.program.script, "reduce"], stdin=data)
        result = log.record(f"reduce {part}", slot, (await task.wait()).check())
        await slot.release()
        return Counter(json.loads(result.stdout))

    words: Counter[str] = Counter()
    for part in await asyncio.gather(*(reduce(part) for part in range(REDUCES))):
        words.update(part)
    log.progress(f"reduced: {words.total()} words, {len(words)} different ones")
    return words


async def _exceed_memory_limit(job: fg.Job, plan: DemoPlan, log: DemoLog) -> None:
    """Shows a task that exceeds its slot's memory. Only this task is killed, and its result has the
    reason.
    """
    (request,) = await job.request_slots(
        fg.SlotSpec(cpu_milli=plan.share_milli // 2, memory_bytes=40 * fg.MIB)
    )
    slot = await request.granted(GRANT_TIMEOUT_S)
    if slot.isolation is None or slot.isolation.memory != "hard":
        log.progress(
            "memory limits are not enforced on this host: skipped the task that exceeds its memory"
        )
        return
    task = await slot.run([plan.program.python, "-c", EAT_MEMORY])
    result = log.record("memory hog", slot, await task.wait())
    log.progress("a task used more memory than its slot has: it " + result.how)
    log.expect(result.oom_killed, "the memory limit did not hold")
    await slot.release()


async def _dedicated_cpu(cluster: fg.Cluster, job: fg.Job, plan: DemoPlan, log: DemoLog) -> None:
    """Shows a pinned slot. Only the slot's tasks and best-effort tasks run on the slot's cpu."""
    if not plan.dedicated_cpus:
        log.progress("this host has too few cpus to dedicate one: skipped the pinned slot")
        return
    (request,) = await job.request_slots(
        fg.SlotSpec(cpu_milli=1000, memory_bytes=64 * fg.MIB, qos="LSR", cpu_bind="FullPCPUs")
    )
    slot = await request.granted(GRANT_TIMEOUT_S)
    task = await slot.run([plan.program.python, "-c", PRINT_AFFINITY])
    result = log.record("pinned", slot, (await task.wait()).check())
    seen = CpuSet.parse(result.stdout.decode())
    log.progress(f"a slot has the dedicated cpu {slot.cpus} (LSR); its task sees cpu {seen}")
    if slot.isolation is None or slot.isolation.cpuset == "none":
        log.progress("  this host books the cpu for the slot, but does not enforce it")
    else:
        log.expect(seen == CpuSet.parse(slot.cpus), "a pinned task may run on other cpus")
    executor = await cluster.executor(slot.executor_id)
    log.progress("finegrain topo draws:")
    drawn = executor_text(executor.to_dict(), await cluster.topology(slot.executor_id))
    for line in drawn.splitlines():
        log.progress("  " + line)
    await slot.release()


def _where(slot: fg.Slot) -> str:
    return f"a slot on {slot.executor_id}"


async def _shared_and_joint_devices(
    cluster: fg.Cluster, job: fg.Job, plan: DemoPlan, log: DemoLog
) -> None:
    """Shows two slots that share a GPU, and a slot with two GPUs and the NIC at their switch."""
    listed = await cluster.devices(plan.steady_executor)
    near = {each.device.uuid: each.device.pcie_group for one in listed for each in one.devices}
    if not near:
        log.progress("this executor offers no devices: skipped the slots with GPUs")
        return
    size = fg.SlotSpec(cpu_milli=plan.share_milli // 10, memory_bytes=32 * fg.MIB)
    hint = fg.DeviceHint(type="rdma", near="gpu")
    requests = await job.request_slots(
        [
            replace(size, devices={"gpu": 50}),
            replace(size, devices={"gpu": 50}),
            replace(size, devices={"gpu": 200, "rdma": 100}, device_hints=(hint,)),
        ]
    )
    slots = [await each.granted(GRANT_TIMEOUT_S) for each in requests]
    found = []
    for slot in slots:
        task = await slot.run([plan.program.python, "-c", PRINT_DEVICES])
        result = log.record("devices", slot, (await task.wait()).check())
        found.append(json.loads(result.stdout))
    first, second, joint = ([each["uuid"] for each in devices] for devices in found)
    names = [[f"{each['type']}{each['minor']}" for each in devices] for devices in found]
    log.progress(f"two slots share {names[0][0]} (fake), half each; nothing enforces the halves")
    log.expect(first == second, "the two halves are on different GPUs")
    log.progress(f"one slot has {', '.join(names[2])}: GPUs joined by NVLink, and a NIC near them")
    log.expect(len(joint) == 3 and first[0] not in joint, "a shared GPU was given as a whole one")
    nics = {near[each["uuid"]] for each in found[2] if each["type"] == "rdma"}
    gpus = {near[each["uuid"]] for each in found[2] if each["type"] == "gpu"}
    log.expect(nics <= gpus, "the NIC is at another PCIe switch than the GPUs")
    for slot in slots:
        await slot.release()
