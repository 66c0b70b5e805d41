"""The interface of a provider: the component that starts and stops executors on request.

The engine (`engine/scaling`) decides when to start an executor, with which shape, and when to stop
it. `service/provisioning.py` passes these decisions to a provider, which carries them out. Two
providers come with finegrain: `process` (executors on this host) and `command` (the administrator's
own command templates). To write another provider, implement `Provider` and `ProviderKind`, and
register the kind as an entry point of the group "finegrain.providers". docs/providers.md shows an
example.

Every provider must guarantee the following, even if the resource manager is killed at any moment:

- An executor is identified only by its id. A resource manager may not know whether `start` had an
  effect. It then calls `start` again for the same id, with `again`. Afterwards exactly one executor
  of this id runs.
- `stop` may be called at any time. The executor may still be starting, may never have started, or
  may have stopped already. `stop` returns only when nothing of the executor is left. If the
  provider does not know whether something is left, `stop` raises an error.
- A provider needs data on disk for these guarantees. It writes the data before it starts anything,
  unless it can determine the data later.
- Executors outlive the resource manager; `close` stops no executor.
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
"""The environment variable with the shape of an executor. The executor sends the shape when it
registers.
"""


class ProviderFailed(FinegrainError):
    """A provider could not carry out a request; the message is for the administrator."""


class Presence(StrEnum):
    """A provider's knowledge about an executor: does the executor run?"""

    RUNS = "RUNS"  # the executor runs, or is starting
    # the executor ended by itself; `stop` removes its remaining processes and files
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"  # the provider cannot tell


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation of an executor by its provider, with a message for people."""

    presence: Presence
    message: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """Result of a successful start.

    The provider needs `handle` to stop the executor. People see the handle, too.
    """

    handle: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """Data about the resource manager that a provider works for."""

    state_dir: Path  # state directory; each provider has a folder in it for its files
    managers: tuple[str, ...]  # addresses at which executors register
    standby: bool = False  # another resource manager may have led before, on another host
    log_level: str = "info"

    def token_file(self, executor_id: str) -> Path:
        """Returns the path of the file with an executor's join token.

        The resource manager writes the file before the executor is started, and deletes the file
        after the executor has ended.
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
    """The part of a shape's configuration that belongs to the provider, as the provider's kind
    decoded it.

    `total`: the capacity of one executor, if the provider determines it instead of the
    administrator. `count_max`: the maximum number that can exist at a time; 0: no limit.
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

    Calls for one executor never overlap, but calls for different executors may overlap.

    A call may be cancelled, because the resource manager stops or no longer needs its result. The
    call then raises CancelledError, but only after all work that it began has ended.
    """

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        """Starts an executor that will register as `executor_id`. Does not wait for the
        registration.

        After a failure the provider need not undo anything, because `stop` follows.

        Args:
            executor_id: the id with which the executor must register.
            shape: name of the shape.
            again: True: an earlier call may have started the executor.

        Raises:
            ProviderFailed: the executor could not be started; the message says why.
        """

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        """Stops an executor, and removes all parts of it. Returns only when no part is left.

        Args:
            executor_id: the executor to stop.
            shape: name of its shape, which may no longer be configured.
            handle: the handle that `start` returned; empty: the resource manager does not know the
                handle.

        Returns:
            A message for people; empty if there is nothing to say.

        Raises:
            ProviderFailed: something of the executor may be left. The resource manager tries again
                later.
        """

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        """Returns whether a started executor still runs.

        This call must be cheap, because it is made for every executor every few seconds. If the
        provider cannot find out the status of the executor, it returns UNKNOWN and raises no error.
        """

    def owns(self, executor_id: str) -> bool:
        """Returns True if the provider has a record of an executor. The shape of the executor need
        not be configured any more.
        """

    def noted(self) -> list[str]:
        """Returns the ids of all executors that the provider has a record of. May block briefly.

        After a restore from a backup, the resource manager's state may lack some of these
        executors. The resource manager stops the executors that stay unknown for some time.
        """

    async def close(self) -> None:
        """Frees the provider's resources in this process. Executors continue to run."""


class ProviderKind(Protocol):
    """Decodes the configuration of one kind of provider and creates the provider."""

    def read_common(self, table: ConfigTable) -> Any:
        """Decodes the table [NAME] of the file, which all shapes of this provider share.

        Raises:
            ConfigurationError: a value is invalid; see `ConfigTable`.
        """

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        """Decodes the provider's own table [shape.NAME] of the shape `name`.

        Raises:
            ConfigurationError: a value is invalid; see `ConfigTable`.
        """

    def check(self, common: Any, shapes: Mapping[str, Any], file: Path) -> None:
        """Checks all shapes together, after each shape was decoded.

        Args:
            common: the result of `read_common`.
            shapes: settings of each shape, by the shape's name.
            file: the configuration file, for errors.

        Raises:
            ConfigurationError: shapes exclude each other, or this host cannot provide them.
        """

    def make(
        self, common: Any, shapes: Sequence[ConfiguredShape], context: ProviderContext
    ) -> Provider:
        """Creates the provider.

        Args:
            common: the result of `read_common`.
            shapes: the shapes of this provider. Even without shapes, the provider is needed to stop
                executors of an earlier configuration.
            context: the resource manager that the provider works for.

        Raises:
            ConfigurationError: the provider cannot work on this host.
        """
