"""Tests that every field of every answer reaches the value that the client returns."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from dataclasses import is_dataclass
from typing import Any

import pytest
from google.protobuf.message import Message

import finegrain_client.types
from finegrain.mapping.value import Value
from finegrain.rpc.mapping.reader import Reader
from finegrain.v1 import cluster_pb2, identity_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import task_executor_pb2 as te
from finegrain.values.outcomes import ItemOutcome
from finegrain_client import decoding, decoding_hosts, decoding_identities
from finegrain_client.types import (
    advice,
    devices,
    explain,
    groups,
    host_policy,
    identities,
    preview,
    providers,
    status,
    topology,
)
from tests.support.full_messages import full_message, left_at_default

ANSWERS: dict[type, type[Message]] = {
    advice.ThreadAdvice: cluster_pb2.AdviseThreadsResponse,
    explain.Explanation: rm.ExplainResponse,
    devices.ExecutorDevices: cluster_pb2.ExecutorDevices,
    groups.Groups: cluster_pb2.ListGroupsResponse,
    host_policy.HostPolicyStatus: cluster_pb2.GetHostPolicyResponse,
    identities.AuditEntry: identity_pb2.AuditEntry,
    identities.AuditCheck: identity_pb2.VerifyAuditResponse,
    identities.Denial: identity_pb2.Denial,
    identities.NewToken: identity_pb2.CreateTokenResponse,
    identities.TokenStatus: identity_pb2.TokenInfo,
    identities.WebLink: identity_pb2.CreateWebLinkResponse,
    identities.WebSession: identity_pb2.WebSession,
    preview.Preview: cluster_pb2.PreviewActionResponse,
    providers.Providers: cluster_pb2.ListProvidersResponse,
    status.ClusterEvent: cluster_pb2.ClusterEvent,
    status.ClusterInfo: cluster_pb2.GetClusterResponse,
    status.ExecutorStatus: cluster_pb2.ExecutorStatus,
    ItemOutcome: slots_pb2.ItemResult,
    status.JobEvent: rm.JobEvent,
    status.JobStatus: cluster_pb2.JobStatus,
    status.TaskStatus: te.TaskStatus,
    topology.TopologyReport: cluster_pb2.GetTopologyResponse,
    groups.UserStatus: cluster_pb2.UserStatus,
    status.UsageHistory: cluster_pb2.GetUsageResponse,
}
READERS = {
    host_policy: decoding_hosts.read,
    topology: decoding_hosts.read,
    identities: decoding_identities.read,
}
GIVEN: dict[type, dict[str, Any]] = {
    advice.ThreadAdvice: {"job_id": "7"},
    host_policy.HostPolicyStatus: {"executor_id": "7"},
    status.ExecutorStatus: {"slot_list": ()},
}
NOT_READ = {
    "OutputChunk",  # built from a stream of them
    "CpuAssignment",  # this value and the next ones are read with the checks of the servers
    "CpuPolicy",
    "DeviceCondition",
    "HostPolicy",
    "HostSettings",
    "Cpu",  # built from the cores of a topology
}
ELSEWHERE = {
    # only the resource manager sets the first field; the default of the second one is `required`
    "Explanation": {
        ".request.cpu_policy.neighbor_job",
        ".request.cpu_policy.neighbors[].required",
    },
    "ExecutorStatus": {".slot_list"},  # given by the caller
    "JobEvent": {".from_snapshot"},  # set when a snapshot is read
    "TopologyReport": {".cpus[].core"},  # the first one is number 0
    "TaskStatus": {".result.stdout", ".result.stderr"},  # collected from the stream
}


def reader_of(kind: type) -> Reader:
    return READERS.get(sys.modules[kind.__module__], decoding.read)


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_nothing_that_a_server_says_is_lost(kind: type) -> None:
    value: object = reader_of(kind)(kind, full_message(ANSWERS[kind]), **GIVEN.get(kind, {}))
    assert set(left_at_default(value)) == ELSEWHERE.get(kind.__name__, set())


def test_every_value_of_the_client_is_read_by_its_fields() -> None:
    for kind, message in ANSWERS.items():
        reader_of(kind).function(kind, message)
    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.iter_modules(
            finegrain_client.types.__path__, f"{finegrain_client.types.__name__}."
        )
    ]
    values = {
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Value) and is_dataclass(found)
    }
    readers = {decoding.read, *READERS.values()}
    read = {kind for each in readers for kind, _ in each.pairs}
    assert {each.__name__ for each in values - read} == NOT_READ


def test_every_exception_of_the_table_names_a_pair_that_can_be_read() -> None:
    for reader in {decoding.read, *READERS.values()}:
        for kind, message in reader.readings:
            assert callable(reader.function(kind, message))
