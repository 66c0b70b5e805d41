"""Cpus and NUMA nodes of hosts for members of gangs, while it is found out whether there is room
for all of them.

What members would get is tried out on copies of the books of cpus, in the order in which it is
taken; so whoever books the members in that order gives them the same, and no host is chosen whose
amounts suffice and whose cpus do not suit. The books themselves are never touched.

Knows one search. Refuses to know amounts and slots that may be had (`gang_room.py`), which are
asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN
from finegrain.errors import InvariantBroken
from resource_manager.engine.cpus.assign import assign, assign_many
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.queue.gangs import MemberRequest

BooksOf = Callable[[Host], CpuLedger | None]
"""The books that a search begins with on a host; None: it does not tell what its cpus are."""


_Known = dict[tuple[object, CpuRequest], tuple[int, int]]
"""How many were asked for, and how many fit, by whose books and what was asked."""

_NOBODY = "\0"
"""Stands for the id of a slot that is only tried out."""


def as_they_are(host: Host) -> CpuLedger | None:
    """With all slots that are there."""
    return host.cpus


def as_if_empty(host: Host) -> CpuLedger | None:
    """Without any."""
    return host.cpus.empty() if host.cpus is not None else None


class Trials:
    """What was given away on which host in this search."""

    def __init__(self, books_of: BooksOf = as_they_are, *, alike: bool = False) -> None:
        """`alike`: hosts of one kind (`CpuKind`) have equal books to begin with."""
        self._books_of = books_of
        self._alike = alike
        self._trials: dict[str, CpuLedger] = {}
        self._known: _Known = {}  # of books to begin with
        self._tried: _Known = {}  # of those of which something was given away
        self._given = 0  # assignments tried out: their keys

    def clear(self) -> None:
        """Nothing is given away any more."""
        self._trials.clear()
        self._tried.clear()  # versions count anew
        self._given = 0

    def fit(self, wish: ResourceRequest, host: Host, most: int) -> int:
        """How many members a host's cpus and NUMA nodes suit, so many at most."""
        if not most or not host.needs_topology(wish):
            return most
        if host.cpus is None:
            return len(host.assign_many(wish, most))
        trial = self._trials.get(host.host_id)
        if trial is None and self._books_of is as_they_are:
            return len(host.assign_many(wish, most))
        asked = _wish(wish, host)
        answers, whose = self._known, self._beginning(host)
        if trial is not None:  # one that is changed is another one: `version` tells
            answers, whose = self._tried, (host.host_id, trial.version)
        known = answers.get((whose, asked))
        if known is None or (known[0] < most and known[0] == known[1]):
            books = trial or self._books_of(host)
            found = _count(books, repeat(asked, most)) if books is not None else 0
            known = answers[whose, asked] = most, found
        return min(most, known[1])

    def fits_all(self, wishes: Iterable[tuple[MemberRequest, int]], host: Host) -> bool:
        """True if a host suits all of these together, so many of each, in this order."""
        several = [(wish, count) for wish, count in wishes if host.needs_topology(wish)]
        if len(several) < 2:
            return all(self.fit(wish, host, count) == count for wish, count in several)
        books = self._trials.get(host.host_id) or self._books_of(host)
        if books is None:
            return all(host.suits(wish, count) for wish, count in several)
        asked = [_wish(wish, host) for wish, count in several for _ in range(count)]
        return _count(books, asked) == len(asked)

    def take(self, wish: ResourceRequest, host: Host, count: int) -> None:
        """Gives so many members what they get there.

        Raises:
            InvariantBroken: the host does not suit them; `fit` was not asked.
        """
        if host.cpus is None:
            return
        exactly = host.needs_topology(wish)
        trial = self._trials.get(host.host_id)
        if trial is None:
            books = self._books_of(host)
            if books is None:
                return
            trial = self._trials[host.host_id] = books.scratch()
        asked = _wish(wish, host)
        for _ in range(count):
            given = CpuAssignment(wish.cpus[0].qos) if wish.cpus is not None else None
            if exactly:
                found = assign(trial, asked)
                if not isinstance(found, CpuAssignment):
                    raise InvariantBroken(f"{host.host_id} was to take {wish}: {found.text}")
                given = found
            self._given += 1
            trial.add((_NOBODY, self._given), given)

    def suits_instead(self, wish: MemberRequest, host: Host) -> bool:
        """True if a host suits one if nothing were given away in this search."""
        if not host.needs_topology(wish):
            return True
        books = self._books_of(host)
        if books is None:
            return host.suits(wish)
        return _count(books, [_wish(wish, host)]) == 1

    def _beginning(self, host: Host) -> object:
        kind = host.cpu_kind if self._alike else None
        return host.host_id if kind is None else kind


def _wish(wish: ResourceRequest, host: Host) -> CpuRequest:
    policy, limit_milli = wish.cpus or (PLAIN, 0)
    return CpuRequest.of(policy, host.booking_for(wish), limit_milli)


def _count(books: CpuLedger, asked: Iterable[CpuRequest]) -> int:
    """How many of these fit, one after the other, before the first that does not."""
    return sum(isinstance(each, CpuAssignment) for each in assign_many(books, asked))
