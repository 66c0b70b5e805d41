"""Groups admit users: the column `users` of the groups.

There is no downgrade. A released migration must not be changed.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_groups = sa.table("groups", sa.column("name", sa.Text), sa.column("users", sa.Text))
_jobs = sa.table("jobs", sa.column("group_name", sa.Text), sa.column("owner", sa.Text))


def upgrade() -> None:
    """Add the column. A group admits the owners of the jobs that it has now, and the default group
    admits all users. If a job has no owner, an earlier version has registered it, and all users may
    be its owner.
    """
    op.add_column(
        "groups", sa.Column("users", sa.Text(), nullable=False, server_default=sa.text("'[]'"))
    )
    connection = op.get_bind()
    users = {"default": {"*"}}
    for group, owner in connection.execute(sa.select(_jobs.c.group_name, _jobs.c.owner).distinct()):
        # Administrators may use every group.
        if not owner.startswith("operator/"):
            users.setdefault(group, set()).add(owner or "*")
    for name, admitted in users.items():
        connection.execute(
            sa.update(_groups)
            .where(_groups.c.name == name)
            .values(users=json.dumps(sorted(admitted), separators=(",", ":")))
        )
