"""The `finegrain` command: which commands there are. Each lives in `commands` and imports late."""

from __future__ import annotations

import typer

from finegrain_cli.commands import daemons, database, host, lists, operate, run, settings

app = typer.Typer(
    name="finegrain",
    help="Carve slots of any size out of hosts, run tasks in them, see why a request waits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (run, daemons, lists, operate, host, database, settings):
    module.register(app)


def main() -> None:
    """Runs the command line."""
    app(prog_name="finegrain")
