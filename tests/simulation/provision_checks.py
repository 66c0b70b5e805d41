"""What was asked for is known of until nothing is left of it, and is never too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from finegrain.resources import Amounts, add, fits, subtract, total_of
from resource_manager.engine.effects import Changes
from resource_manager.engine.entities import ExecutorState, Provision, ProvisionState
from resource_manager.engine.settings import ExecutorShape, Provisioning
from resource_manager.engine.state import State
from tests.simulation.cloud import Cloud

PENDING = (ProvisionState.ASKED, ProvisionState.STARTED)


@dataclass
class ProvisionChecks:
    """What is known of every executor that was asked for."""

    cloud: Cloud | None = None
    wrong: list[str] = field(default_factory=list)  # found where nobody can be told
    _asked: set[str] = field(default_factory=set)  # ever durable
    _disobeyed: set[str] = field(default_factory=set)

    # -- the provider ----------------------------------------------------------------------

    def started(self, executor_id: str) -> None:
        """A provider is told to start one."""
        if executor_id not in self._asked:
            self.wrong.append(f"{executor_id} is started, and nobody has written that down")

    def disobeyed(self, executor_id: str) -> None:
        """It runs although its provider said that nothing was left."""
        self._disobeyed.add(executor_id)

    # -- the books -------------------------------------------------------------------------

    def decided(self, state: State, changes: Changes) -> Iterator[str]:
        """After a batch: what is wrong."""
        yield from self.wrong
        new = [each for each in changes.provisions if each.executor_id not in self._asked]
        provisioning = state.settings.provisioning
        if any(each.state in PENDING for each in new):
            have, most = _totals(state, provisioning), provisioning.total_max
            for name in most.keys() & have.keys():
                if have[name] > most[name]:
                    yield f"{have[name]} of {name} are asked for, at most {most[name]} may be"
        for shape in provisioning.shapes:
            count = sum(each.shape == shape.name for each in state.provisions.values())
            if new and shape.count_max and count > shape.count_max:
                yield f"{count} executors of shape {shape.name}, at most {shape.count_max} may be"

    def stored(self, changes: Changes) -> Iterator[str]:
        """A transaction is durable: what is wrong."""
        self._asked.update(each.executor_id for each in changes.provisions)
        for name in changes.deleted_provisions:
            if self.cloud and name in self.cloud.running() and name not in self._disobeyed:
                yield f"{name} is struck from the books, and its machine runs"

    # -- in the end ------------------------------------------------------------------------

    def healed(self, state: State) -> Iterator[str]:
        """Nobody strays: whoever runs is in the books, and the other way round."""
        if self.cloud is None:
            return
        pending = [each for each in state.provisions.values() if each.state in PENDING]
        registered = {
            name
            for name, each in state.provisions.items()
            if each.state is ProvisionState.REGISTERED
        }
        awaited = {each.executor_id for each in pending}
        stopping = state.provisions.keys() - registered - awaited
        running = self.cloud.running()
        if running - state.provisions.keys():
            yield f"{sorted(running - state.provisions.keys())} run, and nobody knows of them"
        if registered - running:
            yield f"{sorted(registered - running)} are registered, and do not run"
        if awaited - running:
            yield f"{sorted(awaited - running)} are awaited for ever"
        if stopping - running:
            yield f"{sorted(stopping - running)} are stopped for ever"

    def empty(self, state: State) -> Iterator[str]:
        """Nobody needs anything: no more is left than has to be, and no less."""
        if self.cloud is None:
            return
        provisioning, provisions = state.settings.provisioning, state.provisions
        for name, each in provisions.items():
            if each.state is not ProvisionState.REGISTERED:
                yield f"{name} is {each.state}, and nothing happens to it"
        have, least = _totals(state, provisioning), provisioning.total_min
        for name in provisions:
            host = state.hosts.get(name)
            if host is not None:
                left = subtract(have, host.executor.registration.total)
                if fits(least, left):
                    yield f"{name} is kept, and nobody needs it"
        if not fits(least, have):
            could = [s.name for s in provisioning.shapes if _may(provisioning, s, state, have)]
            if could:
                yield f"there is {have}, at least {dict(least)} should be: {could} could be asked"


def could_help(state: State, shape: ExecutorShape) -> bool:
    """True if one more of a shape may be asked for."""
    provisioning = state.settings.provisioning
    return _may(provisioning, shape, state, _totals(state, provisioning))


def _may(provisioning: Provisioning, shape: ExecutorShape, state: State, have: Amounts) -> bool:
    count = sum(each.shape == shape.name for each in state.provisions.values())
    if shape.count_max and count >= shape.count_max:
        return False
    more, most = add(have, shape.total), provisioning.total_max
    return all(more.get(name, 0) <= amount for name, amount in most.items())


def _totals(state: State, provisioning: Provisioning) -> dict[str, int]:
    """Of all executors that are not lost, and those that were asked for and are to come."""
    shapes = {shape.name: shape.total for shape in provisioning.shapes}

    def to_come(each: Provision) -> bool:
        return each.state in PENDING and each.executor_id not in state.hosts

    return total_of(
        [
            *(
                host.executor.registration.total
                for host in state.hosts.values()
                if host.executor.state is not ExecutorState.LOST
            ),
            *(shapes[each.shape] for each in state.provisions.values() if to_come(each)),
        ]
    )
