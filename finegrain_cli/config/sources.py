"""Finds the sources of the configuration, and the values that a call to a resource manager needs.

This module does not import the model of the configuration. The model needs pydantic, whose import
takes longer than a short command, and most users have no configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HOST_FILE = Path("/etc/finegrain/finegrain.toml")
ENV_PREFIX = "FINEGRAIN_"
ENV_SEPARATOR = "__"


class ClientSettings(NamedTuple):
    """The section `client`, and the state directory of a resource manager on this host.

    The defaults are the defaults of the model. They apply if no source sets a key.
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

    FINEGRAIN_MANAGER sets a flag, and FINEGRAIN_TASK_ID is set for tasks, so these variables set no
    key.
    """
    return variable.startswith(ENV_PREFIX) and ENV_SEPARATOR in variable


def is_configured(config_file: str, environment: Mapping[str, str]) -> bool:
    """Returns True if a file or an environment variable may set a key of the configuration."""
    return bool(
        config_file
        or any(map(is_key, environment))
        or HOST_FILE.is_file()
        or user_file(environment).is_file()
    )
