"""Provides the asyncio client for job masters. It requests slots, runs tasks in the slots, and
releases the slots.

    import finegrain_client as fg

    async with fg.connect(credentials="alice.credentials") as cluster:
        async with cluster.job("hello") as job:
            (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=500))
            slot = await request.granted()
            task = await slot.run(["echo", "hello"])
            print((await task.wait()).check().stdout)

`Job.request_gang` requests slots that are useful only together. `Slot.resize` changes the size of a
slot while its tasks run. `finegrain_client.blocking` has the same names for programs without an
event loop. The guide is docs/job-masters.md.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
    from finegrain.cpu_policy import (
        BindPolicy,
        CpuPolicy,
        ExclusivePolicy,
        HostBindPolicy,
        HostPolicy,
        NumaPolicy,
        NumaStrategy,
        QosClass,
    )
    from finegrain.credentials import Credentials
    from finegrain.errors import (
        AlreadyExists,
        ConfigurationError,
        FailedPrecondition,
        FinegrainError,
        InvalidArgument,
        NotFound,
        OutOfRange,
        PermissionDenied,
        Reason,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
    )
    from finegrain.resources import GIB, KIB, MIB, ResourceProfile
    from finegrain.values.dependencies import JobDependency
    from finegrain.values.explanations import Counterfactual, Dimension, GangSpot
    from finegrain.values.group_rules import GroupRule
    from finegrain.values.isolation import Isolation
    from finegrain.values.outcomes import ItemOutcome
    from finegrain.values.states import (
        ExecutorState,
        GangPlacement,
        JobCondition,
        JobOutcome,
        ProvidedExecutorState,
        RequestState,
        ResizeState,
        SlotState,
        TaskState,
        ThreadEnd,
    )
    from finegrain_client import batch, blocking, graph, graph_run
    from finegrain_client.batch import (
        BatchFailed,
        BatchJob,
        BatchOutcome,
        BatchSpec,
        BatchState,
        ThreadResult,
        ThreadState,
    )
    from finegrain_client.cluster import Cluster, connect
    from finegrain_client.errors import (
        GangTimeout,
        JobEnded,
        Rejection,
        RequestEnded,
        RequestRejected,
        ResizeRefused,
        SlotLost,
        StillResizing,
        StillWaiting,
        TaskNotStarted,
    )
    from finegrain_client.graph import GraphError, JobGraph, JobOptions, ResourceSpec
    from finegrain_client.graph_run import GraphJob, GraphOutcome, GraphRunSpec, GraphState
    from finegrain_client.job.events import JobEvents
    from finegrain_client.job.gangs import GangSpec
    from finegrain_client.job.job import Job
    from finegrain_client.job.ranges import GrantedSlots, RequestRange
    from finegrain_client.job.request import Request, as_granted
    from finegrain_client.slot.slot import Slot
    from finegrain_client.slot.task import Task
    from finegrain_client.specs import DeviceHint, SlotSpec
    from finegrain_client.types.advice import ThreadAdvice
    from finegrain_client.types.devices import ExecutorDevices
    from finegrain_client.types.explain import (
        CpuVerdict,
        ExecutorVerdict,
        Explanation,
        GangExplanation,
        ResizeExplanation,
    )
    from finegrain_client.types.fairness import (
        ChoiceStep,
        FlowStatus,
        GroupLimit,
        Reservation,
        ReservedExecutor,
    )
    from finegrain_client.types.groups import Groups, GroupStatus, UserStatus
    from finegrain_client.types.host_policy import HostPolicyStatus
    from finegrain_client.types.identities import (
        AuditCheck,
        AuditEntry,
        Denial,
        NewToken,
        TokenStatus,
        WebLink,
        WebSession,
    )
    from finegrain_client.types.preview import (
        Preview,
        PreviewedAction,
        PreviewedSetting,
        PreviewedShare,
        PreviewedSlot,
    )
    from finegrain_client.types.providers import ExecutorShape, ProvidedExecutor, Providers
    from finegrain_client.types.status import (
        ClusterEvent,
        ClusterInfo,
        ExecutorStatus,
        Gang,
        JobEvent,
        JobStatus,
        OutputChunk,
        RequestStatus,
        SlotResize,
        SlotStatus,
        TaskFailed,
        TaskResult,
        TaskStatus,
        UsageHistory,
        UsageSample,
    )
    from finegrain_client.types.topology import TopologyReport

_NAMES: Final = {
    "finegrain.cpu_assignment": "CpuAssignment NodeShare PoolName",
    "finegrain.cpu_policy": (
        "BindPolicy CpuPolicy ExclusivePolicy HostBindPolicy HostPolicy NumaPolicy NumaStrategy "
        "QosClass"
    ),
    "finegrain.credentials": "Credentials",
    "finegrain.errors": (
        "AlreadyExists ConfigurationError FailedPrecondition FinegrainError InvalidArgument "
        "NotFound OutOfRange PermissionDenied Reason ResourceExhausted Unauthenticated "
        "Unavailable"
    ),
    "finegrain.resources": "GIB KIB MIB ResourceProfile",
    "finegrain.values.dependencies": "JobDependency",
    "finegrain.values.group_rules": "GroupRule",
    "finegrain.values.explanations": "Counterfactual Dimension GangSpot",
    "finegrain.values.isolation": "Isolation",
    "finegrain.values.outcomes": "ItemOutcome",
    "finegrain.values.states": (
        "ExecutorState GangPlacement JobCondition JobOutcome ProvidedExecutorState RequestState "
        "ResizeState SlotState TaskState ThreadEnd"
    ),
    "finegrain_client.cluster": "Cluster connect",
    "finegrain_client.errors": (
        "GangTimeout JobEnded Rejection RequestEnded RequestRejected ResizeRefused SlotLost "
        "StillResizing StillWaiting TaskNotStarted"
    ),
    "finegrain_client.job.events": "JobEvents",
    "finegrain_client.job.gangs": "GangSpec",
    "finegrain_client.job.job": "Job",
    "finegrain_client.job.ranges": "GrantedSlots RequestRange",
    "finegrain_client.job.request": "Request as_granted",
    "finegrain_client.slot.slot": "Slot",
    "finegrain_client.slot.task": "Task",
    "finegrain_client.specs": "DeviceHint SlotSpec",
    "finegrain_client.types.advice": "ThreadAdvice",
    "finegrain_client.types.devices": "ExecutorDevices",
    "finegrain_client.types.explain": (
        "CpuVerdict ExecutorVerdict Explanation GangExplanation ResizeExplanation"
    ),
    "finegrain_client.types.fairness": (
        "ChoiceStep FlowStatus GroupLimit Reservation ReservedExecutor"
    ),
    "finegrain_client.types.groups": "Groups GroupStatus UserStatus",
    "finegrain_client.types.host_policy": "HostPolicyStatus",
    "finegrain_client.types.identities": "AuditCheck AuditEntry Denial NewToken TokenStatus WebLink"
    " WebSession",
    "finegrain_client.types.preview": (
        "Preview PreviewedAction PreviewedSetting PreviewedShare PreviewedSlot"
    ),
    "finegrain_client.types.providers": "ExecutorShape ProvidedExecutor Providers",
    "finegrain_client.types.status": (
        "ClusterEvent ClusterInfo ExecutorStatus Gang JobEvent JobStatus OutputChunk "
        "RequestStatus SlotResize SlotStatus TaskFailed TaskResult TaskStatus UsageHistory "
        "UsageSample"
    ),
    "finegrain_client.types.topology": "TopologyReport",
    "finegrain_client.batch": (
        "BatchFailed BatchJob BatchOutcome BatchSpec BatchState ThreadResult ThreadState"
    ),
    "finegrain_client.graph": "GraphError JobGraph JobOptions ResourceSpec",
    "finegrain_client.graph_run": "GraphJob GraphOutcome GraphRunSpec GraphState",
}
"""Maps each module to the public names that it defines, separated by spaces."""

_SUBMODULES: Final = ("batch", "blocking", "graph", "graph_run")
_MODULE_OF: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "AlreadyExists",
    "AuditCheck",
    "AuditEntry",
    "BatchFailed",
    "BatchJob",
    "BatchOutcome",
    "BatchSpec",
    "BatchState",
    "BindPolicy",
    "ChoiceStep",
    "Cluster",
    "ClusterEvent",
    "ClusterInfo",
    "ConfigurationError",
    "Counterfactual",
    "CpuAssignment",
    "CpuPolicy",
    "CpuVerdict",
    "Credentials",
    "Denial",
    "DeviceHint",
    "Dimension",
    "ExclusivePolicy",
    "ExecutorDevices",
    "ExecutorShape",
    "ExecutorState",
    "ExecutorStatus",
    "ExecutorVerdict",
    "Explanation",
    "FailedPrecondition",
    "FinegrainError",
    "FlowStatus",
    "Gang",
    "GangExplanation",
    "GangPlacement",
    "GangSpec",
    "GangSpot",
    "GangTimeout",
    "GrantedSlots",
    "GraphError",
    "GraphJob",
    "GraphOutcome",
    "GraphRunSpec",
    "GraphState",
    "GroupLimit",
    "GroupRule",
    "GroupStatus",
    "Groups",
    "HostBindPolicy",
    "HostPolicy",
    "HostPolicyStatus",
    "InvalidArgument",
    "Isolation",
    "ItemOutcome",
    "Job",
    "JobCondition",
    "JobDependency",
    "JobEnded",
    "JobEvent",
    "JobEvents",
    "JobGraph",
    "JobOptions",
    "JobOutcome",
    "JobStatus",
    "NewToken",
    "NodeShare",
    "NotFound",
    "NumaPolicy",
    "NumaStrategy",
    "OutOfRange",
    "OutputChunk",
    "PermissionDenied",
    "PoolName",
    "Preview",
    "PreviewedAction",
    "PreviewedSetting",
    "PreviewedShare",
    "PreviewedSlot",
    "ProvidedExecutor",
    "ProvidedExecutorState",
    "Providers",
    "QosClass",
    "Reason",
    "Rejection",
    "Request",
    "RequestEnded",
    "RequestRange",
    "RequestRejected",
    "RequestState",
    "RequestStatus",
    "Reservation",
    "ReservedExecutor",
    "ResizeExplanation",
    "ResizeRefused",
    "ResizeState",
    "ResourceExhausted",
    "ResourceProfile",
    "ResourceSpec",
    "Slot",
    "SlotLost",
    "SlotResize",
    "SlotSpec",
    "SlotState",
    "SlotStatus",
    "StillResizing",
    "StillWaiting",
    "Task",
    "TaskFailed",
    "TaskNotStarted",
    "TaskResult",
    "TaskState",
    "TaskStatus",
    "ThreadAdvice",
    "ThreadEnd",
    "ThreadResult",
    "ThreadState",
    "TokenStatus",
    "TopologyReport",
    "Unauthenticated",
    "Unavailable",
    "UsageHistory",
    "UsageSample",
    "UserStatus",
    "WebLink",
    "WebSession",
    "as_granted",
    "batch",
    "blocking",
    "connect",
    "graph",
    "graph_run",
]


def __getattr__(name: str) -> Any:
    """Imports a public name on first use.

    Most programs use only some of the modules. The import of all modules would take as long as
    everything else that a short command does.
    """
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
