"""The scripted resource manager for executors of the previous version: without TLS, with tokens.

Fields of messages that this version does not have any more are added as raw bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1 import task_executor_pb2_grpc
from tests.task_executor.service.scripted_rm import ScriptedRM, calling

CLUSTER_TOKEN, USER_TOKEN, SECRET = "cluster" * 4, "user" * 6, "secret" * 4
_USER_TOKEN_SHA256, _JOB_SECRET_SHA256 = 6, 2  # numbers of fields


@dataclass
class PlainRM(ScriptedRM):
    """Serves and commands executors of the previous version."""

    def add_port(self, server: grpc.aio.Server, address: str) -> int:
        return int(server.add_insecure_port(address))

    async def RegisterExecutor(self, request: Any, context: Any) -> rm.RegisterExecutorResponse:
        answer = await super().RegisterExecutor(request, context)
        _add_hash(answer, _USER_TOKEN_SHA256, USER_TOKEN)
        return answer

    async def begin(self, allocation: te.SlotAllocation, *argv: str) -> te.TaskStatus:
        """Carves a slot and starts a task in it."""
        allocation.ClearField("owner")
        _add_hash(allocation, _JOB_SECRET_SHA256, SECRET)
        request = te.AllocateSlotsRequest(**self._numbers(None, {}), allocations=[allocation])
        await self._tell("AllocateSlots", request, CLUSTER_TOKEN)
        task = te.SubmitTaskRequest(
            task_id="task",
            allocation_id=allocation.slot.allocation_id,
            generation=allocation.slot.generation,
            spec=te.TaskSpec(argv=argv, stdin=True),
        )
        answer: te.SubmitTaskResponse = await self._tell("SubmitTask", task, USER_TOKEN)
        return answer.task

    async def _tell(self, method: str, request: Any, token: str) -> Any:
        metadata = (("authorization", f"Bearer {token}"), ("finegrain-job-secret", SECRET))
        async with grpc.aio.insecure_channel(self.executor_address) as channel:
            stub: Any = task_executor_pb2_grpc.TaskExecutorServiceStub(channel)
            return await calling(getattr(stub, method)(request, metadata=metadata, timeout=20))


def _add_hash(message: Any, number: int, secret: str) -> None:
    text = hashlib.sha256(secret.encode()).hexdigest().encode()
    message.MergeFromString(bytes([number << 3 | 2, len(text)]) + text)
