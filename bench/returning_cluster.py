"""Simulates executors that return to a restarted resource manager at once, for benchmarks.

The executors run in a separate process, and each executor has its own connection. An executor sends
a report, and gets the answer that it must register again. It registers with its topology and slots,
and then sends a heartbeat every `REPORT_INTERVAL_S`. The process carves no slots and runs no
server: if an executor's slots agree with the resource manager's state, the resource manager sends
the executor no commands.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import grpc

from bench import filled_books
from bench.filled_books import ISOLATION, PROFILES, TOTAL
from bench.identities import channel_as
from finegrain.certificates.authority import Authority
from finegrain.resources import GIB
from finegrain.rpc.wire import amounts_to_proto, profile_to_proto
from finegrain.rpc.wire_topology import isolation_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from resource_manager.engine.model.entities import Slot

REPORT_INTERVAL_S = 3.0
LOST_TIMEOUT_S = 15.0
CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Returned:
    """The figures of the return."""

    registered_s: float  # from the first call until the last executor was registered
    longest_silence_s: float  # longest time between two acknowledged reports of an executor
    failed_calls: int
    cpu_s: float  # CPU time of this process


def registration(number: int, slots: list[Slot]) -> rm_pb2.RegisterExecutorRequest:
    """Returns the registration of executor `number`."""
    left = dict(TOTAL)
    for slot in slots:
        left["cpu_milli"] -= slot.profile.cpu_milli
        left["memory_bytes"] -= slot.profile.booked_memory_bytes
    isolation = isolation_to_proto(ISOLATION)
    return rm_pb2.RegisterExecutorRequest(
        executor_id=filled_books.host_id(number),
        instance_id=filled_books.instance_id(number),
        address="127.0.0.1:9",  # no client calls this address
        total=amounts_to_proto(TOTAL),
        reserved=amounts_to_proto({"memory_bytes": 4 * GIB}),
        default_slot_profile=profile_to_proto(PROFILES[0]),
        topology=filled_books.topology_of(number),
        labels={"rack": f"r{number // 40}", "zone": "abc"[number % 3]},
        report=slots_pb2.SlotReport(
            report_number=1,
            available=amounts_to_proto(left),
            slots=[_status(slot, isolation) for slot in slots],
        ),
        protocol_version="1.0",
        software_version="0.2.0",
        isolation=isolation,
        shared_cpus="0-63",
    )


def _status(slot: Slot, isolation: Any) -> slots_pb2.SlotStatus:
    return slots_pb2.SlotStatus(
        allocation_id=slot.allocation_id,
        generation=slot.generation,
        job_id=slot.job_id,
        profile=profile_to_proto(slot.profile),
        memory_bytes=slot.profile.booked_memory_bytes,
        cpu_limit_milli=slot.cpu_limit_milli,
        state=slots_pb2.SLOT_STATE_ALLOCATED,
        isolation=isolation,
    )


async def come_back(
    address: str,
    authority: Authority,
    registrations: list[rm_pb2.RegisterExecutorRequest],
    seconds: float,
) -> Returned:
    """Runs all executors until `seconds` after the last executor has registered."""
    loop = asyncio.get_running_loop()
    registered: list[asyncio.Future[None]] = [loop.create_future() for _ in registrations]
    executors = [
        _Executor(address, authority, each, done)
        for each, done in zip(registrations, registered, strict=True)
    ]
    began_s = time.monotonic()
    tasks = [asyncio.create_task(each.live()) for each in executors]
    everybody = asyncio.gather(*registered)
    waited_for: list[asyncio.Future[Any]] = [everybody, *tasks]
    await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
    registered_s = time.monotonic() - began_s
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    broken = [each for each in ended if isinstance(each, Exception)]
    if broken:
        raise broken[0]
    return Returned(
        registered_s,
        max((each.longest_silence_s for each in executors), default=0.0),
        sum(each.failed_calls for each in executors),
        time.process_time(),
    )


class _Executor:
    def __init__(
        self,
        address: str,
        authority: Authority,
        registration: rm_pb2.RegisterExecutorRequest,
        registered: asyncio.Future[None],
    ) -> None:
        self._address = address
        self._authority = authority
        self._registration = registration
        self._registered = registered
        self._number = 0  # number of the last sent report
        self._heard_s = 0.0
        self.longest_silence_s = 0.0
        self.failed_calls = 0

    async def live(self) -> None:
        await asyncio.sleep(random.uniform(0, REPORT_INTERVAL_S))
        self._heard_s = time.monotonic()
        async with channel_as(
            self._authority, f"executor/{self._registration.executor_id}", self._address
        ) as channel:
            rm: Any = ResourceManagerServiceStub(channel)
            epoch, registration_number = 1, 1
            while True:
                base, self._number = self._number, self._number + 1
                report = slots_pb2.SlotReport(
                    report_number=self._number,
                    rm_epoch=epoch,
                    unchanged=True,
                    base_report_number=base,
                )
                answer = await self._call(
                    rm.ReportSlots,
                    rm_pb2.ReportSlotsRequest(
                        executor_id=self._registration.executor_id,
                        instance_id=self._registration.instance_id,
                        registration_number=registration_number,
                        report=report,
                    ),
                )
                if answer.register_again:
                    self._number += 1
                    self._registration.report.report_number = self._number
                    known = await self._call(rm.RegisterExecutor, self._registration)
                    epoch, registration_number = known.rm_epoch, known.registration_number
                    if not self._registered.done():
                        self._registered.set_result(None)
                now_s = time.monotonic()
                self.longest_silence_s = max(self.longest_silence_s, now_s - self._heard_s)
                self._heard_s = now_s
                await asyncio.sleep(REPORT_INTERVAL_S)

    async def _call(self, method: Any, request: Any) -> Any:
        while True:
            try:
                return await method(request, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                self.failed_calls += 1
                await asyncio.sleep(random.uniform(0.5, 2))
