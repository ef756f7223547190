"""Tokens of OpenID Connect issuers: keys that are fetched, kept, exchanged, and out of reach."""

import json
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from trio.testing import MockClock

from daybook.broker.security import oidc
from daybook.broker.security.oidc import ASK_AGAIN_S, FetchError, OpenIdTokens
from daybook.broker.security.tokens import WrongCredentialsError
from daybook.wire.logging import silent_log

NOW_S = 1_700_000_000.0
ISSUER = "https://login.example/realm"
KEYS_URL = "https://login.example/keys"
FIRST = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECOND = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if key is FIRST else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**found, "kid": kid, "use": "sig", **more}


class Issuer:
    """An issuer that answers from memory, and counts."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [jwk(FIRST, "1")]
        self.asked: list[str] = []
        self.away = False
        self.issuer = ISSUER
        self.keys_url = KEYS_URL
        self.content: bytes | None = None
        self.takes_s = 0.0

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        await trio.sleep(self.takes_s)
        if self.away:
            raise FetchError("nobody answers")
        if self.content is not None:
            return self.content
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return json.dumps({"issuer": self.issuer, "jwks_uri": self.keys_url}).encode()
        assert url == KEYS_URL
        return json.dumps({"keys": self.keys}).encode()

    def tokens(self) -> OpenIdTokens:
        return OpenIdTokens(
            [ISSUER], audience="daybook", role_claim="sub", fetch=self.fetch, log=silent_log()
        )


def token(key: Any = FIRST, kid: str | None = "1", **claims: Any) -> str:
    content = {"iss": ISSUER, "aud": "daybook", "sub": "alice", "exp": NOW_S + 60, **claims}
    algorithm = "RS256" if key is FIRST else "ES256"
    return jwt.encode(content, key, algorithm, headers={} if kid is None else {"kid": kid})


async def role(tokens: OpenIdTokens, text: str, now_s: float = NOW_S) -> str:
    try:
        return (await tokens.verify(text, now_s)).role
    except WrongCredentialsError as error:
        return f"({error.kind})"


async def test_the_keys_are_fetched_once() -> None:
    issuer = Issuer()
    tokens = issuer.tokens()
    for _ in range(3):
        assert await role(tokens, token()) == "alice"
    assert len(issuer.asked) == 2
    assert tokens.issues(ISSUER)
    assert not tokens.issues("https://other.example")
    assert not tokens.issues(None)


async def test_many_clients_at_once_ask_the_issuer_once() -> None:
    issuer = Issuer()
    tokens = issuer.tokens()
    roles: list[str] = []

    async def one() -> None:
        roles.append(await role(tokens, token()))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)
    assert roles == ["alice"] * 20
    assert len(issuer.asked) == 2


async def test_clients_that_come_while_the_keys_are_fetched_wait_for_them(
    autojump_clock: MockClock,
) -> None:
    issuer = Issuer()
    issuer.takes_s = 2.0
    tokens = issuer.tokens()
    roles: list[str] = []

    async def one(text: str, after_s: float) -> None:
        await trio.sleep(after_s)
        roles.append(await role(tokens, text))

    for text in (token(), token(SECOND, "2")):
        async with trio.open_nursery() as nursery:
            for after_s in (0.0, 1.0, 3.0):
                nursery.start_soon(one, text, after_s)
        issuer.keys.append(jwk(SECOND, "2"))
        await trio.sleep(ASK_AGAIN_S)
    assert roles == ["alice"] * 6
    assert len(issuer.asked) == 4


async def test_clients_with_a_known_key_do_not_wait_for_others(autojump_clock: MockClock) -> None:
    issuer = Issuer()
    tokens = issuer.tokens()
    assert await role(tokens, token()) == "alice"
    await trio.sleep(2 * 3600)  # The keys are old, and the issuer takes its time.
    issuer.takes_s = 9.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(role, tokens, token())
        await trio.sleep(1)
        with trio.fail_after(1):
            assert await role(tokens, token()) == "alice"


async def test_a_client_that_goes_while_the_keys_are_fetched_keeps_nobody_out(
    autojump_clock: MockClock,
) -> None:
    issuer = Issuer()
    issuer.takes_s = 2.0
    tokens = issuer.tokens()
    with trio.move_on_after(1):
        await tokens.verify(token(), NOW_S)
    assert await role(tokens, token()) == "alice"
    assert len(issuer.asked) == 2


async def test_an_issuer_that_answers_too_slowly_is_given_up(autojump_clock: MockClock) -> None:
    issuer = Issuer()
    issuer.takes_s = 3600.0
    tokens = issuer.tokens()
    before = trio.current_time()
    assert await role(tokens, token()) == "(key)"
    assert trio.current_time() - before <= 60
    issuer.takes_s = 0.0
    await trio.sleep(ASK_AGAIN_S)
    assert await role(tokens, token()) == "alice"


async def test_claims_of_the_issuer_count() -> None:
    tokens = Issuer().tokens()
    assert await role(tokens, token(aud="other")) == "(audience)"
    assert await role(tokens, token(iss="https://other.example")) == "(issuer)"
    assert await role(tokens, token(exp=NOW_S)) == "(expired)"
    assert await role(tokens, token(sub="")) == "(role)"


async def test_exchanged_keys_are_fetched_again_but_not_for_everybody(
    autojump_clock: MockClock,
) -> None:
    issuer = Issuer()
    tokens = issuer.tokens()
    assert await role(tokens, token()) == "alice"
    issuer.keys = [jwk(SECOND, "2")]
    for _ in range(5):  # The issuer was asked a moment ago.
        assert await role(tokens, token(SECOND, "2")) == "(key)"
    assert len(issuer.asked) == 2
    await trio.sleep(ASK_AGAIN_S + 1)
    assert await role(tokens, token(SECOND, "2")) == "alice"
    assert len(issuer.asked) == 4
    assert await role(tokens, token()) == "(key)", "a key that was taken back counts no longer"
    for kid in ("a", "b", None):
        assert await role(tokens, token(SECOND, kid)) == "(key)"
    assert len(issuer.asked) == 4


async def test_old_keys_count_while_the_issuer_is_away_but_not_forever(
    autojump_clock: MockClock,
) -> None:
    issuer = Issuer()
    tokens = issuer.tokens()
    assert await role(tokens, token()) == "alice"
    issuer.away = True
    await trio.sleep(2 * 3600)
    assert await role(tokens, token()) == "alice"
    await trio.sleep(24 * 3600)
    assert await role(tokens, token()) == "(key)"
    issuer.away = False
    await trio.sleep(ASK_AGAIN_S + 1)
    assert await role(tokens, token()) == "alice"


@pytest.mark.parametrize(
    "wrong",
    [
        jwk(FIRST, "1", use="enc"),
        jwk(FIRST, "1", alg="HS256"),
        {"kty": "oct", "kid": "1", "k": "c2VjcmV0"},
        {"kty": "RSA", "kid": "1"},
        {"kty": "RSA", "kid": "1", "n": "!", "e": 7},
        {"kid": "1"},
    ],
)
async def test_other_keys_are_not_taken(wrong: dict[str, Any]) -> None:
    issuer = Issuer()
    issuer.keys = [wrong, jwk(SECOND, "2")]
    tokens = issuer.tokens()
    assert await role(tokens, token()) == "(key)"
    assert await role(tokens, token(SECOND, "2")) == "alice"


async def test_a_key_is_used_with_the_algorithm_that_it_names() -> None:
    issuer = Issuer()
    issuer.keys = [jwk(FIRST, "1", alg="RS512")]
    assert await role(issuer.tokens(), token()) == "(algorithm)"


async def test_answers_that_are_wrong_give_no_keys() -> None:
    for content in (b"", b"[]", b"{}", b"\xff", b'{"keys": 1}', b"[" * 10_000):
        issuer = Issuer()
        issuer.content = content
        assert await role(issuer.tokens(), token()) == "(key)"


async def test_the_configuration_has_to_be_that_of_the_issuer() -> None:
    issuer = Issuer()
    issuer.issuer = "https://other.example"
    assert await role(issuer.tokens(), token()) == "(key)"


@pytest.mark.parametrize("url", ["http://login.example/keys", "file:///etc/keys", "https://", ""])
async def test_keys_are_fetched_over_https_only(url: str) -> None:
    issuer = Issuer()
    issuer.keys_url = url
    assert await role(issuer.tokens(), token()) == "(key)"
    assert url not in issuer.asked
    with pytest.raises(FetchError):
        await oidc.fetch_https(url)
