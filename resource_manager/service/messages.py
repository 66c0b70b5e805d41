"""The error text for an administrator when a resource manager ends because its database is
outdated.
"""

from __future__ import annotations

import shlex

from resource_manager.engine.executors.reports import EpochSeen
from resource_manager.storage.location import DatabaseUrl, sqlite_url
from resource_manager.storage.store import Contested


def stale_database_message(error: EpochSeen | Contested, location: DatabaseUrl) -> str:
    """Returns the complete error text: the facts, the likely cause, and the command that helps."""
    # The URL of a server is shown without the password, which the administrator must add.
    url = sqlite_url(location.path) if location.is_sqlite else str(location)
    command = f"finegrain db raise-epoch --above-epoch {error.seen} --database {shlex.quote(url)}"
    return (
        f"{error.message}. Either the database {location} was restored from a copy, or created "
        "again, without `finegrain db restore`, or another resource manager leads these "
        "executors. If this database is the one to keep, and no other resource manager runs, run "
        f"`{command}` and start this one again; executors then free the slots that it does not "
        "know"
    )
