"""Commands of executors and the network: registrations, reports, and commands in transit."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import MIB, Amounts, ResourceProfile
from resource_manager.engine.model.events import ExecutorProbed
from tests.scenarios import render
from tests.scenarios.commands import Commands
from tests.scenarios.cpus import machine_of
from tests.scenarios.words import Words
from tests.support.engine_cluster import FakeExecutor

DELIVERIES_MAX = 1_000


class ExecutorCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

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
            executor = FakeExecutor(
                name,
                {dimension: amount for dimension, amount in total.items() if amount},
                default,
                labels=labels,
                slots_max=slots_max,
                topology=topology,
                host_cpus=host_cpus,
            )
            yield from self._register(executor)

    def do_register(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        executor.instance_id = words.values.pop("instance", executor.instance_id)
        yield from self._register(executor)

    def do_reboot(self, words: Words) -> Iterator[str]:
        self._executor(words).slots.clear()
        yield from self.do_register(words)

    def do_registration(self, words: Words) -> Iterator[str]:
        yield f"registration {self._executor(words).registration_number} of {words.subjects[0]}"

    def do_hold_registration(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        held = self.cluster.registration_of(executor)
        self.held_registrations[executor.executor_id] = held
        yield from ()

    def do_late_registration(self, words: Words) -> Iterator[str]:
        name = words.subjects[0]
        answer = self.cluster.deliver_registration(self.held_registrations.pop(name))
        yield from render.unowned(name, answer.unowned)
        yield from self._effects()

    def do_report(self, words: Words) -> Iterator[str]:
        unchanged = words.flag("unchanged")
        executor = self._executor(words)
        sent = self.cluster.short_report_of(executor) if unchanged else None
        yield from self._report(executor, sent)

    def do_hold_report(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        self.held_reports[executor.executor_id] = self.cluster.report_of(executor)
        yield from ()

    def do_late_report(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        yield from self._report(executor, self.held_reports.pop(executor.executor_id))

    def do_set(self, words: Words) -> Iterator[str]:
        """Sets facts that only the executor knows: hidden use, failures, memory use, slow frees."""
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
        """Ends a slot without a command. The next report contains its end."""
        self._executor(words).end(words.slot(), words.values.pop("reason"))
        yield from ()

    def do_freed(self, words: Words) -> Iterator[str]:
        """Makes the executor begin to free a slot without a command."""
        self._executor(words).free(words.slot())
        yield from ()

    def do_gone(self, words: Words) -> Iterator[str]:
        executor = self._executor(words)
        executor.finish_frees()
        yield from self._report(executor)

    # The network.

    def do_deliver(self, words: Words) -> Iterator[str]:
        self.cluster.deliver(self._sent(words))
        yield from self._effects()

    def do_settle(self, words: Words) -> Iterator[str]:
        """Delivers all commands and their answers until none is in transit."""
        for _ in range(DELIVERIES_MAX):
            if not self.cluster.wire:
                return
            self.cluster.deliver(self.cluster.wire[0])
            yield from self._effects()
        raise AssertionError("something is ordered again and again: a livelock?")

    def do_lose(self, words: Words) -> Iterator[str]:
        self.cluster.fail(self._sent(words))
        yield from self._effects()

    def do_lose_answer(self, words: Words) -> Iterator[str]:
        self.cluster.deliver(self._sent(words), lose_answer=True)
        yield from self._effects()

    def do_execute(self, words: Words) -> Iterator[str]:
        """Delivers a command; its answer stays in transit."""
        sent = self._sent(words)
        self._executor(words).execute(sent.command, self.cluster.at, sent.rm_epoch)
        yield from ()

    def do_probe(self, words: Words) -> Iterator[str]:
        """Reports to the RM whether an executor that it dialed has answered."""
        cause = "connection refused" if words.flag("fails") else ""
        executor = self._executor(words)
        address = executor.registration().address
        event = ExecutorProbed(self.cluster.at, executor.executor_id, address, cause)
        self.cluster.batch(event)
        yield from self._effects()
