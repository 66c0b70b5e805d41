"""Runs the steps of a task's process between fork and exec.

Before any code of the user runs, the process joins its groups, starts a session, sets limits, drops
privileges and changes the directory. Then it executes the program.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from task_executor.helper.forks import (
    prctl,
    restore_descriptor_limit,
    run_in_fork,
)
from task_executor.helper.paths import blocked_directory
from task_executor.helper.protocol import Fault, as_fault, expand

# A signal that ends the helper must not end a supervisor, which must record the ends of its tasks.
_IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
_bounding_set = list(range(64))  # the capabilities that this process has not dropped from its set
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38


@contextmanager
def bound_to(cpus: str) -> Iterator[None]:
    """Binds this process to cpus. Processes that are forked inside the block run only on these
    cpus.

    If `cpus` is empty, the cpus of this process do not change.
    """
    ours = os.sched_getaffinity(0)
    try:
        if cpus:
            os.sched_setaffinity(0, expand(cpus))
        yield
    except OSError as error:
        raise as_fault(error, "START_FAILED") from None
    finally:
        if cpus:
            os.sched_setaffinity(0, ours)


def spare_from_oom(score: int) -> None:
    """Sets the OOM score of this process, if this is allowed. Only root can lower the score.

    With a low score of the helper and the supervisors, the kernel kills tasks first.
    """
    with suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(score).encode())
        finally:
            os.close(fd)


def prepare_for_tasks(*, with_root: bool) -> None:
    """Makes the settings that all tasks of this process inherit. This is done once, and not in each
    fork.

    Args:
        with_root: True if tasks are allowed to run as user 0. A task of user 0 keeps its
            capabilities.
    """
    # Disable core files, because the core file of a large task could fill the disk of the host.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    for signum in _IGNORED_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    if os.geteuid() == 0 and not with_root:
        _drop_bounding_set()


def become_task(
    spec: dict[str, Any], entrances: Sequence[str], stdio: tuple[int, int, int], error_fd: int
) -> NoReturn:
    """Replaces this process with the task's program. If this fails, writes the reason to
    `error_fd`.

    Args:
        spec: the specification of the task.
        entrances: the files by which the process enters its groups; see `Driver.entrances`.
        stdio: the descriptors of the standard streams.
        error_fd: the descriptor that receives the reason of a failure, as JSON.
    """
    try:
        # Enter the groups first. So no code of the task ever runs outside of the slot.
        for path in entrances:
            _enter(path)
        os.setsid()
        # The program inherits ignored signals. For all other signals, exec restores the default.
        for signum in _IGNORED_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        # This process inherited the helper's low OOM score, which a task must not have.
        spare_from_oom(0)
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        restore_descriptor_limit()
        _drop_privileges(spec["uid"], spec["gid"])
        # Change the directory as the task's user. So a task cannot start in a directory that its
        # user is not allowed to enter.
        _change_directory(spec["cwd"])
        _execute(spec["argv"], spec["env"])
    # Catch every exception, because otherwise this fork would continue with the code of the helper.
    except BaseException as problem:
        error = as_fault(problem, "START_FAILED").as_dict()
    os.write(error_fd, json.dumps(error).encode())
    os._exit(127)


def _enter(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def become_user(uid: int, gid: int) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def remove_as(uid: int, gid: int, path: str) -> int:
    """Removes a task's directory in a new process that runs as the task's user. Returns its pid.

    The process has only the user's privileges. So even if the directory contains a symbolic link,
    the process cannot remove files of other users. The process runs outside of the slot's limits,
    so it must not execute another program: after an exec, tasks of the same user could read the
    environment of the process and attach to it.
    """

    def work() -> None:
        _drop_privileges(uid, gid)
        # Other processes of the same user cannot attach to a process that is not dumpable, or read
        # its memory.
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        _remove_tree(path)

    return run_in_fork(work)


def _remove_tree(path: str) -> None:
    """Removes a directory tree of any depth and permissions, by moving deeper directories up first.

    Several processes can remove the same tree at the same time.
    """
    if os.path.islink(path):  # noqa: PTH114
        return os.unlink(path)  # noqa: PTH108
    # Use a random mark, because each process must use names of moved directories that differ from
    # the names of other processes.
    mark, numbers = os.urandom(8).hex(), itertools.count()
    with suppress(FileNotFoundError):
        # A task can leave a directory that its owner is not allowed to list.
        os.chmod(path, 0o700)  # noqa: PTH101
        os.chdir(path)
        while True:
            for name in os.listdir():  # noqa: PTH208
                with suppress(FileNotFoundError):
                    _remove_level(name, mark, numbers)
            # A listing can be incomplete while another process moves entries.
            _remove_if_empty(path)
    return None


def _remove_level(name: str, mark: str, numbers: Iterator[int]) -> None:
    if os.path.islink(name) or not os.path.isdir(name):  # noqa: PTH112, PTH114
        return os.unlink(name)  # noqa: PTH108
    os.chmod(name, 0o700)  # noqa: PTH101
    for entry in list(os.scandir(name)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)  # noqa: PTH101 - else it cannot be moved
        os.rename(entry.path, f"{mark}-{next(numbers)}")  # noqa: PTH104
    return _remove_if_empty(name)


def _remove_if_empty(path: str) -> None:
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def _drop_privileges(uid: int, gid: int) -> None:
    """Changes to the task's user.

    User 0 (only if allowed) keeps its capabilities, and exec adds no capabilities.
    """
    # Drop capabilities before the user changes, because the task's user is not allowed to drop
    # capabilities. Usually the supervisor has already dropped all capabilities.
    if os.geteuid() == 0:
        if uid != 0:
            _drop_bounding_set()
        become_user(uid, gid)
    # Set this for every task. So a setuid program cannot give the task more privileges.
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise Fault("START_FAILED", "the kernel refused no_new_privs")


def _drop_bounding_set() -> None:
    # The kernel refuses numbers that it does not know.
    while _bounding_set:
        prctl(_PR_CAPBSET_DROP, _bounding_set.pop(), 0, 0, 0)


def _change_directory(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        blocked = blocked_directory(f"{cwd}/x")
        why = f"user {os.getuid()} may not enter {blocked}" if blocked else error.strerror
        raise Fault("CWD_UNAVAILABLE", f"cwd {cwd}: {why}", cwd=cwd, blocked=blocked) from None


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Executes the program like execvpe, with the task's PATH and user.

    If the user is not allowed to enter a directory of the path, the error names this directory.
    """
    name, path, denied = argv[0], env.get("PATH", _DEFAULT_PATH), ""
    candidates = [name] if "/" in name else [f"{part or '.'}/{name}" for part in path.split(":")]
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)  # noqa: S606 - no shell on purpose
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.lexists(candidate):
                continue
            raise _not_executable(candidate, "its interpreter does not exist") from None
        # Continue with the next directories of PATH, in the same way as execvp. If no directory has
        # an executable program, report the first refusal.
        except PermissionError:
            denied = denied or candidate
        except OSError as error:
            raise _not_executable(candidate, error.strerror or str(error)) from None
    if denied:
        blocked = blocked_directory(denied)
        user = f"user {os.getuid()} may not"
        raise _not_executable(
            denied, f"{user} enter {blocked}" if blocked else f"{user} run it", blocked
        )
    where = "" if "/" in name else f" in PATH {path}"
    raise Fault("COMMAND_NOT_FOUND", f"{name}: not found{where}", command=name, exit_code=127)


def _not_executable(path: str, why: str, blocked: str | None = None) -> Fault:
    message = f"{path}: {why}"
    return Fault("COMMAND_NOT_EXECUTABLE", message, command=path, blocked=blocked, exit_code=126)
