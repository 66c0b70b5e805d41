"""Implements `finegrain web`, which shows the cluster in a browser."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from finegrain.errors import InvalidArgument
from finegrain.rpc.addresses import format_address, is_loopback
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    need_modules,
    reporting_errors,
)
from finegrain_cli.connection import PATIENCE_S, open_cluster, open_connection
from finegrain_cli.text.columns import age, time_left
from finegrain_cli.text.output import Column, OutputFormat, print_list, print_object, say

if TYPE_CHECKING:
    from finegrain_cli.web.page_server import PageServer

HOST = "127.0.0.1"
VIEW = re.compile(r"/(?!/)[!-\"$-~]*")
"""Path and query of a view, without a fragment: the fragment of the address has the code."""
SESSION_COLUMNS = (
    Column("id", lambda row: str(row["session_id"])),
    Column("identity", lambda row: str(row["identity"])),
    Column("began", lambda row: age(row, "begin_time")),
    Column("ends in", lambda row: time_left(row["end_time"])),
    Column("certificate", lambda row: str(row["serial"])),
)


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    app.command()(reporting_errors(web))


def web(
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65_535, help="Port on loopback; 0: a free port."),
    ] = 0,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the address in your browser."),
    ] = True,
    view: Annotated[
        str,
        typer.Option(
            "--view",
            metavar="PATH",
            help="Path of the view to open, such as /requests.",
        ),
    ] = "",
    link: Annotated[
        bool,
        typer.Option(
            "--link", help="Print a link to the resource manager's own page, and end at once."
        ),
    ] = False,
    sessions: Annotated[
        bool,
        typer.Option("--sessions", help="List your sessions at that page; for operators, all."),
    ] = False,
    end: Annotated[
        str,
        typer.Option("--end", metavar="ID", help="End a session at that page."),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show the cluster in your browser, until Ctrl-C.

    The page acts with your identity. Its address works only once, within one minute; press Enter to
    get a new address.

    With --link, the browser talks to the resource manager. The session lasts 8 hours, even after
    this command has ended.

    \b
    Examples:
      finegrain web
      finegrain web --no-browser --port 8080
      finegrain web --view /requests
      finegrain web --link
      finegrain web --sessions
    """
    enter_command(output, manager, credentials, config)
    if view:
        check_view(view)
    given = {"--view": bool(view), "--link": link, "--sessions": sessions, "--end": bool(end)}
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise InvalidArgument(
            chosen[0], chosen[1], "only one of --view, --link, --sessions and --end"
        )
    if chosen and not view:
        _with_sessions(output, link=link, end=end)
        return
    need_modules("resource-manager", "starlette", "uvicorn")
    asyncio.run(_serve(port, view or "/", opens=browser and sys.stdout.isatty()))


def check_view(view: str) -> None:
    """Checks the path of a view.

    Raises:
        InvalidArgument: it is not a path of the page.
    """
    if not VIEW.fullmatch(view):
        raise InvalidArgument(
            "--view", view, "a path of the page without its host, such as /executors/host-a"
        )


def _with_sessions(output: OutputFormat, *, link: bool, end: str) -> None:
    """Makes a link, ends a session, or lists the sessions."""
    with open_cluster() as cluster:
        if link:
            made = cluster.web_link()
            print_object("WebLink", made.to_dict(), output, made.link)
        elif end:
            cluster.end_web_session(end)
            print_object("WebSessionEnded", {"session_id": end}, output, f"session {end} has ended")
        else:
            rows = [each.to_dict() for each in cluster.web_sessions()]
            print_list("WebSessionList", rows, SESSION_COLUMNS, output)
    if link and output in (OutputFormat.TABLE, OutputFormat.WIDE):
        say("valid once, for a minute; the session then lasts 8 hours at most")
        address = urlsplit(made.link)
        if is_loopback(format_address(address.hostname or "", address.port or 443)):
            say("it leads to the resource manager's host only; for others, set rm.web_listen")


async def _serve(port: int, view: str, *, opens: bool) -> None:
    from finegrain_cli.web.page_server import PageServer

    async with (
        open_connection(PATIENCE_S) as connection,
        PageServer(connection, HOST, port, view) as page,
    ):
        address = page.new_address()
        print(address, flush=True)
        say("Ctrl-C ends the page; Enter prints a new address")
        if opens:
            webbrowser.open(address)
        with suppress(OSError):  # without a terminal, the user cannot type anything
            asyncio.get_running_loop().add_reader(0, _print_again, page)
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        await stopping.wait()


def _print_again(page: PageServer) -> None:
    if not os.read(0, 4096):
        asyncio.get_running_loop().remove_reader(0)
        return
    print(page.new_address(), flush=True)
