"""Signs and checks allocation tokens, with which job masters use their slots on executors.

A resource manager signs a token for each slot. A job master shows the token in the metadata of its
calls. See AllocationToken in identity.proto.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from finegrain.certificates.authority import authority_keys
from finegrain.certificates.keys import is_signed_by, key_from_pem, signature_of
from finegrain.certificates.reading import PeerCertificate
from finegrain.certificates.statements import signing_manager
from finegrain.errors import PermissionDenied, Reason
from finegrain.identity import Identity
from finegrain.rpc.access import TOKEN_KEY, Caller
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1.identity_pb2 import AllocationClaims, AllocationToken

TOKEN_BYTES_MAX = 4 * 1024
CACHED_TOKENS_MAX = 10_000
CACHED_SIGNATURES_MAX = 1_000
CACHED_SIGNERS_MAX = 100
HASH_BYTES = 32
NEW_TOKEN = "get a new token with GetAllocationToken"


class TokenSigner:
    """Signs allocation tokens with the key of a resource manager.

    Args:
        own: the certificate of this resource manager.
    """

    def __init__(self, own: OwnCertificate) -> None:
        self._own = own
        self._version = -1
        self._key: ec.EllipticCurvePrivateKey

    def token(
        self,
        executor_id: str,
        job_id: str,
        owner: str,
        allocation_id: str = "",
        generation: int = 0,
    ) -> bytes:
        """Returns a token. This takes about 25 microseconds.

        Args:
            executor_id: the executor that must accept the token.
            job_id: the job.
            owner: identity of the job's owner, for example "user/alice".
            allocation_id: the slot; empty: the token is for the output of the job's tasks.
            generation: generation of the slot.
        """
        claims = AllocationClaims(
            executor_id=executor_id,
            job_id=job_id,
            owner=owner,
            allocation_id=allocation_id,
            generation=generation,
        )
        return self.tokens([claims])[0]

    def tokens(self, claims: Sequence[AllocationClaims]) -> list[bytes]:
        """Returns a token for each of the claims. All tokens have the same signature.

        Most of the time is spent on the signature, so one call for many tokens is faster than many
        calls.

        Args:
            claims: what the tokens state; they can have the same owner or different owners.
        """
        if not claims:
            return []
        own = self._own.credentials
        if self._version != self._own.version:
            self._version = self._own.version
            self._key = key_from_pem(own.key.encode())
        stated = [each.SerializeToString() for each in claims]
        if len(stated) == 1:  # executors of earlier versions only know tokens without a path
            text, paths = _text(own.who.cluster, stated[0]), [b""]
        else:
            root, paths = _tree([_leaf(each) for each in stated])
            text = _text_of_root(own.who.cluster, root)
        common = AllocationToken(
            certificate=own.certificate, signature=signature_of(self._key, text)
        ).SerializeToString()
        # Join the bytes of two messages to one: parsers accept a message's fields in any order.
        return [
            AllocationToken(claims=each, path=path).SerializeToString() + common
            for each, path in zip(stated, paths, strict=True)
        ]


class ShownToken:
    """The rights that one caller has shown in one call.

    Args:
        caller: the identity that makes the call.
        claims: the content of the shown token; None: the call shows no token.
    """

    def __init__(self, caller: Caller, claims: AllocationClaims | None) -> None:
        self.caller = caller
        self._claims = claims

    def check_slot(self, allocation_id: str, generation: int) -> str:
        """Checks that the token is for this slot. Returns the owner of the slot's job.

        Args:
            allocation_id: the slot.
            generation: generation of the slot.

        Raises:
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
        """
        claims = self._owned()
        if (claims.allocation_id, claims.generation) != (allocation_id, generation):
            of = (
                f"slot {claims.allocation_id} generation {claims.generation}"
                if claims.allocation_id
                else "the output of a job"
            )
            raise refused(
                f"the allocation token is for {of}, and the call is about slot {allocation_id}"
                f" generation {generation}; show the token of this slot"
            )
        return claims.owner

    def check_job(self, job_id: str) -> None:
        """Checks that the token is for a slot or for the output of this job.

        Args:
            job_id: the job.

        Raises:
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
        """
        claims = self._owned()
        if claims.job_id != job_id:
            raise refused(
                f"the allocation token is for job {claims.job_id}, and the call is about another"
                " job; show a token of this job"
            )

    def _owned(self) -> AllocationClaims:
        claims = self._claims
        if claims is None:
            raise refused(
                "the call shows no allocation token; install finegrain 0.2 or newer for this job"
                " master, or show the token that WatchJob has sent with the slot"
            )
        if not self.caller.owns(claims.owner):
            raise PermissionDenied(
                f"the allocation token belongs to another identity than {self.caller.name}; use"
                " the credentials with which the job was registered",
                reason=Reason.NOT_OWNER,
                details={"identity": self.caller.name},
            )
        return claims


class TokenChecker:
    """Checks the tokens that callers show to one executor.

    Args:
        executor_id: the executor.
        own: the certificate of the executor, with the authorities that the executor trusts.
        is_denied: a function that returns True if an administrator has denied an identity or a
            serial number.
    """

    def __init__(
        self, executor_id: str, own: OwnCertificate, is_denied: Callable[[Identity, str], bool]
    ) -> None:
        self._executor_id = executor_id
        self._own = own
        self._is_denied = is_denied
        self._authorities: tuple[str, list[ec.EllipticCurvePublicKey]] = ("", [])
        # Checking a signature takes 60 us, and a job master shows the same token in all its calls.
        # Tokens that were made together have the same signature.
        self._signers: OrderedDict[str, PeerCertificate | None] = OrderedDict()
        self._signatures: OrderedDict[tuple[str, bytes, bytes], None] = OrderedDict()
        self._checked: OrderedDict[bytes, tuple[AllocationClaims, PeerCertificate]] = OrderedDict()

    def shown(self, caller: Caller, metadata: Iterable[tuple[str, Any]] | None) -> ShownToken:
        """Returns the rights that a caller has shown.

        Args:
            caller: the identity that makes the call.
            metadata: the metadata of the call.

        Raises:
            PermissionDenied: TOKEN_REFUSED: the call shows an invalid token.
        """
        token = next((value for key, value in metadata or () if key == TOKEN_KEY), None)
        return ShownToken(caller, None if token is None else self._claims(token))

    def _claims(self, data: Any) -> AllocationClaims:
        self._follow_authorities()
        found = self._checked.get(data) or self._check(data)
        claims, signer = found
        if self._is_denied(signer.identity, signer.serial):
            raise refused(
                "an administrator has denied the certificate that has signed the allocation"
                f" token; {NEW_TOKEN}"
            )
        if claims.executor_id != self._executor_id:
            raise refused(
                f"the allocation token is for executor {claims.executor_id}, and this is executor"
                f" {self._executor_id}; show the token of a slot on this executor"
            )
        return claims

    def _check(self, data: Any) -> tuple[AllocationClaims, PeerCertificate]:
        if not isinstance(data, bytes) or len(data) > TOKEN_BYTES_MAX:
            raise refused("the allocation token is not a serialized AllocationToken")
        try:
            token = AllocationToken.FromString(data)
            claims = AllocationClaims.FromString(token.claims)
        except DecodeError:
            raise refused("the allocation token is not a serialized AllocationToken") from None
        signer = self._signer(token.certificate)
        cluster = self._own.credentials.who.cluster
        if signer is None or not self._is_signed(signer, token, _signed_text(cluster, token)):
            raise refused(
                f"no resource manager of cluster {cluster} has signed the allocation token, or the"
                f" authority of the cluster was replaced since; {NEW_TOKEN}"
            )
        _keep(self._checked, data, (claims, signer), CACHED_TOKENS_MAX)
        return claims, signer

    def _is_signed(self, signer: PeerCertificate, token: AllocationToken, text: bytes) -> bool:
        signed = (token.certificate, token.signature, text)
        if signed in self._signatures:
            return True
        if not is_signed_by(signer.public_key, token.signature, text):
            return False
        _keep(self._signatures, signed, None, CACHED_SIGNATURES_MAX)
        return True

    def _signer(self, certificate: str) -> PeerCertificate | None:
        if certificate not in self._signers:
            signer = signing_manager(
                certificate.encode(), self._authorities[1], self._own.credentials.who.cluster
            )
            _keep(self._signers, certificate, signer, CACHED_SIGNERS_MAX)
        return self._signers[certificate]

    def _follow_authorities(self) -> None:
        # When the own certificate is renewed, the authorities can change.
        pem = self._own.credentials.authorities
        if self._authorities[0] != pem:
            certificates = x509.load_pem_x509_certificates(pem.encode())
            self._authorities = pem, authority_keys(certificates)
            self._signers.clear()
            self._signatures.clear()
            self._checked.clear()


def refused(message: str) -> PermissionDenied:
    """Returns the error for a token that gives no right to the call."""
    return PermissionDenied(message, reason=Reason.TOKEN_REFUSED)


def _text(cluster: str, claims: bytes) -> bytes:
    return f"finegrain allocation {cluster} ".encode() + claims


def _text_of_root(cluster: str, root: bytes) -> bytes:
    return f"finegrain allocations {cluster} ".encode() + root


def _signed_text(cluster: str, token: AllocationToken) -> bytes:
    """Returns the text that the manager must have signed for this token."""
    path = token.path
    if not path:
        return _text(cluster, token.claims)
    node = _leaf(token.claims)
    # If the length of the path is wrong, its last bytes are no hash, so the root is wrong.
    for at in range(0, len(path), HASH_BYTES):
        node = _parent(node, path[at : at + HASH_BYTES])
    return _text_of_root(cluster, node)


# The hashes of claims and of nodes begin with different bytes, so two hashes cannot pass as claims
# (as in RFC 6962). The order of the two hashes of a node does not matter, so a path needs
# no directions.


def _leaf(claims: bytes) -> bytes:
    return sha256(b"\x00" + claims).digest()


def _parent(one: bytes, other: bytes) -> bytes:
    return sha256(b"\x01" + (one + other if one < other else other + one)).digest()


def _tree(leaves: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Returns the root of a hash tree (Merkle tree), and the path of each leaf to the root: the
    other child of each node on the way, from the leaf on.
    """
    paths = [b""] * len(leaves)
    nodes, width = leaves, 1  # each node covers `width` leaves; the last node can cover fewer
    while len(nodes) > 1:
        for number in range(len(nodes) & ~1):
            sibling, first = nodes[number ^ 1], number * width
            for leaf in range(first, min(first + width, len(leaves))):
                paths[leaf] += sibling
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        # A node without a sibling is also a node of the next level.
        nodes = [_parent(*pair) for pair in pairs] + nodes[len(nodes) & ~1 :]
        width *= 2
    return nodes[0], paths


def _keep(cache: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    cache[key] = value
    if len(cache) > most:
        cache.popitem(last=False)
