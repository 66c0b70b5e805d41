"""Implements the commands about identities: `login`, `whoami`, `token` and `identity`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain.errors import FinegrainError, InvalidArgument, Reason, Unauthenticated
from finegrain.identity import Role
from finegrain.units import format_duration, parse_duration_ms
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    YesOption,
    confirm,
    enter_command,
    need_modules,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster, resolve_target
from finegrain_cli.context import current
from finegrain_cli.text.columns import age, time_left
from finegrain_cli.text.output import Column, OutputFormat, print_list, print_object, say

if TYPE_CHECKING:
    from finegrain.credentials import Credentials

TTL = "15m"
USES = {
    Role.EXECUTOR: "store it on the executor's host in a file of mode 0600, and start: finegrain"
    " executor serve --join-token-file FILE",
    Role.RM: "on the other host, run: finegrain rm join --token -",
}
"""For each role whose token is not used with `finegrain login`: how to use the token."""


TOKEN_COLUMNS = (
    Column("id", lambda row: str(row["token_id"])),
    Column("identity", lambda row: str(row["identity"])),
    Column("expires in", lambda row: time_left(row["expire_time"])),
    Column("made by", lambda row: str(row["made_by"])),
)
DENIAL_COLUMNS = (
    Column("subject", lambda row: str(row["subject"])),
    Column("denied", lambda row: age(row, "deny_time")),
    Column("by", lambda row: str(row["denied_by"])),
    Column("reason", lambda row: str(row["reason"]) or "-"),
)

SubjectArgument = Annotated[
    str,
    typer.Argument(
        metavar="IDENTITY|SERIAL",
        help="Identity such as user/alice, or serial number of one certificate.",
    ),
]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    app.command()(reporting_errors(login))
    app.command()(reporting_errors(whoami))
    token = typer.Typer(no_args_is_help=True)
    token.command(name="create")(reporting_errors(create_token))
    token.command(name="list")(reporting_errors(list_tokens))
    token.command(name="revoke")(reporting_errors(revoke_token))
    app.add_typer(token, name="token", help="Create, list or revoke tokens for new members.")
    identity = typer.Typer(no_args_is_help=True)
    identity.command(name="deny")(reporting_errors(deny))
    identity.command(name="allow")(reporting_errors(allow))
    identity.command(name="list")(reporting_errors(list_denied))
    app.add_typer(
        identity, name="identity", help="Reject identities, and list rejected identities."
    )


def login(
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN|-",
            help="Token from an administrator; -: read the token from the input.",
        ),
    ] = "",
    operator: Annotated[
        bool,
        typer.Option(
            "--operator", help="Get the role operator; only on the resource manager's host."
        ),
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Get a certificate, and store it in your credentials file.

    A token determines your new identity. Without a token, the resource manager of this host asks
    the kernel for your login name. If no resource manager runs on this host, the command renews
    your present credentials, even if they have expired.

    The file is ~/.config/finegrain/credentials, or the file that --credentials names.

    \b
    Examples:
      finegrain login
      finegrain login --token - < token.txt
      sudo finegrain login --operator --credentials admin.credentials
    """
    enter_command(output, credentials=credentials, config_file=config)
    need_modules("resource-manager", "cryptography")
    if token and operator:
        raise InvalidArgument(
            "--operator",
            "--token",
            "only one of the two options, because a token determines your identity",
        )
    from finegrain.credentials import write_credentials

    settings = current().configuration().settings
    path = _file_to_write(credentials or settings.client.credentials)
    former = _former(path)
    # Ask before the token is used, because a token works only once.
    if token and former is not None:
        _confirm_replacing(path, former, yes=yes)
    found = _log_in(token, Role.OPERATOR if operator else Role.USER, former)
    if not token and former is not None and former.identity != found.identity:
        _confirm_replacing(path, former, yes=yes)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_credentials(path, found)
    _print_identity(found, path, output)
    if not credentials:
        _note_others_in_use(path)


def whoami(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show the identity that commands use, its cluster, and how long its certificate is valid.

    This command does not connect to the cluster.

    \b
    Examples:
      finegrain whoami
      finegrain whoami --credentials admin.credentials
    """
    enter_command(output, manager, credentials, config)
    target = resolve_target()
    _print_identity(target.credentials, target.file, output, target.addresses)


def create_token(
    executor: Annotated[
        str, typer.Option("--executor", metavar="NAME", help="For an executor with this id.")
    ] = "",
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="For a user, who may run jobs.")
    ] = "",
    operator: Annotated[
        str,
        typer.Option(
            "--operator",
            metavar="NAME",
            help="For an administrator, who gets the role operator and may change the cluster.",
        ),
    ] = "",
    viewer: Annotated[
        str, typer.Option("--viewer", metavar="NAME", help="For a person who may only read.")
    ] = "",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="For a program that reads metrics.")
    ] = False,
    rm: Annotated[
        bool,
        typer.Option("--rm", help="For another resource manager, which gets the cluster's key."),
    ] = False,
    ttl: Annotated[
        str,
        typer.Option(
            "--ttl", metavar="DURATION", help="Time for which the token can be used, at most 7d."
        ),
    ] = TTL,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Create a token with which one new member joins the cluster.

    A token works only once. It contains all that the new member needs: the address, the key of the
    cluster's authority, and a secret. Standard output gets only the token.

    \b
    Examples:
      finegrain token create --user alice
      finegrain token create --executor web-1 --ttl 1h > web-1.token
    """
    enter_command(output, manager, credentials, config)
    names = {"executor": executor, "user": user, "operator": operator, "viewer": viewer}
    role, name = _wanted(names, {"metrics": metrics, "rm": rm})
    ttl_s = max(1, parse_duration_ms("--ttl", ttl) // 1000)
    with open_cluster() as cluster:
        created = cluster.create_token(role, name, ttl_s=ttl_s)
    print_object("Token", created.to_dict(), output, created.token)
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        use = USES.get(role, "there, run: finegrain login --token -")
        say(f"token {created.token_id}, valid for {format_duration(ttl_s)}; {use}")


def list_tokens(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List tokens that were never used and are still valid.

    The list does not contain the tokens themselves, because they are not stored.

    \b
    Examples:
      finegrain token list
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        rows = [each.to_dict() for each in cluster.tokens()]
    print_list("TokenList", rows, TOKEN_COLUMNS, output)


def revoke_token(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id from `finegrain token list`.")],
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Revoke a token, so that it can no longer be used.

    \b
    Examples:
      finegrain token revoke 3f2a9c0d11e07b54
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        cluster.revoke_token(token_id)
    print_object("RevokedToken", {"token_id": token_id}, output, f"token {token_id} is useless now")


def deny(
    subject: SubjectArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, shown to administrators.")
    ] = "",
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Reject an identity or a certificate from now on.

    Open streams of the identity end within seconds. Jobs and slots of the identity stay. `finegrain
    terminate` ends a job with its slots.

    \b
    Examples:
      finegrain identity deny user/mallory --reason 'key lost' --yes
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        confirm(f"{subject} will be rejected at once, by all members of the cluster", yes=yes)
        cluster.deny_identity(subject, reason=reason)
    data = {"subject": subject, "reason": reason}
    print_object("Denial", data, output, f"{subject} is rejected")


def allow(
    subject: SubjectArgument,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Stop rejecting an identity or a certificate.

    \b
    Examples:
      finegrain identity allow user/mallory
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        cluster.allow_identity(subject)
    print_object("Allowed", {"subject": subject}, output, f"{subject} is accepted again")


def list_denied(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List identities and certificates that are rejected.

    \b
    Examples:
      finegrain identity list
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        rows = [each.to_dict() for each in cluster.denied_identities()]
    print_list("DenialList", rows, DENIAL_COLUMNS, output)


def _wanted(names: dict[str, str], unnamed: dict[str, bool]) -> tuple[Role, str]:
    chosen = [(Role(role), name) for role, name in names.items() if name]
    chosen += [(Role(role), "") for role, given in unnamed.items() if given]
    if len(chosen) != 1:
        given = " ".join(f"--{role}" for role, _ in chosen) or "none"
        options = ", ".join(f"--{role} NAME" for role in names)
        error = InvalidArgument("token for", given, f"exactly one of {options}, --metrics, --rm")
        error.message = f"a token is for one new member: give {error.expected} (given: {given})"
        raise error
    return chosen[0]


def _file_to_write(named: str) -> Path:
    from finegrain.directories import default_credentials_file

    return Path(named).expanduser() if named else default_credentials_file()


def _former(path: Path) -> Credentials | None:
    from finegrain.credentials import read_credentials

    try:
        return read_credentials(path)
    except FinegrainError:
        return None  # the file does not exist, or cannot be used


def _confirm_replacing(path: Path, former: Credentials, *, yes: bool) -> None:
    if former.not_after < datetime.now(UTC).timestamp():
        return
    confirm(
        f"{path} has the credentials of {former.who} of cluster {former.who.cluster}, which will be"
        " replaced (--credentials names another file)",
        yes=yes,
    )


def _note_others_in_use(path: Path) -> None:
    """Prints a note if commands without options use other credentials than the new credentials
    file.
    """
    try:
        target = resolve_target()
    except FinegrainError:
        return
    if target.file != path:
        say(
            f"note: commands use {target.credentials.who} of the cluster that you run on this host "
            f"({target.file}); to be the new identity: export FINEGRAIN_CREDENTIALS={path}"
        )


def _log_in(token: str, role: Role, former: Credentials | None) -> Credentials:
    from finegrain_cli import login as ways
    from finegrain_cli.config.daemon_options import rm_state_dir

    if token:
        return ways.with_token(sys.stdin.read() if token == "-" else token)
    here = ways.find_login_socket(rm_state_dir(current().configuration().settings.rm))
    if here is not None:
        return ways.at_socket(here, role)
    if former is not None and role is Role.USER:
        return ways.again(former, former.addresses)
    raise Unauthenticated(
        "no resource manager runs on this host, and there are no credentials to renew; get a "
        "token from an administrator (finegrain token create), and use --token",
        reason=Reason.CERTIFICATE_MISSING,
    )


def _print_identity(
    found: Credentials, path: Path | None, output: OutputFormat, addresses: tuple[str, ...] = ()
) -> None:
    who = found.who
    until = datetime.fromtimestamp(found.not_after, UTC)
    addresses = addresses or found.addresses
    data: dict[str, Any] = {
        "identity": str(who),
        "role": str(who.role),
        "name": who.name,
        "cluster": who.cluster,
        "expire_time": until.isoformat().replace("+00:00", "Z"),
        "file": str(path) if path else "",
        "addresses": list(addresses),
    }
    left_s = found.not_after - datetime.now(UTC).timestamp()
    state = f"{format_duration(left_s)} left" if left_s > 0 else "expired; run finegrain login"
    lines = (
        f"identity  {who}",
        f"cluster   {who.cluster} at {', '.join(addresses)}",
        f"valid     until {until:%Y-%m-%d %H:%M:%S} UTC ({state})",
        f"file      {path or '-'}",
    )
    print_object("Identity", data, output, "\n".join(lines))
