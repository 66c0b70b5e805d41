"""Random lives of a cluster where whoever is passed over once has capacity held for himself: the
books stay sound, and nothing is held for nobody.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import invariant

from finegrain.resources import fits, total_of
from resource_manager.engine.settings import Fairness
from tests.resource_manager.engine.test_gang_machine import GangsStayWhole
from tests.resource_manager.engine.test_machine import MACHINE


class NothingIsHeldForNobody(GangsStayWhole):
    """Jobs, gangs and slots that grow, of which two may have a reservation at once."""

    fairness = Fairness(starvation_timeout_ms=2_000, starvation_placements=1, reservations_max=2)

    @invariant()
    def what_came_since_takes_nothing_of_what_is_held(self) -> None:
        """Once all has ended that was there when it began, all that is held is free."""
        for host in self.state.hosts.values():
            if host.held is None or host.shrunk:
                continue
            came = [s.booked for key, s in host.slots.items() if key not in host.held.before]
            total = host.executor.registration.total
            assert fits(total_of((host.held.amounts, *came)), total)


class NothingIsHeldForNobodySpread(NothingIsHeldForNobody):
    """The same with the other strategy, and with decisions that stop after every try in vain."""

    strategy = "spread"
    shapes_tried_max = 1


TestReservations = NothingIsHeldForNobody.TestCase
TestReservations.settings = settings(MACHINE, max_examples=60)
TestReservationsSpread = NothingIsHeldForNobodySpread.TestCase
TestReservationsSpread.settings = settings(MACHINE, max_examples=30)
