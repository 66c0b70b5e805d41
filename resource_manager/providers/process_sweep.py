"""Ends everything that a process provider started, when its resource manager is gone for good.

    python -m resource_manager.providers.process_sweep DIRECTORY

Decides that one that cannot be ended does not keep the others. Refuses to know whether there still
is a resource manager that wants executors; that would start new ones.
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
    """Stops all executors of a process provider and removes their directories; may be repeated.

    Args:
        directory: the provider's (see `process`).
        timeout_s: for each to leave in order; after that it is killed.

    Returns:
        What could not be ended, one line each for people; empty: nothing is left.
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

    with ThreadPoolExecutor(AT_A_TIME_MAX) as threads:
        told = list(threads.map(stop, executor_paths(directory)))
    return [line for line in told if line]


def main(arguments: list[str]) -> int:
    """The command; 1 if something is left."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m resource_manager.providers.process_sweep DIRECTORY\n")
        return 2
    left = stop_everything(Path(arguments[0]))
    sys.stderr.writelines(f"{line}\n" for line in left)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
