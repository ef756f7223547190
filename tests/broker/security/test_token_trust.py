"""Keys of tokens and the list of revoked ones are exchanged while a broker runs."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import jwt
import pytest
import structlog
import trio
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs
from trio.testing import MockClock

from daybook.broker.access_metrics import token_file_metrics
from daybook.broker.config import parse
from daybook.broker.errors import AuthenticationError
from daybook.broker.security import token_trust
from daybook.broker.security.audit import Audit
from daybook.broker.security.authentication import Authentication, Credentials
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.security.configured import authentication_of, watch_own_token
from daybook.broker.security.tokens import digest_of
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.settings import ConfigError
from tests.broker.security.test_rights import access, app, status
from tests.broker.security.test_sessions import answer, connected, refusal
from tests.harness.broker import Client, open_broker
from tests.harness.clocks import EPOCH_MS, FixedClock

NOW_S = EPOCH_MS // 1000
OLD, NEW = bytes(range(32)), bytes(range(100, 132))
_SETTLE_S = token_trust.SETTLE_S
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def token(key: Any = OLD, role: str = "alice", **claims: Any) -> bytes:
    algorithm = "HS256" if isinstance(key, bytes) else "RS256" if key is RSA else "ES256"
    return jwt.encode({"sub": role, **claims}, key, algorithm).encode()


def pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


class Files:
    """Two places of secrets, one of public keys, and the list of revoked tokens."""

    def __init__(self, directory: Path) -> None:
        self.first, self.second = directory / "first.key", directory / "second.key"
        self.public, self.revoked = directory / "public.pem", directory / "revoked"
        self.first.write_bytes(OLD)
        self.second.write_bytes(b"none\n")
        self.public.write_bytes(b"none")
        self.revoked.write_bytes(b"")

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "authentication": ["token"],
            "token_secret_keys": [str(self.first), f"file://{self.second}"],
            "token_public_keys": [str(self.public)],
            "revoked_tokens_file": str(self.revoked),
            "auth_refresh_s": 30.0,
        }


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let changed secrets count at once."""
    monkeypatch.setattr(token_trust, "SETTLE_S", 0.0)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def authentication(files: Files, **settings: Any) -> Authentication:
    config = parse({**files.settings, **settings})
    log = structlog.get_logger()
    found = authentication_of(config, clock=FixedClock(EPOCH_MS), rng=Random(1), log=log)
    assert found is not None
    return found


async def lets_in(found: Authentication, data: bytes) -> bool:
    try:
        await found.identify(Credentials("token", data))
    except AuthenticationError:
        return False
    return True


# -- keys


async def test_a_key_is_exchanged_without_a_restart(files: Files) -> None:
    found = authentication(files)
    old, new = token(OLD), token(NEW)
    assert (await lets_in(found, old), await lets_in(found, new)) == (True, False)
    replace(files.second, NEW)
    assert (await lets_in(found, old), await lets_in(found, new)) == (True, True)
    replace(files.first, b"none")
    assert (await lets_in(found, old), await lets_in(found, new)) == (False, True)


async def test_a_secret_that_is_being_written_does_not_count(
    files: Files, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bytes of a secret are a secret, too."""
    monkeypatch.setattr(token_trust, "SETTLE_S", _SETTLE_S)
    files.first.write_bytes(OLD)
    found = authentication(files)
    whole = bytes(range(100, 164))
    for part in (whole[:40], whole[:50]):
        files.first.write_bytes(part)
        assert not await lets_in(found, token(part))
        await trio.sleep(1.0)
        assert not await lets_in(found, token(part))
        assert await lets_in(found, token(OLD))
    files.first.write_bytes(whole)
    assert not await lets_in(found, token(whole))
    await trio.sleep(2.0)
    assert (await lets_in(found, token(whole)), await lets_in(found, token(OLD))) == (True, False)


async def test_one_file_may_hold_several_public_keys(files: Files) -> None:
    found = authentication(files)
    for keys in ([RSA], [RSA, EC], [EC]):
        replace(files.public, b"".join(map(pem, keys)))
        shown = [await lets_in(found, token(key)) for key in (OLD, RSA, EC)]
        assert shown == [True, RSA in keys, EC in keys]


async def test_the_single_keys_of_pulsar_count_too_and_are_exchanged(files: Files) -> None:
    settings = {**files.settings, "token_secret_keys": [], "token_public_keys": []}
    config = parse({**settings, "token_secret_key": str(files.first)})
    found = authentication_of(
        config, clock=FixedClock(EPOCH_MS), rng=Random(1), log=structlog.get_logger()
    )
    assert found is not None
    assert await lets_in(found, token(OLD))
    replace(files.first, NEW)
    assert (await lets_in(found, token(OLD)), await lets_in(found, token(NEW))) == (False, True)


@pytest.mark.parametrize("public", [False, True])
async def test_a_key_that_stands_in_the_settings_counts_beside_others(
    files: Files, public: bool
) -> None:
    inline = "data:;base64," + base64.b64encode(pem(EC) if public else NEW).decode()
    name = "token_public_key" if public else "token_secret_key"
    found = authentication(files, **{name: inline})
    assert await lets_in(found, token(OLD))
    assert await lets_in(found, token(EC if public else NEW))


@pytest.mark.parametrize("name", ["token_public_keys", "token_secret_keys"])
def test_of_several_keys_the_one_that_is_wrong_is_named(files: Files, name: str) -> None:
    good = "data:;base64," + base64.b64encode(pem(EC) if "public" in name else NEW).decode()
    with pytest.raises(ConfigError, match=rf"^{name}, number 2 of 3: "):
        authentication(files, **{name: [good, "no/such:thing", good]})


@pytest.mark.parametrize(
    "wrong", [b"", b"short", b"-----BEGIN PUBLIC KEY-----\nabc", b"x" * (65 << 10), None]
)
async def test_a_file_that_cannot_be_used_keeps_its_former_key_and_says_so(
    files: Files, wrong: bytes | None
) -> None:
    found = authentication(files)
    assert found.trust is not None
    with capture_logs() as logged:
        if wrong is None:
            files.first.unlink()
        else:
            replace(files.first, wrong)
        for _ in range(3):
            assert await lets_in(found, token(OLD))
        assert unusable(found) == [str(files.first)]
        errors = [each for each in logged if each["log_level"] == "error"]
        assert [each["file"] for each in errors] == [str(files.first)]
        replace(files.first, NEW)
        assert await lets_in(found, token(NEW))
        assert unusable(found) == []
    assert str(OLD) not in str(logged)


def unusable(found: Authentication) -> list[str]:
    (family,) = token_file_metrics("c", found.trust)
    return [each.labels["file"] for each in family.samples if each.value]


async def test_a_half_written_file_of_public_keys_removes_none(files: Files) -> None:
    files.public.write_bytes(pem(RSA) + pem(EC))
    found = authentication(files)
    replace(files.public, (pem(EC) + pem(RSA))[:-40])
    assert await lets_in(found, token(RSA))
    assert unusable(found) == [str(files.public)]


async def test_the_last_key_cannot_be_removed(files: Files) -> None:
    found = authentication(files)
    replace(files.first, b"none")
    assert await lets_in(found, token(OLD))
    assert str(files.first) in unusable(found)
    replace(files.second, NEW)
    assert (await lets_in(found, token(OLD)), await lets_in(found, token(NEW))) == (False, True)
    assert unusable(found) == []


async def test_ten_keys_count_and_an_eleventh_none(files: Files) -> None:
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(10)]
    found = authentication(files)
    replace(files.public, b"".join(map(pem, keys[:9])))
    assert await lets_in(found, token(keys[8]))
    replace(files.public, b"".join(map(pem, keys)))
    assert not await lets_in(found, token(keys[9]))
    assert await lets_in(found, token(keys[8]))
    with pytest.raises(ConfigError, match="10 at most"):
        authentication(files)


@pytest.mark.parametrize("missing", ["first", "revoked"])
def test_a_file_that_is_missing_at_the_start_is_an_error(files: Files, missing: str) -> None:
    path: Path = getattr(files, missing)
    path.unlink()
    with pytest.raises(ConfigError) as caught:
        authentication(files)
    assert ("revoked_tokens_file" if missing == "revoked" else "token_secret_keys") in str(
        caught.value
    )


def test_a_start_without_any_key_is_an_error(files: Files) -> None:
    files.first.write_bytes(b"none")
    with pytest.raises(ConfigError, match="no key"):
        authentication(files)


# -- revoked tokens


def by_id(data: bytes) -> str:
    return f"id {jwt.decode(data, options={'verify_signature': False})['jti']}\n"


def by_digest(data: bytes) -> str:
    return f"digest {digest_of(data.decode()).hex()}\n"


def by_role(_data: bytes) -> str:
    return f"role alice {NOW_S}\n"


WAYS = [by_id, by_digest, by_role]


@pytest.mark.parametrize("way", WAYS)
async def test_a_revoked_token_is_refused(files: Files, way: Callable[[bytes], str]) -> None:
    found = authentication(files)
    bad = token(jti="1", iat=NOW_S - 1)
    good = token(jti="2", iat=NOW_S)
    assert await lets_in(found, bad)
    replace(files.revoked, way(bad).encode())
    assert (await lets_in(found, bad), await lets_in(found, good)) == (False, True)
    assert found.counts.failed["token", "revoked"] == 1
    replace(files.revoked, b"")
    assert await lets_in(found, bad)


async def test_a_token_without_a_time_is_older_than_any(files: Files) -> None:
    found = authentication(files)
    replace(files.revoked, b"role alice 1\n")
    for claims in ({}, {"iat": "soon"}, {"iat": None}):
        assert not await lets_in(found, jwt_of(claims))
    assert await lets_in(found, token(iat=1))


def jwt_of(claims: dict[str, Any]) -> bytes:
    """Return a token with claims that PyJWT refuses to sign."""
    return jwt.api_jws.encode(
        json.dumps({"sub": "alice", **claims}).encode(), OLD, "HS256"
    ).encode()


async def test_a_wrong_line_keeps_the_former_list_and_is_named(files: Files) -> None:
    found = authentication(files)
    bad = token(jti="1")
    replace(files.revoked, b"id 1\n")
    assert not await lets_in(found, bad)
    with capture_logs() as logged:
        replace(files.revoked, b"id 2\n\nnonsense\n")
        for _ in range(3):
            assert not await lets_in(found, bad)
        assert await lets_in(found, token(jti="2"))
    (error,) = logged
    assert "line 3" in error["why"]
    assert unusable(found) == [str(files.revoked)]


async def test_a_request_of_the_rest_with_a_revoked_token_is_refused_at_once(files: Files) -> None:
    found = authentication(files)
    admits, _ = access()
    admits._authentication, admits._authorization = found, None
    admits._audit = Audit("", FixedClock(), structlog.get_logger())
    served = app(admits)
    bad = token(jti="1")
    headers = {"Authorization": f"Bearer {bad.decode()}"}
    path = "/admin/v2/clusters"
    assert await status(served, "GET", path, **headers) != 401
    replace(files.revoked, b"id 1\n")
    assert await status(served, "GET", path, **headers) == 401


# -- living connections


async def works(client: Client, number: int) -> None:
    client.send(number)
    await client.receipts(1)


async def cut(client: Client) -> float:
    """Wait until the client is refused and closed; return for how long that took."""
    began = trio.current_time()
    (error,) = await client.wait(pb.CommandError)
    assert error.error == pb.AuthenticationError
    await client.wait_closed()
    return trio.current_time() - began


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("renews", [False, True])
async def test_a_connection_with_a_revoked_token_is_cut_soon(
    files: Files, autojump_clock: MockClock, way: Callable[[bytes], str], renews: bool
) -> None:
    bad, good = token(jti="1", iat=NOW_S - 1), token(jti="2", iat=NOW_S)
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, bad, renews=renews)
        other = await connected(cluster, good, renews=renews)
        await other.producer()
        replace(files.revoked, way(bad).encode())
        if renews:  # The change is noticed by a newcomer first.
            assert await refusal(cluster, bad) == pb.AuthenticationError
        assert await cut(client) < 1.5
        await works(other, 1)
        assert not other.frames.closed
        assert await refusal(cluster, bad) == pb.AuthenticationError


async def test_a_connection_that_was_cut_is_noted_and_forgotten(
    files: Files, autojump_clock: MockClock, tmp_path: Path
) -> None:
    audit = tmp_path / "audit"
    async with open_broker(settings={**files.settings, "audit_file": str(audit)}) as cluster:
        found = cluster.broker.context.authentication
        assert found is not None
        client = await connected(cluster, token(jti="1"))
        assert len(found._watchers) == 1
        replace(files.revoked, b"id 1\n")
        await cut(client)
        await client.settle(1)
        assert not found._watchers
        assert found.counts.failed["token", "revoked"] == 1
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(each["action"], each["allowed"]) for each in lines] == [
        ("CONNECT", True),
        ("REVOKE", False),
    ]


async def test_a_connection_whose_key_was_removed_renews_its_token(
    files: Files, autojump_clock: MockClock
) -> None:
    replace(files.second, NEW)
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, token(OLD), renews=True)
        await client.producer()
        other = await connected(cluster, token(NEW, "ben"), renews=True)
        replace(files.first, b"none")
        (challenge,) = await client.wait(pb.CommandAuthChallenge)
        assert challenge.challenge.auth_method_name == "token"
        assert trio.current_time() < 1.5
        await works(client, 1)
        answer(client, token(NEW))
        await client.settle(5)
        await works(client, 2)
        replace(files.first, OLD)
        replace(files.second, b"none")
        await client.wait(pb.CommandAuthChallenge)
        await other.wait(pb.CommandAuthChallenge)
        assert not client.frames.closed


async def test_a_connection_whose_key_was_removed_may_have_a_token_that_expires(
    files: Files, autojump_clock: MockClock
) -> None:
    """The end of the key is noticed although the connection waits for the end of its token."""
    replace(files.second, NEW)
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, token(OLD, exp=NOW_S + 1000), renews=True)
        replace(files.first, b"none")
        await client.wait(pb.CommandAuthChallenge)
        assert trio.current_time() < 3
        answer(client, token(NEW, exp=NOW_S + 20))
        await client.wait(pb.CommandAuthChallenge)
        assert trio.current_time() == pytest.approx(20, abs=2)


async def test_a_connection_that_cannot_renew_is_cut_when_its_key_is_removed(
    files: Files, autojump_clock: MockClock
) -> None:
    replace(files.second, NEW)
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, token(OLD))
        replace(files.first, b"none")
        assert await cut(client) < 1.5


@pytest.mark.parametrize("answers", [token(OLD), token(NEW, "ben"), None])
async def test_a_connection_without_a_new_token_is_cut(
    files: Files, autojump_clock: MockClock, answers: bytes | None
) -> None:
    replace(files.second, NEW)
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, token(OLD), renews=True)
        cluster.start(lambda: _pongs(client))
        replace(files.first, b"none")
        await client.wait(pb.CommandAuthChallenge)
        if answers is not None:
            answer(client, answers)
        assert await cut(client) < 31


async def _pongs(client: Client) -> None:
    while not client.frames.closed:
        client.tell(pb.CommandPong())
        await trio.sleep(10)


async def test_a_renewed_token_that_is_revoked_later_is_cut(
    files: Files, autojump_clock: MockClock
) -> None:
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, token(jti="1", exp=NOW_S + 5), renews=True)
        await client.wait(pb.CommandAuthChallenge)
        answer(client, token(jti="2"))
        replace(files.revoked, b"id 1\n")
        await client.settle(3)
        assert not client.frames.closed
        replace(files.revoked, b"id 2\n")
        assert await cut(client) < 1.5


async def test_without_a_change_nothing_is_asked(files: Files, autojump_clock: MockClock) -> None:
    async with open_broker(settings=files.settings) as cluster:
        client = await connected(cluster, token(OLD), renews=True)
        await client.producer()
        replace(files.first, OLD)
        replace(files.second, NEW)
        replace(files.revoked, b"# nothing\n")
        await client.settle(5)
        await works(client, 1)
        assert not client.frames.closed


# -- the token of the broker itself


async def test_a_broker_looks_at_its_own_token_when_keys_change(
    files: Files, autojump_clock: MockClock, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_bytes(token(OLD, "broker", jti="b"))
    replace(files.second, NEW)
    config = parse({**files.settings, "broker_token_file": str(own)})
    with capture_logs() as logged:
        found = authentication(files)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.run)
            log = structlog.get_logger()
            nursery.start_soon(watch_own_token, config, found, BrokerToken(str(own)), log)
            await trio.sleep(2)
            assert _errors(logged) == []
            replace(files.first, b"none")
            await trio.sleep(2)
            (error,) = _errors(logged)
            assert "exchange the token" in error
            replace(own, token(NEW, "broker", jti="c"))
            replace(files.revoked, b"id b\n")
            await trio.sleep(2)
            assert len(_errors(logged)) == 1
            replace(files.revoked, b"id c\n")
            await trio.sleep(2)
            assert len(_errors(logged)) == 2
            nursery.cancel_scope.cancel()


def _errors(logged: Any) -> list[str]:
    return [each["event"] for each in logged if each["log_level"] == "error"]
