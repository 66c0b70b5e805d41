"""Serves the calls with which executors register and report. `executor_link.py` sends commands to
executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from finegrain.errors import InvalidArgument, PermissionDenied, Reason
from finegrain.ids import check_id
from finegrain.rpc.access import current_caller
from finegrain.rpc.wire import duration_ms_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.model.events import (
    DrainRequested,
    ExecutorRegistered,
    RegistrationAnswer,
    ReportAnswer,
    SlotsReported,
)
from resource_manager.service.audit import short_text
from resource_manager.service.identities.epochs import EpochClaims, EpochProofs
from resource_manager.service.identities.members import Members
from resource_manager.service.measured_use import MeasuredUse, check_usage
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner
from resource_manager.service.wire import decoding, encoding
from resource_manager.storage.audit_log import AuditedCall

ADMIN_CALLS_MAX = 100


@dataclass(frozen=True, slots=True)
class ExecutorTerms:
    """The settings that executors receive when they register."""

    report_interval_ms: int
    lost_timeout_ms: int
    authorities_sha256: Callable[[], str]


def check_speaks_for(executor_id: str) -> str:
    """Checks that the caller is the executor with this id, and returns the id.

    Raises:
        PermissionDenied: the caller is not this executor.
    """
    caller = current_caller()
    if caller.identity is None or caller.identity.name != executor_id:
        raise PermissionDenied(
            f"{caller.name} may not speak for executor {executor_id}; an executor registers with"
            " the id in its certificate",
            reason=Reason.NOT_OWNER,
            details={"executor_id": executor_id, "identity": caller.name},
        )
    return executor_id


class ExecutorCalls:
    """The calls of ResourceManagerService that executors use; see resource_manager.proto."""

    def __init__(
        self,
        runner: Runner,
        terms: ExecutorTerms,
        members: Members,
        proofs: EpochProofs,
        *,
        metrics: ResourceManagerMetrics,
        measured: MeasuredUse,
    ) -> None:
        self._runner = runner
        self._proofs = proofs
        self._claims = EpochClaims(proofs, lambda: runner.rm_epoch)
        self._members = members
        self._terms = terms
        self._metrics = metrics
        self._slot_reports = cache(metrics.slot_reports.labels)
        self._measured = measured

    async def RegisterExecutor(
        self, request: rm_pb2.RegisterExecutorRequest, context: Any
    ) -> rm_pb2.RegisterExecutorResponse:
        """See the protocol."""
        check_speaks_for(check_id("executor_id", request.executor_id))
        registration = decoding.registration(request)
        report = decoding.report(request.report, "report")
        executor_id, claimed = registration.executor_id, report.rm_epoch
        believed, is_invented = self._claims.registered(executor_id, claimed, request.epoch_proof)
        report = replace(report, rm_epoch=believed)
        answer = await self._runner.submit(
            lambda at: ExecutorRegistered(at, registration, report),
            self._registered,
            urgent=True,
            # The engine compares each reported slot, so the event counts as many items.
            items=1 + len(report.slots),
        )
        self._claims.answered(executor_id)
        if is_invented:
            await self._take_out_of_service(executor_id, claimed)
        return answer

    async def ReportSlots(
        self, request: rm_pb2.ReportSlotsRequest, context: Any
    ) -> rm_pb2.ReportSlotsResponse:
        """See the protocol."""
        executor_id = check_speaks_for(check_id("executor_id", request.executor_id))
        instance_id = check_id("instance_id", request.instance_id)
        number = request.registration_number
        if number < 1:
            raise InvalidArgument("registration_number", number, "1 or more")
        report = decoding.report(request.report, "report")
        await self._record(executor_id, request.admin_calls)
        believed = self._claims.reported(executor_id, report.rm_epoch)
        if believed is None:
            return rm_pb2.ReportSlotsResponse(rm_epoch=self._runner.rm_epoch, register_again=True)
        if believed != report.rm_epoch:
            report = replace(report, rm_epoch=believed)
        check_usage(request.usage, "usage")
        answer: ReportAnswer = await self._runner.submit(
            lambda at: SlotsReported(at, executor_id, instance_id, number, report),
            urgent=True,
            items=1 + len(report.slots),
            light=report.unchanged,
        )
        self._claims.answered(executor_id)
        if answer.register_again:
            result = "rejected"
        else:
            taken = answer.acknowledged_report_number == report.report_number
            result = "applied" if taken else "stale"
            # A stale report can have older measurements than the last report.
            if taken and request.HasField("usage"):
                self._measured.reported(executor_id, request.usage)
        self._slot_reports(result).inc()
        rm_epoch = self._runner.rm_epoch
        is_new = request.report.rm_epoch != rm_epoch
        proof = self._proofs.proof_of(rm_epoch) if is_new else None
        is_outdated = request.denied_number != self._members.denials_number
        return encoding.write(
            rm_pb2.ReportSlotsResponse,
            answer,
            rm_epoch=rm_epoch,
            denied=self._denied() if is_outdated else None,
            epoch_proof=proof,
            authorities_sha256=self._terms.authorities_sha256(),
        )

    def _registered(self, answer: RegistrationAnswer) -> rm_pb2.RegisterExecutorResponse:
        return encoding.write(
            rm_pb2.RegisterExecutorResponse,
            answer,
            rm_epoch=self._runner.rm_epoch,
            report_interval=duration_ms_to_proto(self._terms.report_interval_ms),
            lost_timeout=duration_ms_to_proto(self._terms.lost_timeout_ms),
            protocol_version=decoding.PROTOCOL_VERSION,
            denied=self._denied(),
            epoch_proof=self._proofs.proof_of(self._runner.rm_epoch),
            authorities_sha256=self._terms.authorities_sha256(),
        )

    async def _record(self, executor_id: str, calls: Sequence[rm_pb2.AdminCall]) -> None:
        """Adds changes that administrators have made at an executor to the audit log.

        The log names the executor in each entry, because the executor could have invented the
        change.
        """
        if len(calls) > ADMIN_CALLS_MAX:
            raise InvalidArgument(
                "admin_calls", f"{len(calls)} calls", f"at most {ADMIN_CALLS_MAX}"
            )
        for each in calls:
            await self._runner.record(
                AuditedCall(
                    short_text(each.identity),
                    short_text(each.method),
                    short_text(f"{executor_id}: {each.object}"),
                )
            )

    async def _take_out_of_service(self, executor_id: str, claimed: int) -> None:
        """Drains an executor that has reported an epoch without proof. The slots of the executor
        stay.
        """
        self._metrics.unproven_epochs.inc()
        reason = (
            f"it reported the epoch {claimed}, which no resource manager of this cluster has"
            " signed; examine the host, then run finegrain undrain"
        )
        await self._runner.submit(
            lambda at: DrainRequested(at, executor_id, reason), lambda _executor: None
        )

    def _denied(self) -> rm_pb2.DeniedIdentities:
        return rm_pb2.DeniedIdentities(
            number=self._members.denials_number,
            subjects=[each.subject for each in self._members.denials],
        )
