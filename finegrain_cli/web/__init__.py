"""Provides the HTTP interface of a resource manager: REST calls, streams of events, and a
description of the interface in OpenAPI.

One table (`routes.py`) says which call of the protocol serves each route. The gateway adds no
rules. It converts JSON to a message, and calls the servicer that also serves gRPC, with the
identity of the caller. Then it converts the answer to the JSON that the command prints with `-o
json`.
"""
