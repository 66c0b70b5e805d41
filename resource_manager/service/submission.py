"""How calls that ask for slots or sizes become events, and their outcomes an answer.

Decides where a large call is cut, so that others have their turn in between: never within a gang,
whose members stand together in line at the place of its first one. Refuses to know what is served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.entities import GangSpec, Instant, RangeSpec, RequestSpec, Slot
from resource_manager.engine.model.events import (
    Event,
    Members,
    MembersOutcome,
    RequestsSubmitted,
)
from resource_manager.service.engine_driver import MakeEvent
from resource_manager.service.runner import Runner
from resource_manager.service.wire import decoding
from resource_manager.service.wire.encoding import slot_status
from resource_manager.service.wire.gangs import gangs_of_call
from resource_manager.service.wire.resizes import ResizeMessage, resize_event

CHUNK_ITEMS_MAX = 1_000  # of a large call, between two of which others have their turn


@dataclass(frozen=True, slots=True)
class Submission:
    """A whole call, checked.

    Attributes:
        specs: the requests in the order in which they stand in line.
        positions: where each of these stands in the call.
        repeated: by position, the outcome of those that repeat an id; they are not in `specs`.
        gangs: those that the call declares.
    """

    specs: tuple[RequestSpec, ...]
    positions: tuple[int, ...]
    repeated: Mapping[int, ItemOutcome]
    gangs: tuple[GangSpec, ...] = ()

    def outcomes(self, answered: Sequence[ItemOutcome]) -> list[ItemOutcome]:
        """All outcomes in the order sent, given those of `specs`."""
        if not self.repeated and not self.gangs:  # most calls: nothing was moved or left out
            return list(answered)
        by_position = dict(zip(self.positions, answered, strict=True)) | dict(self.repeated)
        return [by_position[at] for at in range(len(by_position))]


def make_submission(
    specs: Sequence[RequestSpec], gangs: Sequence[slots_pb2.Gang], *, members_max: int
) -> Submission:
    """The requests and gangs of a call as they belong together.

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
        positions.sort(key=lambda at: first.get(specs[at].gang_id, at))
    return Submission(tuple(specs[at] for at in positions), tuple(positions), repeated, known)


def submission_events(
    job_id: str, call: Submission, ranges: tuple[RangeSpec, ...] = ()
) -> list[Callable[[Instant], RequestsSubmitted]]:
    """The events of one call; ranges come with the last one. What would refuse all of it must be
    found with the first one.
    """
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


async def give_up_ranges(
    submit: Callable[[MakeEvent], Awaitable[list[MembersOutcome]]],
    make: Callable[..., Event],
    ranges: Sequence[Members],
) -> list[ItemOutcome]:
    """The outcomes of taking members of ranges back, each range in as many steps as it takes, with
    others' calls between them.
    """
    outcomes: list[ItemOutcome] = []
    for members in ranges:
        (outcome,) = await submit(partial(make, ranges=(members,)))
        while outcome.unfinished:
            (outcome,) = await submit(partial(make, ranges=(members,)))
        outcomes.append(outcome)
    return outcomes


async def resize_slot(
    runner: Runner, message: ResizeMessage, job_id: str | None, *, owner: str
) -> slots_pb2.SlotStatus:
    """Asks for another size of a slot; the slot as it is once that is durable.

    Args:
        runner: the one writer.
        message: what is asked for.
        job_id: whose slot it must be; None: an operator may ask for anybody's.
        owner: who takes turns with others.

    Raises:
        InvalidArgument: a malformed field.
        FinegrainError: as the engine refuses; see `ResizeRequested`.
    """
    slot: slots_pb2.SlotStatus = await runner.submit(
        resize_event(message, job_id), _rendered, owner=owner
    )
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
    for piece in _indivisible(specs):
        if chunk and len(chunk) + len(piece) > CHUNK_ITEMS_MAX:
            yield tuple(chunk)
            chunk = []
        chunk += piece
    yield tuple(chunk)


def _indivisible(specs: Iterable[RequestSpec]) -> Iterator[list[RequestSpec]]:
    """What must not be cut: a request, or a gang, whose members stand together."""
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
