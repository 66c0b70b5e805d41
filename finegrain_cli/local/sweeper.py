"""Stops the executors of a local cluster with `--scale`, if `finegrain up` was killed.

The sweeper is a separate process in its own session. It reads the names of directories from
standard input. The end of the input means that `finegrain up` has ended. The sweeper then waits
until the resource manager has ended, and kills it after a timeout. The sweeper locks the state
directory of the resource manager. So no other resource manager starts in this directory while
executors are stopped.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from finegrain.errors import ConfigurationError

# Import these modules at the start of this process. A user could install another version of
# finegrain before this process stops the executors.
from resource_manager.providers.process_sweep import stop_everything
from resource_manager.providers.process_tree import this_process
from resource_manager.service.state_dir import locked_state_dir

MANAGER_EXIT_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1


def main() -> int:
    """Runs the sweeper. Returns 1 if a process could not be stopped."""
    # Ignore these signals, because a signal to the whole process group or session must not end the
    # process that cleans up.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.readline()
    # If there is no line, `finegrain up` has ended before it started an executor.
    if not line:
        return 0
    note = json.loads(line)
    # Block until `finegrain up` has ended, even if it was killed.
    sys.stdin.read()
    with _after_manager(Path(note["rm_state_dir"])):
        return 1 if stop_everything(Path(note["directory"])) else 0


@contextmanager
def _after_manager(state_dir: Path) -> Iterator[None]:
    """Waits until the resource manager of a state directory has ended. The directory is locked
    inside the context.

    After `MANAGER_EXIT_TIMEOUT_S`, the function kills the resource manager.
    """
    deadline = time.monotonic() + MANAGER_EXIT_TIMEOUT_S
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked_state_dir(state_dir))
                break
            except ConfigurationError as error:
                owner = error.details.get("pid", "")
            if time.monotonic() > deadline:
                if not owner.isdecimal() or (manager := this_process(int(owner))) is None:
                    break  # no resource manager has locked the directory: it is unusable
                manager.signal(signal.SIGKILL)
            time.sleep(POLL_INTERVAL_S)
        yield


if __name__ == "__main__":
    sys.exit(main())
