"""Finds a Python that the user of the tasks can run, and copies files so that this user can read
them.

If root starts the demo, the tasks run as another user. But Python and this package are possibly in
a directory that only root can read, such as root's home directory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from finegrain.errors import ConfigurationError
from finegrain_cli.demo import wordcount
from finegrain_cli.local.task_user import TaskUser
from task_executor.service.task_users import DEFAULT_PATH


@dataclass(frozen=True, slots=True)
class Program:
    """The program of the demo's tasks: an interpreter, a script, and the files whose words the
    script counts.
    """

    python: str
    script: str
    files: tuple[Path, ...]


@contextmanager
def program_for(task_user: TaskUser, files: Sequence[Path]) -> Iterator[Program]:
    """Yields the program of the tasks. If the tasks need copies of the files, the copies exist
    until the end of the context.

    Args:
        task_user: the user that runs tasks.
        files: the files with the words.

    Raises:
        ConfigurationError: the user cannot run any Python on this host.
    """
    script = Path(wordcount.__file__)
    if task_user.is_shared or task_user.user is None:
        yield Program(sys.executable, str(script), tuple(files))
        return
    python = _python(task_user.user.uid, task_user.user.gid, task_user.name)
    with tempfile.TemporaryDirectory(prefix="finegrain-demo-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        copies = [folder / f"{number}.py" for number in range(len(files))]
        copied = folder / script.name
        for source, copy in zip((script, *files), (copied, *copies), strict=True):
            copy.write_bytes(source.read_bytes())
            copy.chmod(0o644)
        yield Program(python, str(copied), tuple(copies))


def _python(uid: int, gid: int, name: str) -> str:
    for each in (sys.executable, shutil.which("python3", path=DEFAULT_PATH)):
        if each and _runs(each, uid, gid):
            return each
    raise ConfigurationError(
        f"tasks run as {name}, who cannot run {sys.executable}, and there is no other python3 in "
        f"{DEFAULT_PATH}; install one, or run the demo with --task-user root",
        details={"user": name, "python": sys.executable},
    )


def _runs(python: str, uid: int, gid: int) -> bool:
    try:
        ended = subprocess.run(
            [python, "-c", ""],
            user=uid,
            group=gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return ended.returncode == 0
