"""The interface of a provider: the component that starts and stops executors on request.

The engine (`engine/scaling`) decides when to start an executor, with which shape, and when to stop
it. `service/provisioning.py` passes these decisions to a provider, which carries them out.
finegrain has two built-in providers: `process` (executors on this host) and `command` (the
administrator's own command templates). To write another provider, implement `Provider` and
`ProviderKind`, and register the kind as an entry point of the group "finegrain.providers".
docs/providers.md shows an example.

Every provider must guarantee the following, even if the resource manager is killed at any moment:

- An executor is identified only by its id. If a resource manager does not know whether `start` had
  an effect, it calls `start` again for the same id, with `again`. Afterwards exactly one executor
  with this id runs.
- `stop` can be called at any time: while the executor starts, after it has stopped, and even if it
  was never started. `stop` returns only when no part of the executor is left, such as a process, a
  control group or a virtual machine. If the provider does not know whether a part is left, `stop`
  raises an error.
- A provider needs data on disk for these guarantees. The provider writes the data before it starts
  a process, unless it can determine the data later.
- Executors continue to run when the resource manager stops. `close` stops no executor.
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
"""The environment variable with the shape of an executor. The executor sends the name of the shape
when it registers.
"""


class ProviderFailed(FinegrainError):
    """A provider could not carry out a request. The error's message is for the administrator."""


class Presence(StrEnum):
    """What a provider knows about an executor: whether it runs."""

    RUNS = "RUNS"  # the executor runs, or is starting
    # the executor ended by itself; `stop` removes the remaining parts of it
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

    The provider needs `handle` to stop the executor. The handle is also shown to people.
    """

    handle: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProviderContext:
    """Data about the resource manager that a provider works for."""

    state_dir: Path  # state directory; each provider has a folder for its files in this directory
    managers: tuple[str, ...]  # addresses at which executors register
    standby: bool = False  # an earlier leader possibly ran on another host
    log_level: str = "info"

    def token_file(self, executor_id: str) -> Path:
        """Returns the path of the file with an executor's join token.

        The resource manager writes the file before the executor is started, and deletes the file
        after the executor has ended.
        """
        return (self.state_dir / "join-tokens" / f"{executor_id}.token").absolute()

    def token(self, executor_id: str) -> str:
        """Returns the join token of an executor. The token is empty if there is no file."""
        try:
            return self.token_file(executor_id).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


@dataclass(frozen=True, slots=True)
class ReadShape:
    """The part of a shape's configuration that belongs to the provider, as the provider's kind
    decoded it.

    `total` is the capacity of one executor, if the provider determines the capacity instead of the
    administrator. `count_max` is the maximum number of executors of this shape at a time; 0 means
    no limit.
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

    Calls for one executor never overlap, but calls for different executors can overlap.

    The resource manager can cancel a call, because it stops or no longer needs the result. A
    cancelled call raises CancelledError, but only after all work that the call began has ended.
    """

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        """Starts an executor that must register as `executor_id`. Does not wait for the
        registration.

        After a failure the provider need not undo anything, because the resource manager calls
        `stop`.

        Args:
            executor_id: the id with which the executor must register.
            shape: name of the shape.
            again: whether an earlier call possibly started the executor.

        Raises:
            ProviderFailed: the executor could not be started; the message says why.
        """

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        """Stops an executor, and removes all parts of it. Returns only when no part is left.

        Args:
            executor_id: the executor to stop.
            shape: name of the executor's shape, which is possibly no longer configured.
            handle: the handle that `start` returned, or empty if the resource manager does not know
                the handle.

        Returns:
            A message for people. It is empty if there is nothing to say.

        Raises:
            ProviderFailed: a part of the executor is possibly left. The resource manager tries
                again later.
        """

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        """Returns whether a started executor still runs.

        This call must be cheap, because it is made for every executor every few seconds. If the
        provider cannot find out the status of the executor, it returns UNKNOWN and raises no error.
        """

    def owns(self, executor_id: str) -> bool:
        """Returns whether the provider has a record of an executor, even if the executor's shape is
        not configured any more.
        """

    def noted(self) -> list[str]:
        """Returns the ids of all executors that the provider has a record of. The call can block
        briefly.

        After a restore from a backup, some of these executors are possibly missing in the resource
        manager's state. The resource manager stops executors that stay unknown for some time.
        """

    async def close(self) -> None:
        """Releases the provider's resources in this process. Executors continue to run."""


class ProviderKind(Protocol):
    """Decodes the configuration of one kind of provider and creates the provider."""

    def read_common(self, table: ConfigTable) -> Any:
        """Decodes the table [NAME] of the file, where NAME is the provider's name. All shapes of
        this provider share this table.

        Raises:
            ConfigurationError: a value is invalid; see `ConfigTable`.
        """

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        """Decodes the provider's own table [shape.NAME] of the shape `name`. NAME is the provider's
        name.

        Raises:
            ConfigurationError: a value is invalid; see `ConfigTable`.
        """

    def check(self, common: Any, shapes: Mapping[str, Any], file: Path) -> None:
        """Checks all shapes together, after each shape was decoded.

        Args:
            common: the result of `read_common`.
            shapes: settings of each shape, by the shape's name.
            file: the providers' file, which errors name.

        Raises:
            ConfigurationError: shapes exclude each other, or this host cannot provide them.
        """

    def make(
        self, common: Any, shapes: Sequence[ConfiguredShape], context: ProviderContext
    ) -> Provider:
        """Creates the provider.

        Args:
            common: the result of `read_common`.
            shapes: the shapes of this provider, possibly none. A provider without shapes stops
                executors of an earlier configuration.
            context: the resource manager that the provider works for.

        Raises:
            ConfigurationError: the provider cannot work on this host.
        """
