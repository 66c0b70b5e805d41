"""Entry point of the `finegrain` script.

If only the client is installed (plain `pip install finegrain`), the command line's dependencies are
missing. The script then prints one clear line instead of a traceback.
"""

import sys
from importlib.util import find_spec

_NEEDED = ("typer", "rich", "pydantic")
_EXIT_USAGE = 2


def main() -> None:
    """Runs the command line; exits with 2 and an install hint if its dependencies are missing."""
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
