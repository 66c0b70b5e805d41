"""Communication between the processes: status codes, channels, tokens, messages, and the server."""

import os

# Must be set before grpc is first imported. Otherwise gRPC writes a message to standard error for
# every connection that ends. Users who want these messages set the variable themselves.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
