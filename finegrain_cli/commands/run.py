"""`finegrain run`: one command in one slot, as if it ran here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.units import parse_bytes, parse_cpu_milli, parse_duration_ms, parse_pair
from finegrain_cli.common import (
    HINTS,
    ConfigOption,
    ManagerOption,
    TokenFileOption,
    enter_command,
)
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.output import OutputFormat, print_error

if TYPE_CHECKING:
    from finegrain_cli.run_parts import GangOptions

PLACEMENTS = ("anywhere", "same-executor", "same-label", "spread")


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    settings = {"allow_interspersed_args": False}
    app.command(context_settings=settings)(run)


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARGS]...", help="What to run; no shell.")
    ],
    cpu: Annotated[str, typer.Option("--cpu", help="Cores, such as 2, 0.5 or 500m.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory, such as 256M or 2G.")] = "",
    cpu_limit: Annotated[
        str, typer.Option("--cpu-limit", help="Higher cpu cap than what is booked.")
    ] = "",
    pids: Annotated[int, typer.Option("--pids", min=0, help="Most processes; 0: default.")] = 0,
    resource: Annotated[
        list[str], typer.Option("--resource", metavar="NAME=COUNT", help="Countable resource.")
    ] = [],  # noqa: B006 - typer wants the default as a list
    label: Annotated[
        list[str], typer.Option("--label", metavar="KEY=VALUE", help="Label the host must carry.")
    ] = [],  # noqa: B006
    env: Annotated[
        list[str],
        typer.Option("--env", "-e", metavar="KEY[=VALUE]", help="Set, or pass on, a variable."),
    ] = [],  # noqa: B006
    cwd: Annotated[
        str, typer.Option("--cwd", help="Directory to run in; default: a scratch directory.")
    ] = "",
    user: Annotated[str, typer.Option("--user", help="User to run as on the host.")] = "",
    name: Annotated[str, typer.Option("--name", help="Name of the job.")] = "",
    group: Annotated[str, typer.Option("--group", help="Resource group of the job.")] = "",
    timeout: Annotated[
        str, typer.Option("--timeout", help="End the command after this time.")
    ] = "",
    wait_timeout: Annotated[
        str, typer.Option("--wait-timeout", help="Give up waiting for a slot after this time.")
    ] = "",
    grace: Annotated[
        str, typer.Option("--grace", help="Between the first signal and SIGKILL.")
    ] = "5s",
    gang: Annotated[
        int | None,
        typer.Option(
            "--gang", min=1, max=1000, metavar="N", help="Run N of it at once, or none at all."
        ),
    ] = None,
    gang_placement: Annotated[
        str,
        typer.Option(
            "--gang-placement",
            metavar="PLACEMENT",
            help="anywhere, same-executor, same-label:KEY, or spread.",
        ),
    ] = "",
    gang_timeout: Annotated[
        str, typer.Option("--gang-timeout", help="Give the gang up if it waits for longer.")
    ] = "",
    allow_pending: Annotated[
        bool, typer.Option("--allow-pending", help="Wait even if no known host is large enough.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Say at the end what the command used.")
    ] = False,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """Get a slot, run a command in it, pass its output, signals and exit code through.

    Without --cpu and --memory the slot is the executor's default one; with one of them the other is
    1 core or 256M. With --gang, N slots are granted at once and the command runs in each of them;
    FINEGRAIN_GANG_INDEX, _SIZE and _ID tell them apart, output lines begin with "[INDEX] ", and the
    first one that fails ends the others.
    """
    enter_command(OutputFormat.TABLE, manager, token_file, config)
    try:
        from finegrain_cli.run_parts import RunOptions
        from finegrain_cli.running import run_command

        options = RunOptions(
            argv=tuple(command),
            cpu_milli=parse_cpu_milli("--cpu", cpu) if cpu else None,
            memory_bytes=parse_bytes("--memory", memory) if memory else None,
            cpu_limit_milli=parse_cpu_milli("--cpu-limit", cpu_limit) if cpu_limit else 0,
            pids_max=pids,
            extended=tuple(
                (key, _count(key, text)) for key, text in _pairs("--resource", resource)
            ),
            labels=tuple(_pairs("--label", label)),
            env=tuple(env),
            cwd=cwd,
            user=user,
            name=name or command[0][:200] or "run",
            group=group,
            timeout_s=_seconds("--timeout", timeout),
            wait_timeout_s=_seconds("--wait-timeout", wait_timeout),
            grace_s=_seconds("--grace", grace) or 0.0,
            allow_pending=allow_pending,
            stats=stats,
            gang=_gang(gang, gang_placement, gang_timeout),
        )
        code = run_command(options)
    except FinegrainError as error:
        print_error(error, OutputFormat.TABLE, HINTS.get(error.reason, ""))
        raise typer.Exit(ExitCode.RUN_FAILED) from None
    raise typer.Exit(code)


def _pairs(option: str, texts: list[str]) -> list[tuple[str, str]]:
    return [parse_pair(option, text) for text in texts]


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"--resource {name}", text, "a whole number")
    return int(text)


def _seconds(option: str, text: str) -> float | None:
    return parse_duration_ms(option, text) / 1000 if text else None


def _gang(members: int | None, placement: str, timeout: str) -> GangOptions | None:
    from finegrain_cli.run_parts import GangOptions

    if members is None:
        for option, text in (("--gang-placement", placement), ("--gang-timeout", timeout)):
            if text:
                raise InvalidArgument(option, text, "--gang N as well")
        return None
    word, _, label = placement.partition(":")
    word = word or "anywhere"
    if word not in PLACEMENTS or bool(label) != (word == "same-label"):
        expected = "anywhere, same-executor, same-label:KEY (such as same-label:rack), or spread"
        raise InvalidArgument("--gang-placement", placement, expected)
    return GangOptions(
        members, word.replace("-", "_").upper(), label, _seconds("--gang-timeout", timeout)
    )
