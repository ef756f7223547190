"""Several methods at once; nobody, wrong credentials, unknown methods; for whom a proxy asks."""

import base64
from pathlib import Path
from random import Random
from typing import Any

import jwt
import pytest
import structlog
from structlog.testing import capture_logs

from daybook.broker.config import parse
from daybook.broker.errors import AuthenticationError, AuthorizationError
from daybook.broker.security.authentication import Authentication, Credentials, of_header
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.security.configured import authentication_of, check_own_token
from daybook.broker.security.identity import Caller, Identity, on_behalf
from daybook.wire.logging import silent_log
from daybook.wire.settings import ConfigError
from tests.broker.security.test_basic import SHA
from tests.harness.clocks import EPOCH_MS, FixedClock

SECRET = bytes(range(32))
KEY = "data:;base64," + base64.b64encode(SECRET).decode()
TOKEN = jwt.encode({"sub": "alice"}, SECRET, "HS256").encode()


def methods(tmp_path: Path, **settings: Any) -> Authentication:
    users = tmp_path / "users"
    users.write_text(f"ben:{SHA}\n")
    config = parse(
        {
            "authentication": ["token", "basic", "tls"],
            "token_secret_key": KEY,
            "basic_file": str(users),
            **settings,
        }
    )
    found = authentication_of(config, clock=FixedClock(EPOCH_MS), rng=Random(1), log=silent_log())
    assert found is not None
    return found


async def who(authentication: Authentication, *credentials: Any) -> str:
    try:
        found = await authentication.identify(Credentials(*credentials))
    except AuthenticationError as error:
        shown = str(error)
    else:
        return f"{found.role} by {found.method}"
    assert "secret" not in shown
    assert TOKEN.decode() not in shown
    return "refused"


async def test_each_method_proves_a_role(tmp_path: Path) -> None:
    found = methods(tmp_path)
    assert await who(found, "token", TOKEN) == "alice by token"
    assert await who(found, "basic", b"ben:secret") == "ben by basic"
    assert await who(found, "tls", b"", "carol") == "carol by tls"
    assert await who(found, "none", b"", "carol") == "carol by tls"
    assert await who(found, "token", TOKEN, "carol") == "alice by token"
    assert found.counts.succeeded == {"token": 2, "basic": 1, "tls": 2}


@pytest.mark.parametrize("anonymous", ["", "anybody"])
async def test_wrong_credentials_are_refused_even_if_there_is_an_anonymous_role(
    tmp_path: Path, anonymous: str
) -> None:
    found = methods(tmp_path, anonymous_role=anonymous)
    for credentials in (
        ("token", b""),
        ("token", b"x"),
        ("token", TOKEN + b"x"),
        ("basic", b"ben:wrong"),
        ("tls", b""),
        ("athenz", b""),
        ("TOKEN", TOKEN),
        ("", TOKEN),
        ("none", b"x"),
        ("token", b"", "carol"),
    ):
        assert await who(found, *credentials) == "refused", credentials
    nobody = "anybody by anonymous" if anonymous else "refused"
    assert await who(found) == nobody
    assert await who(found, "none", b"") == nobody


async def test_refusals_are_counted_by_method_and_reason(tmp_path: Path) -> None:
    found = methods(tmp_path)
    for credentials in (("token", b"x"), ("basic", b"ben:x"), ("mine", b""), ("theirs", b""), ()):
        assert await who(found, *credentials) == "refused"
    assert found.counts.failed == {
        ("token", "malformed"): 1,
        ("basic", "password"): 1,
        ("unknown", "method"): 2,
        ("none", "missing"): 1,
    }


async def test_a_token_expires_by_the_clock_of_the_broker(tmp_path: Path) -> None:
    found = methods(tmp_path)
    for seconds, expected in ((1, "alice by token"), (0, "refused"), (-1, "refused")):
        claims = {"sub": "alice", "exp": EPOCH_MS // 1000 + seconds}
        assert await who(found, "token", jwt.encode(claims, SECRET).encode()) == expected


async def test_certificates_have_the_roles_of_the_table(tmp_path: Path) -> None:
    found = methods(tmp_path, certificate_roles={"carol": "admin"})
    assert await who(found, "tls", b"", "carol") == "admin by tls"
    assert await who(found, "tls", b"", "dave") == "refused"
    assert await who(found, "tls", b"", "admin") == "refused"


async def test_a_certificate_without_one_name_is_wrong_and_not_anonymous(tmp_path: Path) -> None:
    found = methods(tmp_path, anonymous_role="nobody")
    assert await who(found, "", b"", None) == "nobody by anonymous"
    assert await who(found, "", b"", "") == "refused"


async def test_a_method_that_is_not_set_is_not_known(tmp_path: Path) -> None:
    found = methods(tmp_path, authentication=["token"], basic_file="")
    assert await who(found, "basic", b"ben:secret") == "refused"
    assert await who(found, "none", b"", "carol") == "refused"


def test_credentials_have_no_readable_form() -> None:
    assert "alice" not in repr(Credentials("token", b"alice"))


def test_the_headers_of_a_request() -> None:
    basic = "Basic " + base64.b64encode(b"ben:secret").decode()
    assert of_header("", "", "cn") == Credentials("", b"", "cn")
    assert of_header("Bearer abc", "", None) == Credentials("token", b"abc")
    assert of_header("bearer abc", "token", None) == Credentials("token", b"abc")
    assert of_header(basic, "basic", None) == Credentials("basic", b"ben:secret")
    assert of_header("", "tls", "cn") == Credentials("tls", b"", "cn")
    for authorization, method in (
        ("Digest x", ""),
        ("abc", ""),
        ("Basic ???", ""),
        ("Bearer abc", "basic"),
        (basic, "tls"),
    ):
        with pytest.raises(AuthenticationError):
            of_header(authorization, method, "")


def test_nobody_is_asked_unless_it_is_set() -> None:
    assert authentication_of(parse({}), clock=FixedClock(), rng=Random(1), log=silent_log()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"authentication": ["token"]},
        {"authentication": ["basic"]},
        {"authentication": ["athenz"]},
        {"token_secret_key": KEY},
        {"basic_file": "f"},
        {"authentication": ["token"], "token_secret_keys": [KEY, ""]},
        {"token_public_keys": [KEY]},
        {"authentication": ["tls"], "revoked_tokens_file": "f"},
        {"authentication": ["token"], "oidc_issuers": ["https://i"]},
        {"authentication": ["token"], "oidc_issuers": ["http://i"], "oidc_audience": "a"},
        {"authentication": ["token"], "token_secret_key": KEY, "oidc_audience": "a"},
        {"certificate_roles": {"a": "b"}},
        {"anonymous_role": "a"},
        {"authentication": ["tls"], "anonymous_role": "a", "proxy_roles": ["a"]},
    ],
)
def test_settings_that_do_not_fit_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(wrong)
    assert KEY not in str(caught.value)


def test_a_key_that_cannot_be_read_is_an_error_of_its_setting() -> None:
    config = parse({"authentication": ["token"], "token_public_key": KEY})
    with pytest.raises(ConfigError, match="token_public_key"):
        authentication_of(config, clock=FixedClock(), rng=Random(1), log=silent_log())


PROXY, ALICE = Identity("proxy", "token"), Identity("alice", "token")


def test_only_a_proxy_asks_for_somebody_else() -> None:
    assert on_behalf(ALICE, "", proxies={"proxy"}) == Caller(ALICE)
    assert on_behalf(ALICE, "alice", proxies={"proxy"}) == Caller(ALICE)
    found = on_behalf(PROXY, "ben", proxies={"proxy"})
    assert (found.role, found.roles) == ("ben", ("proxy", "ben"))
    assert on_behalf(ALICE, "ben", proxies=(), proxies_only=False).roles == ("alice", "ben")
    for identity, original in ((ALICE, "ben"), (PROXY, ""), (PROXY, "proxy"), (ALICE, "x" * 999)):
        with pytest.raises(AuthorizationError):
            on_behalf(identity, original, proxies={"proxy"})


async def own_token(tmp_path: Path, content: bytes | None, **settings: Any) -> list[str]:
    """Return the events that a broker logs at its start about its own token."""
    file = tmp_path / "own"
    if content is not None:
        file.write_bytes(content)
        settings["broker_token_file"] = str(file)
    config = parse({"authentication": ["token"], "token_secret_key": KEY, **settings})
    found = authentication_of(config, clock=FixedClock(), rng=Random(1), log=silent_log())
    with capture_logs() as logged:
        log = structlog.get_logger()
        await check_own_token(config, found, BrokerToken(config.broker_token_file), log)
    assert TOKEN.decode() not in str(logged)
    return [each["log_level"] for each in logged]


async def test_a_broker_looks_at_its_own_token_when_it_starts(tmp_path: Path) -> None:
    locked = {"authorization": True, "super_users": ["alice"]}
    assert await own_token(tmp_path, TOKEN) == []
    assert await own_token(tmp_path, TOKEN, **locked) == []
    assert await own_token(tmp_path, None, **locked) == ["warning"]
    assert await own_token(tmp_path, b"x", **locked) == ["error"]
    for wrong in ({"proxy_roles": ["alice"]}, {**locked, "super_users": ["root"]}):
        with pytest.raises(ConfigError, match="alice"):
            await own_token(tmp_path, TOKEN, **wrong)
