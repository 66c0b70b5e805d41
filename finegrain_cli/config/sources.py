"""Finds the sources of the configuration, and the values that a call to a resource manager needs.

This module does not import the model of the configuration. The model needs pydantic, and the import
of pydantic takes longer than a short command. Most users have no configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HOST_FILE = Path("/etc/finegrain/finegrain.toml")
ENV_PREFIX = "FINEGRAIN_"
ENV_SEPARATOR = "__"


class ClientSettings(NamedTuple):
    """The values of the section `client`, and the state directory of a resource manager on this
    host.

    The defaults are equal to the defaults of the model. They apply if no source sets a key.
    """

    manager: tuple[str, ...] = ()
    credentials: str = ""
    rm_state_dir: str = ""


def user_file(environment: Mapping[str, str]) -> Path:
    """Returns the path of the user's configuration file, even if the file does not exist."""
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    return Path(base) / "finegrain" / "config.toml"


def is_key(variable: str) -> bool:
    """Returns True if an environment variable sets a key, such as FINEGRAIN_RM__LISTEN.

    FINEGRAIN_MANAGER and FINEGRAIN_TASK_ID set no key: the first sets a flag, and tasks get the
    second.
    """
    return variable.startswith(ENV_PREFIX) and ENV_SEPARATOR in variable


def is_configured(config_file: str, environment: Mapping[str, str]) -> bool:
    """Returns True if a configuration file exists or is given, or an environment variable sets a
    key.
    """
    return bool(
        config_file
        or any(map(is_key, environment))
        or HOST_FILE.is_file()
        or user_file(environment).is_file()
    )
