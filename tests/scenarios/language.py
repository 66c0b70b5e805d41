"""The language of the stories: one command per line, `name subject... key=value... flag...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from finegrain.errors import FinegrainError
from finegrain.resources import MIB, Amounts, ResourceProfile
from resource_manager.engine.explain.lists import list_executors, list_requests, list_slots
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.entities import GangPlacement, GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    DrainRequested,
    ExecutorProbed,
    ExecutorRegistered,
    ForgetRequested,
    ItemOutcome,
    JobEndRequested,
    JobKeptAlive,
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
    ResizeRequested,
    SlotsReleased,
    UndrainRequested,
)
from resource_manager.engine.model.settings import EngineSettings, Fairness
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor, OnTheWire
from tests.scenarios import render
from tests.scenarios.cpus import CpuCommands, cpu_policy, machine_of
from tests.scenarios.elastic import ElasticCommands
from tests.scenarios.fairness import FairnessCommands
from tests.scenarios.holding import HoldingCommands
from tests.scenarios.ranges import RangeCommands
from tests.scenarios.words import Words

HEARTBEAT_MS = 3_000
SETTLE_ROUNDS_MAX = 1_000
FAIR = [each.name for each in fields(Fairness)]


class Stage(CpuCommands, ElasticCommands, FairnessCommands, HoldingCommands, RangeCommands):
    """A cluster that obeys command lines and tells what came out."""

    def __init__(self) -> None:
        self.cluster = ModelCluster()
        self.held: dict[str, object] = {}
        self.copy = self.cluster.store.database.tables

    @classmethod
    def commands(cls) -> list[str]:
        return sorted(name[3:].replace("_", "-") for name in dir(cls) if name.startswith("do_"))

    def run(self, line: str) -> list[str]:
        if line.startswith("#"):
            return []
        words = Words(line)
        command: Callable[[Words], Iterator[str]] = getattr(
            self, "do_" + words.name.replace("-", "_")
        )
        try:
            output = list(command(words))
        except FinegrainError as error:
            self.cluster.effects = []
            return [f"error {error.reason}: {error}"]
        assert not words.values, f"not understood in '{line}': {words.values}"
        return output

    # The stage itself.

    def do_settings(self, words: Words) -> Iterator[str]:
        numbers: dict[str, Any] = {
            name: int(v) if v.isdigit() else v for name, v in words.values.items()
        }
        words.values.clear()
        fair: dict[str, Any] = {name: numbers.pop(name) for name in FAIR if name in numbers}
        fair = {name: None if value == "none" else value for name, value in fair.items()}
        fairness = replace(Fairness(), **fair)
        self.cluster = ModelCluster(replace(EngineSettings(), fairness=fairness, **numbers))
        yield from ()

    def do_restart_rm(self, words: Words) -> Iterator[str]:
        self.cluster.restart_rm(words.number("epoch") or None)
        yield from ()

    def do_copy_books(self, words: Words) -> Iterator[str]:
        self.copy = self.cluster.store.database.tables.copy()
        yield from ()

    def do_put_books_back(self, words: Words) -> Iterator[str]:
        """As copying files does, behind the back of a stopped RM."""
        self.cluster.store.database.tables = self.copy.copy()
        yield from ()

    def do_wait(self, words: Words) -> Iterator[str]:
        """Time passes in heartbeats; those named stay silent."""
        silent = words.names("silent")
        left = words.milliseconds(words.subjects[0])
        while left > 0:
            self.cluster.wait(min(left, HEARTBEAT_MS))
            yield from self._effects()
            left -= HEARTBEAT_MS
            for executor in self.cluster.executors.values():
                if executor.executor_id not in silent and executor.registration_number:
                    self.cluster.report(executor)
                    yield from self._effects()
            for job_id, job in list(self.cluster.state.jobs.items()):
                if job_id not in silent and job.state == "ACTIVE":
                    self.cluster.batch(JobKeptAlive(self.cluster.at, job_id))

    # Job masters.

    def do_job(self, words: Words) -> Iterator[str]:
        lease = None if words.flag("detached") else words.number("lease", 30) * 1_000
        group = words.values.pop("group", "default")
        for name in words.subjects:
            event = JobRegistered(self.cluster.at, name, name, group, lease, "s", "r")
            self.cluster.batch(event)
        yield from self._effects()

    def do_request(self, words: Words) -> Iterator[str]:
        cpu, mem = words.number("cpu"), words.number("mem")
        job_id, extended = words.values.pop("job", "job"), words.extended()
        specs = [
            RequestSpec(
                "",
                None if not cpu else ResourceProfile(cpu, mem * MIB, extended=extended),
                cpu_limit_milli=words.number("cpu_limit"),
                required_labels=words.labels(),
                allow_pending=words.flag("allow_pending"),
                restart_on_loss=words.flag("restart"),
                cpu_policy=cpu_policy(words),
            )
        ]
        requests = tuple(replace(specs[0], allocation_id=name) for name in words.subjects)
        yield from self._items(
            self.cluster.batch(RequestsSubmitted(self.cluster.at, job_id, requests))
        )

    def do_gang(self, words: Words) -> Iterator[str]:
        """One call with all members of a gang; NAME:CPU:MEM is one that asks for something else."""
        timeout = words.values.pop("timeout", "")
        allow_pending, restart = words.flag("allow_pending"), words.flag("restart")
        gang_id, *names = words.subjects
        gang = GangSpec(
            gang_id,
            GangPlacement(words.values.pop("placement", "ANYWHERE")),
            words.values.pop("label", ""),
            words.milliseconds(timeout) if timeout else None,
        )
        common = RequestSpec(
            "",
            None,
            required_labels=words.labels(),
            allow_pending=allow_pending,
            restart_on_loss=restart,
            gang_id=gang_id,
            cpu_policy=cpu_policy(words),
        )
        cpu, mem = words.number("cpu"), words.number("mem")
        requests = []
        for name in names:
            allocation_id, *own = name.split(":")
            amounts = [int(amount) for amount in own] or [cpu, mem]
            profile = ResourceProfile(amounts[0], amounts[1] * MIB) if amounts[0] else None
            requests.append(replace(common, allocation_id=allocation_id, profile=profile))
        job_id = words.values.pop("job", "job")
        event = RequestsSubmitted(self.cluster.at, job_id, tuple(requests), gangs=(gang,))
        yield from self._items(self.cluster.batch(event))

    def do_request_mixed(self, words: Words) -> Iterator[str]:
        known, unknown = words.subjects
        requests = (
            RequestSpec(known, ResourceProfile(1_000, 256 * MIB)),
            RequestSpec(unknown, None),
        )
        yield from self._items(
            self.cluster.batch(RequestsSubmitted(self.cluster.at, "job", requests))
        )

    def do_cancel(self, words: Words) -> Iterator[str]:
        job_id = words.values.pop("job", "job")
        event = RequestsCancelled(self.cluster.at, job_id, tuple(words.subjects))
        yield from self._items(self.cluster.batch(event))

    def do_release(self, words: Words) -> Iterator[str]:
        job_id = None if words.flag("operator") else words.values.pop("job", "job")
        generation = words.number("generation")
        slots = tuple((name, generation) for name in words.subjects)
        yield from self._items(self.cluster.batch(SlotsReleased(self.cluster.at, job_id, slots)))

    def do_resize(self, words: Words) -> Iterator[str]:
        """The whole of what a slot is to have; an answer that says something new is told."""
        job_id = None if words.flag("operator") else words.values.pop("job", "job")
        wait = words.flag("wait")
        extended = words.extended()
        event = ResizeRequested(
            self.cluster.at,
            job_id,
            words.subjects[0],
            words.number("generation"),
            words.number("number"),
            ResourceProfile(words.number("cpu"), words.number("mem") * MIB, extended=extended),
            words.number("cpu_limit"),
            wait_for_use=wait,
        )
        slot = self.cluster.batch(event)
        yield f"change {slot.resize_number}{render.changes(slot)}"
        yield from self._effects()

    def do_end(self, words: Words) -> Iterator[str]:
        self.cluster.batch(JobEndRequested(self.cluster.at, words.subjects[0], "ENDED"))
        yield from self._effects()

    # Executors and the network.

    def do_host(self, words: Words) -> Iterator[str]:
        total: Amounts = {
            "cpu_milli": words.number("cpu"),
            "memory_bytes": words.number("mem") * MIB,
            "extended.license": words.number("licenses"),
        }
        topology = host_cpus = "{}"
        if "machine" in words.values:
            total, topology, host_cpus = machine_of(words)
        default = ResourceProfile(
            words.number("default_cpu", 1_000), words.number("default_mem", 256) * MIB
        )
        labels, slots_max = words.labels(), words.number("slots_max")
        for name in words.subjects:
            executor = ModelExecutor(
                name,
                {dimension: amount for dimension, amount in total.items() if amount},
                default,
                labels=labels,
                slots_max=slots_max,
                topology=topology,
                host_cpus=host_cpus,
            )
            self.cluster.executors[name] = executor
            yield from self._register(executor)

    def do_register(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        executor.instance_id = words.values.pop("instance", executor.instance_id)
        yield from self._register(executor)

    def do_reboot(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        executor.instance_id = words.values.pop("instance", executor.instance_id)
        executor.slots.clear()
        yield from self._register(executor)

    def do_registration(self, words: Words) -> Iterator[str]:
        yield f"registration {self._executor(words).registration_number} of {words.subjects[0]}"

    def do_hold_registration(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        self.held[executor.executor_id] = ExecutorRegistered(
            self.cluster.at, executor.registration(), executor.report()
        )
        yield from ()

    def do_late_registration(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        answer = self.cluster.batch(self.held.pop(executor.executor_id))  # type: ignore[arg-type]
        executor.registered(answer, self.cluster.state.rm_epoch)
        yield from render.unowned(executor.executor_id, answer.unowned)
        yield from self._effects()

    def do_deliver(self, words: Words) -> Iterator[str]:
        self.cluster.deliver(self._sent(words.subjects[0]))
        yield from self._effects()

    def do_settle(self, words: Words) -> Iterator[str]:
        """Everything on the wire arrives and is answered, and so on until nothing is left."""
        for _ in range(SETTLE_ROUNDS_MAX):
            if not self.cluster.wire:
                return
            self.cluster.deliver(self.cluster.wire[0])
            yield from self._effects()
        raise AssertionError("something is ordered again and again: a livelock?")

    def do_lose(self, words: Words) -> Iterator[str]:
        self.cluster.fail(self._sent(words.subjects[0]))
        yield from self._effects()

    def do_probe(self, words: Words) -> Iterator[str]:
        """The RM hears what became of dialling an executor: it answers, or not."""
        failed = words.flag("fails")
        executor = self._executor(words)
        address = executor.registration().address
        event = ExecutorProbed(
            self.cluster.at, executor.executor_id, address, "connection refused" if failed else ""
        )
        self.cluster.batch(event)
        yield from self._effects()

    def do_lose_answer(self, words: Words) -> Iterator[str]:
        self.cluster.deliver(self._sent(words.subjects[0]), lose_answer=True)
        yield from self._effects()

    def do_execute(self, words: Words) -> Iterator[str]:
        """The command arrives, its answer is still under way."""
        sent = self._sent(words.subjects[0])
        self._executor(words).execute(sent.command, self.cluster.at, sent.rm_epoch)
        yield from ()

    def do_report(self, words: Words) -> Iterator[str]:
        unchanged = words.flag("unchanged")
        executor = self._executor(words)
        if not unchanged:
            yield from self._report(executor)
            return
        event = replace(self.cluster.report_of(executor), report=executor.short_report())
        yield from self._report(executor, event)

    def do_hold_report(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        self.held[executor.executor_id] = self.cluster.report_of(executor)
        yield from ()

    def do_late_report(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        yield from self._report(executor, self.held.pop(executor.executor_id))

    def do_set(self, words: Words) -> Iterator[str]:
        """What only the executor knows: what else uses its cpus, what it cannot carve, its pace."""
        executor = self._executor(words)
        if "hidden_cpu" in words.values:
            cpu = words.number("hidden_cpu")
            executor.hidden = {"cpu_milli": cpu} if cpu else {}
        if "cpu" in words.values:
            executor.total = {**executor.total, "cpu_milli": words.number("cpu")}
        if "broken" in words.values:
            executor.broken = set(words.names("broken")) - {"none"}
        for use in words.names("used"):
            name, mib = use.split(":")
            executor.used[name] = int(mib) * MIB
        executor.frees_slowly = words.flag("frees_slowly")
        yield from ()

    def do_ends(self, words: Words) -> Iterator[str]:
        """A slot ends by itself; the next report says so."""
        name, generation = words.values.pop("slot"), words.number("generation", 1)
        self._executor(words).end((name, generation), words.values.pop("reason"))
        yield from ()

    def do_comes_down(self, words: Words) -> Iterator[str]:
        """A slot is taken down without an order."""
        executor = self._executor(words)
        executor.free((words.values.pop("slot"), words.number("generation", 1)))
        yield from ()

    def do_gone(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        executor.finish_frees()
        yield from self._report(executor)

    # Operators.

    def do_drain(self, words: Words) -> Iterator[str]:
        deadline = words.values.pop("deadline", None)
        reason = words.values.pop("reason", "")
        ms = words.milliseconds(deadline) if deadline is not None else None
        self.cluster.batch(DrainRequested(self.cluster.at, words.subjects[0], reason, ms))
        yield from self._effects()

    def do_undrain(self, words: Words) -> Iterator[str]:
        self.cluster.batch(UndrainRequested(self.cluster.at, words.subjects[0]))
        yield from self._effects()

    def do_forget(self, words: Words) -> Iterator[str]:
        self.cluster.batch(ForgetRequested(self.cluster.at, words.subjects[0]))
        yield from self._effects()

    def do_requests(self, words: Words) -> Iterator[str]:
        for view in list_requests(self.cluster.state, limit=1_000).items:
            yield render.request(view)

    def do_slots(self, words: Words) -> Iterator[str]:
        for view in list_slots(self.cluster.state, limit=1_000).items:
            yield render.slot(view)

    def do_executors(self, words: Words) -> Iterator[str]:
        for view in list_executors(self.cluster.state, limit=1_000).items:
            yield render.executor(view)

    def do_explain(self, words: Words) -> Iterator[str]:
        executor_id = words.values.pop("executor", "")
        yield from render.explanation(explain(self.cluster.state, words.subjects[0], executor_id))

    # Helpers.

    def _executor(self, words: Words) -> ModelExecutor:
        return self.cluster.executors[words.subjects[0]]

    def _sent(self, executor_id: str) -> OnTheWire:
        return next(s for s in self.cluster.wire if s.command.executor_id == executor_id)

    def _register(self, executor: ModelExecutor) -> Iterator[str]:
        answer = self.cluster.register(executor)
        yield from render.unowned(executor.executor_id, answer.unowned)
        yield from self._effects()

    def _report(self, executor: ModelExecutor, held: object = None) -> Iterator[str]:
        answer = self.cluster.report(executor, held)  # type: ignore[arg-type]
        number = held.report.report_number if held else executor.report_number  # type: ignore[attr-defined]
        yield from render.report_answer(executor.executor_id, number, answer)
        yield from self._effects()

    def _items(self, outcomes: list[ItemOutcome]) -> Iterator[str]:
        for outcome in outcomes:
            if outcome.reason:
                yield f"refuse {outcome.id}: {outcome.reason}: {outcome.message}"
        yield from self._effects()

    def _effects(self) -> Iterator[str]:
        for effect in self.cluster.effects:
            yield from render.effect(effect)
