"""Manages one executor of the process provider: creates and removes its directory and processes.

    executors/ID/claim.json      the executor's share; written before a process is started
    executors/ID/executor.toml   the executor's configuration; the path also identifies the
                                 front's process
    executors/ID/front.json      the front that was started last, and the number of starts so far
    executors/ID/output          the executor's output
    executors/ID/output.earlier  the output before the last truncation
    executors/ID/state/          the executor's own state directory
    executors/ID/tmp/            scratch directories of tasks that run as this process's user
    output/ID.log                output of removed executors; only the newest files are kept

The directory of an executor appears by a rename, complete with its claim. The directory disappears
by another rename, before its content is deleted. So a crash between any two steps leaves either no
directory, or a directory that claims the share and identifies the processes of the executor. The
functions of this module block, and work without a resource manager.
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
HIDDEN = "."  # prefix of directories that are being created or removed
RESTARTS_MAX = 3
"""Maximum number of restarts of a killed front. The tasks survive, and the new front adopts them.
"""
KILL_WAIT_S = 10.0
SERVE_WAIT_S = 30.0
LEAVE_WAIT_S = 5.0
OUTPUTS_KEPT_MAX = 100
OUTPUT_BYTES_MAX = 4 << 20
NOBODY_LISTENS = "127.0.0.1:9"
_PAUSE_S = 0.1
_MANAGER_VARIABLE = "FINEGRAIN_EXECUTOR__MANAGER"  # overrides the configuration file


@dataclass(frozen=True, slots=True)
class Claim:
    """The share of an executor, as configured when the executor was created."""

    shape: str
    share: Share


class ExecutorDirectory:
    """The directory and processes of one executor.

    Args:
        directory: the directory of the provider.
        executor_id: id of the executor.
        program: the first words of the command line, which run `finegrain`.
        environment: variables to add to the environment of this process.
    """

    def __init__(
        self,
        directory: Path,
        executor_id: str,
        program: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        # processes are found by the absolute path in their command lines
        directory = directory.absolute()
        self.path = directory / EXECUTORS_FOLDER / executor_id
        self.executor_id = executor_id
        self._kept_output = directory / OUTPUT_FOLDER
        self._program = list(program)
        self._environment = dict(environment)

    @property
    def config_file(self) -> Path:
        """The path of the executor's configuration."""
        return self.path / CONFIG_FILE

    @property
    def state_dir(self) -> Path:
        """The executor's own state directory."""
        return self.path / "state"

    def exists(self) -> bool:
        """Returns whether the directory exists. If the directory exists, processes of the executor
        possibly exist, too.
        """
        return self.path.is_dir()

    def make(self, claim: Claim, configuration: str) -> None:
        """Creates the directory with claim and configuration. All content is on disk before the
        directory becomes visible.

        Raises:
            OSError: the files cannot be written.
        """
        fresh = self.path.with_name(f"{HIDDEN}{self.path.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)  # an earlier crash possibly left this directory
        fresh.mkdir(mode=0o700, parents=True)
        (fresh / "tmp").mkdir(mode=0o700)
        note = {"shape": claim.shape, "share": asdict(claim.share)}
        write_durably(fresh / CLAIM_FILE, json.dumps(note))
        write_durably(fresh / CONFIG_FILE, configuration)
        # Sync the content before the rename makes the directory visible.
        sync_directory(fresh)
        fresh.rename(self.path)
        sync_directory(self.path.parent)

    def front(self) -> Process | None:
        """Returns the live front. The front is found in the note or, if the note is missing, by its
        command line.

        A crash just after the start of a front can leave the front without a note.
        """
        note = self._note()
        # After a reboot, the pid in the note belongs to another process.
        if note.get("boot_id") == boot_id():
            noted = Process(int(note["pid"]), int(note["start_ticks"]))
            if noted.is_running():
                return noted
            noted.reap()  # a front that is a child of this process would otherwise stay a zombie
        return front_of(self.config_file)

    def start(self, *, only_to_end: bool = False) -> Process:
        """Starts the front, detached from this process.

        Args:
            only_to_end: whether the front is started only to end the executor. Such a front must
                not register, so that the resource manager places no slots on it.

        Raises:
            ProviderFailed: the program cannot be run.
        """
        # The starts are counted on disk, so that a restarted resource manager does not count from
        # zero.
        starts = int(self._note().get("starts", 0)) + 1
        to_end = {_MANAGER_VARIABLE: NOBODY_LISTENS} if only_to_end else {}
        command = [*self._program, "executor", "serve", "--config", str(self.config_file)]
        try:
            with (self.path / OUTPUT_FILE).open("ab") as output:
                child = subprocess.Popen(
                    command,
                    # The front continues to run when this process ends, so it must not use pipes of
                    # this process.
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
        child.returncode = 0  # Popen need not wait for the process, because `Process.reap` waits
        front = this_process(child.pid) or Process(child.pid, 0)
        note = {"boot_id": boot_id(), "starts": starts, **asdict(front)}
        # a full disk is no error, because the front can also be found by its command line
        with suppress(OSError):
            write_durably(self.path / FRONT_FILE, json.dumps(note))
        return front

    def served(self) -> bool:
        """Returns whether a front served and did not shut down cleanly afterwards. Tasks of such a
        front possibly still run.
        """
        return (self.state_dir / "endpoint.json").exists()

    def may_restart(self) -> bool:
        """Returns whether the front was killed and can be restarted."""
        # If there is no endpoint file, the front shut down cleanly, or never served.
        return self.served() and int(self._note().get("starts", 0)) <= RESTARTS_MAX

    def bound_output(self) -> None:
        """If the output file is larger than `OUTPUT_BYTES_MAX`, truncates it and keeps the newest
        part.

        An executor writes a line for each task, so without truncation the file would grow without
        limit. The file is truncated in place, because the executor keeps it open. Output that the
        executor writes during the truncation is lost.
        """
        with suppress(OSError), (self.path / OUTPUT_FILE).open("r+b") as output:
            if os.fstat(output.fileno()).st_size > OUTPUT_BYTES_MAX:
                output.seek(-OUTPUT_BYTES_MAX, os.SEEK_END)
                with suppress(OSError):  # if the disk is full, the output is dropped
                    (self.path / EARLIER_FILE).write_bytes(output.read())
                output.truncate(0)

    def last_words(self) -> str:
        """Returns the last line of the executor's output, for people. If that line is a log line in
        JSON, returns only the message of the log line.
        """
        lines = (tail(self.path / OUTPUT_FILE) or tail(self.path / EARLIER_FILE)).splitlines()
        line = next((line for line in reversed(lines) if line.strip()), "")
        try:
            logged = json.loads(line)
            return str(logged.get("error") or logged.get("event") or line)
        except (ValueError, AttributeError):
            return line.removeprefix("finegrain: ")

    def stop(self, timeout_s: float, cancellation: Cancellation | None = None) -> str:
        """Ends front, tasks, slots and helper, saves the output and removes the directory.

        Args:
            timeout_s: the time in which the front can stop cleanly. If it still runs after this
                time, it is killed.
            cancellation: when the cancellation is set, the call ends at its next wait. A later call
                starts from the beginning.

        Returns:
            A message for people about how the executor ended. The message is empty if the executor
            ended cleanly.

        Raises:
            ProviderFailed: a process or control group is left, or the attempt was cancelled. The
                directory stays, so the share stays claimed.
        """
        # The processes are found by their command lines, because they can run even if the directory
        # was deleted.
        processes = processes_of(self.path)
        if not self.exists() and not processes:
            self._remove_hidden()
            return ""
        # Search for the control groups while processes still run, because the helper's note of its
        # groups is possibly missing.
        groups = groups_around(processes, self.executor_id)
        how = self._end(timeout_s, cancellation)
        left = self._left(groups)
        # The groups that were found above must be ended, too: without processes, `groups_around`
        # could not find them any more.
        if left:
            # The helper possibly wrote its note in the meantime.
            groups += control_groups(self.state_dir)
            end_forcibly(processes_of(self.path), groups, KILL_WAIT_S)
            how = "it was killed"
            left = self._left(groups)
        if left:
            raise ProviderFailed(
                f"executor {self.executor_id} did not end completely; these are left: "
                f"{'; '.join(left)}; stop them by hand, or wait for the next attempt",
                details={"executor_id": self.executor_id},
            )
        if not self.exists():
            return how
        # Save the output before the rename, because the output file is in this directory.
        self._keep_output()
        try:
            # After the rename the share is free, even if the content cannot be deleted.
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
        """Ends the executor, cleanly if possible. Returns a message for people, as `stop` does.

        If a front did not stop cleanly, its helper, slots and tasks are possibly left. In this
        case, this function starts another front. The new front finds the slots and tasks, and ends
        them when it receives SIGTERM.
        """
        front = self.front()
        if front is not None:
            front.signal(signal.SIGTERM)
            in_order = front.wait(timeout_s, cancellation)
            if not in_order:
                # `wait` also returns before the timeout if the attempt was cancelled. In this case,
                # no process must be killed yet.
                _go_on(cancellation)
                front.signal(signal.SIGKILL)
                front.wait(KILL_WAIT_S)
            # The helper ends a moment after its front, so `_leaves` waits.
            if in_order and self._leaves():
                return ""
            if not self._left():
                return "it had to be killed"
        elif not self._left():
            return ""
        if not self.exists():  # without a configuration, no front can start
            return ""
        again = self.start(only_to_end=True)
        deadline = time.monotonic() + SERVE_WAIT_S
        # Wait until the front serves. Before this moment, it cannot end the slots that it finds.
        while again.is_running() and not self._serves(again) and time.monotonic() < deadline:
            _go_on(cancellation)
            time.sleep(_PAUSE_S)
        again.signal(signal.SIGTERM)
        if not again.wait(timeout_s, cancellation):
            _go_on(cancellation)
            again.signal(signal.SIGKILL)
            again.wait(KILL_WAIT_S)
        self._leaves()
        return "slots or tasks were left, and were ended"

    def _leaves(self) -> bool:
        """Waits up to `LEAVE_WAIT_S` until no process and no control group is left. The wait is
        needed, because a helper ends later than its front. Returns whether nothing is left.
        """
        deadline = time.monotonic() + LEAVE_WAIT_S
        while self._left():
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _serves(self, front: Process) -> bool:
        return bool(read_json(self.state_dir / "endpoint.json").get("pid") == front.pid)

    def _left(self, groups: Iterable[Path] = ()) -> list[str]:
        """Lists processes and control groups that still exist, for people."""
        processes = [f"process {each.pid}" for each in processes_of(self.path)]
        here = dict.fromkeys([*control_groups(self.state_dir), *groups])
        return processes + [f"cgroup {group}" for group in here if group.is_dir()]

    def _note(self) -> dict[str, Any]:
        return read_json(self.path / FRONT_FILE)

    def _keep_output(self) -> None:
        """Saves the output for people. If the output cannot be saved, it is dropped."""
        with suppress(OSError):
            self._kept_output.mkdir(mode=0o700, exist_ok=True)
            (self.path / OUTPUT_FILE).replace(self._kept_output / f"{self.executor_id}.log")
        keep_newest(self._kept_output, OUTPUTS_KEPT_MAX)

    def _remove_hidden(self) -> None:
        # Remove both names: a crash during the creation leaves the one name, and a crash during the
        # removal leaves the other name.
        for end in ("new", "gone"):
            hidden = self.path.with_name(f"{HIDDEN}{self.path.name}.{end}")
            shutil.rmtree(hidden, ignore_errors=True)


def _go_on(cancellation: Cancellation | None) -> None:
    """Raises ProviderFailed if the attempt was cancelled. The next call of `stop` starts from the
    beginning.
    """
    # `_end` calls this function after each long wait, because `stop` can be interrupted between any
    # two steps and called again.
    if cancellation is not None and cancellation.is_set:
        raise ProviderFailed("the stop of this executor was interrupted")


def read_claim(path: Path) -> Claim | None:
    """Returns the claim in an executor's directory, or None if the claim is missing or invalid."""
    note = read_json(path / CLAIM_FILE)
    try:
        return Claim(note["shape"], Share(**note["share"]))
    except (KeyError, TypeError):
        return None


def executor_paths(directory: Path) -> list[Path]:
    """Returns the directories of all executors whose processes possibly run, sorted."""
    try:
        found = list((directory / EXECUTORS_FOLDER).iterdir())
    except OSError:
        return []
    return sorted(each for each in found if not each.name.startswith(HIDDEN))
