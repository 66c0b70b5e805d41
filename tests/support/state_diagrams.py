"""Generates `docs/states.md`: the diagrams of all state tables.

A test fails when the page is out of date; `python -m tests.support.state_diagrams` writes it again.
"""

from __future__ import annotations

from typing import Any

from resource_manager.engine.model.state_tables import TABLES, StateTable
from tests.support.components import REPOSITORY

PAGE = REPOSITORY / "docs/states.md"

_HEAD = """# States

These diagrams show the states of requests, slots, executors and other objects of the engine. The
label of an arrow is the input that changes the state. The engine makes no other changes of state.
`python -m tests.support.state_diagrams` generates this page from
`resource_manager/engine/model/state_tables.py`, which explains the inputs.
"""


def page() -> str:
    """Returns the text of the whole page."""
    return "\n".join([_HEAD, *(_section(table) for table in TABLES)])


def _section(table: StateTable[Any, Any]) -> str:
    title = table.title[0].upper() + table.title[1:]
    return f"## {title}\n\n```mermaid\n{mermaid(table)}\n```\n"


def mermaid(table: StateTable[Any, Any]) -> str:
    """Returns one table as a state diagram; transitions between two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, what), after in table.moves.items():
        arrows.setdefault((before, "[*]" if after is None else str(after)), []).append(str(what))
    lines = ["stateDiagram-v2", f"    [*] --> {table.initial}"]
    lines += [
        f"    {one} --> {other}: {', '.join(names)}" for (one, other), names in arrows.items()
    ]
    moved = {before for before, _ in table.moves}
    lines += [f"    {state} --> [*]" for state in table.states if state not in moved]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
