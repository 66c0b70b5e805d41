"""Calls between the processes: statuses, channels, tokens, wire forms, the guarded server."""

import os

# Has to be said before grpc is first imported: it would else write its own remarks about every
# connection that ends to standard error. Whoever wants them sets the variable.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
