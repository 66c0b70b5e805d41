"""Translates PostgreSQL's errors to error classes and reasons, with advice for administrators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from finegrain.errors import FinegrainError, InvariantBroken, Reason, StoreError
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.store import StoreAway

# SQLSTATE classes and codes; see the PostgreSQL manual, appendix A.
_CONTRADICTION = ("23", "21000")
_DISK_FULL = ("53100",)
_LOCKED = ("55P03", "55006", "40P01")
_CORRUPT = ("XX001", "XX002")
_NO_DATABASE = ("3D000",)
_NOT_ALLOWED = ("42501",)
_WRONG_PASSWORD = ("28",)
_TOO_MANY = ("53300",)
_READ_ONLY = ("25006",)
_SESSION_ENDED = ("25P03", "57P", "08")
_TOO_LARGE = ("54",)


@contextmanager
def postgresql_errors(location: DatabaseUrl) -> Iterator[None]:
    """Converts errors of psycopg to `FinegrainError`s.

    Raises:
        InvariantBroken: the rows contradict each other.
        StoreError: any other error. The class is `StoreAway` if the server cannot be reached or
            closed the connection.
    """
    try:
        yield
    except DBAPIError as error:
        away = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        raise translated(error.orig or error, location, away=away) from error
    except (DisconnectionError, PoolTimeoutError) as error:
        raise translated(error, location, away=True) from error
    except (UnicodeError, ValueError) as error:
        raise translated(error, location) from error


def translated(
    error: BaseException, location: DatabaseUrl, *, away: bool = False
) -> FinegrainError:
    """Returns the error to raise instead of the driver's.

    Args:
        error: the driver's error.
        location: the database, for the message.
        away: True if the error is about the server or the connection, and not about the statement.
    """
    state = str(getattr(error, "sqlstate", None) or "")
    # Keep only the first line. The other lines are context, and can contain values of rows.
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    details = {"database": location, "sqlstate": state}
    if state.startswith(_CONTRADICTION):
        return InvariantBroken(
            f"rows for {location} contradict each other ({first_line}); nothing was written",
            details=details,
        )
    # A read-only server or an ended session means a failover, so a later attempt can succeed. A
    # statement that is too large fails again on any server.
    away = state.startswith((*_SESSION_ENDED, *_READ_ONLY)) or (
        away and not state.startswith(_TOO_LARGE)
    )
    reason, advice = _meaning(state, str(error), location, away=away)
    kind = StoreAway if away else StoreError
    return kind(f"the database {location} {advice} ({first_line})", reason=reason, details=details)


def _meaning(state: str, message: str, location: DatabaseUrl, *, away: bool) -> tuple[Reason, str]:
    # The order is from specific to general: the first match decides.
    if state.startswith(_DISK_FULL):
        return Reason.DISK_FULL, "has no space left; free space on the server's disk"
    if state.startswith(_LOCKED):
        return Reason.STORE_IN_USE, (
            "is locked by another session; find it in pg_stat_activity and end it"
        )
    if state.startswith(_CORRUPT):
        return Reason.STORE_CORRUPT, "is damaged; restore it from a backup (pg_restore)"
    if state.startswith(_READ_ONLY):
        return Reason.STORE_UNAVAILABLE, "is read-only, perhaps a replica; name the primary"
    # Errors while connecting have no SQLSTATE, so the text of the message decides.
    if state.startswith(_TOO_MANY) or "too many clients" in message:
        return Reason.STORE_UNAVAILABLE, (
            "has no connection left; raise max_connections or end other sessions"
        )
    if state.startswith(_NOT_ALLOWED):
        return Reason.STORE_UNAVAILABLE, (
            f"does not let user {location.url.username} do this; make this user the owner of the "
            f"database"
        )
    if state.startswith(_NO_DATABASE) or ("does not exist" in message and "database" in message):
        return Reason.STORE_UNAVAILABLE, f"is missing; create it: createdb {location.url.database}"
    if (
        state.startswith(_WRONG_PASSWORD)
        or "authentication failed" in message
        or "no pg_hba" in message
    ):
        return Reason.STORE_UNAVAILABLE, (
            f"refuses user {location.url.username}; correct user or password in the database URL, "
            f"or pg_hba.conf at the server"
        )
    if not away:
        return Reason.STORE_UNAVAILABLE, "rejected a statement; the server's log may have details"
    return Reason.STORE_UNAVAILABLE, (
        "cannot be reached, or closed the connection; check that the server runs, and its host "
        "and port"
    )
