"""Implements `web`: shows the cluster in a browser."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    enter_command,
    need_modules,
    reporting_errors,
)
from finegrain_cli.connection import PATIENCE_S, open_connection
from finegrain_cli.text.output import OutputFormat, say

if TYPE_CHECKING:
    from finegrain_cli.web.page_server import PageServer

HOST = "127.0.0.1"


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
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show the cluster in your browser, until Ctrl-C.

    The page acts with your identity. Its address is valid once, for one minute; press Enter to get
    a new one.

    \b
    Examples:
      finegrain web
      finegrain web --no-browser --port 8080
    """
    enter_command(OutputFormat.TABLE, manager, credentials, config)
    need_modules("resource-manager", "starlette", "uvicorn")
    asyncio.run(_serve(port, opens=browser and sys.stdout.isatty()))


async def _serve(port: int, *, opens: bool) -> None:
    from finegrain_cli.web.page_server import PageServer

    async with (
        open_connection(PATIENCE_S) as connection,
        PageServer(connection, HOST, port) as page,
    ):
        address = page.new_address()
        print(address, flush=True)
        say("Ctrl-C ends the page; Enter prints a new address")
        if opens:
            webbrowser.open(address)
        with suppress(OSError):  # standard input is no terminal, so nothing can be typed
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
