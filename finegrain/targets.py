"""Finds the cluster that a client should use: its addresses, and the credentials to show there.

The client library and all commands use `resolve_target`. The credentials are the first of these
that exist:

1. the credentials that the caller names;
2. the file that the environment variable FINEGRAIN_CREDENTIALS names;
3. the credentials with the role `operator` of a resource manager that this user runs on this host
   (`finegrain up`, `finegrain rm serve`). These credentials are used if there is only one such
   manager, or if the manager has the wanted address;
4. the user's own file, see `default_credentials_file`.

The addresses are those that the caller names. If the caller names no addresses, they come from
FINEGRAIN_MANAGER. If this variable is not set, they come from the credentials.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from finegrain.credentials import Credentials, read_credentials
from finegrain.directories import default_credentials_file
from finegrain.errors import ConfigurationError, InvalidArgument, Reason, Unauthenticated
from finegrain.local_managers import LocalManager, endpoint_in, find_local_managers

CREDENTIALS_VARIABLE = "FINEGRAIN_CREDENTIALS"
MANAGER_VARIABLE = "FINEGRAIN_MANAGER"


@dataclass(frozen=True, slots=True)
class Target:
    """One cluster, and the identity to use there.

    Attributes:
        addresses: "host:port" of the resource managers.
        credentials: the identity.
        file: the file that the credentials come from. A renewal replaces this file; None: there is
            no file.
    """

    addresses: tuple[str, ...]
    credentials: Credentials = field(repr=False)
    file: Path | None


def resolve_target(
    address: str | Sequence[str] | None = None,
    credentials: str | os.PathLike[str] | Credentials | None = None,
    *,
    state_dir: Path | None = None,
) -> Target:
    """Determines the addresses and credentials by the rules at the top of this module.

    Args:
        address: "host:port", several of them separated by commas, or a sequence; None or empty: no
            address was named.
        credentials: a credentials file or its content; None or empty: no credentials were named.
        state_dir: state directory of another resource manager, which possibly runs on this host.

    Raises:
        Unauthenticated: there are no credentials.
        ConfigurationError: the credentials file cannot be used. Or no address was named, and
            several resource managers of this user run on this host.
        InvalidArgument: there is no address.
    """
    addresses = _addresses(address or os.environ.get(MANAGER_VARIABLE) or ())
    named = credentials or os.environ.get(CREDENTIALS_VARIABLE)
    if isinstance(named, Credentials):
        return _target(addresses, named, None)
    if named:
        return _from_file(addresses, Path(named))
    local = _only(addresses, local_managers(state_dir))
    if local is not None and (path := local.credentials_file) is not None:
        # Prefer the address in the manager's note, because it is newer than the address in the
        # credentials.
        return _from_file(addresses or (local.address,), path)
    path = default_credentials_file()
    if not path.exists():
        raise _no_credentials(path, local)
    return _from_file(addresses, path)


def local_managers(state_dir: Path | None = None) -> list[LocalManager]:
    """Returns the resource managers that this user runs on this host.

    Args:
        state_dir: state directory of one more resource manager, which possibly runs; None: there is
            no other directory.
    """
    found = find_local_managers()
    other = endpoint_in(state_dir) if state_dir is not None else None
    if other is not None and other not in found:
        found.append(other)
    return found


def _addresses(given: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    return tuple(given)


def _from_file(addresses: tuple[str, ...], path: Path) -> Target:
    return _target(addresses, read_credentials(path), path)


def _target(addresses: tuple[str, ...], credentials: Credentials, file: Path | None) -> Target:
    addresses = addresses or credentials.addresses
    if not addresses:
        raise InvalidArgument(
            "address",
            "",
            "the address of a resource manager, because the credentials name none; set --manager"
            f" or {MANAGER_VARIABLE}",
        )
    return Target(addresses, credentials, file)


def _only(addresses: tuple[str, ...], found: list[LocalManager]) -> LocalManager | None:
    if addresses:
        matching = [each for each in found if each.address in addresses]
        return matching[0] if matching else None
    different = list(dict.fromkeys(each.address for each in found))
    if len(different) > 1:
        raise ConfigurationError(
            f"{len(different)} resource managers run on this host ({', '.join(different)}); "
            "choose one with --manager",
            details={"addresses": ",".join(different)},
        )
    return found[0] if found else None


def _no_credentials(path: Path, local: LocalManager | None) -> Unauthenticated:
    where = (
        f"the resource manager at {local.address} runs on this host, but this user may not read its"
        " operator's credentials"
        if local is not None
        else "no cluster of this user runs on this host"
    )
    return Unauthenticated(
        f"there are no credentials: {path} does not exist, and {where}",
        reason=Reason.CERTIFICATE_MISSING,
        details={"path": path},
    )
