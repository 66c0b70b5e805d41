"""Builds the providers from their file, and determines the addresses for their executors."""

from __future__ import annotations

from pathlib import Path

from finegrain.errors import ConfigurationError
from resource_manager.options import ResourceManagerOptions
from resource_manager.providers.config import ProvidersConfiguration, make_providers, no_providers
from resource_manager.providers.config import read_providers as read_file
from resource_manager.providers.provider import ProviderContext
from resource_manager.service.provisioning import Providers, WriteToken


def read_providers(options: ResourceManagerOptions) -> ProvidersConfiguration:
    """Reads the providers' file. Without a file there are no providers.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    return read_file(options.providers_file) if options.providers_file else no_providers()


def set_up_providers(
    options: ResourceManagerOptions,
    read: ProvidersConfiguration,
    *,
    state_dir: Path,
    address: str,
    write_token: WriteToken | None = None,
) -> Providers:
    """Builds all providers, including providers without shapes, which can still have executors to
    stop.

    Args:
        options: the configuration of the resource manager.
        read: the content of the providers' file.
        state_dir: the state directory of the resource manager.
        address: the address at which executors connect to this resource manager; empty: unknown.
        write_token: writes a join token for an executor to a file; None: no token is written.

    Returns:
        The providers.

    Raises:
        ConfigurationError: a provider cannot work on this host, or its executors have no address to
            connect to.
    """
    managers = read.managers or ((address,) if address else ())
    if read.provisioning and not managers:
        raise ConfigurationError(
            "executors of providers need an address of this resource manager to which they can "
            f"connect, and {options.listen.address}, at which it listens, is no such address: set "
            f"--advertise HOST:PORT, or manager in {read.file}",
            details={"address": options.listen.address},
        )
    context = ProviderContext(
        state_dir=state_dir.absolute(),
        managers=managers,
        standby=options.standby,
        log_level=options.log.level,
    )
    return Providers(
        by_name=make_providers(read, context),
        of_shape={each.name: each.provider for each in read.provisioning.shapes},
        look_interval_s=read.look_interval_ms / 1000,
        token_file=context.token_file,
        write_token=write_token,
    )
