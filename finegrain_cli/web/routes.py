"""Defines the table of all routes: the call of the protocol that serves each route, and the JSON
form of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message

from finegrain.mapping.value import Value
from finegrain.v1 import cluster_pb2, identity_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.outcomes import ItemOutcome
from finegrain_cli.text.devices import device_rows
from finegrain_cli.text.output import API_VERSION
from finegrain_client.decoding import read
from finegrain_client.decoding_hosts import read as read_hosts
from finegrain_client.decoding_identities import read as read_identities
from finegrain_client.types import (
    advice,
    devices,
    explain,
    groups,
    host_policy,
    identities,
    preview,
    status,
)
from finegrain_client.types.providers import Providers
from finegrain_client.types.topology import TopologyReport

CLUSTER = "finegrain.v1.ClusterService"
MANAGER = "finegrain.v1.ResourceManagerService"
IDENTITY = "finegrain.v1.IdentityService"

Json = dict[str, Any]
Form = Callable[[Any, Any], Json]
"""A function that returns the JSON document of an answer. Its arguments are the message of the
request and the message of the answer.
"""


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        verb: the HTTP method.
        path: the path, with names of the request's fields in braces.
        call: full name of the call of the protocol, such as
            "/finegrain.v1.ClusterService/GetCluster".
        request: class of the request's message.
        kind: value of "kind" in the answer.
        form: the function that makes the answer's document.
        summary: one sentence for the description of the interface.
        value: class of the answer, or of its items. None if the answer has no class.
        is_list: True if the answer has items.
        guarded_by: path of the resource whose ETag a caller can name in `If-Match`. If empty,
            `If-Match` is refused.
        status: HTTP status of a successful answer.
    """

    verb: str
    path: str
    call: str
    request: type[Message]
    kind: str
    form: Form
    summary: str
    value: type[Value] | None = None
    is_list: bool = False
    guarded_by: str = ""
    status: int = 200

    @property
    def pattern(self) -> str:
        """The path in the form for the router. The form accepts the slash in the name of a user."""
        return self.path.replace("{user}", "{user:path}")

    @property
    def changes(self) -> bool:
        """True if the call changes something."""
        return self.verb != "GET"

    @property
    def name(self) -> str:
        """Name of the call without its service, such as "GetCluster"."""
        return self.call.rpartition("/")[2]


def document(kind: str, data: Mapping[str, Any]) -> Json:
    """Returns a JSON document with its version and kind, in the form that the command prints."""
    return {"api_version": API_VERSION, "kind": kind, **data}


def _list(kind: str, value: type[Value], name: str, _request: Any, answer: Any) -> Json:
    reader = read_identities if value is identities.AuditEntry else read
    items = [each.to_dict() for each in reader.each(value, getattr(answer, name))]
    page = {"next_page_token": answer.next_page_token} if hasattr(answer, "next_page_token") else {}
    return document(kind, {"items": items, **page})


def _part(kind: str, value: type[Value], name: str, _request: Any, answer: Any) -> Json:
    return document(kind, read(value, getattr(answer, name)).to_dict())


def _whole(kind: str, value: type[Value], _request: Any, answer: Any) -> Json:
    reader = read_hosts if value is TopologyReport else read
    return document(kind, reader(value, answer).to_dict())


def _named(kind: str, *names: str) -> Form:
    """For answers without content: returns a form whose document contains fields of the request."""
    return lambda request, _answer: document(kind, {name: getattr(request, name) for name in names})


def _executor(_request: Any, answer: cluster_pb2.GetExecutorResponse) -> Json:
    slots = tuple(read.each(status.SlotStatus, answer.slots))
    executor = read(status.ExecutorStatus, answer.executor, slot_list=slots)
    return document("Executor", executor.to_dict())


def _policy(request: Any, answer: Any) -> Json:
    # Only answers to reads, and not answers to changes, say which settings the executor follows.
    given = {} if hasattr(answer, "followed_number") else {"followed_number": None}
    found = read_hosts(
        host_policy.HostPolicyStatus, answer, executor_id=request.executor_id, **given
    )
    return document("HostPolicy", found.to_dict())


def _cordon(request: Any, answer: cluster_pb2.CordonDeviceResponse) -> Json:
    data = {"executor_id": request.executor_id, "device": request.device, "uuid": answer.uuid}
    return document("Cordon", data)


def _devices(_request: Any, answer: cluster_pb2.ListDevicesResponse) -> Json:
    rows = device_rows(read.each(devices.ExecutorDevices, answer.executors))
    return document("DeviceList", {"items": rows, "next_page_token": answer.next_page_token})


def _advice(request: Any, answer: cluster_pb2.AdviseThreadsResponse) -> Json:
    found = read(advice.ThreadAdvice, answer, job_id=request.job_id)
    return document("ThreadAdvice", found.to_dict())


def _job(request: rm_pb2.RegisterJobRequest, answer: rm_pb2.RegisterJobResponse) -> Json:
    lease_s = answer.lease.ToMilliseconds() / 1000 if answer.HasField("lease") else None
    return document("Job", {"job_id": request.job_id, "name": request.name, "lease_s": lease_s})


_OUTCOMES = partial(_list, "OutcomeList", ItemOutcome, "results")
_EXECUTOR = partial(_part, "Executor", status.ExecutorStatus, "executor")
_ONE_EXECUTOR = "/v1/executors/{executor_id}"


def _get(
    path: str,
    call: str,
    request: type[Message],
    form: Form,
    summary: str,
    *,
    kind: str,
    value: type[Value] | None = None,
) -> Route:
    return Route("GET", path, call, request, kind, form, summary, value=value)


def _lists(
    path: str,
    call: str,
    request: type[Message],
    kind: str,
    value: type[Value],
    name: str,
    summary: str,
) -> Route:
    form = partial(_list, kind, value, name)
    return Route("GET", path, call, request, kind, form, summary, value=value, is_list=True)


ROUTES: tuple[Route, ...] = (
    _get(
        "/v1/cluster",
        f"/{CLUSTER}/GetCluster",
        cluster_pb2.GetClusterRequest,
        partial(_whole, "Cluster", status.ClusterInfo),
        "The resource manager, and the sums of the cluster.",
        kind="Cluster",
        value=status.ClusterInfo,
    ),
    _lists(
        "/v1/executors",
        f"/{CLUSTER}/ListExecutors",
        cluster_pb2.ListExecutorsRequest,
        "ExecutorList",
        status.ExecutorStatus,
        "executors",
        "Executors in order of id.",
    ),
    _get(
        _ONE_EXECUTOR,
        f"/{CLUSTER}/GetExecutor",
        cluster_pb2.GetExecutorRequest,
        _executor,
        "One executor with its topology and slots.",
        kind="Executor",
        value=status.ExecutorStatus,
    ),
    _get(
        f"{_ONE_EXECUTOR}/topology",
        f"/{CLUSTER}/GetTopology",
        cluster_pb2.GetTopologyRequest,
        partial(_whole, "TopologyReport", TopologyReport),
        "Cpus and NUMA nodes of an executor, and the slots that use them.",
        kind="TopologyReport",
        value=TopologyReport,
    ),
    _get(
        f"{_ONE_EXECUTOR}/usage",
        f"/{CLUSTER}/GetUsage",
        cluster_pb2.GetUsageRequest,
        partial(_whole, "UsageHistory", status.UsageHistory),
        "Measured use of an executor over the last hour.",
        kind="UsageHistory",
        value=status.UsageHistory,
    ),
    _get(
        f"{_ONE_EXECUTOR}/policy",
        f"/{CLUSTER}/GetHostPolicy",
        cluster_pb2.GetHostPolicyRequest,
        _policy,
        "Settings of an executor's host.",
        kind="HostPolicy",
        value=host_policy.HostPolicyStatus,
    ),
    Route(
        "PATCH",
        f"{_ONE_EXECUTOR}/policy",
        f"/{CLUSTER}/SetHostPolicy",
        cluster_pb2.SetHostPolicyRequest,
        "HostPolicy",
        _policy,
        "Changes settings of an executor's host.",
        guarded_by=f"{_ONE_EXECUTOR}/policy",
        value=host_policy.HostPolicyStatus,
    ),
    Route(
        "POST",
        f"{_ONE_EXECUTOR}/drain",
        f"/{CLUSTER}/DrainExecutor",
        cluster_pb2.DrainExecutorRequest,
        "Executor",
        _EXECUTOR,
        "Places no new slots on an executor.",
        guarded_by=_ONE_EXECUTOR,
        value=status.ExecutorStatus,
    ),
    Route(
        "POST",
        f"{_ONE_EXECUTOR}/undrain",
        f"/{CLUSTER}/UndrainExecutor",
        cluster_pb2.UndrainExecutorRequest,
        "Executor",
        _EXECUTOR,
        "Allows new slots on an executor again.",
        guarded_by=_ONE_EXECUTOR,
        value=status.ExecutorStatus,
    ),
    Route(
        "DELETE",
        _ONE_EXECUTOR,
        f"/{CLUSTER}/ForgetExecutor",
        cluster_pb2.ForgetExecutorRequest,
        "Forgotten",
        _named("Forgotten", "executor_id"),
        "Deletes a lost executor from the state.",
        guarded_by=_ONE_EXECUTOR,
    ),
    Route(
        "POST",
        f"{_ONE_EXECUTOR}/devices/{{device}}/cordon",
        f"/{CLUSTER}/CordonDevice",
        cluster_pb2.CordonDeviceRequest,
        "Cordon",
        _cordon,
        "Keeps new slots from a device.",
    ),
    Route(
        "POST",
        f"{_ONE_EXECUTOR}/devices/{{device}}/uncordon",
        f"/{CLUSTER}/UncordonDevice",
        cluster_pb2.UncordonDeviceRequest,
        "Uncordon",
        _named("Uncordon", "executor_id", "device"),
        "Lets new slots get a device again.",
    ),
    _get(
        "/v1/devices",
        f"/{CLUSTER}/ListDevices",
        cluster_pb2.ListDevicesRequest,
        _devices,
        "GPUs and other devices.",
        kind="DeviceList",
    ),
    _lists(
        "/v1/slots",
        f"/{CLUSTER}/ListSlots",
        cluster_pb2.ListSlotsRequest,
        "SlotList",
        status.SlotStatus,
        "slots",
        "Slots that exist, in order of executor and id.",
    ),
    _get(
        "/v1/slots/{allocation_id}/usage",
        f"/{CLUSTER}/GetUsage",
        cluster_pb2.GetUsageRequest,
        partial(_whole, "UsageHistory", status.UsageHistory),
        "Measured use of a slot over the last hour.",
        kind="UsageHistory",
        value=status.UsageHistory,
    ),
    Route(
        "POST",
        "/v1/slots/{allocation_id}/resize",
        f"/{CLUSTER}/ResizeSlot",
        cluster_pb2.ClusterServiceResizeSlotRequest,
        "Slot",
        partial(_part, "Slot", status.SlotStatus, "slot"),
        "Changes the size of a slot of any job. The answer has the change that is in progress.",
        status=202,
        value=status.SlotStatus,
    ),
    Route(
        "POST",
        "/v1/slots/release",
        f"/{CLUSTER}/ReleaseAllocations",
        cluster_pb2.ReleaseAllocationsRequest,
        "OutcomeList",
        _OUTCOMES,
        "Releases slots, or cancels requests, of any job.",
    ),
    _lists(
        "/v1/requests",
        f"/{CLUSTER}/ListRequests",
        cluster_pb2.ListRequestsRequest,
        "RequestList",
        status.RequestStatus,
        "requests",
        "Requests in queue order.",
    ),
    _get(
        "/v1/requests/{allocation_id}/explanation",
        f"/{MANAGER}/Explain",
        rm_pb2.ExplainRequest,
        partial(_whole, "Explanation", explain.Explanation),
        "Why a request waits, and what would make it fit.",
        kind="Explanation",
        value=explain.Explanation,
    ),
    _lists(
        "/v1/jobs",
        f"/{CLUSTER}/ListJobs",
        cluster_pb2.ListJobsRequest,
        "JobList",
        status.JobStatus,
        "jobs",
        "Jobs in order of arrival.",
    ),
    Route(
        "POST",
        "/v1/jobs",
        f"/{MANAGER}/RegisterJob",
        rm_pb2.RegisterJobRequest,
        "Job",
        _job,
        "Registers a job of the caller.",
        status=201,
    ),
    Route(
        "POST",
        "/v1/jobs/{job_id}/keep-alive",
        f"/{MANAGER}/KeepAlive",
        rm_pb2.KeepAliveRequest,
        "KeptAlive",
        _named("KeptAlive", "job_id"),
        "Renews the lease of a job.",
    ),
    Route(
        "POST",
        "/v1/jobs/{job_id}/requests",
        f"/{MANAGER}/RequestResource",
        rm_pb2.RequestResourceRequest,
        "OutcomeList",
        _OUTCOMES,
        "Requests slots for a job.",
    ),
    Route(
        "POST",
        "/v1/jobs/{job_id}/end",
        f"/{MANAGER}/EndJob",
        rm_pb2.EndJobRequest,
        "Ended",
        _named("Ended", "job_id"),
        "Ends a job of the caller, with its requests and slots.",
    ),
    Route(
        "POST",
        "/v1/jobs/{job_id}/terminate",
        f"/{CLUSTER}/TerminateJob",
        cluster_pb2.TerminateJobRequest,
        "Terminated",
        _named("Terminated", "job_id"),
        "Ends any job, with its requests and slots.",
    ),
    _get(
        "/v1/jobs/{job_id}/advice",
        f"/{CLUSTER}/AdviseThreads",
        cluster_pb2.AdviseThreadsRequest,
        _advice,
        "A number of threads for the work of a job.",
        kind="ThreadAdvice",
        value=advice.ThreadAdvice,
    ),
    _get(
        "/v1/groups",
        f"/{CLUSTER}/ListGroups",
        cluster_pb2.ListGroupsRequest,
        partial(_whole, "Groups", groups.Groups),
        "Resource groups with weights, limits and use, parents first.",
        kind="Groups",
        value=groups.Groups,
    ),
    _get(
        "/v1/groups/{group}/usage",
        f"/{CLUSTER}/GetUsage",
        cluster_pb2.GetUsageRequest,
        partial(_whole, "UsageHistory", status.UsageHistory),
        "Allocated amounts and shares of a group over the last hour.",
        kind="UsageHistory",
        value=status.UsageHistory,
    ),
    Route(
        "PATCH",
        "/v1/groups/{name}",
        f"/{CLUSTER}/SetGroup",
        cluster_pb2.SetGroupRequest,
        "Group",
        partial(_part, "Group", groups.GroupStatus, "group"),
        "Creates a group, or changes the given settings of a group.",
        guarded_by="/v1/groups",
        value=groups.GroupStatus,
    ),
    Route(
        "POST",
        "/v1/groups/{name}/users",
        f"/{CLUSTER}/ChangeGroupUsers",
        cluster_pb2.ChangeGroupUsersRequest,
        "Group",
        partial(_part, "Group", groups.GroupStatus, "group"),
        "Allows and revokes users of a group.",
        guarded_by="/v1/groups",
        value=groups.GroupStatus,
    ),
    Route(
        "POST",
        "/v1/groups/{name}/rules",
        f"/{CLUSTER}/ChangeGroupRules",
        cluster_pb2.ChangeGroupRulesRequest,
        "Group",
        partial(_part, "Group", groups.GroupStatus, "group"),
        "Adds and removes rules that give jobs this group.",
        guarded_by="/v1/groups",
        value=groups.GroupStatus,
    ),
    Route(
        "DELETE",
        "/v1/groups/{name}",
        f"/{CLUSTER}/DeleteGroup",
        cluster_pb2.DeleteGroupRequest,
        "GroupDeleted",
        _named("GroupDeleted", "name"),
        "Deletes a group without jobs.",
        guarded_by="/v1/groups",
    ),
    _lists(
        "/v1/users",
        f"/{CLUSTER}/ListUsers",
        cluster_pb2.ListUsersRequest,
        "UserList",
        groups.UserStatus,
        "users",
        "Users with their limits and what they use.",
    ),
    Route(
        "PATCH",
        "/v1/users/{user}",
        f"/{CLUSTER}/SetUserLimits",
        cluster_pb2.SetUserLimitsRequest,
        "User",
        partial(_part, "User", groups.UserStatus, "user"),
        "Limits what a user may have.",
        value=groups.UserStatus,
    ),
    Route(
        "DELETE",
        "/v1/users/{user}",
        f"/{CLUSTER}/DeleteUserLimits",
        cluster_pb2.DeleteUserLimitsRequest,
        "UserLimitsDeleted",
        _named("UserLimitsDeleted", "user"),
        "Removes the limits of a user.",
    ),
    _get(
        "/v1/providers",
        f"/{CLUSTER}/ListProviders",
        cluster_pb2.ListProvidersRequest,
        partial(_whole, "Providers", Providers),
        "Shapes of executors that can be requested, and requested executors.",
        kind="Providers",
        value=Providers,
    ),
    _get(
        "/v1/policy",
        f"/{CLUSTER}/GetHostPolicy",
        cluster_pb2.GetHostPolicyRequest,
        _policy,
        "Settings for the hosts of the whole cluster.",
        kind="HostPolicy",
        value=host_policy.HostPolicyStatus,
    ),
    Route(
        "PATCH",
        "/v1/policy",
        f"/{CLUSTER}/SetHostPolicy",
        cluster_pb2.SetHostPolicyRequest,
        "HostPolicy",
        _policy,
        "Changes settings for the hosts of the whole cluster.",
        guarded_by="/v1/policy",
        value=host_policy.HostPolicyStatus,
    ),
    Route(
        "POST",
        "/v1/preview",
        f"/{CLUSTER}/PreviewAction",
        cluster_pb2.PreviewActionRequest,
        "Preview",
        partial(_whole, "Preview", preview.Preview),
        "What an action would change: its slots and jobs, room on other executors, shares before"
        " and after. Changes nothing.",
        value=preview.Preview,
    ),
    _lists(
        "/v1/events",
        f"/{CLUSTER}/ListEvents",
        cluster_pb2.ListEventsRequest,
        "EventList",
        status.ClusterEvent,
        "events",
        "Events of the cluster, the oldest first. With `Accept: text/event-stream`, a stream that"
        " does not end.",
    ),
    _lists(
        "/v1/audit",
        f"/{IDENTITY}/ListAudit",
        identity_pb2.ListAuditRequest,
        "AuditList",
        identities.AuditEntry,
        "entries",
        "Changes by administrators, and refused calls.",
    ),
)
