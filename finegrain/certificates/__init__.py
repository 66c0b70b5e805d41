"""Makes and reads keys, requests for certificates, and certificates. Contains the authority that
signs the certificates of a cluster.

This package needs the library `cryptography`. So only services and the commands that make
certificates import this package. Calls do not need the library: gRPC takes keys and certificates as
PEM text.
"""
