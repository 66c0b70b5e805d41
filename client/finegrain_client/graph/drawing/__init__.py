"""Draws plans as text, SVG and Mermaid diagrams, and describes plans in words."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from finegrain_client.graph.drawing.mermaid import mermaid
from finegrain_client.graph.drawing.report import describe
from finegrain_client.graph.drawing.svg import svg
from finegrain_client.graph.drawing.text import picture
from finegrain_client.graph.plan import Plan


class Drawing(StrEnum):
    """Forms of a picture."""

    TEXT = "text"
    SVG = "svg"
    MERMAID = "mermaid"


_DRAWN: dict[Drawing, Callable[[Plan], str]] = {
    Drawing.TEXT: picture,
    Drawing.SVG: svg,
    Drawing.MERMAID: mermaid,
}


def draw(plan: Plan, form: Drawing | str = Drawing.TEXT) -> str:
    """Returns a picture of the plan: "text", "svg" or "mermaid".

    Raises:
        ValueError: there is no such form.
    """
    return _DRAWN[Drawing(form)](plan)


__all__ = ["Drawing", "describe", "draw"]
