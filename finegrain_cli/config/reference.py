"""Generates the table of all keys in docs/configuration.md from the model.

`python -m finegrain_cli.config.reference` writes the table into the page. A test checks that the
page is up to date.
"""

from __future__ import annotations

from pathlib import Path

from finegrain_cli.config.flags import flag_name
from finegrain_cli.config.model import DeviceTypeSection, Settings
from finegrain_cli.config.values import DEVICES, Key, device_type_keys, keys_of, toml_text

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
BEGIN, END = "<!-- keys: begin (generated) -->", "<!-- keys: end -->"
COMMANDS = {
    "rm": "rm serve",
    "fairness": "rm serve",
    "executor": "executor serve",
    "log": "both",
}


def reference() -> str:
    """Returns one table for each section. The columns are the key, its flag, its default and its
    meaning.
    """
    parts = [BEGIN]
    for section, holder in Settings.model_fields.items():
        model = holder.annotation
        title = (getattr(model, "__doc__", "") or "").strip().rstrip(".")
        keys, shown = keys_of(section), section
        if section == DEVICES:
            keys, shown = device_type_keys("TYPE"), f"{DEVICES}.TYPE"
            title = (DeviceTypeSection.__doc__ or "").strip().rstrip(".")
        parts += [
            "",
            f"### [{shown}]",
            "",
            f"{title}.",
            "",
            "| key | flag | default | meaning |",
            "| --- | --- | --- | --- |",
            *map(_row, keys),
        ]
    return "\n".join([*parts, "", END])


def updated(page: str) -> str:
    """Returns the page with up-to-date tables between the marks."""
    before, _, rest = page.partition(BEGIN)
    return before + reference() + rest.partition(END)[2]


def _row(key: Key) -> str:
    flag = f"`{flag_name(key)}`" if key.section in COMMANDS else ""
    default = toml_text(key, key.default)
    shown = f"`{default}`" if default not in ("", '""', "[]", "{}") else ""
    meaning = key.help.replace("|", "\\|")
    return f"| `{key.name}` | {flag} | {shown} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
