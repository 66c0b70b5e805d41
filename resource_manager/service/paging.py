"""Pages of lists: page sizes, and tokens with the key after which the next page begins."""

from __future__ import annotations

import base64
import binascii
import json

from finegrain.errors import InvalidArgument

PAGE_SIZE_DEFAULT = 1_000
# The size is limited, because the writer serves nothing else while it builds a page.
PAGE_SIZE_MAX = 2_000
_TOKEN_LENGTH_MAX = 1_000

Key = tuple[str | int, ...]


def page_size(requested: int) -> int:
    """Returns the number of entries of a page: `requested`, but at most `PAGE_SIZE_MAX`. If
    `requested` is 0, returns the default size.

    Raises:
        InvalidArgument: `requested` is negative.
    """
    if requested < 0:
        raise InvalidArgument("page_size", requested, f"0 (the default) to {PAGE_SIZE_MAX}")
    return min(requested or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX)


def token_of(key: Key | None) -> str:
    """Returns the token for a key. The last page has no key, and its token is empty."""
    if key is None:
        return ""
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode()


def key_of(token: str, start: Key) -> Key:
    """Returns the key in a token.

    Args:
        token: the token that the caller sent; empty: the list begins at its start.
        start: the key for an empty token. Every key must have the same types as this key.

    Raises:
        InvalidArgument: the token does not belong to this list.
    """
    if not token:
        return start
    problem = InvalidArgument("page_token", token, "the next_page_token of the previous page")
    try:
        # Shorten the token first. So the whole of a huge token is never decoded.
        data = json.loads(base64.b64decode(token[:_TOKEN_LENGTH_MAX], b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise problem from None
    if not isinstance(data, list) or [type(each) for each in data] != [type(s) for s in start]:
        raise problem
    return tuple(data)
