"""Peers of earlier versions are refused, change nothing, and the log names the version to install.

Version 0.1 used no TLS. Its peers get no connection, so their calls cannot be logged. The names of
its executors are in the database.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from finegrain.errors import Reason
from finegrain.software_version import software_version
from finegrain.v1 import cluster_pb2 as pb
from finegrain.v1 import cluster_pb2_grpc, resource_manager_pb2_grpc
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.model.effects import Changes
from resource_manager.storage.backup import AUTHORITY_KEY
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    refusal,
    running_rm,
)

OLD_TOKEN = (("authorization", "Bearer " + "cluster" * 4),)


async def listed(rm: RunningRm) -> tuple[list[str], list[str], int]:
    executors = (await rm.cluster.ListExecutors(pb.ListExecutorsRequest())).executors
    jobs = (await rm.cluster.ListJobs(pb.ListJobsRequest())).jobs
    events = (await rm.cluster.ListEvents(pb.ListEventsRequest())).events
    return [each.executor_id for each in executors], [each.job_id for each in jobs], len(events)


async def test_a_peer_without_tls_gets_no_connection_and_changes_nothing(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        before = await listed(rm)
        registration = executor.registration()
        async with grpc.aio.insecure_channel(rm.address) as channel:
            manager: Any = resource_manager_pb2_grpc.ResourceManagerServiceStub(channel)
            cluster: Any = cluster_pb2_grpc.ClusterServiceStub(channel)
            for call, message in (
                (manager.RegisterExecutor, registration),
                (manager.EndJob, rm_pb2.EndJobRequest(job_id=job.job_id)),
                (cluster.TerminateJob, pb.TerminateJobRequest(job_id=job.job_id)),
                (cluster.DrainExecutor, pb.DrainExecutorRequest(executor_id="host-a")),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(message, metadata=OLD_TOKEN, timeout=10)
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "Socket closed" in str(error.value.details())
        assert await listed(rm) == before
        assert not executor.commands


async def test_the_log_names_executors_of_a_version_without_certificates(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a"):
        pass
    with open_store(sqlite_url(tmp_path / "finegrain.db")) as store:  # as version 0.1 has left it
        store.lead("version 0.1")
        store.commit(Changes(metas={AUTHORITY_KEY: None}))
    with capture_logs() as lines:
        async with running_rm(tmp_path) as rm:
            assert (await listed(rm))[0] == ["host-a"]
    (line,) = [each for each in lines if each["event"] == "executors_awaited"]
    assert line["executor_ids"] == ["host-a"]
    assert f"finegrain {software_version()}" in line["needs"]
    assert "finegrain certs migrate" in line["fix"]


async def test_an_executor_with_an_old_protocol_is_told_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "finegrain.rpc")
    async with running_rm(tmp_path) as rm:
        message = ScriptedExecutor(rm, address="127.0.0.1:1").registration()
        message.protocol_version, message.software_version = "0.9", "0.1.5"
        before = await listed(rm)
        error = await refusal(rm.rm_as("executor/host-a").RegisterExecutor(message))
        assert await listed(rm) == before
    assert error.reason is Reason.VERSION_MISMATCH
    assert "0.1.5" in error.message
    needed = f"install finegrain {software_version()} on the executor's host"
    assert needed in error.message
    (line,) = [each for each in caplog.records if each.message == "call_refused"]
    assert needed in line.__dict__["error"]
