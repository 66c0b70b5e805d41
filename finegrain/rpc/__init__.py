"""Communication between the processes: status codes, channels, certificates, and the server."""

import os

# Must be set before grpc is first imported. Otherwise gRPC writes messages to standard error for
# failed handshakes and connections that end. Users who want them set the variable themselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
