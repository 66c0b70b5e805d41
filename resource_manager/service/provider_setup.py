"""The providers of a resource manager, made of their file and of what executors have to be told.

Decides what executors are told about us. Refuses to know what providers do with that.
"""

from __future__ import annotations

from pathlib import Path

from finegrain.errors import ConfigurationError
from finegrain.rpc.tokens import CLUSTER_TOKEN_FILE
from resource_manager.options import ResourceManagerOptions
from resource_manager.providers.config import ProvidersConfiguration, make_providers, no_providers
from resource_manager.providers.config import read_providers as read_file
from resource_manager.providers.provider import ProviderContext
from resource_manager.service.provisioning import Providers


def read_providers(options: ResourceManagerOptions) -> ProvidersConfiguration:
    """The providers' file, or nothing where there is none.

    Raises:
        ConfigurationError: it says something that cannot work.
    """
    return read_file(options.providers_file) if options.providers_file else no_providers()


def set_up_providers(
    options: ResourceManagerOptions,
    read: ProvidersConfiguration,
    *,
    state_dir: Path,
    cluster_token: str,
    address: str,
) -> Providers:
    """All providers: also those without shapes, which can stop what they started before.

    Args:
        options: those of the resource manager.
        read: the providers' file.
        state_dir: of the resource manager.
        cluster_token: what executors show.
        address: where others call us; empty: that is not known.

    Raises:
        ConfigurationError: one cannot work here, or executors could not find us.
    """
    managers = read.managers or ((address,) if address else ())
    if read.provisioning and not managers:
        raise ConfigurationError(
            f"executors that are started have to know where this resource manager is, and it "
            f"listens at {options.listen.address}: set --advertise HOST:PORT, or manager in "
            f"{read.file}",
            details={"address": options.listen.address},
        )
    context = ProviderContext(
        state_dir=state_dir.absolute(),
        managers=managers,
        cluster_token_file=options.cluster_token_file or state_dir / CLUSTER_TOKEN_FILE,
        cluster_token=cluster_token,
        manager_tls=options.listen.tls,
        standby=options.standby,
        log_level=options.log.level,
    )
    return Providers(
        by_name=make_providers(read, context),
        of_shape={each.name: each.provider for each in read.provisioning.shapes},
        look_interval_s=read.look_interval_ms / 1000,
    )
