"""Entry of the `finegrain` script: names the extra to install where it is missing, or hands over.

Decides nothing else, so that plain `pip install finegrain` (the client alone) still answers
`finegrain` with one clear line instead of a traceback.
"""

import sys
from importlib.util import find_spec

_NEEDED = ("typer", "rich", "pydantic")
_EXIT_USAGE = 2


def main() -> None:
    """Run the command line, or exit with 2 and the way out when its extra is not installed."""
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


if __name__ == "__main__":
    main()
