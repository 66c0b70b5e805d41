"""Commands about ranges: many equal requests that differ only in their index."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    Members,
)
from tests.scenarios.commands import Commands
from tests.scenarios.cpus import cpu_policy
from tests.scenarios.words import Words


class RangeCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

    def do_range(self, words: Words) -> Iterator[str]:
        """Submits `count` equal requests, from index `first` on."""
        cpu, mem = words.number("cpu"), words.number("mem")
        spec = RequestSpec(
            words.subjects[0],
            ResourceProfile(cpu, mem * MIB) if cpu else None,
            required_labels=words.labels(),
            allow_pending=words.flag("allow_pending"),
            restart_on_loss=words.flag("restart"),
            cpu_policy=cpu_policy(words),
            time_limit_ms=words.time_limit_ms(),
            wait_timeout_ms=words.wait_timeout_ms(),
            priority=words.number("priority"),
            revocable=words.flag("revocable"),
            expected_run_time_ms=words.expected_ms(),
        )
        asked = RangeSpec(spec, words.number("first"), words.number("count", 1))
        yield from self._items(self.cluster.submit(asked, job=words.job()))

    def do_cancel_members(self, words: Words) -> Iterator[str]:
        members, job_id = _members(words), words.job()
        yield from self._items(self.cluster.cancel(ranges=[members], job=job_id))

    def do_release_members(self, words: Words) -> Iterator[str]:
        members, job_id = _members(words), words.job_or_operator()
        yield from self._items(self.cluster.release(ranges=[members], job=job_id))

    def do_rows(self, words: Words) -> Iterator[str]:
        """Prints the stored rows of ranges and of their members."""
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
