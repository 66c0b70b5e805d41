"""Runs `finegrain` with longer timeouts, for tests.

The command line gives up after 5 s without an answer. On a busy machine a resource manager may need
longer to restart.
"""

from finegrain_cli import connection
from tests.support.patience import PATIENCE_S

connection.PATIENCE_S = PATIENCE_S
connection.open_cluster.__defaults__ = (PATIENCE_S,)
# While a resource manager restarts, it does not answer for a moment.
connection.DIAL_S = 0.0

if __name__ == "__main__":
    from finegrain_cli.__main__ import main  # after the changes above

    main()
