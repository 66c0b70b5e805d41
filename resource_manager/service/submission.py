"""Makes events from calls that request slots or resizes, and an answer from their outcomes.

A large call is divided into chunks. So calls of other owners are served in between. All members of
a gang are in the same chunk, and are queued together at the position of the first member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.entities import GangSpec, Instant, RangeSpec, RequestSpec, Slot
from resource_manager.engine.model.events import RequestsSubmitted
from resource_manager.engine.model.scheduling_key import WaitingKey, waiting_key
from resource_manager.service.engine_driver import LIGHT_ITEMS_MAX, MakeEvent
from resource_manager.service.runner import Runner
from resource_manager.service.wire import decoding
from resource_manager.service.wire.encoding import slot_status
from resource_manager.service.wire.gangs import gangs_of_call
from resource_manager.service.wire.resizes import ResizeMessage, resize_event

ItemT = TypeVar("ItemT")

CHUNK_ITEMS_MAX = 500  # maximum number of items in one event of a large call

NEW_COST = 4
"""A request that differs from all earlier requests of its event counts as this many more items.
Such a request can need a new scheduling class, and a search for a host that could serve it.
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """The checked content of one call.

    Attributes:
        specs: the requests, in the order in which they are queued.
        positions: for each request in `specs`, its position in the call.
        repeated: the outcomes of requests that repeat an id, by position. `specs` does not contain
            these requests.
        gangs: the gangs that the call declares.
    """

    specs: tuple[RequestSpec, ...]
    positions: tuple[int, ...]
    repeated: Mapping[int, ItemOutcome]
    gangs: tuple[GangSpec, ...] = ()

    def outcomes(self, answered: Sequence[ItemOutcome]) -> list[ItemOutcome]:
        """Merges the outcomes of `specs` and `repeated`, in the order of the call."""
        if not self.repeated and not self.gangs:  # the usual case: the order has not changed
            return list(answered)
        by_position = dict(zip(self.positions, answered, strict=True)) | dict(self.repeated)
        return [by_position[at] for at in range(len(by_position))]


def make_submission(
    specs: Sequence[RequestSpec], gangs: Sequence[slots_pb2.Gang], *, members_max: int
) -> Submission:
    """Checks the requests and gangs of a call, and puts the members of each gang next to each
    other.

    Example: the requests a, b (gang g), c, d (gang g) are queued in the order a, b, d, c.

    Args:
        specs: the requests, in the order of the call.
        gangs: the gangs that the call declares.
        members_max: the maximum number of members of a gang.

    Raises:
        InvalidArgument: see `gangs_of_call`.
    """
    repeated = decoding.repetitions(
        [spec.allocation_id for spec in specs], "requests[{}].allocation_id"
    )
    known = gangs_of_call(gangs, specs, repeated, members_max=members_max)
    positions = [at for at in range(len(specs)) if at not in repeated]
    if known:
        first: dict[str, int] = {}
        for at in positions:
            if gang_id := specs[at].gang_id:
                first.setdefault(gang_id, at)
        # Requests are sorted by the position of their gang's first member. The sort is stable.
        positions.sort(key=lambda at: first.get(specs[at].gang_id, at))
    return Submission(tuple(specs[at] for at in positions), tuple(positions), repeated, known)


def submission_events(
    job_id: str, call: Submission, ranges: tuple[RangeSpec, ...] = ()
) -> list[Callable[[Instant], RequestsSubmitted]]:
    """Returns the events of one call, in order. The last event contains the ranges.

    The engine can reject a call only at its first event. So the first event also has the content of
    the later events (`following`).

    Args:
        job_id: the job that calls.
        call: the requests and gangs, checked.
        ranges: the ranges of the call.

    Returns:
        Functions that make the events from the time of their batch.
    """
    # Either all requests of a job have a profile, or no request of the job has a profile. The
    # engine rejects a call with both kinds of requests as a whole. So such a call stays one event.
    kinds = {spec.profile is None for spec in call.specs}
    kinds |= {each.request.profile is None for each in ranges}
    chunks = list(_chunks(call.specs)) if len(kinds) == 1 else [call.specs]
    following = tuple(spec for chunk in chunks[1:] for spec in chunk)
    last = len(chunks) - 1
    first = partial(
        RequestsSubmitted,
        job_id=job_id,
        requests=chunks[0],
        following=following,
        gangs=_gangs_in(chunks[0], call.gangs),
        ranges=() if last else ranges,
        following_ranges=ranges if last else (),
    )
    rest = [
        partial(
            RequestsSubmitted,
            job_id=job_id,
            requests=chunk,
            admitted=True,
            gangs=_gangs_in(chunk, call.gangs),
            ranges=ranges if at == last else (),
        )
        for at, chunk in enumerate(chunks[1:], start=1)
    ]
    return [first, *rest]


async def give_up(
    runner: Runner,
    make: Callable[[tuple[ItemT, ...]], MakeEvent],
    items: Sequence[ItemT],
    *,
    owner: str,
    weight: int | None = None,
) -> list[ItemOutcome]:
    """Cancels requests, or releases slots or members of ranges, in as many steps as necessary.

    An item can contain many requests, but the engine ends only a limited number of requests in a
    step. So the engine returns outcomes for the items that it has processed, and the other items
    are submitted again. Other owners' calls run in between.

    Args:
        runner: the single writer.
        make: makes an event from some of the items.
        items: allocation ids, slots, or members of ranges.
        owner: the owner of the fair queue; see `Intake.submit`.
        weight: the number of items as which one event counts in this queue; None: the number of
            items that the event contains.

    Returns:
        One outcome per item, in order. All outcomes are durable.
    """
    chunks = chunks_of(items)
    if not chunks:
        return []
    # Each event counts like the largest event, because admission uses the same size for all events.
    size = weight or min(len(items), CHUNK_ITEMS_MAX)
    makes = [make(chunk) for chunk in chunks]
    answers: list[list[ItemOutcome]] = await runner.submit_chunks(
        makes,
        None,
        items=size,
        owner=owner,
        light=weight is None and len(items) <= LIGHT_ITEMS_MAX,
    )
    outcomes: list[ItemOutcome] = []
    for chunk, answer in zip(chunks, answers, strict=True):
        outcomes += answer
        left = chunk[len(answer) :]
        while left:
            some: list[ItemOutcome] = await runner.submit(make(left), items=size, owner=owner)
            outcomes += some
            left = left[len(some) :]
    return outcomes


def chunks_of(items: Sequence[ItemT]) -> list[tuple[ItemT, ...]]:
    """Divides the items of a call among its events."""
    return [tuple(items[at : at + CHUNK_ITEMS_MAX]) for at in range(0, len(items), CHUNK_ITEMS_MAX)]


async def resize_slot(
    runner: Runner, message: ResizeMessage, job_id: str | None, *, owner: str
) -> slots_pb2.SlotStatus:
    """Requests another size for a slot.

    Args:
        runner: the single writer.
        message: the call.
        job_id: the job that must own the slot; None: an administrator's call, for any slot.
        owner: the fair queue to join; see `Intake.submit`.

    Returns:
        The slot, once the request is durable.

    Raises:
        InvalidArgument: a field is malformed.
        FinegrainError: the engine rejected the resize; see `ResizeRequested`.
    """
    slot: slots_pb2.SlotStatus = await runner.submit(
        resize_event(message, job_id), _rendered, owner=owner
    )
    # The slot does not contain the address of its executor, so the address is read separately.
    slot.executor_address = await runner.read(
        lambda state: (
            state.hosts[slot.executor_id].executor.registration.address
            if slot.executor_id in state.hosts
            else ""
        )
    )
    return slot


def _rendered(slot: Slot) -> slots_pb2.SlotStatus:
    return slot_status(slot)


def _chunks(specs: Sequence[RequestSpec]) -> Iterator[tuple[RequestSpec, ...]]:
    chunk: list[RequestSpec] = []
    cost, seen = 0, set[WaitingKey]()
    for piece in _indivisible(specs):
        keys = {waiting_key(spec) for spec in piece}
        if chunk and cost + len(piece) + NEW_COST * len(keys - seen) > CHUNK_ITEMS_MAX:
            yield tuple(chunk)
            chunk, cost, seen = [], 0, set()
        cost += len(piece) + NEW_COST * len(keys - seen)
        chunk += piece
        seen |= keys
    # The last chunk can be empty, because a call with only ranges needs an event too.
    yield tuple(chunk)


def _indivisible(specs: Iterable[RequestSpec]) -> Iterator[list[RequestSpec]]:
    """Yields the parts that must stay together: single requests, and all members of a gang."""
    piece: list[RequestSpec] = []
    for spec in specs:
        if piece and not (spec.gang_id and spec.gang_id == piece[0].gang_id):
            yield piece
            piece = []
        piece.append(spec)
    if piece:
        yield piece


def _gangs_in(chunk: Iterable[RequestSpec], gangs: tuple[GangSpec, ...]) -> tuple[GangSpec, ...]:
    if not gangs:
        return ()
    present = {spec.gang_id for spec in chunk}
    return tuple(gang for gang in gangs if gang.gang_id in present)
