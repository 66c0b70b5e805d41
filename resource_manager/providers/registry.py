"""Finds providers by name: the two built-in providers, and providers installed as entry points."""

from __future__ import annotations

from importlib.metadata import entry_points

from finegrain.errors import ConfigurationError
from resource_manager.providers.command import CommandKind
from resource_manager.providers.process import ProcessKind
from resource_manager.providers.provider import ProviderKind

ENTRY_POINTS = "finegrain.providers"


def built_in_kinds() -> dict[str, ProviderKind]:
    """Returns the kinds that come with finegrain, by name."""
    return {"process": ProcessKind(), "command": CommandKind()}


def installed_names() -> list[str]:
    """Returns the names of all providers that a shape can use, sorted."""
    return sorted({*built_in_kinds(), *(each.name for each in entry_points(group=ENTRY_POINTS))})


def find_kind(name: str) -> ProviderKind:
    """Returns the kind with this name; built-in kinds have priority over entry points.

    Raises:
        ConfigurationError: there is no such provider, or loading it fails.
    """
    own = built_in_kinds().get(name)
    if own is not None:
        return own
    for each in entry_points(group=ENTRY_POINTS, name=name):
        try:
            kind: ProviderKind = each.load()()
        except Exception as error:  # code of other authors can raise any error
            raise ConfigurationError(
                f"the provider {name!r} ({each.value}) cannot be loaded: {error!r}",
                details={"provider": name},
            ) from error
        return kind
    raise ConfigurationError(
        f"there is no provider {name!r}; installed are {', '.join(installed_names())}",
        details={"provider": name},
    )
