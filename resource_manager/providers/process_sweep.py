"""Stops all executors of a process provider whose resource manager will never be started again.

    python -m resource_manager.providers.process_sweep DIRECTORY

If an executor cannot be stopped, the other executors are stopped anyway. The administrator must
first make sure that no resource manager runs any more, because a running resource manager would
start new executors.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from resource_manager.providers.process import STOP_TIMEOUT_MS, THIS_PROGRAM
from resource_manager.providers.process_executor import ExecutorDirectory, executor_paths
from resource_manager.providers.provider import ProviderFailed

AT_A_TIME_MAX = 16


def stop_everything(directory: Path, *, timeout_s: float = STOP_TIMEOUT_MS / 1000) -> list[str]:
    """Stops all executors of a process provider and removes their directories. The call can be
    repeated.

    Args:
        directory: the directory of the provider (see `process`).
        timeout_s: the time in which each executor can stop cleanly. An executor that still runs
            after this time is killed.

    Returns:
        One message for people for each executor that could not be stopped. The list is empty if all
        executors were stopped.
    """

    def stop(path: Path) -> str:
        executor = ExecutorDirectory(directory, path.name, THIS_PROGRAM, {})
        try:
            executor.stop(timeout_s)
        except ProviderFailed as error:
            return error.message
        except OSError as error:
            return f"{path}: {error.strerror}"
        return ""

    # Stop several executors at the same time, because each stop can take the whole timeout.
    with ThreadPoolExecutor(AT_A_TIME_MAX) as threads:
        messages = list(threads.map(stop, executor_paths(directory)))
    return [message for message in messages if message]


def main(arguments: list[str]) -> int:
    """Runs the command. Returns 1 if an executor could not be stopped, and 2 for wrong
    arguments.
    """
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m resource_manager.providers.process_sweep DIRECTORY\n")
        return 2
    left = stop_everything(Path(arguments[0]))
    sys.stderr.writelines(f"{line}\n" for line in left)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
