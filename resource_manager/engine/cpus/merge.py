"""Merges the hints of all resources of a slot into one mask of NUMA nodes.

This is the merge of a topology manager (as in the kubelet), with one order for all resources:
preferred masks first, then narrower, closer, better scored ones, then the lower bits. A mask counts
only if every resource that names masks names exactly this one. All of a slot must lie in the mask,
so the mere overlap of two masks is no place for it.
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
    score: int = 0  # higher is better; at least 0


Provider: TypeAlias = Mapping[str, Sequence[Hint] | None]
"""Hints by resource. None: any nodes will do for the resource; empty: no nodes will."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge."""

    admitted: bool
    mask: int | None = None  # None: no particular nodes, or not admitted
    preferred: bool = False  # every resource prefers it
    unserved: tuple[str, ...] = ()  # resources that no mask will do for


class _Choice(NamedTuple):
    """The best scores that one resource gives to one mask."""

    score: int
    preferred_score: int | None  # None: it does not prefer the mask


class _Resource(NamedTuple):
    """The hints of one resource."""

    masks: dict[int, _Choice]
    anywhere: _Choice | None  # its choice for hints that name no nodes

    def choice_for(self, mask: int | None) -> _Choice | None:
        """Returns the better one of the choices for the mask and for any nodes; None: the mask will
        not do.
        """
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
    """Returns the mask of a slot. The cost grows with the number of hints, not with their
    combinations.

    Args:
        policy: NUMA policy. None and Default admit everything and bind to nothing. BestEffort
            admits everything. Restricted admits masks that all resources prefer. SingleNUMANode
            does too, but only masks of one node.
        providers: hints by resource.
        remoteness: how far the nodes of a mask are from each other, such as the sum of their
            distances; only masks of equal size are compared.
    """
    return merge_ranked(policy, providers, remoteness=remoteness)[0]


def merge_ranked(
    policy: NumaPolicy,
    providers: Iterable[Provider | None],
    *,
    remoteness: Callable[[int], int] = lambda _: 0,
) -> Sequence[Merged]:
    """Returns the result of `merge`, followed by what it would return if the masks before were no
    hints.

    For callers that find out only later that a mask does not work.

    Args:
        policy: as for `merge`.
        providers: as for `merge`.
        remoteness: as for `merge`.

    Returns:
        At least one result. All but the first are admitted.
    """
    # Nothing is bound to nodes then, so hints do not matter.
    if not policy.aligns:
        return (Merged(admitted=True),)
    given = [
        (name, hints)
        for provider in providers
        if provider is not None
        for name, hints in provider.items()
        if hints is not None
    ]
    # A resource that no nodes can serve rules out every mask.
    unserved = tuple(sorted({name for name, hints in given if not hints}))
    if unserved:
        return (Merged(policy is NumaPolicy.BEST_EFFORT, unserved=unserved),)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        # Filtered before the ranking: a wide mask must not win over a single node.
        given = [(name, [hint for hint in hints if _is_single(hint)]) for name, hints in given]
    ranked = _ranked([_resource(hints) for _, hints in given], remoteness)
    if policy is not NumaPolicy.BEST_EFFORT:
        ranked = [each for each in ranked if each.preferred]
    return ranked or (Merged(policy is NumaPolicy.BEST_EFFORT),)


def _ranked(resources: list[_Resource], remoteness: Callable[[int], int]) -> list[Merged]:
    """Returns the masks that every resource names, best first. "No particular nodes" counts as the
    widest mask.
    """
    found: list[tuple[tuple[bool, int, int, int, int], Merged]] = []
    for mask in _candidates(resources):
        options = [resource.choice_for(mask) for resource in resources]
        choices = [choice for choice in options if choice is not None]
        # All of the slot must lie in the mask, so each resource must have named it.
        if len(choices) < len(resources):
            continue
        liked = [each.preferred_score for each in choices if each.preferred_score is not None]
        preferred = len(liked) == len(choices) and _is_preferred(resources, mask)
        # Scores of hints that do not prefer the mask would not compare with those that do.
        score = sum(liked) if preferred else sum(choice.score for choice in choices)
        if mask is None:
            key = (not preferred, _WIDEST, 0, 0, 0)
        else:
            key = (not preferred, mask.bit_count(), remoteness(mask), -score, mask)
        found.append((key, Merged(True, mask, preferred)))
    return [each for _, each in sorted(found, key=itemgetter(0))]


def _is_preferred(resources: list[_Resource], mask: int | None) -> bool:
    """Returns True if a resource prefers this mask by name, or if the mask is None."""
    if mask is None:
        return True
    options = (resource.masks.get(mask) for resource in resources)
    return any(choice is not None and choice.preferred_score is not None for choice in options)


_WIDEST = 1 << 30  # more than any number of nodes


def _candidates(resources: list[_Resource]) -> Iterable[int | None]:
    """Returns masks that every resource may have named: those of the resource with the fewest, if
    all hints of some resource name masks.
    """
    demanding = [resource.masks for resource in resources if resource.anywhere is None]
    # A mask that all name is among those of the resource with the fewest.
    if demanding:
        return min(demanding, key=len)
    return [None, *dict.fromkeys(mask for resource in resources for mask in resource.masks)]


def _resource(hints: Sequence[Hint]) -> _Resource:
    masks: dict[int, _Choice] = {}
    anywhere: _Choice | None = None
    for mask, preferred, score in hints:
        choice = _Choice(score, score if preferred else None)
        # Hints for any nodes say nothing about a mask, so they have no part in its score.
        if mask is None:
            choice = _Choice(0, 0 if preferred else None)
            anywhere = choice if anywhere is None else _better(anywhere, choice)
        elif mask:  # a mask of no nodes could hold nothing
            known = masks.get(mask)
            masks[mask] = choice if known is None else _better(known, choice)
    return _Resource(masks, anywhere)


def _better(one: _Choice, other: _Choice) -> _Choice:
    liked = [each.preferred_score for each in (one, other) if each.preferred_score is not None]
    return _Choice(max(one.score, other.score), max(liked, default=None))


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)
