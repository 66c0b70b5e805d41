"""Offers ready slots to job masters that have named an address for offers.

If a job master does not accept a slot in time, the executor frees the slot. The executor can make
the same offer more than once. If the job master accepts an offer again, nothing changes.

A job master chooses the address itself. So the executor sends an offer only to a server that shows
the certificate of the job's owner. The executor connects only to the hosts that the configuration
allows.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
import grpc.aio

from finegrain.errors import FinegrainError, Reason
from finegrain.identity import Identity
from finegrain.logs import get_logger
from finegrain.rpc.channels import open_channel
from finegrain.rpc.offer_targets import OfferTargets
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2
from task_executor.engine.slots import CarveState, Slot, SlotKey
from task_executor.service.encoding import write
from task_executor.service.slot_keeper import SlotKeeper

CALL_S_MAX = 5.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 1.0
ITEMS_MAX = 1_000

log = get_logger(__name__)


class Offers:
    """Makes offers in the background.

    Args:
        keeper: the slots of this executor.
        own: the certificate of this executor.
        timeout_ms: the time in which a job master must accept an offer.
        targets: the hosts to which offers may go.
    """

    def __init__(
        self, keeper: SlotKeeper, own: OwnCertificate, *, timeout_ms: int, targets: OfferTargets
    ) -> None:
        self._keeper = keeper
        self._own = own
        self._targets = targets
        self._timeout_ms = timeout_ms
        self._open: set[asyncio.Task[None]] = set()
        self._offered: set[SlotKey] = set()
        self.address = ""  # address of this executor's service; empty until the address is bound

    def offer(self, slots: Sequence[Slot]) -> None:
        """Offers slots that have a target address and are not accepted yet. Returns at once."""
        by_target: dict[tuple[str, str], list[Slot]] = defaultdict(list)
        for slot in slots:
            wanted = slot.spec.target_address and not slot.accepted
            # The RM can repeat an order. If a slot is already being offered, do not offer it again.
            if wanted and slot.state is CarveState.ALLOCATED and slot.key not in self._offered:
                self._offered.add(slot.key)
                by_target[slot.spec.target_address, slot.spec.job_id].append(slot)
        for (address, _), group in by_target.items():
            for first in range(0, len(group), ITEMS_MAX):
                task = asyncio.create_task(
                    self._offer_group(address, group[first : first + ITEMS_MAX])
                )
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """Cancels the offers in progress. The slots stay."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _offer_group(self, address: str, slots: Sequence[Slot]) -> None:
        """Offers these slots, keeps the accepted slots, and frees all other slots."""
        keys = [slot.key for slot in slots]
        accepted: set[SlotKey] = set()
        try:
            if self._targets.allow(address):
                async with asyncio.timeout(self._timeout_ms / 1000):
                    accepted = await self._call_until_answered(address, slots)
            else:
                log.warning("offer_target_not_allowed", target_address=address, slots=len(slots))
        except TimeoutError:
            log.warning("offer_not_answered", target_address=address, slots=len(slots))
        finally:
            self._offered.difference_update(keys)
        # A slot was possibly freed during the call to its job master.
        taken = [key for key in keys if key in accepted and self._keeper.table.accept(key)]
        rejected = [(key, None) for key in keys if key not in accepted]
        if rejected:
            log.warning("offer_not_accepted", target_address=address, slots=len(rejected))
            await self._keeper.free(rejected, reason=Reason.OFFER_NOT_ACCEPTED.value)
        # `free` saves the checkpoint, with the accepted slots. If no slot was freed, save it here.
        elif taken:
            await self._keeper.save_or_log()

    async def _call_until_answered(self, address: str, slots: Sequence[Slot]) -> set[SlotKey]:
        """Calls the job master until it answers, and returns the accepted slots.

        The caller (`_offer_group`) limits the time.
        """
        pause_s = PAUSE_S_MIN
        while True:
            try:
                return await self._call_once(address, slots)
            except (FinegrainError, grpc.RpcError) as error:
                shown = (
                    error if isinstance(error, FinegrainError) else error_from_rpc(error, address)
                )
                log.info("offer_failed", target_address=address, error=shown.message)
            # Add jitter, so that several executors do not call the same job master at the same
            # moments.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _call_once(self, address: str, slots: Sequence[Slot]) -> set[SlotKey]:
        request = job_master_pb2.OfferSlotsRequest(
            executor_id=self._keeper.identity.executor_id,
            executor_address=self.address,
            slots=write.each(slots_pb2.SlotStatus, slots),
        )
        # All slots of one call belong to one job, so they have the same owner.
        cluster = self._own.credentials.who.cluster
        owner = Identity.from_text(cluster, slots[0].spec.owner)
        async with open_channel(address, self._own, owner) as channel:
            stub: Any = job_master_pb2_grpc.JobMasterServiceStub(channel)
            answer = await stub.OfferSlots(request, timeout=CALL_S_MAX)
        return _accepted(slots, answer.results)


def _accepted(slots: Sequence[Slot], results: Iterable[slots_pb2.ItemResult]) -> set[SlotKey]:
    fine = {result.id for result in results if not result.HasField("error")}
    return {slot.key for slot in slots if slot.spec.allocation_id in fine}
