"""Certificates of a cluster: keys, requests, and the authority that signs them.

Only services and the commands that make certificates import this package, because it needs the
library `cryptography`. Calls do not need it: gRPC takes keys and certificates as PEM text.
"""
