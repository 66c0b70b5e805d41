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
    """Add the column. A group admits the owners of its present jobs, and the default group admits
    all users. A job without an owner was registered with an earlier version. The group of such a
    job admits all users, because each user is possibly its owner.
    """
    op.add_column(
        "groups", sa.Column("users", sa.Text(), nullable=False, server_default=sa.text("'[]'"))
    )
    connection = op.get_bind()
    users = {"default": {"*"}}
    for group, owner in connection.execute(sa.select(_jobs.c.group_name, _jobs.c.owner).distinct()):
        # Administrators can use every group.
        if not owner.startswith("operator/"):
            users.setdefault(group, set()).add(owner or "*")
    for name, admitted in users.items():
        connection.execute(
            sa.update(_groups)
            .where(_groups.c.name == name)
            .values(users=json.dumps(sorted(admitted), separators=(",", ":")))
        )
