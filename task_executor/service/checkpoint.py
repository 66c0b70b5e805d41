"""Stores the executor's checkpoint on disk: the state that a restarted front needs.

After any crash, each file has either its old or its new content, and is complete.

    executor.lock     locked by the one front that uses this directory
    state.json        identity, epoch, slots, denials: one document, always replaced as a whole
    tasks/            the accepted tasks, see `task_journal.py`
    endpoint.json     addresses of the running front, for people and tools
    executor.*        the certificate, see `task_executor/membership.py`
    helper/           files of the helper
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from finegrain.cpu_policy import HostPolicy
from finegrain.errors import ConfigurationError, InvalidArgument, Reason
from finegrain.ids import new_id
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain.mapping.stored import FORMS
from task_executor.engine.slots import EndedSlot, Slot, SlotKey
from task_executor.service.denials import Denials
from task_executor.service.operators import SlotOperator
from task_executor.service.task_journal import TaskJournal

FORMAT_VERSION = 6
"""Version 2 added slots in a resize, version 3 slots with dedicated cpus, version 4 the owners of
slots, and version 5 time limits. Since version 6, the tasks are in a journal.
"""

LOCK_FILE = "executor.lock"
STATE_FILE = "state.json"
ENDPOINT_FILE = "endpoint.json"
TASKS_FOLDER = "tasks"
HELPER_FOLDER = "helper"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavedState:
    """The content of state.json. The names of the fields are the keys in the file."""

    executor_id: str
    instance_id: str
    rm_epoch: int = 0
    boot_id: str = ""
    slots: tuple[Slot, ...] = ()
    ended: tuple[EndedSlot, ...] = ()
    # Number of fronts that were started with this identity; it is a part of their report numbers.
    starts: int = 0
    policy: HostPolicy = field(default_factory=HostPolicy)  # settings that an administrator made
    policy_number: int = 0  # number of `policy`; 0: no administrator made settings
    denials: Denials = field(default_factory=Denials)  # identities to reject
    operators: tuple[SlotOperator, ...] = ()  # operators that are registered for whole slots
    epoch_proof: str = ""  # EpochProof of the highest proven epoch, in base64


@dataclass(slots=True)
class StateDirectory:
    """A locked state directory.

    Attributes:
        path: the directory.
        damage: one sentence for each file that could not be read.
        tasks: the tasks in the directory.
    """

    path: Path
    damage: list[str] = field(default_factory=list)
    tasks: TaskJournal = field(init=False)
    _lock: int = -1

    @classmethod
    def open(cls, path: Path) -> StateDirectory:
        """Creates the directory if needed, and locks it until this process ends.

        Raises:
            ConfigurationError: the directory cannot be used, or another front uses it.
        """
        directory = cls(path)
        try:
            path.mkdir(mode=0o750, parents=True, exist_ok=True)
            (path / TASKS_FOLDER).mkdir(mode=0o700, exist_ok=True)
            directory._lock = os.open(
                path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(directory._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            directory.tasks = TaskJournal(path / TASKS_FOLDER, directory._read_task)
            directory.damage += directory.tasks.damage
        except BlockingIOError:
            directory.close()
            raise ConfigurationError(
                f"another task executor uses the state directory {path}; stop it, or give this "
                "one another directory (--state-dir)",
                reason=Reason.STORE_IN_USE,
                details={"state_dir": path},
            ) from None
        except ConfigurationError:
            directory.close()
            raise
        except OSError as error:
            directory.close()
            raise ConfigurationError(
                f"the state directory {path} cannot be used: {error.strerror}; make it writable "
                "for this user, or name another one (--state-dir)",
                details={"state_dir": path},
            ) from None
        return directory

    def close(self) -> None:
        """Releases the lock."""
        if hasattr(self, "tasks"):
            self.tasks.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- state -------------------------------------------------------------------------------

    def load(self, executor_id: str) -> SavedState:
        """Returns the saved state. If there is no saved state, or the file is damaged, returns a
        state with a new identity.

        The method renames a damaged state.json to state.json.damaged, and adds a sentence to
        `damage`. The front then learns from the helper which slots exist on the host.

        Args:
            executor_id: the configured id of the executor; empty: the saved id is used.

        Raises:
            ConfigurationError: the directory belongs to another executor, a newer version wrote the
                file, or the file cannot be read at all.
        """
        try:
            content = read_document(self.path / STATE_FILE)
            saved = parse_state(content, self.damage) if content else None
        except DamagedError as error:
            aside = self.path / f"{STATE_FILE}.damaged"
            (self.path / STATE_FILE).replace(aside)
            self.damage.append(f"{STATE_FILE} is damaged ({error}); kept as {aside.name}")
            saved = None
        except OSError as error:
            raise ConfigurationError(
                f"{self.path / STATE_FILE} cannot be read: {error.strerror}"
            ) from None
        if saved is None:
            return SavedState(executor_id=executor_id, instance_id=new_id())
        if executor_id and saved.executor_id != executor_id:
            raise ConfigurationError(
                f"the state directory {self.path} belongs to executor {saved.executor_id}, not "
                f"{executor_id}; give {executor_id} another directory (--state-dir)",
                details={"state_dir": self.path, "executor_id": saved.executor_id},
            )
        return saved

    def save(self, state: SavedState) -> None:
        """Replaces state.json durably.

        Raises:
            OSError: the file could not be written. Its old content is unchanged.
        """
        write_document(self.path / STATE_FILE, state_content(state))

    def _read_task(self, path: Path) -> dict[str, Any] | None:
        try:
            return read_document(path)
        except (DamagedError, OSError) as error:
            self.damage.append(f"{TASKS_FOLDER}/{path.name} is damaged ({error})")
            return None


class DamagedError(Exception):
    """A file is incomplete, was changed, or was not written by this program."""


def write_document(path: Path, content: dict[str, Any], mode: int = 0o600) -> None:
    """Replaces a file durably.

    The function writes the content with version and checksum to a new file. Then it syncs the new
    file, renames it, and syncs the directory.

    Args:
        path: the file to replace.
        content: the new content of the file.
        mode: the permissions of the file.

    Raises:
        OSError: the file could not be written. The old file is unchanged.
    """
    text = encode_document(content)
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    # Without a sync of the directory, the old file could be back after a power cut.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_document(path: Path) -> dict[str, Any] | None:
    """Returns the content of a file; None: there is no such file.

    Raises:
        DamagedError: the file is incomplete, was changed, or was not written by this program.
        ConfigurationError: a newer version wrote the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise DamagedError("not text") from None
    return decode_document(text, path)


def encode_document(content: dict[str, Any]) -> str:
    """Returns the text of a file: the content with version and checksum."""
    body = json.dumps(content, separators=(",", ":"), sort_keys=True)
    # Store the content as text, so that the checksum does not depend on how a reader prints JSON.
    return json.dumps({"version": FORMAT_VERSION, "sha256": _digest(body), "content": body})


def decode_document(text: str, path: Path) -> dict[str, Any]:
    """Returns the content of a text that `encode_document` made.

    Args:
        text: the text of the file.
        path: the path of the file, for error messages.

    Raises:
        DamagedError: the text is incomplete, was changed, or was not written by this program.
        ConfigurationError: a newer version wrote the text.
    """
    try:
        document = json.loads(text)
        version, body = document["version"], document["content"]
        intact = document["sha256"] == _digest(body)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DamagedError("incomplete, or not a file of the executor") from None
    # Check the version before the checksum, so that a file of a newer version does not count as
    # damaged.
    if version > FORMAT_VERSION:
        raise ConfigurationError(
            f"{path} was written by a newer version of finegrain (format {version}, this one "
            f"knows {FORMAT_VERSION}); start that version, or use another --state-dir",
            reason=Reason.VERSION_MISMATCH,
        )
    if not intact:
        raise DamagedError("its checksum is wrong")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise DamagedError("not an object")
    return content


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def state_content(state: SavedState) -> dict[str, Any]:
    """Returns the content of state.json; the inverse of `parse_state`."""
    content: dict[str, Any] = _JSON.to_json(state)
    return content


def parse_state(content: dict[str, Any], damage: list[str]) -> SavedState:
    """Decodes the content of state.json, from this version or an earlier version.

    If a slot or the policy cannot be read, the function leaves this part out and decodes all other
    parts.

    Args:
        content: the content of the file, as `state_content` returns it.
        damage: receives one sentence for each slot or policy that is left out.

    Raises:
        DamagedError: another part is missing or has the wrong type.
    """
    # Read each slot and the policy separately below, so that one bad slot does not make other slots
    # unreadable.
    parts = {name: value for name, value in content.items() if name not in ("slots", "policy")}
    try:
        state = _JSON.from_json(SavedState, parts)
    except InvalidArgument as error:
        raise DamagedError(error.message) from None
    policy = _readable(HostPolicy, content.get("policy", {}), "policy", damage)
    slots = (
        _readable(Slot, each, f"slots[{at}]", damage)
        for at, each in enumerate(content.get("slots", ()))
    )
    return replace(
        state,
        slots=tuple(slot for slot in slots if slot is not None),
        policy=policy or HostPolicy(),
        policy_number=state.policy_number if policy is not None else 0,  # 0: the RM sends it again
    )


def _readable(kind: type[T], data: Any, where: str, damage: list[str]) -> T | None:
    try:
        return _JSON.from_json(kind, data, where)
    except InvalidArgument as error:
        damage.append(f"{STATE_FILE}: {error.message}")
        return None


_JSON = JsonCodec(FORMS | {SlotKey: JsonForm(as_list=True)})
