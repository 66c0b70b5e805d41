"""All hosts at one glance: how far each is from serving a shape, and what they have together.

The same facts as `judge` gives for one host, reduced to what ranks and sums need, so that a
question about ten thousand hosts costs a few microseconds for each; `judge` is then asked about the
few that matter. Where amounts do not say whether one fits, hosts that have them are asked; so many
at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from finegrain.values.states import ExecutorState
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.feasibility import Judgement, judge
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved import is_held_from
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

MILLION = 1_000_000

ASKED_MAX = 200
"""Hosts that are asked at most whether their cpus and NUMA nodes suit. Of more that have the
amounts nobody knows, and they count as if they did not: whoever waits has asked them all.
"""

MISFIT = 1
"""Stands for the lack of a host that has all amounts, and cpus or NUMA nodes that do not suit."""

SUITS = (0, 0)

Glance = tuple[int, int, str]
"""Hard obstacles, largest relative lack in millionths, executor's id: the order of nearness."""


class Dimension(NamedTuple):
    """One dimension of what is asked, and what each usable host has of it."""

    name: str
    asked: int
    free: list[int]
    total: list[int]


@dataclass(slots=True)
class Survey:
    """What a look at every host says about a shape; `usable` are eligible and carry the labels."""

    shape: SchedulingClass
    hosts: dict[str, Host]
    glances: list[Glance] = field(default_factory=list)
    usable: int = 0
    fitting: int = 0
    refused: bool = False  # by a usable host, lately
    lacking: list[Glance] = field(default_factory=list)  # free capacity is all they lack
    unlabelled: list[str] = field(default_factory=list)  # labels are all they lack
    misfits: list[str] = field(default_factory=list)  # suiting cpus or nodes are all they lack
    promising: Glance | None = None  # the nearest usable one that is large enough and to be had
    own: Collection[str] = ()  # hosts that are held for whoever asks
    asked: int = 0  # hosts that have the amounts, whether their cpus suit
    unasked: int = 0  # such hosts beyond `ASKED_MAX`
    _exact: bool = False
    _kinds: dict[int, list[Dimension]] = field(default_factory=dict)  # by what a slot books

    @classmethod
    def of(
        cls, hosts: Iterable[Host], scheduling_class: SchedulingClass, own: Collection[str] = ()
    ) -> Survey:
        """Looks at these hosts, of which some are held for whoever asks."""
        survey = cls(
            scheduling_class,
            {host.host_id: host for host in hosts},
            own=own,
            _exact=scheduling_class.topology_constrained,
        )
        for host_id, host in survey.hosts.items():
            survey._look(host_id, host)
        return survey

    def nearest(self, most: int) -> list[Judgement]:
        """The hosts that are nearest to serving the shape, nearest first."""
        return [self.judge(host_id) for _, _, host_id in heapq.nsmallest(most, self.glances)]

    def judge(self, host_id: str) -> Judgement:
        """All that stands between the shape and one host."""
        return judge(self.hosts[host_id], self.shape)

    def dimensions(self) -> list[Dimension]:
        """What is asked, at least, and what usable hosts have, by dimension."""
        merged: dict[str, Dimension] = {}
        for name, asked, free, total in chain.from_iterable(self._kinds.values()):
            if free:
                known = merged.get(name, Dimension(name, asked, [], []))
                merged[name] = Dimension(
                    name, min(asked, known.asked), known.free + free, known.total + total
                )
        return list(merged.values())

    def _look(self, host_id: str, host: Host) -> None:
        labelled, refused = carries(host, self.shape.labels), host.refuses(self.shape)
        absent = 0 if host.eligible else _reasons_of_absence(host)
        usable = labelled and not absent
        dimensions, free = self._asked_of(host), host.free()
        totals = host.total
        lack, short, too_small = 0, False, not dimensions and self.shape.profile is None
        for name, asked, all_free, all_totals in dimensions:
            there, total = free.get(name, 0), totals.get(name, 0)
            if usable:
                all_free.append(there)
                all_totals.append(total)
            if there < asked:
                short = True
                lack = max(lack, (asked - there) * MILLION // asked)
                too_small = too_small or total < asked
        others = absent + (not labelled) + refused + (host.slots_left() < 1)
        others += is_held_from(host, self.shape)
        hard = others + too_small
        if not (hard or short) and (self._exact or host.aligning):
            hard, lack = self._misfit(host)
            too_small = bool(hard)
        glance = (hard, lack, host_id)
        self.glances.append(glance)
        if short:
            if not others:
                self.lacking.append((0, lack, host_id))
        elif not hard and not lack:
            self.fitting += 1
        elif hard == 1 and not labelled and self._misfit(host) == SUITS:
            self.unlabelled.append(host_id)
        if usable:
            self.usable += 1
            self.refused = self.refused or refused
            to_be_had = not (too_small or refused) and not self.is_for_others(host)
            if to_be_had and (self.promising is None or glance < self.promising):
                self.promising = glance

    def _misfit(self, host: Host) -> tuple[int, int]:
        """Obstacles and lack of a host that has the amounts, by its cpus and NUMA nodes."""
        if not host.needs_topology(self.shape):
            return SUITS
        if self.asked == ASKED_MAX:
            self.unasked += 1
            return 0, MISFIT
        self.asked += 1
        given = host.assign(self.shape)
        if not isinstance(given, CpuRefusal):
            return SUITS
        if carries(host, self.shape.labels):
            self.misfits.append(host.host_id)
        return int(given.lasting), MISFIT

    def is_for_others(self, host: Host) -> bool:
        """True if something is held there for somebody else."""
        return host.reserved is not None and host.host_id not in self.own

    def _asked_of(self, host: Host) -> list[Dimension]:
        """What a slot books here; hosts where it books the same share the list."""
        own = host.default_booking if self.shape.profile is None else None
        kind = id(own) if own is not None else int(host.separate_pools)
        asked = self._kinds.get(kind)
        if asked is None:
            booked = host.booking_for(self.shape)
            asked = [Dimension(name, amount, [], []) for name, amount in booked.items()]
            self._kinds[kind] = asked
        return asked


def _reasons_of_absence(host: Host) -> int:
    active = host.executor.state is ExecutorState.ACTIVE
    return (not active) + host.executor.draining + host.reach.unreachable
