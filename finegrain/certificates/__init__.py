"""Makes and reads the certificates of a cluster: keys, requests, and the authority that signs
certificates.

Only services and the commands that make certificates import this package, because it needs the
library `cryptography`. Calls do not need the library, because gRPC takes keys and certificates as
PEM text.
"""
