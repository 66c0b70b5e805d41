"""Plans gangs. A plan contains either all members of a gang or no member of it.

The planner plans gangs one after another, and each gang gets the capacity that earlier gangs have
left. The planner uses four kinds of executors: registered executors, pending executors, executors
that it chose for earlier gangs, and new executors. If the previous plan has places for some
members, the new plan keeps these places if it finds places for the other members, too.

Example: a gang has 3 members of 4 cpus. One registered executor has 4 free cpus, and executors with
8 cpus can be requested. So one member is planned on the registered executor, and two members are
planned on one new executor. If no executor could be requested, no member would be planned, and the
next gang could use the 4 free cpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finegrain.values.states import GangPlacement
from resource_manager.engine.planning.cover import cover
from resource_manager.engine.planning.draft import Draft, Mark
from resource_manager.engine.planning.packing import Bin, Counts, Demand, Entry
from resource_manager.engine.planning.steps import Steps


@dataclass(frozen=True, slots=True)
class GangDemand:
    """A gang in a plan. `members` is the number of members of each kind, and `placement` and
    `label` are the rule for their executors. `before` is the index of the queue entry that follows
    the gang. No other gang or request has a kind of this gang.
    """

    members: Mapping[int, int]
    placement: GangPlacement
    label: str = ""
    before: int = 0


class GangPlanner:
    """Plans gangs in a draft, one after another."""

    def __init__(self, draft: Draft, demands: Sequence[Demand]) -> None:
        self._draft = draft
        self._demands = demands
        self._kept: dict[int, Mark] = {}  # the key is `id(gang)`

    def keep(self, gangs: Sequence[GangDemand], kept: Mapping[str, Counts]) -> None:
        """Keeps the places that the previous plan has chosen for gangs on pending executors, so
        that no gang takes capacity that was planned for another gang.
        """
        for gang in gangs:
            mark = self._draft.mark()
            left = dict(gang.members)
            for name, content in kept.items():
                for kind in sorted(left.keys() & content.keys()):
                    if (into := self._draft.pending.get(name)) is not None:
                        most = min(left[kind], content[kind])
                        left[kind] -= self._draft.add(into, kind, most, mark)
            if mark.added:
                self._kept[id(gang)] = mark

    def plan(self, gang: GangDemand) -> Steps[bool]:
        """Plans a gang. If a member does not fit, changes nothing and returns False."""
        if (kept := self._kept.pop(id(gang), None)) is not None:
            if (yield from self._complete(gang, kept)):
                return True
            # Give up the kept places, and plan the gang like a new gang.
            for into, kind, count in kept.added:
                into.add(kind, -count)
        if gang.placement is not GangPlacement.SAME_LABEL:
            return (yield from self._attempt(gang, gang.members)) is not None
        return (yield from self._with_one_value(gang))

    def _complete(self, gang: GangDemand, kept: Mark) -> Steps[bool]:
        """Plans the members for which no place was kept."""
        left = dict(gang.members)
        used: dict[Bin, None] = {}
        for into, kind, count in kept.added:
            left[kind] -= count
            used[into] = None
        left = {kind: count for kind, count in left.items() if count}
        if not left:
            return True
        match gang.placement:
            case GangPlacement.SAME_EXECUTOR:
                # The executor of the kept members has no room for the other members. Otherwise the
                # previous plan would have put all members on it.
                return False
            case GangPlacement.SPREAD:
                # A spread gang has one member on each executor, so leave out executors that have a
                # kept member.
                others = [each for each in self._draft.bins() if each not in used]
                found = yield from self._attempt(gang, left, bins=others)
            case GangPlacement.SAME_LABEL:
                # All executors of the kept members have this value of the label.
                value = next(iter(used)).capacity.labels[gang.label]
                found = yield from self._attempt(gang, left, value=value)
            case GangPlacement.ANYWHERE:
                found = yield from self._attempt(gang, left)
        return found is not None

    def _with_one_value(self, gang: GangDemand) -> Steps[bool]:
        """Plans the gang with the value of the label for which new executors cost least. If several
        values have this cost, the method prefers the value that uses pending executors least,
        because other requests are planned on pending executors. If several values remain, the
        method takes the first of them.
        """
        draft = self._draft
        pending = set(draft.pending.values())
        # Try each value and undo the attempt. Then plan the gang with the best value.
        best: tuple[int, int, str] | None = None
        for value in draft.values_of(gang.label):
            mark = yield from self._attempt(gang, gang.members, value=value)
            if mark is None:
                continue
            cost = sum(draft.offers[at].cost for at, _ in draft.opened[mark.opened :])
            taken = sum(count for into, _, count in mark.added if into in pending)
            draft.undo(mark)
            if best is None or (cost, taken, value) < best:
                best = (cost, taken, value)
        if best is None:
            return False
        return (yield from self._attempt(gang, gang.members, value=best[2])) is not None

    def _attempt(
        self,
        gang: GangDemand,
        members: Mapping[int, int],
        *,
        value: str | None = None,
        bins: Sequence[Bin] | None = None,
    ) -> Steps[Mark | None]:
        """Plans members of a gang: first in bins, then the remaining members on new executors.

        Args:
            gang: the gang to which the members belong.
            members: the number of members of each kind.
            value: the value of the gang's label that all executors must have. If it is None, any
                value is allowed.
            bins: the bins to use. If it is None, all bins are used.

        Returns:
            A mark with which the attempt can be undone. Returns None if a member does not fit; in
            this case nothing has changed.
        """
        draft = self._draft
        bins = draft.bins() if bins is None else bins
        supplies: Sequence[int] = range(len(draft.offers))
        if value is not None:
            bins = [each for each in bins if each.capacity.labels.get(gang.label) == value]
            supplies = draft.supplies_with((gang.label, value))
        mark = draft.mark()
        # Place the largest members first, because it is easier to find room for small members
        # later.
        left = dict(sorted(members.items(), key=lambda each: (-self._size(each[0]), each[0])))
        match gang.placement:
            case GangPlacement.SAME_EXECUTOR:
                done = self._on_one(left, bins, supplies)
            case GangPlacement.SPREAD:
                done = self._spread(left, bins, supplies, mark)
            case _:
                rest = yield from draft.fill(bins, left.items(), mark)
                allowed = draft.allowance.only(supplies)
                found = yield from cover(dict(rest), draft.offers, allowed)
                # Request the cover even if it is incomplete, because `undo` below removes an
                # incomplete cover again.
                yield from draft.request(found)
                done = not (found.left or found.never)
        yield len(bins)
        if done:
            return mark
        draft.undo(mark)
        return None

    def _on_one(self, members: Counts, bins: Sequence[Bin], supplies: Sequence[int]) -> bool:
        """Puts all members on one executor: into the first bin with room or, if there is no such
        bin, on the cheapest new executor.
        """
        if any(_add_all(into, members) for into in bins):
            return True
        draft = self._draft
        for at in self._cheapest_first(supplies):
            # First try the members in a bin outside the draft, so that no executor is requested if
            # they do not fit.
            if draft.allowance.copies(at, draft.offers[at]) and _add_all(
                draft.new_bin(at), members
            ):
                return _add_all(draft.open(at), members)
        return False

    def _spread(
        self, members: Counts, bins: Sequence[Bin], supplies: Sequence[int], mark: Mark
    ) -> bool:
        """Puts each member on a separate executor: first into bins, then on the cheapest new
        executors.
        """
        draft = self._draft
        left = [kind for kind, count in members.items() for _ in range(count)]
        for into in bins:
            found = next((kind for kind in dict.fromkeys(left) if into.fit(kind, 1)), None)
            if found is not None:
                draft.add(into, found, 1, mark)
                left.remove(found)
        for kind in left:
            for at in self._cheapest_first(supplies):
                offer = draft.offers[at]
                if offer.fits(kind) and draft.allowance.copies(at, offer):
                    draft.open(at).add(kind, 1)
                    break
            else:
                return False
        return True

    def _cheapest_first(self, supplies: Sequence[int]) -> list[int]:
        return sorted(supplies, key=lambda at: self._draft.offers[at].cost)

    def _size(self, kind: int) -> int:
        # The order by this size is only approximate, because `max` compares numbers of different
        # dimensions.
        return max(self._demands[kind].pooled.values(), default=0)


def _add_all(into: Bin, members: Counts) -> bool:
    """Puts all members into a bin. If a member does not fit, changes nothing and returns False."""
    added: list[Entry] = []
    for kind, count in members.items():
        if into.fit(kind, count) < count:
            for each, number in added:
                into.add(each, -number)
            return False
        into.add(kind, count)
        added.append((kind, count))
    return True
