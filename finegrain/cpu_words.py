"""Reads and writes CPU policies as people type them: "lsr", "FullPCPUs:required".

Upper and lower case do not matter. The strength ("required" or "preferred") follows after a colon.
The error for an unknown word names the nearest known word. Other modules check which words can be
combined.
"""

from __future__ import annotations

import difflib
from enum import StrEnum
from typing import TypeVar

from finegrain.errors import InvalidArgument

WordT = TypeVar("WordT", bound=StrEnum)

REQUIRED = "required"
PREFERRED = "preferred"
DEFAULT = "Default"  # the configured policy; all kinds of policies have this word


def read_word(field: str, text: str, kind: type[WordT], *, without: tuple[str, ...] = ()) -> WordT:
    """Returns the word that a text names.

    Args:
        field: name of the field, for errors.
        text: the text.
        kind: the enum with the known words.
        without: known words that are not allowed for this field.

    Raises:
        InvalidArgument: the text is not an allowed word. The error names the nearest word.
    """
    known = {str(each).casefold(): each for each in kind if each not in without}
    found = known.get(text.strip().casefold())
    if found is None:
        expected = "one of " + ", ".join(str(each) for each in known.values())
        raise InvalidArgument(field, text, expected + _nearest(text, known))
    return found


def read_policy(field: str, text: str, kind: type[WordT]) -> tuple[WordT, bool | None]:
    """Returns a policy, and whether the policy is required. The second value is None if the text
    has no strength.

    Args:
        field: name of the field, for errors.
        text: the text, for example "FullPCPUs:required".
        kind: the enum with the known words.

    Raises:
        InvalidArgument: the policy or the strength is unknown, or "Default" has a strength.
    """
    word, colon, strength = text.partition(":")
    policy = read_word(field, word, kind)
    if not colon:
        # Do not treat a missing strength as preferred, because some policies are required by
        # default.
        return policy, None
    said = strength.strip().casefold()
    if said not in (REQUIRED, PREFERRED):
        raise InvalidArgument(field, text, f"{policy}, {policy}:{REQUIRED} or {policy}:{PREFERRED}")
    if policy == DEFAULT:
        raise InvalidArgument(
            field, text, f"{DEFAULT} alone: it has the strength that is configured"
        )
    return policy, said == REQUIRED


def policy_text(policy: StrEnum, required: bool | None) -> str:
    """Returns a policy as `read_policy` reads it."""
    if required is None:
        return str(policy)
    return f"{policy}:{REQUIRED if required else PREFERRED}"


def _nearest(text: str, known: dict[str, WordT]) -> str:
    said = text.strip().casefold()
    # Try prefixes first, because `get_close_matches` does not find a word by a short prefix.
    begun = [each for each in known if said and each.startswith(said)]
    close = begun or difflib.get_close_matches(said, known, n=1, cutoff=0.5)
    return f"; did you mean {known[close[0]]}?" if close else ""
