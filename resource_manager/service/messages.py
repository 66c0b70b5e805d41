"""What an operator is told when a resource manager ends because its books are not the newest.

Decides the words and the exact command. Refuses to decide anything else.
"""

from __future__ import annotations

import shlex

from resource_manager.engine.executors.reports import EpochSeen
from resource_manager.storage.location import DatabaseUrl, sqlite_url


def stale_database_message(error: EpochSeen, location: DatabaseUrl) -> str:
    """The whole error: both epochs, what has probably happened, and the command that helps."""
    # A password is not shown; the operator fills it in.
    url = sqlite_url(location.path) if location.is_sqlite else str(location)
    command = f"finegrain db raise-epoch --above-epoch {error.seen} --database {shlex.quote(url)}"
    return (
        f"{error.message}. Either the database {location} was put back from a copy, or made anew, "
        f"without `finegrain db restore`, or another resource manager leads these executors. If "
        f"this is the database to go on with, and no other resource manager runs, run "
        f"`{command}` and start this one again; executors then free the slots that it does not know"
    )
