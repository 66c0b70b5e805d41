"""What a provider is: somebody who starts and stops executors when the rules ask for it.

The rules (`engine/provision`) decide when an executor of which shape is wanted and when it is given
back; `service/provisioning.py` carries that to a provider; a provider only knows how. Two come with
finegrain: `process` (on this host) and `command` (the operator's own templates). A third one
implements `Provider` and `ProviderKind` and names its kind as an entry point of the group
"finegrain.providers"; docs/providers.md shows one.

What every provider must guarantee, with the resource manager killed at any moment:

- The executor's id is the whole of what it is asked for. `start` may come again for the same id, by
  a resource manager that does not know whether the first one did anything (`again`): afterwards
  one executor of that id runs, never two.
- `stop` may come at any time: before `start` ended, for what never started, for what is gone. It
  returns only when nothing of that executor is left, and raises if it does not know.
- Whatever it must know for that is on disk, or can be found out, before anything is started.
- An executor outlives the resource manager; `close` ends none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from finegrain.errors import FinegrainError
from finegrain.options import TlsOptions
from finegrain.resources import Amounts
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.providers.config_table import ConfigTable

PROVIDED_AS_VARIABLE = "FINEGRAIN_PROVIDED_AS"
"""Tells an executor the shape as which it was started; it registers with that."""


class ProviderFailed(FinegrainError):
    """A provider could not do what it was asked for; the message is for the operator."""


class Presence(StrEnum):
    """What a provider sees of an executor."""

    RUNS = "RUNS"  # it runs, or is on its way
    ENDED = "ENDED"  # it runs no more by itself; something of it may be left: `stop` makes sure
    UNKNOWN = "UNKNOWN"  # the provider cannot say, now or ever


@dataclass(frozen=True, slots=True)
class Observation:
    """What a provider saw, with a message for people."""

    presence: Presence
    message: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """An executor was started. `handle`: what the provider needs to stop it, shown to people."""

    handle: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """What every provider is told about the resource manager that it works for."""

    state_dir: Path  # of the resource manager; a provider keeps its notes in a folder below it
    managers: tuple[str, ...]  # addresses that executors register at
    cluster_token_file: Path
    cluster_token: str = field(repr=False)
    manager_tls: TlsOptions | None = None
    standby: bool = False  # another one may have led before, on another host
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class ReadShape:
    """What a provider's kind read of its own table of a shape.

    `total`: what such an executor has, where the provider knows better than the operator.
    `count_max`: no more than so many can exist at a time; 0: no limit.
    """

    settings: Any
    total: Amounts | None = None
    count_max: int = 0


@dataclass(frozen=True, slots=True)
class ConfiguredShape:
    """A shape with what its provider's kind read for itself."""

    shape: ExecutorShape
    settings: Any
    default_slot_fraction: float


class Provider(Protocol):
    """Starts and stops executors. Calls about one executor never overlap; others' do.

    A call may be cancelled (the resource manager stops, or changed its mind): it raises
    CancelledError only when nothing that it began goes on by itself.
    """

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        """Starts an executor that will register as `executor_id`; returns when that is under way.

        `again`: it may have been started before. Nothing has to be undone after a failure: `stop`
        follows.

        Raises:
            ProviderFailed: it could not be started, with why.
        """

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        """Stops an executor and all that belongs to it; returns when nothing is left, with a
        message for people (empty: nothing to say).

        `handle` is empty where it was never learnt.

        Raises:
            ProviderFailed: it is not known to be gone. It is tried again later.
        """

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        """What is to be seen of an executor that was started. Never raises for what it cannot see.

        Cheap: it is asked for every executor every few seconds.
        """

    def owns(self, executor_id: str) -> bool:
        """Whether it has notes of an executor: its shape may be configured no longer."""

    def noted(self) -> list[str]:
        """All executors that it has notes of; may block for a moment. One that the books do not
        know for long (they were restored, or lost) is stopped.
        """

    async def close(self) -> None:
        """Lets go of what it holds in this process; executors run on."""


class ProviderKind(Protocol):
    """How a provider is configured and made."""

    def read_common(self, table: ConfigTable) -> Any:
        """Reads the table [NAME] of the file, which all shapes of this provider share.

        Raises:
            ConfigurationError: as ConfigTable does.
        """

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        """Reads the table [shape.NAME] of one shape.

        Raises:
            ConfigurationError: as ConfigTable does.
        """

    def check(self, common: Any, shapes: Mapping[str, Any], file: Path) -> None:
        """Checks what only all shapes together show.

        Raises:
            ConfigurationError: they contradict each other.
        """

    def make(
        self, common: Any, shapes: Sequence[ConfiguredShape], context: ProviderContext
    ) -> Provider:
        """The provider; also without shapes, to stop what an earlier configuration started.

        Raises:
            ConfigurationError: it cannot work here.
        """
