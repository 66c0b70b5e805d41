"""Access rules: which token each method needs, and how large a request may be.

A method that is not in an access table is denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum

from finegrain.errors import PermissionDenied, Reason, Unauthenticated, Unavailable
from finegrain.rpc.channels import AUTHORIZATION, JOB_SECRET
from finegrain.rpc.tokens import same_secret, sha256_hex

KIB = 1024
LARGE_BYTES = 4 * KIB * KIB
TASK_BYTES = 256 * KIB
SMALL_BYTES = 64 * KIB


class Access(Enum):
    """The token that a caller must show."""

    NONE = "none"  # any caller; only for health checks
    USER = "user"  # the user token or the cluster token
    CLUSTER = "cluster"  # the cluster token


AccessTable = Mapping[str, Access]
"""Required access, by full method name ("/finegrain.v1.ClusterService/GetCluster")."""


def table_of(service: str, *, user: Iterable[str] = (), cluster: Iterable[str] = ()) -> AccessTable:
    """Returns the access table of one service, from plain method names.

    Args:
        service: full name of the service.
        user: methods that accept both tokens.
        cluster: methods that need the cluster token.
    """
    lines = dict.fromkeys((f"/{service}/{method}" for method in user), Access.USER)
    lines.update(dict.fromkeys((f"/{service}/{method}" for method in cluster), Access.CLUSTER))
    return lines


RESOURCE_MANAGER_ACCESS = table_of(
    "finegrain.v1.ResourceManagerService",
    user=(
        "RegisterJob",
        "KeepAlive",
        "EndJob",
        "RequestResource",
        "CancelRequests",
        "ReleaseSlots",
        "ReuseSlots",
        "ResizeSlot",
        "WatchJob",
        "Explain",
    ),
    cluster=("RegisterExecutor", "ReportSlots"),
)
CLUSTER_ACCESS = table_of(
    "finegrain.v1.ClusterService",
    user=(
        "GetCluster",
        "ListExecutors",
        "GetExecutor",
        "ListSlots",
        "ListRequests",
        "ListJobs",
        "ListEvents",
        "ListProviders",
        "ListGroups",
        "AdviseThreads",
        "GetTopology",
        "ListDevices",
        "GetHostPolicy",
    ),
    cluster=(
        "DrainExecutor",
        "UndrainExecutor",
        "ForgetExecutor",
        "ReleaseAllocations",
        "TerminateJob",
        "ResizeSlot",
        "SetGroup",
        "DeleteGroup",
        "CordonDevice",
        "UncordonDevice",
        "SetHostPolicy",
    ),
)
TASK_EXECUTOR_ACCESS = table_of(
    "finegrain.v1.TaskExecutorService",
    user=(
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
    cluster=("AllocateSlots", "FreeSlots", "ResizeSlot"),
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
    "ListRequests",
    "OfferSlots",
}
_TASK = {"SubmitTask", "SetTaskPeers", "WriteTaskInput"}  # 64 KiB of input, or many peers


def request_bytes_max(method: str) -> int:
    """Returns the maximum size of a request to a method ("/service/Name"), in bytes."""
    name = method.rpartition("/")[2]
    if name in _LARGE:
        return LARGE_BYTES
    # A method that is in no list gets the smallest limit.
    return TASK_BYTES if name in _TASK else SMALL_BYTES


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity of a caller, from the metadata of its call."""

    token_kind: str  # "user", "cluster" or "none"
    job_secret: str | None = field(default=None, repr=False)
    peer: str = ""

    @property
    def is_cluster(self) -> bool:
        """True for the resource manager, executors and operators."""
        return self.token_kind == "cluster"

    def owns(self, job_secret_sha256: str) -> bool:
        """True if the caller showed the job secret with this hash. Always false for an empty
        hash.
        """
        if self.job_secret is None or not job_secret_sha256:
            return False
        return same_secret(sha256_hex(self.job_secret), job_secret_sha256)


@dataclass(slots=True)
class TokenHashes:
    """SHA-256 hashes, in hex, of the tokens that a server accepts.

    `user_sha256` may change while the server runs: an executor receives it on registration. Until
    then it is None, and calls whose token may be the user token get UNAVAILABLE. If it is empty, no
    user token is accepted.
    """

    cluster_sha256: str
    user_sha256: str | None = None


_ANONYMOUS = Caller(token_kind="none")
_caller: ContextVar[Caller] = ContextVar("finegrain_caller", default=_ANONYMOUS)


def current_caller() -> Caller:
    """Returns the caller of the current call."""
    return _caller.get()


def enter_call(caller: Caller) -> None:
    """Sets the caller for the rest of the current asyncio task; for the server and for tests."""
    _caller.set(caller)


def identify(
    metadata: Mapping[str, str], need: Access, hashes: TokenHashes, peer: str = ""
) -> Caller:
    """Identifies the caller from the metadata of a call.

    Args:
        metadata: metadata of the call.
        need: what the method requires.
        hashes: the accepted tokens.
        peer: address of the caller.

    Raises:
        Unauthenticated: there is no token, or a wrong one.
        PermissionDenied: the caller has the user token, but the cluster token is needed.
        Unavailable: the token may be the user token, which this server does not know yet.
    """
    secret = metadata.get(JOB_SECRET)
    if need is Access.NONE:
        return Caller(token_kind="none", job_secret=secret, peer=peer)
    scheme, _, token = metadata.get(AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(
            "the call carries no token; name the token file with --token-file or "
            "FINEGRAIN_TOKEN_FILE (the resource manager keeps it in its state directory)"
        )
    # A server stores only hashes, so a dump of its memory or state reveals no token.
    shown = sha256_hex(token)
    if same_secret(shown, hashes.cluster_sha256):
        # The cluster token also allows every call that needs only the user token.
        return Caller(token_kind="cluster", job_secret=secret, peer=peer)
    if hashes.user_sha256 is None and need is Access.USER:
        # UNAVAILABLE, because clients treat UNAUTHENTICATED as final and would give up a task that
        # still runs.
        raise Unavailable(
            "this executor cannot check the user token before it has registered with the resource "
            "manager; try again, and if that does not help, check that the resource manager is "
            "running and that the executor can reach it (manager_not_reached in its log has the "
            "cause)",
            reason=Reason.NOT_REGISTERED,
        )
    if not hashes.user_sha256 or not same_secret(shown, hashes.user_sha256):
        raise Unauthenticated(
            "the token does not belong to this cluster; copy it again from the resource manager's "
            "state directory",
            reason=Reason.TOKEN_WRONG,
        )
    if need is Access.CLUSTER:
        raise PermissionDenied(
            "this call needs the cluster token (cluster.token in the resource manager's state "
            "directory); the user token is not enough"
        )
    return Caller(token_kind="user", job_secret=secret, peer=peer)
