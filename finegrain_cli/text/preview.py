"""Writes a preview as text: one sentence, and a line for each slot or group."""

from __future__ import annotations

from finegrain_client.types.preview import Preview

LINES_MAX = 20


def preview_text(found: Preview) -> str:
    """Returns a preview as text. At most `LINES_MAX` slots and groups are listed."""
    lines = [
        f"  {each.allocation_id[-8:]}  {each.job_name}"
        + (f"  room on {each.other_executor_id}" if each.other_executor_id else "")
        for each in found.slots
    ]
    lines += [
        f"  {each.group}  {each.before:.1%} to {each.after:.1%}, now {each.share_now:.1%}"
        for each in found.shares
    ]
    lines += [
        f"  {each.name}  {each.before or 'none'} to {each.after or 'none'}"
        f"  on executors: {each.executors}"
        for each in found.settings
    ]
    if len(lines) > LINES_MAX:
        more = len(lines) - LINES_MAX
        lines = [*lines[:LINES_MAX], f"  and {more} more; -o json lists 1,000"]
    return "\n".join([found.summary, *lines])
