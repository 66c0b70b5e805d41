"""The interface of a provider: the component that starts and stops executors on request.

The engine (`engine/provision`) decides when an executor of which shape is needed and when it is
stopped. `service/provisioning.py` passes these decisions to a provider, which carries them out. Two
providers come with finegrain: `process` (executors on this host) and `command` (the operator's own
command templates). A third one implements `Provider` and `ProviderKind` and registers its kind as
an entry point of the group "finegrain.providers"; docs/providers.md shows an example.

Every provider must guarantee the following, even if the resource manager is killed at any moment:

- An executor is identified by its id alone. `start` may be called again (`again`) for the same id
  by a resource manager that does not know whether the first call had an effect. Afterwards exactly
  one executor of that id runs.
- `stop` may be called at any time: before `start` has returned, for an executor that never started,
  and for one that has already stopped. It returns only when nothing of that executor is left. It
  raises if it cannot tell.
- Before a provider starts anything, whatever it needs for these guarantees is on disk, or can be
  found out later.
- An executor outlives the resource manager; `close` stops none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from finegrain.config_table import ConfigTable
from finegrain.errors import FinegrainError
from finegrain.resources import Amounts
from resource_manager.engine.model.settings import ExecutorShape

PROVIDED_AS_VARIABLE = "FINEGRAIN_PROVIDED_AS"
"""The environment variable that tells an executor its shape; the executor registers with it."""


class ProviderFailed(FinegrainError):
    """A provider could not carry out a request; the message is for the operator."""


class Presence(StrEnum):
    """Whether an executor runs, as far as its provider can tell."""

    RUNS = "RUNS"  # it runs, or is starting
    ENDED = "ENDED"  # it ended by itself; processes or files may be left, `stop` removes them
    UNKNOWN = "UNKNOWN"  # the provider cannot tell, now or in principle


@dataclass(frozen=True, slots=True)
class Observation:
    """What a provider observed of an executor, with a message for people."""

    presence: Presence
    message: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """Result of a successful start.

    `handle` is what the provider needs to stop the executor; it is shown to people.
    """

    handle: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """What every provider knows about the resource manager that it works for."""

    state_dir: Path  # of the resource manager; a provider keeps its files in a folder below it
    managers: tuple[str, ...]  # addresses at which executors register
    standby: bool = False  # another one may have been leader before, on another host
    log_level: str = "info"

    def token_file(self, executor_id: str) -> Path:
        """Returns the path of the file with an executor's join token.

        The resource manager writes it before the executor is started, and deletes it after its
        end.
        """
        return (self.state_dir / "join-tokens" / f"{executor_id}.token").absolute()

    def token(self, executor_id: str) -> str:
        """Returns the join token of an executor; empty if there is no file."""
        try:
            return self.token_file(executor_id).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


@dataclass(frozen=True, slots=True)
class ReadShape:
    """A provider's own table of a shape, as its kind decoded it.

    `total`: the capacity of one executor, if the provider determines it instead of the
    operator. `count_max`: the maximum number that can exist at a time; 0: no limit.
    """

    settings: Any
    total: Amounts | None = None
    count_max: int = 0


@dataclass(frozen=True, slots=True)
class ConfiguredShape:
    """A shape together with the settings that its provider's kind decoded."""

    shape: ExecutorShape
    settings: Any
    default_slot_fraction: float


class Provider(Protocol):
    """Starts and stops executors.

    Calls about one executor never overlap; calls about different executors may.

    A call may be cancelled, because the resource manager stops or no longer wants its result. It
    then raises CancelledError only after everything that it began has ended.
    """

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        """Starts an executor that will register as `executor_id`; returns once the start is under
        way.

        After a failure the provider need not undo anything, because `stop` follows.

        Args:
            executor_id: the id with which the executor must register.
            shape: name of the shape.
            again: the executor may have been started before.

        Raises:
            ProviderFailed: it could not be started; the message says why.
        """

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        """Stops an executor and everything that belongs to it; returns when nothing is left.

        Args:
            executor_id: the executor to stop.
            shape: name of its shape, which may not be configured any more.
            handle: from `start`; empty if the resource manager never learned it.

        Returns:
            A message for people; empty if there is nothing to say.

        Raises:
            ProviderFailed: the provider does not know that the executor is gone. The resource
                manager
                tries again later.
        """

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        """Returns what can be observed of an executor that was started.

        It must be cheap: it is called for every executor every few seconds. It does not raise if it
        cannot observe the executor; it returns UNKNOWN.
        """

    def owns(self, executor_id: str) -> bool:
        """Returns whether the provider has a record of an executor, even one whose shape is not
        configured any more.
        """

    def noted(self) -> list[str]:
        """Returns the ids of all executors that the provider has a record of; may block briefly.

        After a restore from a backup the resource manager's state may lack some of them. It stops
        those that stay unknown for a while.
        """

    async def close(self) -> None:
        """Frees what the provider holds in this process; executors continue to run."""


class ProviderKind(Protocol):
    """Decodes the configuration of one kind of provider and creates the provider."""

    def read_common(self, table: ConfigTable) -> Any:
        """Decodes the table [NAME] of the file, which all shapes of this provider share.

        Raises:
            ConfigurationError: as ConfigTable does.
        """

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        """Decodes the provider's own table [shape.NAME] of the shape `name`.

        Raises:
            ConfigurationError: as ConfigTable does.
        """

    def check(self, common: Any, shapes: Mapping[str, Any], file: Path) -> None:
        """Checks what can only be checked across all shapes.

        Args:
            common: what `read_common` returned.
            shapes: settings of each shape, by the shape's name.
            file: the configuration file, for errors.

        Raises:
            ConfigurationError: shapes contradict each other.
        """

    def make(
        self, common: Any, shapes: Sequence[ConfiguredShape], context: ProviderContext
    ) -> Provider:
        """Creates the provider.

        Args:
            common: what `read_common` returned.
            shapes: may be empty; the provider is then still needed to stop what an earlier
                configuration
                started.
            context: the resource manager that the provider works for.

        Raises:
            ConfigurationError: the provider cannot work on this host.
        """
