"""Ends the executors that a local cluster's resource manager started, when `finegrain up` is gone.

A process of its own, in a session of its own. It is told over its standard input what to sweep; the
end of that input says that whoever told it is gone. Decides how long the resource manager may take
to follow; holds its state directory meanwhile, so that no new one begins.
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

# What is needed at the end is read at the beginning: meanwhile another version may be installed.
from resource_manager.providers.process_sweep import stop_everything
from resource_manager.providers.process_tree import this_process
from resource_manager.service.state_dir import locked_state_dir

MANAGER_EXIT_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.1


def main() -> int:
    """The sweeper; 1 if something is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.readline()
    if not line:
        return 0
    note = json.loads(line)
    sys.stdin.read()
    with _after_manager(Path(note["rm_state_dir"])):
        return 1 if stop_everything(Path(note["directory"])) else 0


@contextmanager
def _after_manager(state_dir: Path) -> Iterator[None]:
    """Waits for the end of the resource manager of a state directory, and makes it end if that
    takes too long.
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
                    break  # the directory itself cannot be used any more
                manager.signal(signal.SIGKILL)
            time.sleep(POLL_INTERVAL_S)
        yield


if __name__ == "__main__":
    sys.exit(main())
