"""Serves the files of the page, and checks that calls come from this page."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from finegrain.errors import PermissionDenied
from finegrain_cli.web.application import HEADERS

PAGE = Path(__file__).parent / "page"
CODE_BYTES_MAX = 200
TOKEN_HEADER = "x-finegrain-token"
"""Header in which the page sends its token. Forms, and pages of other ports, cannot send this
header.
"""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def page_file(request: Request) -> Response:
    """Returns a file of the page. If no file has the path, returns the page itself, which shows the
    view of this path.
    """
    path = request.path_params["path"] or "index.html"
    file = (PAGE / path).resolve()
    kind = KINDS.get(file.suffix)
    if kind is None or not file.is_relative_to(PAGE) or not file.is_file():
        file, kind = PAGE / "index.html", KINDS[".html"]
    return Response(_content(file), media_type=kind, headers=PAGE_HEADERS)


@cache  # the page has only few files
def _content(file: Path) -> bytes:
    return file.read_bytes()


async def code_of(request: Request) -> str:
    """Returns the code in the body of a request. Reads only the beginning of a longer body."""
    code = b""
    async for part in request.stream():
        code += part
        if len(code) > CODE_BYTES_MAX:
            break
    return code.decode("latin-1")


def check_same_origin(request: Request, own: tuple[str, ...], *, must_say: bool) -> None:
    """Refuses a request that a page of another origin has caused. Another port is another origin.

    Args:
        request: the request.
        own: the origins of this page, such as "https://host:7172".
        must_say: True if the request must have a header that names its origin. Browsers always send
            such a header with requests that change something.

    Raises:
        PermissionDenied: a page of another origin has caused the request, or the request does not
            name its origin although it must.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        raise PermissionDenied("another page may not call finegrain")
    if origin is not None and origin not in own:
        raise PermissionDenied(f"a page of {origin} may not call finegrain at {own[0]}")
    if must_say and site != "same-origin" and origin is None:
        raise PermissionDenied(
            "a change from a browser needs the header Sec-Fetch-Site: same-origin, or Origin"
        )
