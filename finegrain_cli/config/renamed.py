"""Lists the keys that were renamed or removed.

A renamed key is accepted for one minor version, with a warning. A removed key is an error that
names the replacement.
"""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[tuple[str, str], str] = {
    ("rm", "job_shapes_max"): "job_scheduling_classes_max",
    ("fairness", "service"): "usage_measure",
    ("fairness", "tally_interval"): "usage_interval",
}
"""The new name of each key, by section and old name. The old names are deprecated since version
0.2. Version 0.3 removes them.
"""

_TLS = "TLS is always on and needs no files: remove the key"
_TOKEN = "certificates have replaced tokens: remove the key, and see docs/operations.md"

REMOVED: Mapping[tuple[str, str], str] = {
    **{
        (section, key): _TLS
        for section, keys in {
            "client": "tls_ca tls_certificate tls_key insecure",
            "rm": "tls_ca tls_certificate tls_key insecure"
            " executor_tls_ca executor_tls_certificate executor_tls_key",
            "executor": "tls_ca tls_certificate tls_key insecure"
            " manager_tls_ca manager_tls_certificate manager_tls_key manager_insecure",
        }.items()
        for key in keys.split()
    },
    ("client", "token_file"): "client.credentials replaces it; `finegrain login` makes the file",
    ("rm", "cluster_token_file"): _TOKEN,
    ("rm", "user_token_file"): _TOKEN,
    ("rm", "user_token_group"): _TOKEN,
    ("executor", "cluster_token_file"): "executor.join_token_file replaces it",
}
"""The replacement of each removed key, by section and name."""


def old_names(section: str, key: str) -> list[str]:
    """Returns the former names of a key."""
    return [old for (place, old), new in RENAMED.items() if (place, new) == (section, key)]


def renaming_warning(old: str, new: str) -> str:
    """Returns the warning for the use of an old name. The parameters are the names in the form in
    which users type them.
    """
    return f"{old} is now called {new}; the next minor version will not accept the old name"
