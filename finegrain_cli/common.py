"""Defines the options that many commands share, hints for errors, and the conversion of errors to
exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from finegrain.errors import ConfigurationError, FinegrainError, InvalidArgument, Reason
from finegrain_cli.context import Invocation, current, enter
from finegrain_cli.exit_codes import exit_code_of
from finegrain_cli.option_errors import name_options
from finegrain_cli.text.output import OutputFormat, print_error, say

if TYPE_CHECKING:
    import finegrain_client as fg

P = ParamSpec("P")

OutputOption = Annotated[
    OutputFormat,
    typer.Option("-o", "--output", envvar="FINEGRAIN_OUTPUT", help="Form of the output."),
]
ManagerOption = Annotated[
    str,
    typer.Option(
        "--manager",
        envvar="FINEGRAIN_MANAGER",
        metavar="HOST:PORT[,...]",
        help="Addresses of resource managers, tried one after another; default: client.manager, "
        "otherwise your cluster on this host, otherwise the addresses in the credentials.",
    ),
]
CredentialsOption = Annotated[
    str,
    typer.Option(
        "--credentials",
        envvar="FINEGRAIN_CREDENTIALS",
        metavar="FILE",
        help="Credentials file with your identity; default: client.credentials, otherwise the "
        "file of your cluster on this host, otherwise the file of `finegrain login`.",
    ),
]
ConfigOption = Annotated[
    str,
    typer.Option(
        "--config",
        envvar="FINEGRAIN_CONFIG",
        metavar="FILE",
        help="Configuration file; default: your file, and the file of the host.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
WatchOption = Annotated[
    bool, typer.Option("-w", "--watch", help="Keep running, and print each change.")
]

HINTS: dict[Reason, str] = {
    Reason.UNREACHABLE: (
        "is the resource manager running? `finegrain up` starts one; --manager names another"
    ),
    Reason.CERTIFICATE_MISSING: (
        "`finegrain up` starts a cluster; `finegrain login` makes credentials; --credentials "
        "names a credentials file"
    ),
    Reason.CERTIFICATE_WRONG: (
        "`finegrain whoami` shows your identity; --credentials names another file"
    ),
    Reason.CERTIFICATE_DENIED: "ask an administrator of the cluster",
    Reason.TOKEN_WRONG: "ask an administrator for a new token (`finegrain token create`)",
    Reason.ROLE_MISSING: "--credentials or FINEGRAIN_CREDENTIALS names credentials with this role",
    Reason.NOT_OWNER: (
        "`finegrain whoami` shows your identity; --credentials names a file with another identity"
    ),
    Reason.INFEASIBLE_NEVER: (
        "request less, or make required cpu and NUMA policies preferred; `finegrain executors -o "
        "wide` shows the resources of the hosts, `finegrain providers` the executors that could be "
        "started"
    ),
    Reason.STORE_IN_USE: "stop the process that uses it first",
    Reason.ADDRESS_IN_USE: "choose another port with --listen, or stop the process that uses it",
}


REQUIREMENTS = (
    "qos",
    "cpu_bind",
    "cpu_exclusive",
    "numa",
    "label",
    "near",
    "apart",
    "gang_placement",
    "require_isolation",
)
"""Parameters of requests besides the amounts. An executor with enough capacity can still be
unsuitable because of one of these parameters.
"""


def hint_for(error: FinegrainError, typed: Mapping[str, object]) -> str:
    """Returns a hint, which says what the user can do about an error. The hint mentions only
    options that the user typed.

    Args:
        error: the error.
        typed: parameters of the command, as the user typed them.
    """
    if error.reason is not Reason.INFEASIBLE_NEVER:
        return HINTS.get(error.reason, "")
    # All other messages with this reason are about a slot that exists, or about a whole batch.
    with_wait = "allow_pending" in typed
    options = [f"--{name.replace('_', '-')}" for name in REQUIREMENTS if typed.get(name)]
    parts = [f"request less, or leave out {' or '.join(options)}" if options else "request less"]
    parts += ["--allow-pending waits for another executor"] if with_wait else []
    lists = "`finegrain executors` lists what each executor has"
    if " of a provider" in error.message:
        lists += ", `finegrain providers` what could be started"
    return "; ".join([*parts, lists])


def enter_command(
    output: OutputFormat, manager: str = "", credentials: str = "", config_file: str = ""
) -> None:
    """Stores the common options of a command. `current()` then returns these options.

    Args:
        output: form of the output.
        manager: addresses of resource managers, separated by commas. Empty if the option was not
            given.
        credentials: credentials file. Empty if the option was not given.
        config_file: configuration file. Empty if the option was not given.
    """
    enter(
        Invocation(output=output, manager=manager, credentials=credentials, config_file=config_file)
    )


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Decorates a command. For a `FinegrainError` in the command, the process prints one line and a
    hint, and ends with an exit code.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except FinegrainError as error:
            name_options(error, kwargs)
            print_error(error, current().output, hint_for(error, kwargs))
            raise typer.Exit(exit_code_of(error)) from None

    return run


def need_modules(extra: str, *modules: str) -> None:
    """If a module is missing, raises an error that names the extra to install. Does not import the
    modules.
    """
    from importlib.util import find_spec

    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise ConfigurationError(
            f"this needs {', '.join(missing)}: pip install 'finegrain[{extra}]' (everything: "
            "'finegrain[all]')",
            details={"extra": extra},
        )


def write_file(name: str, text: str) -> None:
    """Writes a text file that the user named.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {name}: {error}") from error


class NotConfirmed(InvalidArgument):
    """A destructive command was called without `--yes`, and there is no terminal on which to ask
    the user.
    """

    def __init__(self) -> None:
        super().__init__("--yes", "not given", "to be given")
        self.message = (
            "this command needs --yes, because there is no terminal on which you could confirm it"
        )
        self.args = (self.message,)


def confirm(what: str, *, yes: bool) -> None:
    """Prints what a destructive command will do. If `yes` is False, asks for confirmation.

    Raises:
        typer.Abort: the user declined.
        NotConfirmed: `yes` is False, and there is no terminal on which to ask the user.
    """
    import sys

    say(what)
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotConfirmed
    typer.confirm("go on?", abort=True, err=True)


def confirm_operation(cluster: fg.blocking.Cluster, what: str, *, yes: bool) -> None:
    """Asks for confirmation, as `confirm` does, of an operation that needs the role `operator`.

    Raises:
        PermissionDenied: the caller does not have the role `operator`, so there is nothing to
            confirm.
    """
    if not yes:
        cluster.check_operator()
    confirm(what, yes=yes)
