"""Connects the processes with gRPC: status codes, channels, certificates, and the server."""

import os

# Set this before grpc is first imported. Otherwise gRPC writes messages to standard error for
# failed handshakes and connections that end. Users who want these messages set the variable
# themselves.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
