"""Merges the hints of all resources of a slot into one mask of NUMA nodes.

Source: the Topology Manager of the kubelet (`HintMerger` in
pkg/kubelet/cm/topologymanager/policy.go of Kubernetes) and its copy in Koordinator. The kubelet and
Koordinator try all combinations of hints, and intersect the masks of each combination. In this
module, a mask is a candidate only if every resource has a hint for exactly this mask or for any
nodes. The reason is that all resources of the slot must be on the nodes of the mask, and an
intersection of two masks can be too small.

Candidates are ordered by these keys: preferred masks first, then fewer nodes, then closer nodes,
then the higher score, then the lower bits of the mask.

Example: a host with two nodes has these hints.

    mask   hint for cpu               hint for memory
    0b01   preferred, score 437       none
    0b10   preferred, score 375       preferred, score 600
    0b11   not preferred, score 500   not preferred, score 300

Mask 0b01 is no candidate, because there is no memory hint for this mask. The result is mask 0b10
(score 975), which both resources prefer. The next best mask is 0b11. BestEffort admits this mask,
but Restricted and SingleNUMANode admit only preferred masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from finegrain.cpu_policy import NumaPolicy


class Hint(NamedTuple):
    """One mask of NUMA nodes that can serve a resource."""

    mask: int | None  # bit n stands for the node at position n; None for any nodes
    preferred: bool
    score: int = 0  # higher is better; at least 0


Provider: TypeAlias = Mapping[str, Sequence[Hint] | None]
"""Hints by resource. None means that any nodes can serve the resource, and an empty sequence means
that no nodes can serve the resource.
"""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge."""

    admitted: bool
    mask: int | None = None  # None if the slot is not bound to nodes, or is not admitted
    preferred: bool = False  # True if every resource prefers the mask
    unserved: tuple[str, ...] = ()  # resources that no mask can serve


class _Choice(NamedTuple):
    """The best scores of one resource for one mask."""

    score: int
    preferred_score: int | None  # None if the resource does not prefer the mask


class _Resource(NamedTuple):
    """The hints of one resource."""

    masks: dict[int, _Choice]
    anywhere: _Choice | None  # the choice for any nodes; None if each hint names nodes

    def choice_for(self, mask: int | None) -> _Choice | None:
        """Returns the better of two choices: the choice for this mask, and the choice for any
        nodes. The result is None if the mask cannot serve the resource.
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
    """Returns the mask of nodes for a slot. The cost is linear in the number of hints, not in the
    number of their combinations.

    Args:
        policy: the NUMA policy. The policies None and Default admit every slot, and bind the slot
            to no nodes. BestEffort admits every slot. Restricted admits a mask only if all
            resources prefer the mask. SingleNUMANode also requires that the mask has only one node.
        providers: the hints of each provider, by resource.
        remoteness: returns a measure of how far apart the nodes of a mask are, such as the sum of
            their distances. The merge compares two masks by this number only if they have equally
            many nodes.
    """
    return merge_ranked(policy, providers, remoteness=remoteness)[0]


def merge_ranked(
    policy: NumaPolicy,
    providers: Iterable[Provider | None],
    *,
    remoteness: Callable[[int], int] = lambda _: 0,
) -> Sequence[Merged]:
    """Returns all admitted masks, the best first.

    The first result equals the result of `merge`. Each further result is what `merge` would return
    if the masks before this result did not exist. Callers need the further results if the first
    mask does not work.

    Args:
        policy: see `merge`.
        providers: see `merge`.
        remoteness: see `merge`.

    Returns:
        A list with at least one result. Only the first result can be a refusal.
    """
    # A policy without alignment binds no slot to nodes. So the hints do not matter.
    if not policy.aligns:
        return (Merged(admitted=True),)
    given = [
        (name, hints)
        for provider in providers
        if provider is not None
        for name, hints in provider.items()
        if hints is not None
    ]
    # If no nodes can serve some resource, no mask is possible.
    unserved = tuple(sorted({name for name, hints in given if not hints}))
    if unserved:
        return (Merged(policy is NumaPolicy.BEST_EFFORT, unserved=unserved),)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        # The hints are filtered before the ranking, because a mask of several nodes must not come
        # before a single node.
        given = [(name, [hint for hint in hints if _is_single(hint)]) for name, hints in given]
    ranked = _ranked([_resource(hints) for _, hints in given], remoteness)
    if policy is not NumaPolicy.BEST_EFFORT:
        ranked = [each for each in ranked if each.preferred]
    return ranked or (Merged(policy is NumaPolicy.BEST_EFFORT),)


def _ranked(resources: list[_Resource], remoteness: Callable[[int], int]) -> list[Merged]:
    """Returns the candidates, the best first. The candidate None, which stands for any nodes, is
    ranked as if it had more nodes than every mask.
    """
    found: list[tuple[tuple[bool, int, int, int, int], Merged]] = []
    for mask in _candidates(resources):
        options = [resource.choice_for(mask) for resource in resources]
        choices = [choice for choice in options if choice is not None]
        # All resources must be on the nodes of the mask, so each resource must have a hint for the
        # mask.
        if len(choices) < len(resources):
            continue
        preferred_scores = [
            each.preferred_score for each in choices if each.preferred_score is not None
        ]
        preferred = len(preferred_scores) == len(choices) and _is_preferred(resources, mask)
        # If all resources prefer the mask, only the scores of preferred hints are added, because
        # the other scores are not comparable.
        score = sum(preferred_scores) if preferred else sum(choice.score for choice in choices)
        if mask is None:
            key = (not preferred, _WIDEST, 0, 0, 0)
        else:
            key = (not preferred, mask.bit_count(), remoteness(mask), -score, mask)
        found.append((key, Merged(True, mask, preferred)))
    return [each for _, each in sorted(found, key=itemgetter(0))]


def _is_preferred(resources: list[_Resource], mask: int | None) -> bool:
    """Returns True if some resource has a preferred hint for exactly this mask, or if the mask is
    None.
    """
    if mask is None:
        return True
    options = (resource.masks.get(mask) for resource in resources)
    return any(choice is not None and choice.preferred_score is not None for choice in options)


_WIDEST = 1 << 30  # more than any number of nodes


def _candidates(resources: list[_Resource]) -> Iterable[int | None]:
    """Returns the masks for which all resources can possibly have hints.

    Some resources have hints only for particular masks. A candidate must be among the masks of each
    such resource. So the function returns the masks of only one such resource: the resource with
    the fewest masks. If there is no such resource, the function returns all masks, and None for any
    nodes.
    """
    demanding = [resource.masks for resource in resources if resource.anywhere is None]
    if demanding:
        return min(demanding, key=len)
    return [None, *dict.fromkeys(mask for resource in resources for mask in resource.masks)]


def _resource(hints: Sequence[Hint]) -> _Resource:
    masks: dict[int, _Choice] = {}
    anywhere: _Choice | None = None
    for mask, preferred, score in hints:
        choice = _Choice(score, score if preferred else None)
        # A hint for any nodes is about no particular mask, so its score must not change the scores
        # of masks.
        if mask is None:
            choice = _Choice(0, 0 if preferred else None)
            anywhere = choice if anywhere is None else _better(anywhere, choice)
        elif mask:  # an empty mask is ignored
            known = masks.get(mask)
            masks[mask] = choice if known is None else _better(known, choice)
    return _Resource(masks, anywhere)


def _better(one: _Choice, other: _Choice) -> _Choice:
    preferred_scores = [
        each.preferred_score for each in (one, other) if each.preferred_score is not None
    ]
    return _Choice(max(one.score, other.score), max(preferred_scores, default=None))


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)
