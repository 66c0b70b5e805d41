"""Converts messages about tokens, denials and the audit log into the values of
`types/identities.py`.
"""

from __future__ import annotations

from finegrain.rpc.mapping.reader import Reading
from finegrain.v1 import identity_pb2
from finegrain_client import decoding
from finegrain_client.types import identities

read = decoding.read.extended(
    (
        Reading(
            identities.NewToken,
            identity_pb2.CreateTokenResponse,
            {"token_id": "id", "expire_time": "expires_at"},
        ),
        Reading(
            identities.TokenStatus,
            identity_pb2.TokenInfo,
            {"token_id": "id", "expire_time": "expires_at"},
        ),
        Reading(identities.AuditEntry, identity_pb2.AuditEntry),
        Reading(identities.AuditCheck, identity_pb2.VerifyAuditResponse),
        Reading(
            identities.WebLink,
            identity_pb2.CreateWebLinkResponse,
            {"expire_time": "expires_at"},
        ),
        Reading(
            identities.WebSession,
            identity_pb2.WebSession,
            {"session_id": "id", "begin_time": "begun_at", "end_time": "ends_at"},
        ),
        Reading(identities.Denial, identity_pb2.Denial, {"deny_time": "denied_at"}),
    )
)
"""Converts a message into a value; see `decoding.read`."""
