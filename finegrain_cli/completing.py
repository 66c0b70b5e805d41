"""Completes values in shells: executors, jobs, slots, requests, groups and fixed words.

A completion must be fast and print no error. If the resource manager does not answer at once, the
user gets no suggestions. Each suggestion is a value and a text. zsh and fish show the text beside
the value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Final

import typer

from finegrain.errors import FinegrainError
from finegrain_cli.last import LAST
from finegrain_cli.text.fit import ShortIds

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster

Suggestions = list[tuple[str, str]]

PATIENCE_S: Final = 0.5
ITEMS_MAX: Final = 2_000
"""If there are more slots or requests than this number, ids are suggested only after the user has
typed four characters.
"""


def executors(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests ids of executors."""
    return _asked(
        context,
        incomplete,
        lambda cluster: ((each.executor_id, each.state.lower()) for each in cluster.executors()),
    )


def jobs(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests names and short ids of jobs, and `last`."""

    def found(cluster: Cluster) -> Iterator[tuple[str, str]]:
        known = cluster.jobs()
        yield from ((each.name, f"job in {each.group}") for each in known)
        names = {each.job_id: each.name for each in known}
        yield from _with_full_ids(names, incomplete)

    return [*_asked(context, incomplete, found), *_last(incomplete, "your latest job")]


def slots(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests short ids of slots."""

    def found(cluster: Cluster) -> Iterator[tuple[str, str]]:
        if len(incomplete) < 4 and cluster.info().slots > ITEMS_MAX:
            return
        known = {each.allocation_id: f"on {each.executor_id}" for each in cluster.slots()}
        yield from _with_full_ids(known, incomplete)

    return [*_asked(context, incomplete, found), *_last(incomplete, "slot of your latest job")]


def requests(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests short ids of requests, with and without a slot."""

    def found(cluster: Cluster) -> Iterator[tuple[str, str]]:
        info = cluster.info()
        if len(incomplete) < 4 and info.slots + sum(info.pending_requests.values()) > ITEMS_MAX:
            return
        known = {
            each.allocation_id: f"{each.state.lower()}, job {each.job_name}"
            for each in cluster.requests()
        }
        yield from _with_full_ids(known, incomplete)

    return [*_asked(context, incomplete, found), *_last(incomplete, "request of your latest job")]


def subjects(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests subjects of events: executors, jobs and requests."""
    return [
        *executors(context, incomplete),
        *jobs(context, incomplete),
        *requests(context, incomplete),
    ]


def groups(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests names of resource groups."""
    return _asked(
        context,
        incomplete,
        lambda cluster: ((each.name, each.description) for each in cluster.groups().groups),
    )


def devices(context: typer.Context, incomplete: str) -> Suggestions:
    """Suggests devices, such as host-a/gpu3."""
    return _asked(
        context,
        incomplete,
        lambda cluster: (
            (f"{each.executor_id}/{one.device.type}{one.device.minor}", one.device.model)
            for each in cluster.devices()
            for one in each.devices
        ),
    )


def words(*known: str) -> Callable[[str], list[str]]:
    """Returns a completer of fixed words. The user can type the words in upper or lower case."""

    def complete(incomplete: str) -> list[str]:
        # Return words with the beginning that the user typed, because shells take only suggestions
        # that begin with the typed text.
        return [
            incomplete + each[len(incomplete) :]
            for each in known
            if each.casefold().startswith(incomplete.casefold())
        ]

    return complete


def _last(incomplete: str, text: str) -> Suggestions:
    return [(LAST, text)] if incomplete and LAST.startswith(incomplete) else []


def _with_full_ids(texts: dict[str, str], incomplete: str) -> Iterator[tuple[str, str]]:
    """Yields the short form of each id. If the user has typed the beginning of the full id, yields
    the full id instead.
    """
    short = ShortIds(texts)
    for full, text in texts.items():
        yield (full if incomplete and full.startswith(incomplete) else short(full)), text


def _asked(
    context: typer.Context,
    incomplete: str,
    find: Callable[[Cluster], Iterable[tuple[str, str]]],
) -> Suggestions:
    """Calls the resource manager, and returns the values that begin with `incomplete`. Returns no
    values if the call failed.

    Args:
        context: the context of the command, with the options that name the resource manager.
        incomplete: the text that the user has typed until now.
        find: a function that calls the resource manager and returns values with their texts.
    """
    from finegrain_cli.common import enter_command
    from finegrain_cli.connection import open_cluster
    from finegrain_cli.text.output import OutputFormat

    typed = {
        name: str(context.params.get(name) or "") for name in ("manager", "credentials", "config")
    }
    # Discard warnings about a configuration file, because the warnings would appear in the middle
    # of the user's line.
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        try:
            enter_command(
                OutputFormat.TABLE, typed["manager"], typed["credentials"], typed["config"]
            )
            with open_cluster(PATIENCE_S) as cluster:
                return [each for each in find(cluster) if each[0].startswith(incomplete)]
        except (FinegrainError, OSError):
            return []
