"""One run against a real cluster: attackers, an honest caller beside them, and the verdict."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import finegrain_client as fg
from finegrain.credentials import write_credentials
from finegrain.ids import new_id
from tests.fuzz.calls import FAILURES_MAX, Caller, Figures
from tests.fuzz.messages import Messages
from tests.fuzz.raw import RawCaller
from tests.fuzz.targets import Targets, path_of

CALLERS = 6
PROBE_INTERVAL_S = 0.5
PROBE_TIME_MAX_S = 60.0
GROWTH_MAX = 256 << 20
"""Maximum growth of a daemon's memory, compared with its memory after the first calls."""
SETTLED = 0.25  # part of the run after which memory is compared
TRACE_LINES = 12
GONE = "grpc._cython.cygrpc.ExecuteBatchError"
"""What gRPC itself prints when a caller has left before it could read its refusal."""
BAD_WORDS = ("Traceback", "call_failed", '"level": "critical"', "Fatal Python error")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Verdict:
    """What a run has found.

    Attributes:
        figures: calls and answers.
        seconds: how long it took.
        raw: connections with garbage.
        probe_s: the longest time that an honest call took.
        memory: bytes at the start, after a quarter and at the end, by daemon.
        failures: events that must not happen; empty: the run has passed.
    """

    figures: Figures
    seconds: float = 0.0
    raw: int = 0
    probe_s: float = 0.0
    memory: dict[str, list[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Returns the report."""
        calls, statuses = self.figures.calls, self.figures.statuses
        answers = ", ".join(f"{name} {count}" for name, count in statuses.most_common())
        methods, callers = ({each[n] for each in calls} for n in (0, 1))
        least = min(calls.values(), default=0)
        lines = [
            f"{sum(calls.values())} calls in {self.seconds:.0f} s",
            f"{len(methods)} methods, {len(callers)} kinds of callers, at least {least} calls each",
            f"answers: {answers}",
            f"{self.raw} connections with garbage",
            f"longest honest call: {self.probe_s:.2f} s",
            *(
                f"memory of {name}: " + " -> ".join(f"{each >> 20} MiB" for each in found)
                for name, found in self.memory.items()
            ),
        ]
        return "\n".join([*lines, *(f"FAILED: {each}" for each in self.failures)])


def known_values(targets: Targets) -> dict[str, list[Any]]:
    """Returns values of fields, by name of the field or a part of it."""
    ids = [f"job-{number}" for number in range(8)]
    executor = targets.executor_id
    return {
        "job_id": ids,
        "allocation_id": [f"slot-{number}" for number in range(8)],
        "task_id": [f"task-{number}" for number in range(8)],
        "executor_id": [executor, executor, "fuzz-1"],
        "request_id": [new_id() for _ in range(4)],
        "instance_id": [new_id() for _ in range(3)],
        "name": ["a", "b", "default", "license", "user/mallory"],
        "group": ["default", "critical", "batch"],
        "identity": ["user/mallory", "executor/fuzz-2"],
        "role": ["user", "viewer", "operator"],
        "argv": ["true", "cat", "-"],
        "address": ["127.0.0.1:1", "127.0.0.1:9"],
        "generation": [1, 2],
        "cpu_milli": [10, 100, 500, 1000],
        "cpu_limit_milli": [100, 1000, -1],
        "memory": [64 << 20, 128 << 20],
        "bytes": [4 << 20, 64 << 20],
        "epoch": [1, 2, 3],
        "number": [0, 1, 2, 3],
        "signal": [10, 12],
        "user": ["", "nobody"],
        "cwd": ["", "/"],
    }


async def attack(targets: Targets, seconds: float, seed: int) -> Verdict:
    """Attacks all ports, and returns what was found."""
    figures = Figures()
    verdict = Verdict(figures)
    loop = asyncio.get_running_loop()
    started, ends_at = time.monotonic(), loop.time() + seconds
    known = known_values(targets)
    trusted = next(iter(targets.who.values())).authorities
    callers = [
        Caller(targets, Messages(random.Random(f"{seed} {n}"), known), f"{seed} {n}", figures)
        for n in range(CALLERS)
    ]
    raw = [
        RawCaller(target, shown, trusted, f"{seed} {target.name} {who}")
        for target in targets.all
        for who, shown in (("user", targets.who["user/fuzz"]), ("stranger", None))
    ]
    pids = {target.pid: target.name for target in targets.all if target.name != "join port"}
    verdict.memory = {name: [resident_bytes(pid)] for pid, name in pids.items()}
    probe = asyncio.create_task(_probe(targets, verdict))
    middle = asyncio.create_task(_measure_at(seconds * SETTLED, pids, verdict))
    try:
        await asyncio.gather(
            *(each.run(ends_at) for each in callers), *(each.run(ends_at) for each in raw)
        )
    finally:
        for task in (probe, middle):
            task.cancel()
        await asyncio.gather(probe, middle, return_exceptions=True)
    _measure(pids, verdict)
    verdict.raw = sum(sum(each.sent.values()) for each in raw)
    verdict.seconds = time.monotonic() - started
    _judge(targets, verdict)
    return verdict


def resident_bytes(pid: int) -> int:
    """Returns the memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _measure(pids: dict[int, str], verdict: Verdict) -> None:
    for pid, name in pids.items():
        verdict.memory[name].append(resident_bytes(pid))


async def _measure_at(seconds: float, pids: dict[int, str], verdict: Verdict) -> None:
    await asyncio.sleep(seconds)
    _measure(pids, verdict)


async def _probe(targets: Targets, verdict: Verdict) -> None:
    """Makes honest calls beside the attack, on new connections, and takes their time."""
    folder = targets.local.state_dir / "fuzz"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / "probe.credentials"
    write_credentials(file, targets.who["operator/fuzz"])
    while True:
        began = time.monotonic()
        try:
            async with fg.connect(
                targets.local.address, credentials=file, budget_s=PROBE_TIME_MAX_S
            ) as cluster:
                await cluster.info()
        except fg.FinegrainError as error:
            verdict.failures.append(f"an honest call failed: {error}")
        verdict.probe_s = max(verdict.probe_s, time.monotonic() - began)
        await asyncio.sleep(PROBE_INTERVAL_S)


def _judge(targets: Targets, verdict: Verdict) -> None:
    verdict.failures += verdict.figures.failures
    if ended := targets.local.ended():
        verdict.failures.append(f"a daemon has ended: {ended}")
    for name, bytes_ in verdict.memory.items():
        if bytes_[-1] - min(bytes_[1:]) > GROWTH_MAX:
            verdict.failures.append(f"the memory of {name} grew without end")
    for name, lines in targets.logs():
        for number, line in enumerate(lines):
            if any(each in line for each in BAD_WORDS) and len(verdict.failures) < FAILURES_MAX:
                trace = lines[number : number + TRACE_LINES]
                if GONE in "".join(trace[:5]):
                    continue
                found = "\n".join(each[:1500] for each in trace)
                verdict.failures.append(f"log of {name}: {found}")
    for target in targets.all:
        for method in target.methods:
            if not any(path == path_of(method) for path, _ in verdict.figures.calls):
                verdict.failures.append(f"{path_of(method)} was never called")
