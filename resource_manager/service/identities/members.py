"""Keeps the tokens with which new members can join, and the identities that administrators have
denied.

Tokens and denials are stored in the database. So they survive a restart, and a change of the
leader. Only a hash of each token is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

from finegrain.errors import InvalidArgument, NotFound, Reason, ResourceExhausted, Unauthenticated
from finegrain.identity import Identity
from finegrain.join_token import new_secret, sha256_hex, token_id
from resource_manager.service.runner import Runner
from resource_manager.storage.store import Store

TOKEN_PREFIX = "join_token/"
DENIAL_PREFIX = "denied/"
TOKENS_MAX = 10_000
DENIALS_MAX = 10_000
TTL_DEFAULT_S = 900
TTL_MAX_S = 7 * 24 * 3_600

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Token:
    """The stored facts of a token.

    Attributes:
        identity: URI of the identity that the token is for.
        expires_ms: the time after which the token cannot be used, in milliseconds since 1970.
        made_by: identity of the administrator who made the token.
        life_s: duration of the certificate's validity in seconds; 0: the default of the role.
        used_key: hash of the key that has used the token; empty: the token was not used.
    """

    identity: str
    expires_ms: int
    made_by: str
    life_s: int = 0
    used_key: str = ""


@dataclass(frozen=True, slots=True)
class Denied:
    """An identity ("user/alice"), or a serial number, that is rejected.

    Attributes:
        subject: the identity or the serial number.
        reason: the reason of the denial, as a text for administrators.
        denied_ms: the time of the denial, in milliseconds since 1970.
        denied_by: identity of the administrator.
    """

    subject: str
    reason: str
    denied_ms: int
    denied_by: str


class Members:
    """Creates and redeems tokens, and keeps the denials.

    Attributes:
        denials_number: number of the present list of denials: different lists have different
            numbers, and the empty list has 0.
        on_denied: the function that is called after each new denial.

    Args:
        runner: gives access to the database.
        now_ms: returns the present time in milliseconds since 1970.
    """

    def __init__(self, runner: Runner, now_ms: Callable[[], int]) -> None:
        self._runner = runner
        self._now_ms = now_ms
        self._denials: dict[str, Denied] = {}
        self.denials_number = 0
        self.on_denied: Callable[[], None] = lambda: None
        # A token is read, checked and marked in three steps, which must not overlap.
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Reads the denials. Call it when this process has become the leader."""
        stored = await self.in_store(lambda store: store.metas(DENIAL_PREFIX))
        self._denials = {
            each.subject: each for each in (Denied(**json.loads(text)) for text in stored.values())
        }
        self._count_denials()

    # -- tokens --------------------------------------------------------------------------------

    async def create_token(
        self, identity: Identity, *, made_by: str, ttl_s: int = 0, life_s: int = 0
    ) -> tuple[str, Token]:
        """Stores a new token. Returns its secret, and its stored facts.

        Args:
            identity: the identity that the token is for.
            made_by: identity of the administrator.
            ttl_s: time for which the token can be used, in seconds; 0: the default time.
            life_s: duration of the certificate's validity in seconds; 0: the default of the role.

        Raises:
            InvalidArgument: the time is out of range.
            ResourceExhausted: there are too many tokens.
        """
        ttl_s = ttl_s or TTL_DEFAULT_S
        if not 1 <= ttl_s <= TTL_MAX_S:
            raise InvalidArgument("ttl", ttl_s, f"1 to {TTL_MAX_S} seconds (a week)")
        secret = new_secret()
        token = Token(identity.uri, self._now_ms() + ttl_s * 1_000, made_by, life_s)
        async with self._lock:
            stored = await self._tokens()
            if len(stored) >= TOKENS_MAX:
                raise ResourceExhausted(
                    f"there are {len(stored)} join tokens already; revoke some, or wait until they"
                    " have expired",
                    reason=Reason.OVER_LIMIT,
                )
            await self._put(TOKEN_PREFIX + sha256_hex(secret), token)
        return secret, token

    async def redeem(self, secret: str, key_sha256: str) -> tuple[Identity, int]:
        """Uses a token. Returns the identity, and the duration of the certificate's validity in
        seconds.

        Until the token expires, it can be used again with the same key. So a member that did not
        receive the answer can try again.

        Args:
            secret: the secret part of the token.
            key_sha256: hash of the new member's public key.

        Raises:
            Unauthenticated: the token is unknown, has expired, or was used by another key. All
                three cases have the same message.
        """
        key = TOKEN_PREFIX + sha256_hex(secret)
        async with self._lock:
            text = await self.in_store(lambda store: store.meta(key))
            token = Token(**json.loads(text)) if text else None
            if (
                token is None
                or token.expires_ms <= self._now_ms()
                or token.used_key not in ("", key_sha256)
            ):
                raise Unauthenticated(
                    "the join token is unknown, was used or has expired; an administrator can make"
                    " another one with finegrain token create",
                    reason=Reason.TOKEN_WRONG,
                )
            if not token.used_key:
                used = Token(**{**asdict(token), "used_key": key_sha256})
                await self._put(key, used)
        return Identity.parse(token.identity), token.life_s

    async def tokens(self) -> dict[str, Token]:
        """Returns the tokens that can still be used, sorted by id. Deletes the tokens that have
        expired.
        """
        async with self._lock:
            stored = await self._tokens()
        return {
            token_id(key.removeprefix(TOKEN_PREFIX)): token
            for key, token in stored.items()
            if not token.used_key
        }

    async def revoke(self, wanted: str) -> None:
        """Deletes a token.

        Raises:
            NotFound: there is no token with this id.
        """
        async with self._lock:
            for key in await self._tokens():
                if token_id(key.removeprefix(TOKEN_PREFIX)) == wanted:
                    await self._runner.put({key: None})
                    return
        raise NotFound(
            f"there is no join token with the id {wanted}", reason=Reason.IDENTITY_UNKNOWN
        )

    async def _tokens(self) -> dict[str, Token]:
        """Returns all stored tokens by key. Tokens that have expired are left out and deleted."""
        stored = await self.in_store(lambda store: store.metas(TOKEN_PREFIX))
        tokens = {key: Token(**json.loads(text)) for key, text in stored.items()}
        expired = [key for key, token in tokens.items() if token.expires_ms <= self._now_ms()]
        if expired:
            await self._runner.put(dict.fromkeys(expired), audited=False)
        return {key: token for key, token in tokens.items() if key not in expired}

    # -- denials -------------------------------------------------------------------------------

    def is_denied(self, identity: Identity, serial: str) -> bool:
        """Returns True if an administrator has denied the identity, or the certificate."""
        return bool(self._denials) and (str(identity) in self._denials or serial in self._denials)

    @property
    def denials(self) -> list[Denied]:
        """All denials, the oldest first."""
        return sorted(self._denials.values(), key=lambda each: each.denied_ms)

    async def deny(self, subject: str, reason: str, denied_by: str) -> None:
        """Rejects an identity, or one certificate, from now on.

        Args:
            subject: "ROLE/NAME", or the serial number of a certificate.
            reason: the reason of the denial, as a text for administrators.
            denied_by: identity of the administrator.

        Raises:
            ResourceExhausted: there are too many denials.
        """
        if len(self._denials) >= DENIALS_MAX and subject not in self._denials:
            raise ResourceExhausted(
                f"there are {len(self._denials)} denials already; take some back",
                reason=Reason.OVER_LIMIT,
            )
        denied = Denied(subject, reason, self._now_ms(), denied_by)
        await self._put(DENIAL_PREFIX + subject, denied)
        self._denials[subject] = denied
        self._count_denials()
        self.on_denied()

    async def allow(self, subject: str) -> None:
        """Takes back a denial.

        Raises:
            NotFound: the subject is not denied.
        """
        if subject not in self._denials:
            raise NotFound(f"{subject} is not denied", reason=Reason.IDENTITY_UNKNOWN)
        await self._runner.put({DENIAL_PREFIX + subject: None})
        del self._denials[subject]
        self._count_denials()

    def _count_denials(self) -> None:
        # Compute the number from the list. So it stays the same after a restart and a change of the
        # leader.
        digest = hashlib.sha256("\n".join(sorted(self._denials)).encode()).digest()
        self.denials_number = 1 + int.from_bytes(digest[:6], "big") if self._denials else 0

    async def _put(self, key: str, value: Token | Denied) -> None:
        await self._runner.put({key: json.dumps(asdict(value))})

    async def in_store(self, fn: Callable[[Store], T]) -> T:
        """Runs a read of the database; see `Runner.in_store`."""
        return await self._runner.in_store(fn)
