"""Tests of joining with a token, of renewal, of logins on the manager's host, and of denials."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pwd
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from finegrain.certificates.joining import credentials_of, join, renew_expired
from finegrain.certificates.keys import certificate_request, key_pem, new_key
from finegrain.certificates.reading import read_certificate
from finegrain.credentials import read_credentials
from finegrain.errors import (
    FinegrainError,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from finegrain.join_token import JoinToken
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1 import cluster_pb2, identity_pb2
from finegrain.v1.cluster_pb2_grpc import ClusterServiceStub
from finegrain.v1.identity_pb2_grpc import IdentityServiceStub
from resource_manager.service.identities.join_service import RateLimit
from resource_manager.service.identities.own import open_own_files
from tests.support.identities import credentials, signed_by
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    RunningRm,
    channel_as,
    endpoint_of,
    eventually,
    refusal,
    running_rm,
)


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path / "rm", join_listen="127.0.0.1:0") as running:
        yield running


def identities(rm: RunningRm, who: str = "operator/root") -> Any:
    return IdentityServiceStub(rm.channel(who))


async def token_for(rm: RunningRm, role: str, name: str = "", **more: Any) -> JoinToken:
    request = identity_pb2.CreateTokenRequest(role=role, name=name, **more)
    answer = await identities(rm).CreateToken(request)
    return JoinToken.parse(answer.token)


async def joined(token: JoinToken) -> Any:
    return await asyncio.to_thread(join, token)


async def error_of(token: JoinToken) -> FinegrainError:
    with pytest.raises(FinegrainError) as caught:
        await joined(token)
    return caught.value


async def test_a_token_makes_an_executor_and_nobody_else(rm: RunningRm) -> None:
    made = await joined(await token_for(rm, "executor", "web-1"))
    assert str(made.who) == "executor/web-1"
    assert made.who.cluster == rm.authority.cluster
    assert made.addresses == (rm.address,)
    async with channel_as(OwnCertificate(made), rm.address) as channel:
        stub: Any = ClusterServiceStub(channel)
        error = await refusal(stub.GetCluster(cluster_pb2.GetClusterRequest()))
    assert error.reason is Reason.ROLE_MISSING


async def test_a_token_works_once_and_is_stored_as_a_hash(rm: RunningRm) -> None:
    token = await token_for(rm, "user", "alice")
    await joined(token)
    error = await error_of(token)
    assert isinstance(error, Unauthenticated)
    assert error.reason is Reason.TOKEN_WRONG
    assert "finegrain token create" in error.message
    stored = b"".join(path.read_bytes() for path in rm.state_dir.glob("finegrain.db*"))
    assert token.secret.encode() not in stored


async def test_a_lost_answer_is_repeated_for_the_same_key_only(rm: RunningRm) -> None:
    token, key = await token_for(rm, "user", "alice"), new_key()
    own = open_own_files(rm.state_dir).authority
    shown = grpc.ssl_channel_credentials(own.certificate_pem)
    server = signed_by(own, "rm").who
    options = [("grpc.ssl_target_name_override", server.dns_name)]
    async with grpc.aio.secure_channel(token.addresses[0], shown, options) as channel:
        from finegrain.v1.identity_pb2_grpc import JoinServiceStub

        stub: Any = JoinServiceStub(channel)
        for _ in range(2):
            request = identity_pb2.JoinRequest(
                secret=token.secret, certificate_request=certificate_request(key)
            )
            answer = await stub.Join(request)
            assert answer.issued.identity.endswith("/user/alice")
            assert not answer.authority_key
        other = identity_pb2.JoinRequest(
            secret=token.secret, certificate_request=certificate_request(new_key())
        )
        assert (await refusal(stub.Join(other))).reason is Reason.TOKEN_WRONG


async def test_a_token_expires_and_can_be_revoked(rm: RunningRm) -> None:
    stub = identities(rm)
    listed = (await stub.ListTokens(identity_pb2.ListTokensRequest())).tokens
    assert not listed
    short = await token_for(rm, "user", "alice", ttl_s=1)
    kept = await token_for(rm, "executor", "web-1")
    (info,) = [
        each
        for each in (await stub.ListTokens(identity_pb2.ListTokensRequest())).tokens
        if each.identity == "executor/web-1"
    ]
    assert info.made_by == "operator/root"
    await stub.RevokeToken(identity_pb2.RevokeTokenRequest(id=info.id))
    assert (await error_of(kept)).reason is Reason.TOKEN_WRONG
    gone = await refusal(stub.RevokeToken(identity_pb2.RevokeTokenRequest(id=info.id)))
    assert isinstance(gone, NotFound)

    async def none_is_left() -> bool:
        return not (await stub.ListTokens(identity_pb2.ListTokensRequest())).tokens

    await eventually(none_is_left)
    assert (await error_of(short)).reason is Reason.TOKEN_WRONG


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (identity_pb2.CreateTokenRequest(role="admin", name="x"), "role"),
        (identity_pb2.CreateTokenRequest(role="user"), "name"),
        (identity_pb2.CreateTokenRequest(role="user", name="a b"), "name"),
        (identity_pb2.CreateTokenRequest(role="metrics", name="x"), "name"),
        (identity_pb2.CreateTokenRequest(role="user", name="a", ttl_s=-1), "ttl"),
        (identity_pb2.CreateTokenRequest(role="user", name="a", ttl_s=2**40), "ttl"),
        (
            identity_pb2.CreateTokenRequest(role="user", name="a", certificate_life_s=5),
            "certificate_life_s",
        ),
        (
            identity_pb2.CreateTokenRequest(role="executor", name="a", certificate_life_s=3_600),
            "certificate_life_s",
        ),
    ],
)
async def test_a_token_that_cannot_be_is_refused(
    rm: RunningRm, request_: identity_pb2.CreateTokenRequest, field: str
) -> None:
    error = await refusal(identities(rm).CreateToken(request_))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


async def test_a_certificate_for_metrics_lasts_as_long_as_ordered(rm: RunningRm) -> None:
    made = await joined(await token_for(rm, "metrics", certificate_life_s=300 * 86_400))
    assert 299 * 86_400 < made.not_after - made.not_before < 301 * 86_400


async def test_a_server_of_another_cluster_gets_no_secret(rm: RunningRm, tmp_path: Path) -> None:
    token = await token_for(rm, "user", "alice")
    async with running_rm(tmp_path / "other", join_listen="127.0.0.1:0"):
        elsewhere = endpoint_of(tmp_path / "other")["join_address"]
        error = await error_of(replace(token, addresses=(elsewhere,)))
        assert error.reason is Reason.CERTIFICATE_WRONG
        assert "is no resource manager of cluster" in error.message
    # The token was not used up.
    assert (await joined(token)).who.name == "alice"


async def test_an_executor_cannot_pass_as_the_manager_at_the_join_port(rm: RunningRm) -> None:
    token = await token_for(rm, "user", "alice")
    async with squatting(rm, "executor/web-1") as address:
        error = await error_of(replace(token, addresses=(address,)))
    assert error.reason is Reason.CERTIFICATE_WRONG


async def test_a_program_that_does_not_speak_tls_gets_no_secret(rm: RunningRm) -> None:
    token = await token_for(rm, "user", "alice")
    got = b""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        got += await reader.read(65_536)
        writer.close()

    plain = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    error = await error_of(replace(token, addresses=(f"127.0.0.1:{port}",)))
    plain.close()
    assert isinstance(error, Unavailable)
    assert token.secret.encode() not in got


@asynccontextmanager
async def squatting(rm: RunningRm, who: str) -> AsyncIterator[str]:
    """Serves TLS with the certificate of an identity; gives its address."""
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", rm.own(who).joining_credentials())
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_a_certificate_is_renewed_with_the_same_key(rm: RunningRm) -> None:
    own = rm.own("user/alice")
    answer = await identities(rm, "user/alice").RenewCertificate(
        identity_pb2.RenewCertificateRequest()
    )
    renewed = credentials_of(answer.issued, own.credentials.key)
    assert renewed.identity == own.credentials.identity
    before, after = (
        read_certificate(each.certificate.encode()) for each in (own.credentials, renewed)
    )
    assert before.serial != after.serial
    # The new certificate is valid for as long as the first one.
    lives_s = [each.not_after_s - each.not_before_s for each in (before, after)]
    assert abs(lives_s[0] - lives_s[1]) < 5
    async with channel_as(OwnCertificate(renewed), rm.address) as channel:
        stub: Any = ClusterServiceStub(channel)
        await stub.GetCluster(cluster_pb2.GetClusterRequest())


async def test_an_expired_certificate_is_renewed_by_its_key(rm: RunningRm) -> None:
    join_at = endpoint_of(rm.state_dir)["join_address"]
    expired = signed_by(rm.authority, "executor/web-1", life_s=-60)
    renewed = await asyncio.to_thread(renew_expired, expired, (join_at,))
    assert str(renewed.who) == "executor/web-1"
    assert renewed.not_after > expired.not_after
    stolen = replace(expired, key=key_pem(new_key()).decode())
    with pytest.raises(Unauthenticated, match="not of the certificate's key"):
        await asyncio.to_thread(renew_expired, stolen, (join_at,))
    old = signed_by(rm.authority, "executor/web-1", starts_s=-40 * 86_400, life_s=86_400)
    with pytest.raises(Unauthenticated, match="join again"):
        await asyncio.to_thread(renew_expired, old, (join_at,))
    foreign = replace(
        credentials("executor/web-1"), authorities=expired.authorities, identity=expired.identity
    )
    with pytest.raises(Unauthenticated, match="another cluster"):
        await asyncio.to_thread(renew_expired, foreign, (join_at,))


async def test_a_denied_identity_is_refused_on_open_connections_until_allowed(
    rm: RunningRm,
) -> None:
    stub, ask = rm.cluster_as("viewer/vera"), cluster_pb2.GetClusterRequest()
    await stub.GetCluster(ask)
    operator = identities(rm)
    await operator.DenyIdentity(
        identity_pb2.DenyIdentityRequest(subject="viewer/vera", reason="left the company")
    )
    error = await refusal(stub.GetCluster(ask))
    assert error.reason is Reason.CERTIFICATE_DENIED
    (denial,) = (await operator.ListDenied(identity_pb2.ListDeniedRequest())).denials
    assert (denial.subject, denial.reason) == ("viewer/vera", "left the company")
    assert denial.denied_by == "operator/root"
    token = await token_for(rm, "viewer", "vera")
    assert (await error_of(token)).reason is Reason.CERTIFICATE_DENIED
    await operator.AllowIdentity(identity_pb2.AllowIdentityRequest(subject="viewer/vera"))
    await stub.GetCluster(ask)
    again = await refusal(
        operator.AllowIdentity(identity_pb2.AllowIdentityRequest(subject="viewer/vera"))
    )
    assert isinstance(again, NotFound)


async def test_a_denial_of_one_certificate_survives_a_restart(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        own = rm.own("viewer/vera")
        serial = read_certificate(own.credentials.certificate.encode()).serial
        await identities(rm).DenyIdentity(identity_pb2.DenyIdentityRequest(subject=serial))
    async with running_rm(tmp_path) as rm:
        ask = cluster_pb2.GetClusterRequest()
        async with channel_as(own, rm.address) as channel:
            stub: Any = ClusterServiceStub(channel)
            error = await refusal(stub.GetCluster(ask))
        assert error.reason is Reason.CERTIFICATE_DENIED
        # Another certificate of the same identity is not denied.
        await rm.cluster_as("viewer/vera").GetCluster(ask)


async def test_an_operator_cannot_shut_itself_out(rm: RunningRm) -> None:
    error = await refusal(
        identities(rm).DenyIdentity(identity_pb2.DenyIdentityRequest(subject="operator/root"))
    )
    assert isinstance(error, InvalidArgument)


async def test_a_new_resource_manager_gets_the_authority(rm: RunningRm) -> None:
    token = await token_for(rm, "rm")
    key = new_key()
    shown = grpc.ssl_channel_credentials(rm.authority.certificate_pem)
    options = [("grpc.ssl_target_name_override", signed_by(rm.authority, "rm").who.dns_name)]
    async with grpc.aio.secure_channel(token.addresses[0], shown, options) as channel:
        from finegrain.v1.identity_pb2_grpc import JoinServiceStub

        stub: Any = JoinServiceStub(channel)
        answer = await stub.Join(
            identity_pb2.JoinRequest(
                secret=token.secret, certificate_request=certificate_request(key)
            )
        )
    assert answer.authority_key.encode() == rm.authority.private_key_pem


# -- the manager's own host --------------------------------------------------------------------


def log_in(path: Path, **asked: Any) -> dict[str, str]:
    """Sends one line to the login socket and returns the answer."""
    request = base64.b64encode(certificate_request(new_key())).decode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(json.dumps({"certificate_request": request, **asked}).encode() + b"\n")
        answer: dict[str, str] = json.loads(connection.makefile().readline())
    return answer


async def test_users_of_this_host_log_in_as_themselves(rm: RunningRm) -> None:
    login = pwd.getpwuid(os.geteuid()).pw_name
    for role in ("user", "operator"):
        answer = await asyncio.to_thread(log_in, rm.state_dir / "login.sock", role=role)
        issued = identity_pb2.IssuedCertificate.FromString(base64.b64decode(answer["issued"]))
        assert issued.identity == f"spiffe://{rm.authority.cluster}/{role}/{login}"
    refused = await asyncio.to_thread(log_in, rm.state_dir / "login.sock", role="viewer")
    assert "user or operator" in refused["error"]
    junk = await asyncio.to_thread(log_in, rm.state_dir / "login.sock", certificate_request="?")
    assert junk["reason"] == Reason.INVALID_ARGUMENT


@pytest.mark.needs("root")
async def test_another_user_of_this_host_cannot_become_an_operator(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    nobody = pwd.getpwnam("nobody").pw_uid
    async with running_rm(tmp_path / "rm") as rm:
        code = (
            "import base64, json, os, socket, sys\n"
            f"os.setuid({nobody})\n"
            "c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1])\n"
            "c.sendall(sys.argv[2].encode() + b'\\n'); print(c.makefile().readline())\n"
        )

        async def as_nobody(role: str) -> dict[str, str]:
            request = base64.b64encode(certificate_request(new_key())).decode()
            line = json.dumps({"certificate_request": request, "role": role})
            process = await asyncio.create_subprocess_exec(
                "/usr/bin/python3",
                "-c",
                code,
                str(rm.state_dir / "login.sock"),
                line,
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            answer: dict[str, str] = json.loads(out)
            return answer

        assert "issued" in await as_nobody("user")
        refused = await as_nobody("operator")
        assert refused["reason"] == Reason.ROLE_MISSING
        assert "finegrain-admin" in refused["error"]
        files = [each for each in rm.state_dir.iterdir() if each.is_file()]
        assert [each.name for each in files if each.stat().st_mode & 0o007] == []


async def test_the_local_operator_has_credentials_that_work(rm: RunningRm) -> None:
    made = read_credentials(rm.state_dir / "operator.credentials")
    assert made.addresses == (rm.address,)
    async with channel_as(OwnCertificate(made), rm.address) as channel:
        stub: Any = ClusterServiceStub(channel)
        error = await refusal(
            stub.DrainExecutor(cluster_pb2.DrainExecutorRequest(executor_id="nowhere"))
        )
    assert error.reason is Reason.EXECUTOR_UNKNOWN


def test_a_rate_limit_allows_a_burst_and_then_a_rate() -> None:
    now = 0.0
    limit = RateLimit(rate_per_s=10.0, burst=100, clock=lambda: now)
    assert [limit.allows("a") for _ in range(101)] == [True] * 100 + [False]
    assert limit.allows("b")
    now = 0.1
    assert [limit.allows("a"), limit.allows("a")] == [True, False]


async def test_a_flood_of_guesses_is_slowed_down(rm: RunningRm) -> None:
    token = await token_for(rm, "user", "alice")
    shown = grpc.ssl_channel_credentials(rm.authority.certificate_pem)
    options = [("grpc.ssl_target_name_override", signed_by(rm.authority, "rm").who.dns_name)]
    async with grpc.aio.secure_channel(token.addresses[0], shown, options) as channel:
        from finegrain.v1.identity_pb2_grpc import JoinServiceStub

        stub: Any = JoinServiceStub(channel)
        guess = identity_pb2.JoinRequest(
            secret="0" * 32, certificate_request=certificate_request(new_key())
        )
        errors = [await refusal(stub.Join(guess)) for _ in range(120)]
    kinds = {type(each) for each in errors}
    assert kinds == {Unauthenticated, ResourceExhausted}


@pytest.mark.parametrize("method", ["Join", "RenewExpired"])
async def test_what_is_no_message_is_bad_input_at_the_join_port(rm: RunningRm, method: str) -> None:
    token = await token_for(rm, "user", "alice")
    shown = grpc.ssl_channel_credentials(rm.authority.certificate_pem)
    options = [("grpc.ssl_target_name_override", signed_by(rm.authority, "rm").who.dns_name)]
    async with grpc.aio.secure_channel(token.addresses[0], shown, options) as channel:
        call: Any = channel.unary_unary(f"/finegrain.v1.JoinService/{method}")
        error = await refusal(call(b"\x0a\xff\xff\xff\xff\x0f"))
    assert isinstance(error, InvalidArgument)
    assert f"a {method}Request message" in error.message
