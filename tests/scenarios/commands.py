"""Base class of all commands of the stories: it has the cluster and prints its effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.events import ExecutorRegistered, SlotsReported
from tests.scenarios import render
from tests.scenarios.words import Words
from tests.support.engine_cluster import EngineCluster, FakeExecutor, OnTheWire


class Commands:
    """Has the cluster of a story, and messages that the story delivers later."""

    def __init__(self) -> None:
        self.cluster = EngineCluster(jobs=())
        self.held_reports: dict[str, SlotsReported] = {}
        self.held_registrations: dict[str, ExecutorRegistered] = {}

    def _executor(self, words: Words) -> FakeExecutor:
        return self.cluster.executors[words.subjects[0]]

    def _sent(self, words: Words) -> OnTheWire:
        return self.cluster.next_command(words.subjects[0])

    def _register(self, executor: FakeExecutor) -> Iterator[str]:
        answer = self.cluster.register(executor)
        yield from render.unowned(executor.executor_id, answer.unowned)
        yield from self._effects()

    def _report(self, executor: FakeExecutor, sent: SlotsReported | None = None) -> Iterator[str]:
        answer = self.cluster.report(executor, sent)
        number = sent.report.report_number if sent else executor.report_number
        yield from render.report_answer(executor.executor_id, number, answer)
        yield from self._effects()

    def _items(self, outcomes: Iterable[ItemOutcome]) -> Iterator[str]:
        for outcome in outcomes:
            if outcome.reason:
                yield f"refuse {outcome.id}: {outcome.reason}: {outcome.message}"
        yield from self._effects()

    def _effects(self) -> Iterator[str]:
        for effect in self.cluster.effects:
            yield from render.effect(effect)
