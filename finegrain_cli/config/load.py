"""Merges the configuration, and records the source of each value.

The sources are, highest priority first: flags, environment variables (FINEGRAIN_RM__LISTEN), the
file of --config or otherwise the user's file, the host's file, and the defaults. An unknown key is
an error that names the most similar known key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from finegrain.errors import ConfigurationError
from finegrain_cli.config import sources
from finegrain_cli.config.model import DeviceTypeSection, Kind, Settings
from finegrain_cli.config.renamed import REMOVED, RENAMED, renaming_warning
from finegrain_cli.config.sources import ENV_PREFIX, ENV_SEPARATOR, is_key, user_file
from finegrain_cli.config.values import DEVICES, amount_text, keys_of


@dataclass(frozen=True, slots=True)
class Configuration:
    """The merged settings.

    Attributes:
        settings: the merged values, with defaults.
        origins: the source of each value that is not a default, by "section.key".
        warnings: one sentence for each deprecated name that was used.
    """

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()


class InvalidConfiguration(ConfigurationError):
    """A configuration with one or more mistakes.

    Attributes:
        problems: one sentence for each mistake.
    """

    def __init__(self, problems: Sequence[str], details: Mapping[str, object]) -> None:
        more = len(problems) - 1
        others = f" ({more} more: `finegrain config check` lists all)" if more else ""
        super().__init__(f"{problems[0]}{others}", details=details)
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Flag:
    """A value on the command line for one key. `name` is the flag as the user typed it
    ("--listen").
    """

    name: str
    section: str
    key: str
    value: Any
    warning: str = ""


def load_configuration(
    config_file: str = "",
    *,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[Flag] = (),
) -> Configuration:
    """Reads and merges the configuration.

    Args:
        config_file: this file is read in place of the user's file. If empty, the user's file is
            read.
        environment: environment variables. If None, the environment of this process is used.
        flags: the flags on the command line. Flags have the highest priority.

    Raises:
        ConfigurationError: `config_file` is missing, or a file cannot be read or is not TOML.
        InvalidConfiguration: a key is unknown, a value is invalid, or a key is set under both its
            old and its new name.
    """
    environment = os.environ if environment is None else environment
    problems: list[str] = []
    given = [
        (flag.name, [Value(flag.section, flag.key, flag.value, flag.warning)]) for flag in flags
    ]
    return _merged((*_layers(config_file, environment, problems), *given), problems)


def _merged(layers: Iterable[tuple[str, list[Value]]], problems: list[str]) -> Configuration:
    """Merges layers, lowest priority first.

    Args:
        layers: the name of each source, and its values.
        problems: mistakes that were found when the layers were read.

    Raises:
        InvalidConfiguration: `problems` is not empty, or a value is invalid.
    """
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    warnings: list[str] = []
    for origin, values in layers:
        for section, key, value, warning in values:
            merged.setdefault(section, {})[key] = value
            origins[f"{section}.{key}"] = origin
            if warning:
                warnings.append(warning)
    settings = _validated(merged, origins, problems)
    return Configuration(settings, origins, tuple(warnings))


class Value(NamedTuple):
    """One value of a layer. `warning` is set if the value was given under an old name."""

    section: str
    key: str
    value: Any
    warning: str = ""


def check_file(path: Path) -> Configuration:
    """Returns the configuration of one file alone, with defaults.

    Raises:
        ConfigurationError: the file cannot be read or is not TOML.
        InvalidConfiguration: keys are unknown, or values are invalid.
    """
    problems: list[str] = []
    return _merged([(str(path), _from_file(path, problems))], problems)


def _layers(
    config_file: str, environment: Mapping[str, str], problems: list[str]
) -> Iterator[tuple[str, list[Value]]]:
    if sources.HOST_FILE.is_file():
        yield str(sources.HOST_FILE), _from_file(sources.HOST_FILE, problems)
    own = user_file(environment)
    if config_file:
        yield config_file, _from_file(Path(config_file), problems)
    elif own.is_file():
        yield str(own), _from_file(own, problems)
    yield from _from_environment(environment, problems)


def _from_file(path: Path, problems: list[str]) -> list[Value]:
    """Returns the values of a file. Adds a sentence to `problems` for each mistake in the file."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"configuration file {path} cannot be read: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from None
    values: list[Value] = []
    for section, table in data.items():
        if problem := _section_problem(section):
            problems.append(f"{path}: {problem}")
            continue
        if not isinstance(table, dict):
            problems.append(f"{path}: {section} is a table, written [{section}]")
            continue
        if section == DEVICES:
            values += _device_types(table, str(path), problems)
            continue
        for name, value in table.items():
            # Store the value of a renamed key under the new name, with a warning.
            key = RENAMED.get((section, name), name)
            if problem := _key_problem(section, key):
                problems.append(f"{path}: {problem}")
                continue
            if key == name:
                values.append(Value(section, key, value))
                continue
            old, new = f"{section}.{name}", f"{section}.{key}"
            # A silent choice of one of the two values could surprise the user. So report a problem.
            if key in table:
                problems.append(
                    f"{path}: {old} is the old name of {new}, and both are set; keep {new}"
                )
                continue
            values.append(Value(section, key, value, f"{path}: {renaming_warning(old, new)}"))
    return values


def _device_types(table: Mapping[str, Any], path: str, problems: list[str]) -> Iterator[Value]:
    """Yields one value for each section [devices.TYPE]. If several layers have a section for the
    same type, the layer with the highest priority replaces the whole section.
    """
    known = list(DeviceTypeSection.model_fields)
    for name, keys in table.items():
        if not isinstance(keys, dict):
            problems.append(
                f"{path}: {DEVICES}.{name} is a table, written [{DEVICES}.TYPE]; the devices of an "
                "executor are switched on and off by executor.devices"
            )
            continue
        unknown = [key for key in keys if key not in known]
        problems += [
            f"{path}: unknown key {DEVICES}.{name}.{key}{_nearest(key, known)}; known keys:"
            f" {', '.join(known)}"
            for key in unknown
        ]
        if not unknown:
            yield Value(DEVICES, name, keys)


def _from_environment(
    environment: Mapping[str, str], problems: list[str]
) -> Iterator[tuple[str, list[Value]]]:
    for name, text in sorted(environment.items()):
        if not is_key(name):
            continue
        section, _, given_name = name.removeprefix(ENV_PREFIX).lower().partition(ENV_SEPARATOR)
        key = RENAMED.get((section, given_name), given_name)
        problem = _section_problem(section)
        if not problem and section == DEVICES:
            problem = f"[{DEVICES}.TYPE] can only be set in a file"
        if problem := problem or _key_problem(section, key):
            problems.append(f"{name}: {problem}")
            continue
        variable = f"{ENV_PREFIX}{section}{ENV_SEPARATOR}{key}".upper()
        if key != given_name and variable in environment:
            problems.append(
                f"{name} is the old name of {variable}, and both are set; keep {variable}"
            )
            continue
        warning = renaming_warning(name, variable) if key != given_name else ""
        yield name, [Value(section, key, text, warning)]


def _section_problem(section: str) -> str:
    known = list(Settings.model_fields)
    if section in known:
        return ""
    nearest = _nearest(section, known)
    return f"unknown section {section!r}{nearest}; known sections: {', '.join(known)}"


def _key_problem(section: str, key: str) -> str:
    model: Any = Settings.model_fields[section].annotation
    known = list(model.model_fields)
    if key in known:
        return ""
    if instead := REMOVED.get((section, key)):
        return f"{section}.{key} does not exist any more; {instead}"
    nearest = _nearest(key, known)
    return f"unknown key {section}.{key}{nearest}; `finegrain config show` lists all"


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def _validated(
    merged: dict[str, dict[str, Any]], origins: Mapping[str, str], problems: list[str]
) -> Settings:
    details: dict[str, object] = {}
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            name = ".".join(str(part) for part in each["loc"])
            where = origins.get(".".join(str(part) for part in each["loc"][:2]), "configuration")
            problems.append(f"{where}: {name} is {_given(each)}; expected {_expected(each)}")
            details.setdefault("field", name)
    if problems:
        raise InvalidConfiguration(problems, details)
    return settings


def _given(problem: Any) -> str:
    """Returns the value as the user typed it. If the value is already decoded, returns it in the
    unit that people use.
    """
    value, kind = problem["input"], _kind(problem)
    return amount_text(kind, value) if kind and type(value) is int else repr(value)


def _kind(problem: Any) -> Kind | None:
    section, name = (str(part) for part in (*problem["loc"], "", "")[:2])
    return next((key.kind for key in keys_of(section) if key.name == name), None)


def _expected(problem: Any) -> str:
    """Returns the allowed values as text, in the unit that people use."""
    context = problem.get("ctx", {})
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for bound, words in bounds.items():
        if bound in context:
            kind, limit = _kind(problem), context[bound]
            return f"{words} {amount_text(kind, limit) if kind else limit}"
    if "pattern" in context:
        return "one of " + ", ".join(context["pattern"].strip("^($)").split("|"))
    message: str = problem["msg"].removeprefix("Value error, ")
    return message.removeprefix("expected ").removeprefix("Input should be ")
