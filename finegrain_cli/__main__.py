"""Starts the `finegrain` script.

If only the client is installed (plain `pip install finegrain`), the dependencies of the command
line are missing. In this case, the script prints one clear line instead of a traceback.
"""

import atexit
import gc
import os
import signal
import sys

_NEEDED = ("typer", "rich", "pydantic")
_EXIT_USAGE = 2
_COLLECT_AFTER = 100_000
"""Number of new objects after which Python searches for cycles of objects (garbage collection).

With Python's default of 700, the searches would take a tenth of the CPU time of a short command.
The resource manager sets its own thresholds later.
"""


def main() -> None:
    """Runs the command line. Exits with 2 and an install hint if dependencies are missing."""
    gc.set_threshold(_COLLECT_AFTER)
    # Without `freeze`, Python would search all objects for cycles once more at exit. This search
    # would take a fifth of the CPU time of a short command.
    atexit.register(gc.freeze)
    _fill_closed_descriptors()
    # Ctrl-C during the imports ends the process without a traceback. The command line sets the
    # usual handler again before it calls a command.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from importlib.util import find_spec  # this import takes so long that Ctrl-C can interrupt it

    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        print(
            f"finegrain: the command line needs {', '.join(missing)}: "
            "pip install 'finegrain[cli]' (with both daemons: 'finegrain[all]')",
            file=sys.stderr,
        )
        sys.exit(_EXIT_USAGE)
    from finegrain_cli.main import main as run

    run()


def _fill_closed_descriptors() -> None:
    """Opens /dev/null as standard input, output or error if the caller has closed the descriptor.

    Otherwise, the next file or socket would get the number of the closed descriptor. Code would
    then use this file or socket as standard input, output or error.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The kernel gives the lowest free number, which is the number of the closed descriptor.
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    main()
