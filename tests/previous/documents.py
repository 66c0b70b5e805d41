"""Describes JSON documents: one or several types for every path in a document."""

from __future__ import annotations

from typing import Any

MAPS = {
    "total", "executors", "reserved", "allocated", "available", "labels", "required_labels",
    "details", "minimum", "maximum", "present", "pending_requests", "extended", "parts",
    "origins", "shares", "group_mean_wait_s", "bounded_slowdown", "wait_s", "env", "missing",
}  # fmt: skip
"""Fields that map names, which differ from cluster to cluster, to values."""


def consists_of(document: Any, path: str = "") -> dict[str, set[str]]:
    """The types at every path of a document; items of lists and values of maps are one path."""
    found: dict[str, set[str]] = {path: {_type(document)}}
    if isinstance(document, dict):
        is_map = path.rpartition(".")[2] in MAPS
        parts = [(".*" if is_map else f".{name}", each) for name, each in document.items()]
    elif isinstance(document, list):
        parts = [("[]", each) for each in document]
    else:
        parts = []
    for name, each in parts:
        for place, types in consists_of(each, path + name).items():
            found.setdefault(place, set()).update(types)
    return found


def _type(value: Any) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}
    return names.get(type(value)) or ("object" if isinstance(value, dict) else "list")


def broken_promises(old: Any, new: Any) -> list[str]:
    """Returns keys of the older document that are missing in the newer document, or have other
    types in it.

    If one of both values is null, the types may differ, because the state of the cluster decides
    whether a value is null. Nothing is known about paths below a list, map or object that is empty
    now.
    """
    before, now = consists_of(old), consists_of(new)
    found = []
    for path, types in before.items():
        if path in now:
            known = types - {"null"}
            strange = now[path] - {"null"} - known
            if known and strange:
                found.append(f"{path} was {sorted(types)}, is {sorted(now[path])}")
        elif not any(_is_empty(path, place, now) for place in _above(path)):
            found.append(f"{path} is missing")
    return found


def _above(path: str) -> list[str]:
    """Returns all paths above this path."""
    ends = [n for n, letter in enumerate(path) if letter in ".["]
    return [path[:n] for n in ends]


def _is_empty(path: str, place: str, now: dict[str, set[str]]) -> bool:
    """Returns True if `path` could be below `place`, which is empty now."""
    if place not in now:
        return False
    item = path[len(place) :].startswith(("[]", ".*"))
    below = any(each != place and each.startswith(place) for each in now)
    return not below and (item or now[place] <= {"null", "list"})
