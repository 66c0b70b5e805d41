"""Remembers this user's latest job on this host. Commands then accept the word `last` for this
job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from finegrain.errors import NotFound, Reason

T = TypeVar("T")

LAST: Final = "last"
"""The word that people type instead of the id of their latest job, or of the first request of this
job.
"""


def remember(job_id: str, allocation_id: str = "") -> None:
    """Stores the ids of a job that a command of this user has started.

    The function ignores errors, because the command does not need the stored ids.

    Args:
        job_id: the job.
        allocation_id: the first request of the job. Empty if the job has no request yet.
    """
    path = _file()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(json.dumps({"job_id": job_id, "allocation_id": allocation_id}))
        fresh.replace(path)


def remembering(show: Callable[[T], None], job_id: Callable[[], str]) -> Callable[[T], None]:
    """Returns a function that shows progress and, on its first call with a job, remembers the job.

    Args:
        show: a function that shows the progress of a batch or of a job graph.
        job_id: a function that returns the id of the job, or an empty text if there is no job yet.
    """
    is_remembered = False

    def show_and_remember(progress: T) -> None:
        nonlocal is_remembered
        show(progress)
        if not is_remembered and (found := job_id()):
            remember(found)
            is_remembered = True

    return show_and_remember


def last_job_id() -> str:
    """Returns the id of the latest job.

    Raises:
        NotFound: this user has started no job on this host.
    """
    return _recorded("job_id", "job")


def last_allocation_id() -> str:
    """Returns the id of the first request of the latest job.

    Raises:
        NotFound: this user has started no job with a request on this host.
    """
    return _recorded("allocation_id", "request")


def _recorded(key: str, what: str) -> str:
    found = ""
    with suppress(OSError, ValueError, AttributeError):
        found = str(json.loads(_file().read_text()).get(key) or "")
    if not found:
        raise NotFound(
            f"`{LAST}` names your latest {what} on this host, and there is none: `finegrain run`, "
            "`batch` and `job run` start one",
            reason=Reason.JOB_UNKNOWN if key == "job_id" else Reason.ALLOCATION_UNKNOWN,
        )
    return found


def _file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "finegrain" / "last.json"
