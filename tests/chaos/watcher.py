"""A second, plain watch stream beside the client's, which shows what the RM really sends.

Sequence numbers must have no gap or repeat across reconnects, and the states of each request must
follow each other as allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from finegrain.identity import Identity, Role
from finegrain.rpc.channels import open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1 import resource_manager_pb2, slots_pb2
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from tests.chaos.journal import EVENT, WRONG, Journal

FOLLOWS = {
    "PENDING": {"ALLOCATING", "GRANTED", "CANCELLED", "REJECTED", "RELEASED", "LOST"},
    "ALLOCATING": {"PENDING", "GRANTED", "CANCELLED", "REJECTED", "RELEASED", "LOST"},
    "GRANTED": {"PENDING", "RELEASED", "LOST"},
}
"""States that may follow a state; no state follows an end."""

PAUSE_S = 0.2


@dataclass(slots=True)
class RequestStory:
    """The last known state of one request."""

    state: str = "PENDING"
    generation: int = 0

    def take(self, state: str, generation: int) -> str:
        """Returns what is wrong with the next event; empty: nothing."""
        before, self.state = self.state, state
        if state not in FOLLOWS.get(before, set()):
            return f"{before} was followed by {state}"
        if state == "GRANTED":
            known, self.generation = self.generation, generation
            # The same generation again is right if a lost executor came back with the slot.
            if generation < known or (generation == known and before != "PENDING"):
                return f"generation {known} was followed by {generation}"
        return ""


@dataclass(slots=True)
class Watcher:
    """Follows one job independently, at any address that answers."""

    addresses: Sequence[str]
    own: OwnCertificate
    job_id: str
    journal: Journal
    last_sequence: int = 0
    stories: dict[str, RequestStory] = field(default_factory=dict)

    async def run(self) -> None:
        """Follows until the job has ended."""
        turn = 0
        while True:
            address = self.addresses[turn % len(self.addresses)]
            turn += 1
            server = Identity(self.own.credentials.who.cluster, Role.RM)
            async with open_channel(address, self.own, server) as channel:
                if await self._follow(ResourceManagerServiceStub(channel)):
                    return
            await asyncio.sleep(PAUSE_S)

    async def _follow(self, stub: Any) -> bool:
        """Returns True if the stream is complete."""
        request = resource_manager_pb2.WatchJobRequest(
            job_id=self.job_id, from_sequence=self.last_sequence + 1
        )
        call = stub.WatchJob(request)
        try:
            async for message in call:
                for event in message.events:
                    self._take(event)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return True
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                self._wrong(f"the stream broke with {error.code().name}: {error.details()}")
                return True
        finally:
            call.cancel()
        return False

    def _take(self, event: resource_manager_pb2.JobEvent) -> None:
        if event.sequence != self.last_sequence + 1:
            self._wrong(f"event {event.sequence} followed event {self.last_sequence}")
        self.last_sequence = event.sequence
        name = slots_pb2.RequestState.Name(event.state).removeprefix("REQUEST_STATE_")
        story = self.stories.setdefault(event.allocation_id, RequestStory())
        if wrong := story.take(name, event.slot.generation):
            self._wrong(f"request {event.allocation_id}, event {event.sequence}: {wrong}")
        self.journal.write(
            EVENT,
            job_id=self.job_id,
            sequence=event.sequence,
            id=event.allocation_id,
            state=name,
            reason=event.reason,
            generation=event.slot.generation,
            executor=event.slot.executor_id,
        )

    def _wrong(self, message: str) -> None:
        self.journal.write(WRONG, message=f"job {self.job_id}: {message}")
