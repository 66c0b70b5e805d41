"""Commands about reservations, reuse of slots, and why a request is not next."""

from __future__ import annotations

from collections.abc import Iterator

from resource_manager.engine.explain.requests import explain
from resource_manager.engine.explain.reservations import reservation_views
from tests.scenarios.commands import Commands
from tests.scenarios.words import Words


class HoldingCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

    def do_reuse(self, words: Words) -> Iterator[str]:
        """Asks to reuse slots, SLOT:REQUEST each, and prints the slots that are reused."""
        job_id, generation = words.job(), words.number("generation", 1)
        pairs = [pair.split(":", 1) for pair in words.subjects]
        slots = ((slot, generation, waiting) for slot, waiting in pairs)
        outcomes = self.cluster.reuse(*slots, job=job_id)
        for slot, outcome in zip(pairs, outcomes, strict=True):
            if not outcome.reason:
                yield f"{slot[0]} is reused for {slot[1]}"
        yield from self._items(outcomes)

    def do_limits(self, words: Words) -> Iterator[str]:
        """Prints how often the slots of a host were reused, and the number of reuses that the host
        knows.
        """
        executor = self.cluster.executors[words.subjects[0]]
        for key, seen in sorted(executor.slots.items()):
            number = self.cluster.state.slots[key].reuse_number
            yield f"{key[0]}: reused {number} times, its executor knows of {seen.reuse_number}"

    def do_reservations(self, words: Words) -> Iterator[str]:
        """Prints all reservations."""
        for view in reservation_views(self.cluster.state):
            yield view.summary

    def do_why(self, words: Words) -> Iterator[str]:
        """Prints why a request is not next in order: the steps of the choice, and reservations."""
        found = explain(self.cluster.state, words.subjects[0])
        yield f"{words.subjects[0]} {found.primary_reason}: {found.summary}"
        yield from (f"  {step.summary}" for step in found.steps)
        if found.reservation is not None:
            yield f"  reserved for this request: {found.reservation.summary}"
        yield from (
            f"  reserved for another request: {each.summary}" for each in found.held_for_others
        )
