"""Who may call what, and how large a request may be: one line per method, deny by default."""

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
    """What a caller must show."""

    NONE = "none"  # anybody; health only
    USER = "user"  # the user token or the cluster token
    CLUSTER = "cluster"  # the cluster token


AccessTable = Mapping[str, Access]
"""Full method name ("/finegrain.v1.ClusterService/GetCluster") to what its caller must show."""


def table_of(service: str, *, user: Iterable[str] = (), cluster: Iterable[str] = ()) -> AccessTable:
    """The lines of one service by plain method names."""
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
        "SetHostPolicy",
    ),
)
TASK_EXECUTOR_ACCESS = table_of(
    "finegrain.v1.TaskExecutorService",
    user=("SubmitTask", "CancelTask", "SignalTask", "WriteTaskInput", "WatchTask", "ListTasks"),
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
_TASK = {"SubmitTask", "WriteTaskInput"}  # 64 KiB of input plus its envelope


def request_bytes_max(method: str) -> int:
    """Largest request that a method ("/service/Name") takes in."""
    name = method.rpartition("/")[2]
    if name in _LARGE:
        return LARGE_BYTES
    return TASK_BYTES if name in _TASK else SMALL_BYTES


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes the present call. Roles will be fields here."""

    token_kind: str  # "user", "cluster" or "none"
    job_secret: str | None = field(default=None, repr=False)
    peer: str = ""

    @property
    def is_cluster(self) -> bool:
        """True for the RM, executors and operators."""
        return self.token_kind == "cluster"

    def owns(self, job_secret_sha256: str) -> bool:
        """True if the caller showed the secret with this hash; nobody owns what has no hash."""
        if self.job_secret is None or not job_secret_sha256:
            return False
        return same_secret(sha256_hex(self.job_secret), job_secret_sha256)


@dataclass(slots=True)
class TokenHashes:
    """SHA-256 in hex of the tokens that a server accepts.

    `user_sha256` empty: no user token is accepted; None: it is not known yet, so calls with what
    may be the user token get UNAVAILABLE. It may be changed while the server runs (an executor
    learns it when it registers).
    """

    cluster_sha256: str
    user_sha256: str | None = None


_ANONYMOUS = Caller(token_kind="none")
_caller: ContextVar[Caller] = ContextVar("finegrain_caller", default=_ANONYMOUS)


def current_caller() -> Caller:
    """Who makes the call that is being handled."""
    return _caller.get()


def enter_call(caller: Caller) -> None:
    """Sets the caller for the rest of the present task; called by the server, and by tests."""
    _caller.set(caller)


def identify(
    metadata: Mapping[str, str], need: Access, hashes: TokenHashes, peer: str = ""
) -> Caller:
    """The caller by the metadata of a call.

    Raises:
        Unauthenticated: no token or a wrong one.
        PermissionDenied: the user token where the cluster token is needed.
        Unavailable: it may be the user token, which this server does not know yet.
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
    shown = sha256_hex(token)
    if same_secret(shown, hashes.cluster_sha256):
        return Caller(token_kind="cluster", job_secret=secret, peer=peer)
    if hashes.user_sha256 is None and need is Access.USER:
        # UNAUTHENTICATED would be final: a client would give up a task that runs on.
        raise Unavailable(
            "this executor cannot check the user token before it has registered with the resource "
            "manager; try again, and if that does not help, check that the resource manager runs "
            "and that the executor reaches it (manager_not_reached in its log says why not)",
            reason=Reason.NOT_REGISTERED,
        )
    if not hashes.user_sha256 or not same_secret(shown, hashes.user_sha256):
        raise Unauthenticated(
            "the token is not one of this cluster; read it anew from the resource manager's "
            "state directory",
            reason=Reason.TOKEN_WRONG,
        )
    if need is Access.CLUSTER:
        raise PermissionDenied(
            "this call needs the cluster token (cluster.token in the resource manager's state "
            "directory); the user token is not enough"
        )
    return Caller(token_kind="user", job_secret=secret, peer=peer)
