"""Reads the files of a kubelet on the same host, which needs the privileges of the helper.

The helper returns the contents unchanged. A caller cannot choose a path. Paths come from the
helper's configuration, or from the command line of a kubelet. The kubelet must run as the helper's
user, in the helper's mount namespace. A read never blocks the helper.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

from task_executor.helper.paths import start_ticks

DIRECTORY = "/var/lib/kubelet"
STATES = (
    "cpu_manager_state",
    "memory_manager_state",
    "device-plugins/kubelet_internal_checkpoint",
)
_FILE_BYTES_MAX = 130 << 10  # six such files fit into a frame; usual files have a few KiB
_DROP_INS_MAX = 8
_SEARCH_S = 30.0


class UnsuitableFile(OSError):
    """The file is not a regular file, or is too large to be a file of a kubelet."""


class KubeletFiles:
    """Reads the files of a kubelet.

    Args:
        directory: the kubelet's directory; None if the host has no kubelet.
        config: the kubelet's configuration file; None if the kubelet's command line names it.
        proc: the path of /proc, for tests.
    """

    def __init__(self, directory: str | None, config: str | None, proc: str = "/proc") -> None:
        self._directory, self._config, self._proc = directory, config, proc
        # Pid and start time of the kubelet's process.
        self._process: tuple[int, int | None] = (0, None)
        self._command: list[str] = []
        self._search_at = 0.0

    def read(self, seen: str) -> dict[str, Any]:
        """Returns the contents of a kubelet's files.

        `found` is true if the host has a kubelet. `command` contains the arguments of the kubelet.
        `texts` contains the texts of the files by name. `failures` contains the reasons why files
        could not be read, by name. The names are the names in STATES, then "config", then
        "config/NAME" in alphabetical sequence. `mark` changes whenever another part of the answer
        changes. If the mark still equals `seen`, the mark of the caller's last call, the answer has
        only `mark`.
        """
        directory = self._directory
        if directory is None or not Path(directory).is_dir():
            return {"mark": "none"} | ({} if seen == "none" else _answer(False, [], [], []))
        self._find_kubelet()
        flags = _flags(self._command)
        # A directory in the helper's configuration has priority over the kubelet's flag.
        if directory == DIRECTORY:
            directory = flags.get("root-dir", directory)
        files = [(name, f"{directory}/{name}") for name in STATES]
        config = self._config or flags.get("config", f"{directory}/config.yaml")
        files += [("config", config), *_drop_ins(flags.get("config-dir", ""))]
        # Compute the mark before the files are read. If a file changes afterwards, the mark of the
        # next call differs, and the caller gets the new contents.
        mark = repr([self._process, *(_identity(path) for _, path in files)])
        if mark == seen:
            return {"mark": mark}
        texts, failures = [], []
        for name, path in files:
            try:
                texts.append([name, _read(path)])
            except FileNotFoundError:
                continue
            except OSError as error:
                failures.append([name, f"{path}: {error.strerror or error}"])
        return {"mark": mark} | _answer(True, self._command, texts, failures)

    def _find_kubelet(self) -> None:
        """Searches for the kubelet's process while the process is not known.

        The method searches at most once in `_SEARCH_S` seconds.
        """
        pid, started = self._process
        # A search lists all processes, so do not repeat it while the known kubelet runs.
        if (pid and start_ticks(pid) == started) or time.monotonic() < self._search_at:
            return
        self._search_at = time.monotonic() + _SEARCH_S
        self._process, self._command = (0, None), []
        for entry in os.scandir(self._proc):
            if entry.name.isdecimal() and (command := self._kubelet_command(entry.path)):
                self._process = (int(entry.name), start_ticks(int(entry.name)))
                self._command = command
                return

    def _kubelet_command(self, process: str) -> list[str]:
        """Returns the arguments of a kubelet; empty if the process is not a kubelet of this user.

        The result is also empty for a kubelet in a container, because its paths name files of the
        container.
        """
        try:
            if Path(f"{process}/comm").read_text().strip() != "kubelet":
                return []
            here = Path(f"{self._proc}/self/ns/mnt").readlink()
            if (
                Path(process).stat().st_uid != os.geteuid()
                or Path(f"{process}/ns/mnt").readlink() != here
            ):
                return []
            text = Path(f"{process}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return []
        # An empty list means that there is no kubelet. So for a kubelet without arguments, return a
        # list that is not empty.
        return text.rstrip("\0").split("\0")[1:256] or ["--"]


def _answer(
    found: bool, command: list[str], texts: list[Any], failures: list[Any]
) -> dict[str, Any]:
    return {"found": found, "command": command, "texts": texts, "failures": failures}


def _flags(command: list[str]) -> dict[str, str]:
    """Returns the flags with absolute paths. The key is the name of the flag."""
    found = {}
    for at, word in enumerate(command):
        name, equals, value = word.lstrip("-").partition("=")
        value = value if equals else "".join(command[at + 1 : at + 2])
        if word.startswith("-") and value.startswith("/"):
            found[name.replace("_", "-")] = value
    return found


def _drop_ins(directory: str) -> list[tuple[str, str]]:
    try:
        # Without a directory, list a path that does not exist. This causes the same error as a
        # missing directory.
        names = sorted(entry.name for entry in os.scandir(directory or "/-"))
    except OSError:
        return []
    names = [name for name in names if name.endswith(".conf")][:_DROP_INS_MAX]
    return [(f"config/{name}", f"{directory}/{name}") for name in names]


def _identity(path: str) -> Any:
    try:
        found = Path(path).stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: str) -> str:
    """Reads a regular file. Other files are rejected, because opening a pipe could block."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UnsuitableFile(None, "not a regular file")
        with open(fd, "rb", closefd=False) as file:
            # Read one byte more than allowed, to find out whether the file is too large.
            content = file.read(_FILE_BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(content) > _FILE_BYTES_MAX:
        raise UnsuitableFile(None, f"larger than {_FILE_BYTES_MAX} bytes")
    return content.decode(errors="replace")
