"""Defines rules that choose the resource group of a job that names no group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Puts jobs into a group. A job must match all patterns that are set.

    Patterns have the form that shells use: `*` means any text, `?` one character, and `[ab]` one of
    these characters. Upper and lower case differ.
    """

    order: int  # of all rules of all groups, the matching rule with the lowest order decides
    job: str = ""  # pattern for the job's name; empty: any name
    user: str = ""  # pattern for the owner, such as "user/alice"; empty: any owner
    labels: tuple[tuple[str, str], ...] = ()  # patterns for labels of the job, sorted by key
