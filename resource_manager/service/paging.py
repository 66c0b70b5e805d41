"""Pages: sizes, and tokens that carry the key after which the next page begins."""

from __future__ import annotations

import base64
import binascii
import json

from finegrain.errors import InvalidArgument

PAGE_SIZE_DEFAULT = 1_000
PAGE_SIZE_MAX = 2_000  # entries of a page are made while the books stand still
_TOKEN_LENGTH_MAX = 1_000

Key = tuple[str | int, ...]


def page_size(asked: int) -> int:
    """How many entries a page has.

    Raises:
        InvalidArgument: negative.
    """
    if asked < 0:
        raise InvalidArgument("page_size", asked, f"0 (the default) to {PAGE_SIZE_MAX}")
    return min(asked or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)


def token_of(key: Key | None) -> str:
    """The token for a key; empty: that was all."""
    if key is None:
        return ""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode()


def key_of(token: str, start: Key) -> Key:
    """The key in a token; `start`, which also tells the types, for an empty one.

    Raises:
        InvalidArgument: it is no token of this list.
    """
    if not token:
        return start
    problem = InvalidArgument("page_token", token, "the next_page_token of the page before")
    try:
        data = json.loads(base64.b64decode(token[:_TOKEN_LENGTH_MAX], b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise problem from None
    if not isinstance(data, list) or [type(each) for each in data] != [type(s) for s in start]:
        raise problem
    return tuple(data)
