"""Random lives of a cluster where whoever is passed over once has capacity held for himself: the
books stay sound, and nothing is held for nobody.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import invariant

from resource_manager.engine.settings import Fairness
from tests.resource_manager.engine.test_gang_machine import GangsStayWhole
from tests.resource_manager.engine.test_machine import MACHINE


class NothingIsHeldForNobody(GangsStayWhole):
    """Jobs, gangs and slots that grow, of which two may have a reservation at once."""

    fairness = Fairness(starvation_timeout_ms=2_000, starvation_placements=1, reservations_max=2)

    @invariant()
    def what_is_held_is_not_shown(self) -> None:
        """The index shows others no more than what is free beyond what is held."""
        self.state.refresh_indexes()
        for name in self.state.reservations.on_host:
            host = self.state.hosts[name]
            shown = self.state.indexes.main.vector(name)
            free = host.free()
            for dimension, kept in host.held.items():
                if dimension == "cpu_milli":
                    assert shown.get(dimension, 0) == max(0, free.get(dimension, 0) - kept)


class NothingIsHeldForNobodySpread(NothingIsHeldForNobody):
    """The same with the other strategy, and with decisions that stop after every try in vain."""

    strategy = "spread"
    shapes_tried_max = 1


TestReservations = NothingIsHeldForNobody.TestCase
TestReservations.settings = settings(MACHINE, max_examples=60)
TestReservationsSpread = NothingIsHeldForNobodySpread.TestCase
TestReservationsSpread.settings = settings(MACHINE, max_examples=30)
