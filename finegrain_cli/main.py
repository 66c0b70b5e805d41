"""Defines the options of the `finegrain` command itself, and its entry point.

The commands are in `commands`. `command_tree` loads the command that is used.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from finegrain_cli.command_tree import COMPLETE_VARIABLE, CommandTree
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.text.output import ColorChoice, choose_colour

app = typer.Typer(
    name="finegrain",
    cls=CommandTree,
    help="Run tasks in slots of any size on a cluster, and see why a request waits.",
    epilog="\b\nExamples:\n  finegrain up\n  finegrain run --cpu 0.5 -- hostname    (in another "
    "terminal)",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # All commands inherit these settings.
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    add_completion=False,  # `finegrain completion` prints the scripts
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from finegrain_cli.commands.settings import show_version

        show_version()
        raise typer.Exit


@app.command(name="help")
def show_help(
    context: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", show_default=False)
    ] = None,
) -> None:
    """Show the help of a command.

    Example: finegrain help groups set
    """
    # Run `finegrain COMMAND --help`. So an unknown command causes the same error as without `help`.
    app([*(command or ()), "--help"], prog_name=context.find_root().info_name)


@app.callback()
def _options(
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
    color: Annotated[
        ColorChoice,
        typer.Option("--color", help="Whether the output has color; auto: only on a terminal."),
    ] = ColorChoice.AUTO,
) -> None:
    # Set the usual handler of Ctrl-C again, because `__main__` has removed this handler. If the
    # caller ignores Ctrl-C, as for background jobs of a shell, Ctrl-C stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    choose_colour(color)


def main() -> None:
    """Runs the command line. If a pipe is closed (`finegrain ... | head`), the process ends without
    a traceback.
    """
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        app(prog_name="finegrain")
    except BrokenPipeError:
        # Redirect standard output. Otherwise, Python would fail a second time when it flushes
        # standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(ExitCode.ERROR)
