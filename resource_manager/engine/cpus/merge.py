"""Which NUMA nodes all resources of a slot agree on.

Decides, of the hints that providers give for each resource (cpu, memory, later devices), the one
mask of nodes, and whether an alignment policy admits it. Refuses to know what the resources are,
how hints come about, and how amounts are split over the mask.

The merge of a topology manager, with one order for all resources: preferred, then narrower, then
closer, then the better score, then the lower bits. A mask counts only if every resource that names
masks at all names just this one: a slot has to lie in it with everything, so a smaller mask that is
merely the overlap of two others is no place for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from finegrain.cpu_policy import NumaPolicy


class Hint(NamedTuple):
    """One mask of NUMA nodes that can serve a resource."""

    mask: int | None  # bit n: the node at position n; None: any nodes
    preferred: bool
    score: int = 0  # higher is better; not below 0


Provider: TypeAlias = Mapping[str, Sequence[Hint] | None]
"""Resource to hints. None: it does not matter to this resource; empty: it cannot be served."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of the hints."""

    admitted: bool
    mask: int | None = None  # None: no nodes in particular, or not admitted
    preferred: bool = False  # as every resource would like it
    unserved: tuple[str, ...] = ()  # resources for which no mask will do


class _Choice(NamedTuple):
    """What one resource says of one mask: its best scores."""

    score: int
    preferred_score: int | None  # None: it does not prefer this mask


class _Resource(NamedTuple):
    """The hints of one resource."""

    masks: dict[int, _Choice]
    anywhere: _Choice | None  # what it says of any nodes

    def choice_for(self, mask: int | None) -> _Choice | None:
        """The better of what is said of the mask and of any nodes; None: it will not do."""
        found = None if mask is None else self.masks.get(mask)
        if found is None or self.anywhere is None:
            return found or self.anywhere
        return _better(found, self.anywhere)


def merge(
    policy: NumaPolicy,
    providers: Iterable[Provider | None],
    *,
    remoteness: Callable[[int], int] = lambda _: 0,
) -> Merged:
    """The mask of a slot.

    The cost grows with the number of hints, not with that of their combinations.

    Args:
        policy: None (and Default) admit everything and bind to nothing; BestEffort admits
            everything; Restricted what all resources prefer; SingleNUMANode likewise, and looks
            only at single nodes.
        remoteness: how far the nodes of a mask are from each other, such as the sum of their
            distances; compared between masks of as many nodes.
    """
    return merge_ranked(policy, providers, remoteness=remoteness)[0]


def merge_ranked(
    policy: NumaPolicy,
    providers: Iterable[Provider | None],
    *,
    remoteness: Callable[[int], int] = lambda _: 0,
) -> Sequence[Merged]:
    """What `merge` says first, and what it would say if the masks before were no hints: never
    empty, and all but the first are admitted. For whoever finds out only then that a mask will not
    do.
    """
    if not policy.aligns:
        return (Merged(admitted=True),)
    given = [
        (name, hints)
        for provider in providers
        if provider is not None
        for name, hints in provider.items()
        if hints is not None
    ]
    unserved = tuple(sorted({name for name, hints in given if not hints}))
    if unserved:
        return (Merged(policy is NumaPolicy.BEST_EFFORT, unserved=unserved),)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        given = [(name, [hint for hint in hints if _is_single(hint)]) for name, hints in given]
    ranked = _ranked([_resource(hints) for _, hints in given], remoteness)
    if policy is not NumaPolicy.BEST_EFFORT:
        ranked = [each for each in ranked if each.preferred]
    return ranked or (Merged(policy is NumaPolicy.BEST_EFFORT),)


def _ranked(resources: list[_Resource], remoteness: Callable[[int], int]) -> list[Merged]:
    """The masks that every resource names, in the order above, and whether all prefer them. No
    nodes in particular is the widest mask.
    """
    found: list[tuple[tuple[bool, int, int, int, int], Merged]] = []
    for mask in _candidates(resources):
        options = [resource.choice_for(mask) for resource in resources]
        choices = [choice for choice in options if choice is not None]
        if len(choices) < len(resources):
            continue
        liked = [each.preferred_score for each in choices if each.preferred_score is not None]
        preferred = len(liked) == len(choices) and _is_preferred(resources, mask)
        score = sum(liked) if preferred else sum(choice.score for choice in choices)
        if mask is None:
            key = (not preferred, _WIDEST, 0, 0, 0)
        else:
            key = (not preferred, mask.bit_count(), remoteness(mask), -score, mask)
        found.append((key, Merged(True, mask, preferred)))
    return [each for _, each in sorted(found, key=itemgetter(0))]


def _is_preferred(resources: list[_Resource], mask: int | None) -> bool:
    """Whether any resource prefers just this mask, not only any nodes."""
    if mask is None:
        return True
    options = (resource.masks.get(mask) for resource in resources)
    return any(choice is not None and choice.preferred_score is not None for choice in options)


_WIDEST = 1 << 30  # more nodes than there are


def _candidates(resources: list[_Resource]) -> Iterable[int | None]:
    """Masks of which one may be it."""
    demanding = [resource.masks for resource in resources if resource.anywhere is None]
    if demanding:
        return min(demanding, key=len)
    return [None, *dict.fromkeys(mask for resource in resources for mask in resource.masks)]


def _resource(hints: Sequence[Hint]) -> _Resource:
    masks: dict[int, _Choice] = {}
    anywhere: _Choice | None = None
    for mask, preferred, score in hints:
        choice = _Choice(score, score if preferred else None)
        if mask is None:
            choice = _Choice(0, 0 if preferred else None)
            anywhere = choice if anywhere is None else _better(anywhere, choice)
        elif mask:
            known = masks.get(mask)
            masks[mask] = choice if known is None else _better(known, choice)
    return _Resource(masks, anywhere)


def _better(one: _Choice, other: _Choice) -> _Choice:
    liked = [each.preferred_score for each in (one, other) if each.preferred_score is not None]
    return _Choice(max(one.score, other.score), max(liked, default=None))


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)
