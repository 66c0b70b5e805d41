"""Implements `finegrain certs`, which makes certificates for people and programs, and backs up,
restores and replaces the cluster's authority.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.identity import Identity, Role
from finegrain_cli.commands.authority import register as register_authority
from finegrain_cli.commands.migration import register as register_migration
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
from finegrain_cli.connection import open_cluster
from finegrain_cli.rm_directory import StateDirOption, state_dir_of
from finegrain_cli.text.output import OutputFormat, print_object, say

if TYPE_CHECKING:
    from finegrain.credentials import Credentials

ISSUED_ROLES = (Role.METRICS, Role.VIEWER, Role.USER, Role.OPERATOR)
TOKEN_TTL_S = 60
DAYS_MAX = 365
REQUEST_BYTES_MAX = 16 * 1024
PEM_FILES = ("ca.pem", "cert.pem", "key.pem")

PassphraseOption = Annotated[
    str,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="File of mode 0600 whose first line is the passphrase; default: ask for it.",
    ),
]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(no_args_is_help=True)
    for command in (issue, backup, restore):
        group.command()(reporting_errors(command))
    ca = typer.Typer(no_args_is_help=True)
    register_authority(ca)
    register_migration(group)
    group.add_typer(ca, name="ca", help="Replace the cluster's authority, step by step.")
    app.add_typer(group, name="certs", help="Make certificates, and keep the authority.")


def issue(
    role: Annotated[
        str,
        typer.Option("--role", metavar="ROLE", help=f"One of {', '.join(ISSUED_ROLES)}."),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name; only metrics has none.")
    ] = "",
    days: Annotated[
        int,
        typer.Option(
            "--days",
            metavar="N",
            help=f"Number of days of validity, up to {DAYS_MAX}; default 30. "
            "Not for the role operator.",
            show_default=False,
        ),
    ] = 0,
    request: Annotated[
        str,
        typer.Option(
            "--request",
            metavar="FILE",
            help="Request (PKCS #10) of a program that keeps its key; needs --pem.",
        ),
    ] = "",
    pem: Annotated[
        bool,
        typer.Option(
            "--pem", help=f"Write a directory with {', '.join(PEM_FILES)} for other software."
        ),
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PATH",
            help="File or directory to write; default: ROLE-NAME.credentials.",
        ),
    ] = "",
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Make credentials for a person or a program, and write them with mode 0600.

    Without --request, this command makes the key. It creates a join token and uses it at once, so
    the resource manager signs the certificate through its join port. Commands and the client
    library renew credentials files. Nothing renews certificates that --pem has written.

    \b
    Examples:
      finegrain certs issue --role metrics --days 365 --pem --to /etc/prometheus/finegrain
      finegrain certs issue --role user --name nightly-build
      finegrain certs issue --role viewer --name screen --request screen.csr --pem
    """
    enter_command(output, manager, credentials, config)
    need_modules("resource-manager", "cryptography")
    wanted = _wanted_role(role, name, days)
    if request and not pem:
        raise InvalidArgument("--request", request, "--pem, too: a credentials file needs a key")
    wanted_request = _read_request(Path(request)) if request else b""
    label = f"{wanted}-{name}" if name else str(wanted)
    path = Path(to or (label if pem else f"{label}.credentials"))
    if _exists(path, pem=pem):
        confirm(f"{path} will be replaced", yes=yes)
    with open_cluster() as cluster:
        created = cluster.create_token(
            wanted, name, ttl_s=TOKEN_TTL_S, certificate_life_s=days * 24 * 3_600
        )
    from finegrain.credentials import write_credentials

    found = _joined(created.token, wanted_request)
    if pem:
        _write_pem(path, found)
    else:
        write_credentials(path, found)
    _print_issued(found, path, output, pem=pem)


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write, with mode 0600.")],
    passphrase_file: PassphraseOption = "",
    state_dir: StateDirOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Copy the cluster's authority to an encrypted file, also while the cluster runs.

    The format is PKCS #12 with AES-256. `openssl pkcs12 -info -in FILE` can also read the file.
    Keep the file, the passphrase and the backups of the database in three different places.

    \b
    Examples:
      finegrain certs backup /backup/finegrain-ca.p12
      finegrain certs backup ca.p12 --passphrase-file /root/passphrase
    """
    enter_command(output, config_file=config)
    need_modules("resource-manager", "cryptography")
    from finegrain_cli.authority_files import backup_authority, existing_authority, note

    state, path = state_dir_of(state_dir), Path(file)
    existing_authority(state)  # fails before the user is asked for a passphrase
    passphrase = _passphrase(passphrase_file, new=True)
    # Write the note for the audit log before the copy of the authority. If the second step fails, a
    # note without a copy is better than a copy without a note.
    note(state, "certs backup", str(path.absolute()))
    authority = backup_authority(state, path, passphrase)
    data = {"cluster": authority.cluster, "file": str(path.absolute())}
    text = f"authority of cluster {authority.cluster}: copied to {path}"
    print_object("AuthorityBackup", data, output, text)


def restore(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File that `finegrain certs backup` has written.")
    ],
    passphrase_file: PassphraseOption = "",
    state_dir: StateDirOption = "",
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Put the cluster's authority from a backup into a state directory.

    Stop the resource manager first. If the state directory already has certificates, the command
    moves them to a new directory inside the state directory. All members continue to use their
    certificates.

    \b
    Examples:
      finegrain certs restore /backup/finegrain-ca.p12 --yes
    """
    enter_command(output, config_file=config)
    need_modules("resource-manager", "cryptography")
    from finegrain_cli.authority_files import note, read_backup, restore_authority, trusted_keys

    state = state_dir_of(state_dir)
    authority = read_backup(Path(file), _passphrase(passphrase_file, new=False))
    if trusted_keys(state):
        confirm(
            f"the authority in {state} will be replaced by that of cluster {authority.cluster};"
            " the present one is kept in the same directory",
            yes=yes,
        )
    kept = restore_authority(state, authority)
    note(state, "certs restore", str(Path(file).absolute()))
    data = {"cluster": authority.cluster, "kept": str(kept) if kept else None}
    text = f"authority of cluster {authority.cluster}: restored in {state}"
    if kept:
        text += f"; the old one is now {kept}"
    print_object("AuthorityRestore", data, output, text)


def _wanted_role(role: str, name: str, days: int) -> Role:
    if role not in ISSUED_ROLES:
        expected = f"one of {', '.join(ISSUED_ROLES)}"
        if role in (Role.RM, Role.EXECUTOR):
            expected += f"; the role {role} joins with a token (finegrain token create --{role})"
        raise InvalidArgument("--role", role, expected)
    wanted = Role(role)
    if wanted.is_named and not name:
        raise InvalidArgument("--name", "not given", f"a name for the role {role}")
    Identity("any", wanted, name)  # raises an error if the name is malformed
    if wanted is Role.OPERATOR and days:
        raise InvalidArgument("--days", days, "not given for the role operator: always 30 days")
    if not 0 <= days <= DAYS_MAX:
        raise InvalidArgument("--days", days, f"1 to {DAYS_MAX}")
    return wanted


def _read_request(path: Path) -> bytes:
    """Returns the request for a certificate in the file `path`, converted to DER. The file can
    contain PEM or DER.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from finegrain.certificates.keys import key_of_request

    try:
        with path.open("rb") as file:
            data = file.read(REQUEST_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"the request {path} cannot be read: {error.strerror}") from None
    if b"-----BEGIN" in data:
        try:
            data = x509.load_pem_x509_csr(data).public_bytes(Encoding.DER)
        except ValueError:
            raise InvalidArgument("--request", path, "a PKCS #10 request for a key") from None
    key_of_request(data)  # raises an error if the key is of the wrong kind
    return data


def _joined(token: str, request: bytes) -> Credentials:
    """Returns credentials for a token. If `request` is not empty, the program that made the request
    keeps the key, and the credentials contain no key.
    """
    from finegrain.certificates.joining import credentials_of, join, join_for
    from finegrain.join_token import JoinToken

    parsed = JoinToken.parse(token)
    return credentials_of(join_for(parsed, request), "") if request else join(parsed)


def _exists(path: Path, *, pem: bool) -> bool:
    return any((path / each).exists() for each in PEM_FILES) if pem else path.exists()


def _write_pem(folder: Path, found: Credentials) -> None:
    from finegrain.credentials import write_private_file

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create {folder}: {error.strerror}") from None
    for name, text in zip(
        PEM_FILES, (found.authorities, found.certificate, found.key), strict=True
    ):
        if text:
            write_private_file(folder / name, text.encode())


def _print_issued(found: Credentials, path: Path, output: OutputFormat, *, pem: bool) -> None:
    who, until = found.who, datetime.fromtimestamp(found.not_after, UTC)
    server_name = Identity(who.cluster, Role.RM).dns_name
    data = {
        "identity": str(who),
        "cluster": who.cluster,
        "expire_time": until.isoformat().replace("+00:00", "Z"),
        "path": str(path.absolute()),
        "server_name": server_name,
    }
    text = f"{who} of cluster {who.cluster}, valid until {until:%Y-%m-%d}: {path}"
    print_object("IssuedCertificate", data, output, text)
    if pem and output in (OutputFormat.TABLE, OutputFormat.WIDE):
        say(f"the resource manager's name for TLS (server_name) is {server_name}")


def _passphrase(file: str, *, new: bool) -> str:
    """Returns the passphrase from a file, or asks the user for it. Asks twice for a new
    passphrase.
    """
    if file:
        from finegrain_cli.authority_files import read_passphrase

        return read_passphrase(Path(file))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidArgument(
            "--passphrase-file", "not given", "a file, because there is no terminal to ask on"
        )
    asked: str = typer.prompt("passphrase", hide_input=True, confirmation_prompt=new, err=True)
    return asked
