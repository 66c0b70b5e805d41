"""Commands about ranges: many equal requests that differ in their index only."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    ItemOutcome,
    Members,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
)
from tests.resource_manager.engine.model import ModelCluster
from tests.scenarios.cpus import cpu_policy
from tests.scenarios.words import Words


class RangeCommands:
    """Part of the stage; the rest is in language.py."""

    cluster: ModelCluster

    def _items(self, outcomes: list[ItemOutcome]) -> Iterator[str]:
        raise NotImplementedError

    def do_range(self, words: Words) -> Iterator[str]:
        """So many equal requests, from an index on."""
        cpu, mem = words.number("cpu"), words.number("mem")
        spec = RequestSpec(
            words.subjects[0],
            ResourceProfile(cpu, mem * MIB) if cpu else None,
            required_labels=words.labels(),
            allow_pending=words.flag("allow_pending"),
            restart_on_loss=words.flag("restart"),
            cpu_policy=cpu_policy(words),
        )
        asked = RangeSpec(spec, words.number("first"), words.number("count", 1))
        job_id = words.values.pop("job", "job")
        event = RequestsSubmitted(self.cluster.at, job_id, (), ranges=(asked,))
        yield from self._items(self.cluster.batch(event))

    def do_cancel_members(self, words: Words) -> Iterator[str]:
        members, job_id = _members(words), words.values.pop("job", "job")
        event = RequestsCancelled(self.cluster.at, job_id, (), ranges=(members,))
        yield from self._items(self.cluster.batch(event))

    def do_release_members(self, words: Words) -> Iterator[str]:
        job_id = None if words.flag("operator") else words.values.pop("job", "job")
        event = SlotsReleased(self.cluster.at, job_id, (), ranges=(_members(words),))
        yield from self._items(self.cluster.batch(event))

    def do_rows(self, words: Words) -> Iterator[str]:
        """What the store keeps of ranges and their members."""
        store = self.cluster.store
        for (name, first), row in sorted(store.ranges.items()):
            ended = ", ".join(
                f"{state}{f' ({reason})' if reason else ''} "
                + " ".join(f"{start}-{end - 1}" for start, end in indexes.runs())
                for (state, reason, _), indexes in row.ended.items()
            )
            yield f"row {name}.{first} x{row.spec.count}: {ended or 'none has ended'}"
        for name, request in sorted(store.requests.items()):
            yield f"row {name}: {request.state}, generation {request.generation}"


def _members(words: Words) -> Members:
    return words.subjects[0], words.number("first"), words.number("count", 1)
