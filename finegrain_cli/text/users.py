"""Writes users as text: the resources that their jobs use, and their limits."""

from __future__ import annotations

from finegrain_cli.text.groups import limits_text, used_text
from finegrain_cli.text.output import Column


def user_text(user: str) -> str:
    """Returns the name of a user, or "all" for the entry that applies to each user without separate
    limits.
    """
    return "all" if user == "*" else user.removeprefix("user/")


COLUMNS = (
    Column("user", lambda row: user_text(row["user"]), shrinks=True),
    Column("jobs", lambda row: str(row["jobs"]), right=True, rank=2),
    Column("requests", lambda row: str(row["requests"]), right=True, rank=4),
    Column("slots", lambda row: str(row["slots"]), right=True, rank=1),
    Column("allocated", lambda row: used_text(row["used"]), rank=5, shrinks=True),
    Column("maximum", lambda row: limits_text(row["maximum"]), rank=3, shrinks=True),
    Column("own limits", lambda row: "yes" if row["own_limits"] else "no", wide=True),
)
