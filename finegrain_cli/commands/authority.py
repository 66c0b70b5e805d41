"""Implements `finegrain certs ca`, which replaces the cluster's authority step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain_cli.common import (
    ConfigOption,
    OutputOption,
    YesOption,
    confirm,
    enter_command,
    need_modules,
    reporting_errors,
)
from finegrain_cli.rm_directory import StateDirOption, state_dir_of
from finegrain_cli.text.output import Column, OutputFormat, print_list, print_object

if TYPE_CHECKING:
    from finegrain_cli.authority_renewal import AuthorityInfo

AUTHORITY_COLUMNS = (
    Column("use", lambda row: str(row["use"])),
    Column("valid until", lambda row: str(row["expire_time"])[:10]),
    Column("fingerprint (SHA-256)", lambda row: str(row["fingerprint"])[:32]),
    Column("issued by", lambda row: str(row["issuer"])),
)


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (show, add, use, drop):
        app.command()(reporting_errors(command))


def show(
    state_dir: StateDirOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """List the trusted authorities, and show which authority signs.

    \b
    Examples:
      finegrain certs ca show
    """
    enter_command(output, config_file=config)
    need_modules("resource-manager", "cryptography")
    from finegrain_cli.authority_renewal import authorities

    rows = [each.to_dict() for each in authorities(state_dir_of(state_dir))]
    print_list("AuthorityList", rows, AUTHORITY_COLUMNS, output)


def add(
    certificate: Annotated[
        str,
        typer.Option(
            "--certificate", metavar="FILE", help="Certificate of an outside authority (PEM)."
        ),
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="FILE", help="Key of that certificate, on P-256 (PEM).")
    ] = "",
    state_dir: StateDirOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Trust a second authority, which is new or comes from outside.

    The present authority continues to sign. The running resource manager uses the second authority
    at once, and executors trust it within seconds. People trust it when they renew their
    credentials. In a state directory without an authority, the outside authority becomes the first
    authority.

    The certificate of an outside authority needs CA:TRUE and the common name `finegrain cluster
    NAME`.

    \b
    Examples:
      finegrain certs ca add
      finegrain certs ca add --certificate intermediate.pem --key intermediate.key
    """
    enter_command(output, config_file=config)
    need_modules("resource-manager", "cryptography")
    from finegrain_cli.authority_renewal import add_authority

    if bool(certificate) != bool(key):
        raise InvalidArgument("--certificate and --key", "one of them", "both or none")
    files = (Path(certificate), Path(key)) if certificate else None
    state = state_dir_of(state_dir)
    added = add_authority(state, files)
    text = f"authority {added.fingerprint[:16]} of cluster {added.cluster}: {added.use} in {state}"
    _print_changed("add", state, added, text, output)


def use(
    yes: YesOption = False,
    state_dir: StateDirOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Sign with the authority that `certs ca add` has added. The former authority is still trusted.

    Before this command, wait until people trust the new authority. People trust it after their
    credentials were renewed (at most 15 days after `certs ca add`), or after
    `finegrain login`.

    \b
    Examples:
      finegrain certs ca use --yes
    """
    enter_command(output, config_file=config)
    need_modules("resource-manager", "cryptography")
    from finegrain_cli.authority_renewal import check_usable, use_authority

    state = state_dir_of(state_dir)
    check_usable(state)
    confirm(
        "members that have not renewed their credentials since `certs ca add` will not trust the"
        " resource manager any more; join tokens that were not used become useless",
        yes=yes,
    )
    used = use_authority(state)
    text = f"authority {used.fingerprint[:16]} signs in {state}"
    _print_changed("use", state, used, text, output)


def drop(
    yes: YesOption = False,
    state_dir: StateDirOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Trust only the authority that signs.

    After `certs ca use`, this command ends the replacement. After `certs ca add` without `certs ca
    use`, it cancels the replacement.

    \b
    Examples:
      finegrain certs ca drop --yes
    """
    enter_command(output, config_file=config)
    need_modules("resource-manager", "cryptography")
    from finegrain_cli.authority_renewal import check_droppable, drop_authorities

    state = state_dir_of(state_dir)
    check_droppable(state)
    confirm(
        "certificates of the other authorities will be refused: of people who have not renewed"
        " since `certs ca use`, and PEM files of `certs issue`",
        yes=yes,
    )
    left = drop_authorities(state)
    text = f"only authority {left.fingerprint[:16]} is trusted in {state}"
    _print_changed("drop", state, left, text, output)


def _print_changed(
    command: str, state: Path, changed: AuthorityInfo, text: str, output: OutputFormat
) -> None:
    """Writes a note of the change for the audit log, waits until the resource manager uses the
    changed authorities, and prints the change.
    """
    from finegrain_cli.authority_files import note
    from finegrain_cli.authority_renewal import wait_until_used

    note(state, f"certs ca {command}", changed.fingerprint)
    is_used = wait_until_used(state)
    when = "the resource manager uses it" if is_used else "it counts when a resource manager starts"
    print_object("Authority", changed.to_dict(), output, f"{text}; {when}")
