"""Defines the exit codes of the `finegrain` command. docs/cli.md lists these codes, and they must
not change.

`finegrain run` returns the exit code of its command. If `finegrain run` itself fails, it returns
the codes that shells and container tools use (125 to 128).
"""

from __future__ import annotations

from enum import IntEnum

from finegrain import errors


class ExitCode(IntEnum):
    """Exit status of the command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4  # an object has the wrong state, or already exists
    STILL_WAITING = 5
    INFEASIBLE = 6
    UNREACHABLE = 7
    PERMISSION = 8
    THREADS_FAILED = 9  # `batch`: some threads are not done; `job run`: the job did not finish
    REVOKED = 123  # `run`: the slot was taken back for a request that is not revocable
    # `run`: the slot reached its time limit; timeout(1) has the same exit code.
    TIME_LIMIT = 124
    RUN_FAILED = 125  # `run` itself failed: the command did not start, or its output was lost
    NOT_EXECUTABLE = 126
    NOT_FOUND_COMMAND = 127
    SIGNAL = 128  # the number of the signal is added to this code


_BY_REASON: dict[errors.Reason, ExitCode] = {
    errors.Reason.INFEASIBLE_NEVER: ExitCode.INFEASIBLE,
    errors.Reason.NOT_YET_CONSIDERED: ExitCode.STILL_WAITING,
    errors.Reason.STILL_WAITING: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_CAPACITY: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_FRAGMENTED: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_LABELS: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_TOPOLOGY: ExitCode.STILL_WAITING,
    errors.Reason.INFEASIBLE_NOW_OFFLINE: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_EXECUTOR: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_GANG: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_GROUP_LIMIT: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_USER_LIMIT: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_DEPENDENCY: ExitCode.STILL_WAITING,
    errors.Reason.WAITING_RESERVATION: ExitCode.STILL_WAITING,
    errors.Reason.TIMED_OUT: ExitCode.STILL_WAITING,
    errors.Reason.GANG_TIMEOUT: ExitCode.STILL_WAITING,
    errors.Reason.TIME_LIMIT: ExitCode.TIME_LIMIT,
    errors.Reason.REVOKED: ExitCode.REVOKED,
}

_BY_CLASS: tuple[tuple[type[errors.FinegrainError], ExitCode], ...] = (
    (errors.InvalidArgument, ExitCode.USAGE),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.AlreadyExists, ExitCode.CONFLICT),
    (errors.Unauthenticated, ExitCode.PERMISSION),
    (errors.PermissionDenied, ExitCode.PERMISSION),
    (errors.StoreError, ExitCode.ERROR),
    (errors.Unavailable, ExitCode.UNREACHABLE),
    (errors.FailedPrecondition, ExitCode.CONFLICT),
)


def exit_code_of(error: errors.FinegrainError) -> ExitCode:
    """Returns the exit code for an error. The code depends on the reason of the error if the reason
    is listed, and otherwise on the error's class.
    """
    if error.reason in _BY_REASON:
        return _BY_REASON[error.reason]
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ExitCode.ERROR
