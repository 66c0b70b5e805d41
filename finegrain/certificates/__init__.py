"""Makes and reads the certificates of a cluster: keys, requests, and the authority that signs
certificates.

This package needs the library `cryptography`. So only services and the commands that make
certificates import it. Calls do not need the library: gRPC takes keys and certificates as PEM text.
"""
