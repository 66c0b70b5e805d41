"""Defines the access rules: which roles may call each method, and how large a request may be.

A method that is not in an access table is denied. The tables state which roles may call a method at
all. The handlers also check the object of the call. A job master may use only its own jobs, and an
executor may report only for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from finegrain.errors import PermissionDenied, Reason
from finegrain.identity import Identity, Role

KIB = 1024
LARGE_BYTES = 4 * KIB * KIB
TASK_BYTES = 256 * KIB
SMALL_BYTES = 64 * KIB
TOKEN_KEY = "finegrain-allocation-token-bin"
"""Name of the metadata entry in which a job master shows an allocation token."""

Roles = frozenset[Role]
AccessTable = Mapping[str, Roles]
"""For each method, the roles that may call it. The key is the full name of the method
("/finegrain.v1.ClusterService/GetCluster").
"""

ANYBODY: Roles = frozenset(Role)
JOB_MASTERS: Roles = frozenset((Role.USER, Role.OPERATOR))
READERS: Roles = frozenset((Role.USER, Role.VIEWER, Role.OPERATOR))
OPERATORS: Roles = frozenset((Role.OPERATOR,))
EXECUTORS: Roles = frozenset((Role.EXECUTOR,))
MANAGERS: Roles = frozenset((Role.RM,))


def table_of(service: str, lines: Mapping[Roles, Iterable[str]]) -> AccessTable:
    """Returns the access table of one service, from plain method names.

    Args:
        service: full name of the service.
        lines: the methods, by the roles that may call each of these methods.
    """
    return {f"/{service}/{method}": roles for roles, methods in lines.items() for method in methods}


RESOURCE_MANAGER_ACCESS = table_of(
    "finegrain.v1.ResourceManagerService",
    {
        JOB_MASTERS: (
            "RegisterJob",
            "KeepAlive",
            "EndJob",
            "RequestResource",
            "CancelRequests",
            "ReleaseSlots",
            "ReuseSlots",
            "ResizeSlot",
            "WatchJob",
            "GetAllocationToken",
        ),
        READERS: ("Explain",),
        EXECUTORS: ("RegisterExecutor", "ReportSlots"),
    },
)
CLUSTER_ACCESS = table_of(
    "finegrain.v1.ClusterService",
    {
        READERS: (
            "GetCluster",
            "ListExecutors",
            "GetExecutor",
            "ListSlots",
            "ListRequests",
            "ListJobs",
            "ListEvents",
            "ListProviders",
            "ListGroups",
            "ListUsers",
            "AdviseThreads",
            "GetTopology",
            "GetUsage",
            "ListDevices",
            "GetHostPolicy",
            "PreviewAction",
        ),
        OPERATORS: (
            "DrainExecutor",
            "UndrainExecutor",
            "ForgetExecutor",
            "ReleaseAllocations",
            "TerminateJob",
            "ResizeSlot",
            "SetGroup",
            "ChangeGroupUsers",
            "ChangeGroupRules",
            "SetUserLimits",
            "DeleteUserLimits",
            "DeleteGroup",
            "CordonDevice",
            "UncordonDevice",
            "SetHostPolicy",
        ),
    },
)
IDENTITY_ACCESS = table_of(
    "finegrain.v1.IdentityService",
    {
        ANYBODY: ("RenewCertificate",),
        READERS: ("CreateWebLink", "ListWebSessions", "EndWebSession"),
        OPERATORS: (
            "CreateToken",
            "ListTokens",
            "RevokeToken",
            "DenyIdentity",
            "AllowIdentity",
            "ListDenied",
            "ListAudit",
            "VerifyAudit",
        ),
    },
)
TASK_EXECUTOR_ACCESS = table_of(
    "finegrain.v1.TaskExecutorService",
    {
        JOB_MASTERS: (
            "SubmitTask",
            "CancelTask",
            "SignalTask",
            "WriteTaskInput",
            "WatchTask",
            "AcknowledgeOutput",
            "ListTasks",
            "RegisterManagedMemory",
            "SetTaskPeers",
        ),
        MANAGERS: ("AllocateSlots", "FreeSlots", "ResizeSlot"),
    },
)

_LARGE = {
    "RequestResource",
    "CancelRequests",
    "ReleaseSlots",
    "Explain",
    "RegisterExecutor",
    "ReportSlots",
    "AllocateSlots",
    "FreeSlots",
    "ReleaseAllocations",
    "PreviewAction",
    "ListRequests",
    "OfferSlots",
}
_TASK = {"SubmitTask", "SetTaskPeers", "WriteTaskInput"}  # with 64 KiB of input, or many peers


def request_bytes_max(method: str) -> int:
    """Returns the maximum size of a request to a method ("/service/Name"), in bytes."""
    name = method.rpartition("/")[2]
    if name in _LARGE:
        return LARGE_BYTES
    # A method that is in no list gets the smallest limit.
    return TASK_BYTES if name in _TASK else SMALL_BYTES


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a call.

    Attributes:
        identity: the identity in the caller's certificate; None outside of a call.
        certificate: the certificate as PEM text.
        peer: network address of the caller.
    """

    identity: Identity | None = None
    certificate: bytes = field(default=b"", repr=False)
    peer: str = ""

    @property
    def role(self) -> Role | None:
        """The role of the caller."""
        return self.identity.role if self.identity else None

    @property
    def is_operator(self) -> bool:
        """True if the caller is an administrator of the cluster (role `operator`)."""
        return self.role is Role.OPERATOR

    @property
    def name(self) -> str:
        """The identity as text, for example "user/alice"; empty outside of a call."""
        return str(self.identity) if self.identity else ""

    def owns(self, owner: str) -> bool:
        """Returns True if the caller is the owner with this name. Returns False for an empty
        name.
        """
        return bool(owner) and self.name == owner


_NONE = Caller()
_caller: ContextVar[Caller] = ContextVar("finegrain_caller", default=_NONE)


def current_caller() -> Caller:
    """Returns the caller of the current call."""
    return _caller.get()


def enter_call(caller: Caller) -> None:
    """Sets the caller for the remaining time of the current asyncio task. Only the server and tests
    call this function.
    """
    _caller.set(caller)


def check_role(caller: Caller, method: str, allowed: Roles) -> None:
    """Checks that a caller may call a method.

    Raises:
        PermissionDenied: the caller's role is not allowed. The message names the role and the
            allowed roles.
    """
    if caller.role in allowed:
        return
    name = method.rpartition("/")[2]
    needed = " or ".join(sorted(allowed))
    raise PermissionDenied(
        f"{caller.name} may not call {name}; this call needs the role {needed}",
        reason=Reason.ROLE_MISSING,
        details={"identity": caller.name, "method": name, "needs": needed},
    )
