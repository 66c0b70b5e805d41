"""Could a gang ever be placed as a whole? Asks the same search that places gangs, about what hosts
could give when empty.

Members that differ are placed largest first, so that a gang of such may be called impossible that
somebody could fit in by hand: it would not be placed either.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from resource_manager.engine.hosts.host import KNOWN, ONLINE
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.feasibility import Feasibility
from resource_manager.engine.placement.gang_search import seek
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.planning.possible import gang_could_be_provided
from resource_manager.engine.queue.gangs import MemberRequest, Where


def gang_feasibility(
    hosts: Hosts,
    elastic: Elastic,
    provisions: Container[str],
    where: Where,
    wishes: Sequence[MemberRequest],
) -> Feasibility:
    """What the sizes of the hosts, and of those that could be asked for, say about a gang as a
    whole; the indexes must be fresh.

    Args:
        hosts: all of them.
        elastic: what can be asked for.
        provisions: hosts that were asked for, and may be gone by then.
        where: members go in relation to each other.
        wishes: what they ask for.
    """
    provided = bool(elastic.provisioning)
    if not hosts and not provided:
        return Feasibility.POSSIBLE
    if seek(hosts, where, wishes, prefix=ONLINE) is not None:
        return Feasibility.POSSIBLE
    if provided and gang_could_be_provided(hosts, elastic, provisions, where, wishes):
        return Feasibility.POSSIBLE
    if seek(hosts, where, wishes, prefix=KNOWN) is not None:
        return Feasibility.OFFLINE
    return Feasibility.NEVER
