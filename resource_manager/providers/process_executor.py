"""One executor of the process provider: its directory, its processes, and how both come to an end.

    executors/ID/claim.json      the share it has, there before anything is started
    executors/ID/executor.toml   its configuration; names the front for whoever looks
    executors/ID/front.json      the process that was started last, and how often that was done
    executors/ID/output          what it wrote; of much, the part before is in output.earlier
    executors/ID/state/          the executor's own state directory
    executors/ID/tmp/            scratch directories of tasks, where they run as our own user
    output/ID.log                what the last executors wrote that are gone

A directory appears whole, with its claim, and its name goes before its content. So whoever is
killed between any two steps leaves either nothing, or a directory whose share nobody else gets and
whose processes are found by it. Everything here blocks and needs no resource manager.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resource_manager.providers.command_environment import clean_environment
from resource_manager.providers.notes import (
    keep_newest,
    read_json,
    sync_directory,
    tail,
    write_durably,
)
from resource_manager.providers.process_shares import Share
from resource_manager.providers.process_tree import (
    Process,
    boot_id,
    control_groups,
    end_forcibly,
    front_of,
    groups_around,
    processes_of,
    this_process,
)
from resource_manager.providers.provider import ProviderFailed
from resource_manager.providers.threads import Cancellation

CLAIM_FILE = "claim.json"
CONFIG_FILE = "executor.toml"
FRONT_FILE = "front.json"
OUTPUT_FILE = "output"
EARLIER_FILE = "output.earlier"
OUTPUT_FOLDER = "output"
EXECUTORS_FOLDER = "executors"
HIDDEN = "."  # directories in the making, or going
RESTARTS_MAX = 3
"""A front that was killed is started again so often: its tasks live on and are taken back."""
KILL_WAIT_S = 10.0
SERVE_WAIT_S = 30.0
LEAVE_WAIT_S = 5.0
OUTPUTS_KEPT_MAX = 100
OUTPUT_BYTES_MAX = 4 << 20
NOBODY_LISTENS = "127.0.0.1:9"
_PAUSE_S = 0.1
_MANAGER_VARIABLE = "FINEGRAIN_EXECUTOR__MANAGER"  # stronger than the file


@dataclass(frozen=True, slots=True)
class Claim:
    """Which share an executor has, as it was when that was given."""

    shape: str
    share: Share


class ExecutorDirectory:
    """One executor.

    Args:
        directory: of the provider.
        executor_id: which one.
        program: how `finegrain` is called.
        environment: added to that of this process.
    """

    def __init__(
        self,
        directory: Path,
        executor_id: str,
        program: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        directory = directory.absolute()  # processes are found by it
        self.path = directory / EXECUTORS_FOLDER / executor_id
        self.executor_id = executor_id
        self._kept_output = directory / OUTPUT_FOLDER
        self._program = list(program)
        self._environment = dict(environment)

    @property
    def config_file(self) -> Path:
        """The executor's configuration."""
        return self.path / CONFIG_FILE

    @property
    def state_dir(self) -> Path:
        """The executor's own state directory."""
        return self.path / "state"

    def exists(self) -> bool:
        """Whether anything of this executor may be there."""
        return self.path.is_dir()

    def make(self, claim: Claim, configuration: str) -> None:
        """Makes the directory, with its claim, on disk before anybody can see it.

        Raises:
            OSError: the disk does not let us.
        """
        fresh = self.path.with_name(f"{HIDDEN}{self.path.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700, parents=True)
        (fresh / "tmp").mkdir(mode=0o700)
        note = {"shape": claim.shape, "share": asdict(claim.share)}
        write_durably(fresh / CLAIM_FILE, json.dumps(note))
        write_durably(fresh / CONFIG_FILE, configuration)
        sync_directory(fresh)
        fresh.rename(self.path)
        sync_directory(self.path.parent)

    def front(self) -> Process | None:
        """The live front: the one noted, else (nobody got to note it) the one that can be seen."""
        note = self._note()
        if note.get("boot_id") == boot_id():
            noted = Process(int(note["pid"]), int(note["start_ticks"]))
            if noted.is_running():
                return noted
            noted.reap()
        return front_of(self.config_file)

    def start(self, *, only_to_end: bool = False) -> Process:
        """Starts the front, detached from us. `only_to_end`: it registers nowhere, so that nobody
        places anything on it.

        Raises:
            ProviderFailed: the program cannot be run.
        """
        starts = int(self._note().get("starts", 0)) + 1
        to_end = {_MANAGER_VARIABLE: NOBODY_LISTENS} if only_to_end else {}
        command = [*self._program, "executor", "serve", "--config", str(self.config_file)]
        try:
            with (self.path / OUTPUT_FILE).open("ab") as output:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env={**clean_environment(), **self._environment, **to_end},
                    start_new_session=True,
                )
        except OSError as error:
            raise ProviderFailed(
                f"{command[0]} cannot be started: {error.strerror}; see [process] program",
                details={"executor_id": self.executor_id},
            ) from None
        child.returncode = 0  # whoever finds it later buries it; Python need not watch it
        front = this_process(child.pid) or Process(child.pid, 0)
        note = {"boot_id": boot_id(), "starts": starts, **asdict(front)}
        with suppress(OSError):  # a full disk: it is found by its command line all the same
            write_durably(self.path / FRONT_FILE, json.dumps(note))
        return front

    def served(self) -> bool:
        """Whether a front served, and did not end in order since: its tasks may live on."""
        return (self.state_dir / "endpoint.json").exists()

    def may_restart(self) -> bool:
        """Whether a front that was killed is started again."""
        return self.served() and int(self._note().get("starts", 0)) <= RESTARTS_MAX

    def bound_output(self) -> None:
        """It writes a line per task as long as it lives; only the newest is kept. What it writes in
        the middle of this is lost: its descriptor cannot be taken to another file.
        """
        with suppress(OSError), (self.path / OUTPUT_FILE).open("r+b") as output:
            if os.fstat(output.fileno()).st_size > OUTPUT_BYTES_MAX:
                output.seek(-OUTPUT_BYTES_MAX, os.SEEK_END)
                with suppress(OSError):  # the disk may be full; then it goes
                    (self.path / EARLIER_FILE).write_bytes(output.read())
                output.truncate(0)

    def last_words(self) -> str:
        """The last thing that the executor wrote, for people."""
        said = tail(self.path / OUTPUT_FILE) or tail(self.path / EARLIER_FILE)
        lines = said.splitlines()
        line = next((line for line in reversed(lines) if line.strip()), "")
        try:
            logged = json.loads(line)
            return str(logged.get("error") or logged.get("event") or line)
        except (ValueError, AttributeError):
            return line.removeprefix("finegrain: ")

    def stop(self, timeout_s: float, cancellation: Cancellation | None = None) -> str:
        """Ends front, tasks, slots and helper, keeps what was written, removes the directory.

        Answers with a message for people: how it ended where that was not in order.

        Raises:
            ProviderFailed: something is left; the directory, and with it the share, stays claimed.
        """
        processes = processes_of(self.path)
        if not self.exists() and not processes:
            self._remove_hidden()
            return ""
        # Looked up at the beginning: somebody may have removed what its helper noted.
        groups = groups_around(processes, self.executor_id)
        how = self._end(timeout_s, cancellation)
        left = self._left(groups)
        if left:
            groups += control_groups(self.state_dir)
            end_forcibly(processes_of(self.path), groups, KILL_WAIT_S)
            how = "it was ended by force"
            left = self._left(groups)
        if left:
            raise ProviderFailed(
                f"something of executor {self.executor_id} is left: {'; '.join(left)}; end it by "
                "hand, or wait for the next attempt",
                details={"executor_id": self.executor_id},
            )
        if not self.exists():
            return how
        self._keep_output()
        try:
            self.path.rename(self.path.with_name(f"{HIDDEN}{self.path.name}.gone"))
            sync_directory(self.path.parent)
        except OSError as error:
            raise ProviderFailed(
                f"the directory {self.path} cannot be removed: {error.strerror}",
                details={"executor_id": self.executor_id},
            ) from None
        self._remove_hidden()
        return how

    def _end(self, timeout_s: float, cancellation: Cancellation | None) -> str:
        """In order if it goes; a front that could not leave in order is started once more, finds
        its helper, slots and tasks, and is told to stop then.
        """
        front = self.front()
        if front is not None:
            front.signal(signal.SIGTERM)
            in_order = front.wait(timeout_s, cancellation)
            if not in_order:
                _go_on(cancellation)
                front.signal(signal.SIGKILL)
                front.wait(KILL_WAIT_S)
            if in_order and self._leaves():
                return ""
            if not self._left():
                return "it had to be killed"
        elif not self._left():
            return ""
        if not self.exists():  # nothing can be started in it any more
            return ""
        again = self.start(only_to_end=True)
        deadline = time.monotonic() + SERVE_WAIT_S
        while again.is_running() and not self._serves(again) and time.monotonic() < deadline:
            _go_on(cancellation)
            time.sleep(_PAUSE_S)
        again.signal(signal.SIGTERM)
        if not again.wait(timeout_s, cancellation):
            _go_on(cancellation)
            again.signal(signal.SIGKILL)
            again.wait(KILL_WAIT_S)
        self._leaves()
        return "it had left slots or tasks, which were ended"

    def _leaves(self) -> bool:
        """Waits a moment until nothing is left: a helper goes after its front."""
        deadline = time.monotonic() + LEAVE_WAIT_S
        while self._left():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _serves(self, front: Process) -> bool:
        return bool(read_json(self.state_dir / "endpoint.json").get("pid") == front.pid)

    def _left(self, groups: Iterable[Path] = ()) -> list[str]:
        processes = [f"process {each.pid}" for each in processes_of(self.path)]
        here = dict.fromkeys([*control_groups(self.state_dir), *groups])
        return processes + [f"cgroup {group}" for group in here if group.is_dir()]

    def _note(self) -> dict[str, Any]:
        return read_json(self.path / FRONT_FILE)

    def _keep_output(self) -> None:
        """Only people read it: where there is no room, it goes."""
        with suppress(OSError):
            self._kept_output.mkdir(mode=0o700, exist_ok=True)
            (self.path / OUTPUT_FILE).replace(self._kept_output / f"{self.executor_id}.log")
        keep_newest(self._kept_output, OUTPUTS_KEPT_MAX)

    def _remove_hidden(self) -> None:
        for end in ("new", "gone"):
            hidden = self.path.with_name(f"{HIDDEN}{self.path.name}.{end}")
            shutil.rmtree(hidden, ignore_errors=True)


def _go_on(cancellation: Cancellation | None) -> None:
    """Returns unless it is not to be ended now, after all: whoever is told next begins anew."""
    if cancellation is not None and cancellation.is_set:
        raise ProviderFailed("stopping it was put off")


def read_claim(path: Path) -> Claim | None:
    """The claim in an executor's directory; None if there is none that can be read."""
    note = read_json(path / CLAIM_FILE)
    try:
        return Claim(note["shape"], Share(**note["share"]))
    except (KeyError, TypeError):
        return None


def executor_paths(directory: Path) -> list[Path]:
    """The directories of all executors of which something may be there."""
    try:
        found = list((directory / EXECUTORS_FOLDER).iterdir())
    except OSError:
        return []
    return sorted(each for each in found if not each.name.startswith(HIDDEN))
