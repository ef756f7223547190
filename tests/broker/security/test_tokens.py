"""Tokens: keys, signatures, claims, and the attacks on them."""

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from daybook.broker.security.keys import private_key, public_key, read_key, secret_key
from daybook.broker.security.tokens import (
    TOKEN_BYTES_MAX,
    ClaimRules,
    Tokens,
    WrongCredentialsError,
    create,
    text_of,
)
from daybook.wire.settings import ConfigError

NOW_S = 1_700_000_000.0
SECRET = bytes(range(64))
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def data_url(content: bytes) -> str:
    return "data:;base64," + base64.b64encode(content).decode()


def public_der(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def public_pem(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def private_der(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


def tokens(rules: ClaimRules | None = None) -> Tokens:
    return Tokens([secret_key(data_url(SECRET))], rules or ClaimRules())


def signed(claims: dict[str, Any], algorithm: str = "HS256") -> str:
    return jwt.encode(claims, SECRET, algorithm=algorithm)


def refused(verifier: Tokens, token: str, now_s: float = NOW_S) -> str:
    """Return the kind of the refusal."""
    with pytest.raises(WrongCredentialsError) as caught:
        verifier.verify(token, now_s)
    assert token not in str(caught.value)
    return caught.value.kind


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_of_the_secret_names_its_role(algorithm: str) -> None:
    found = tokens().verify(signed({"sub": "alice"}, algorithm), NOW_S)
    assert (found.role, found.method, found.expires_s) == ("alice", "token", None)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
@pytest.mark.parametrize("form", [public_der, public_pem])
def test_a_token_of_an_elliptic_curve(curve: ec.EllipticCurve, form: Any) -> None:
    key = ec.generate_private_key(curve)
    signing = private_key(data_url(private_der(key)))
    verifier = Tokens([public_key(data_url(form(key)))], ClaimRules())
    token = create(signing, {"sub": "alice"}, {})
    assert verifier.verify(token, NOW_S).role == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512"])
def test_a_token_of_an_rsa_key(algorithm: str) -> None:
    verifier = Tokens([public_key(data_url(public_der(RSA)))], ClaimRules())
    assert verifier.verify(jwt.encode({"sub": "a"}, RSA, algorithm), NOW_S).role == "a"


@pytest.mark.parametrize("form", [public_der, public_pem])
def test_a_token_that_is_signed_with_the_bytes_of_the_public_key_is_refused(form: Any) -> None:
    """PyJWT refuses to make such a token, so the attacker makes it by hand."""
    verifier = Tokens([public_key(data_url(public_der(RSA)))], ClaimRules())
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "admin"})
    )
    mac = hmac.digest(form(RSA), head + b"." + body, "sha256")
    token = b".".join((head, body, base64.urlsafe_b64encode(mac).rstrip(b"=")))
    assert refused(verifier, token.decode()) == "algorithm"


@pytest.mark.parametrize("form", [public_der, public_pem])
def test_a_public_key_is_not_accepted_as_a_secret(form: Any) -> None:
    with pytest.raises(ConfigError, match="public or private key"):
        secret_key(data_url(form(RSA)))


def _in_base64(key: Any) -> bytes:
    return base64.b64encode(public_der(key)) + b"\n"


def _behind_a_blank_line(key: Any) -> bytes:
    return b"\n" + public_pem(key)


def _of_ssh(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


@pytest.mark.parametrize("form", [_in_base64, _behind_a_blank_line, _of_ssh])
def test_no_other_form_of_a_public_key_is_a_secret(form: Any) -> None:
    with pytest.raises(ConfigError, match="public or private key"):
        secret_key(data_url(form(RSA)))


@pytest.mark.parametrize("guess", [bytes(64), b"a" * 32, b"ab" * 32, b"1234567" * 9])
def test_a_secret_that_can_be_guessed_is_refused(guess: bytes) -> None:
    """A file system may show zeros for a file that was not written to its end."""
    with pytest.raises(ConfigError, match="can be guessed"):
        secret_key(data_url(guess))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE"])
def test_a_token_without_a_signature_is_refused(algorithm: str) -> None:
    head = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).rstrip(b"=").decode()
    body = base64.urlsafe_b64encode(b'{"sub":"admin"}').rstrip(b"=").decode()
    for key in (data_url(SECRET),):
        assert refused(Tokens([secret_key(key)], ClaimRules()), f"{head}.{body}.") == "algorithm"
    verifier = Tokens([public_key(data_url(public_der(RSA)))], ClaimRules())
    assert refused(verifier, f"{head}.{body}.") == "algorithm"


def test_a_token_of_another_key_is_refused() -> None:
    token = jwt.encode({"sub": "alice"}, bytes(64), algorithm="HS256")
    assert refused(tokens(), token) == "signature"
    head, body, tail = signed({"sub": "alice"}).split(".")
    other = signed({"sub": "admin"}).split(".")[1]
    assert refused(tokens(), f"{head}.{other}.{tail}") == "signature"
    assert refused(tokens(), f"{head}.{body}.") == "signature"


def test_times_count() -> None:
    verifier = tokens()
    token = signed({"sub": "a", "exp": NOW_S + 10, "nbf": NOW_S})
    assert verifier.verify(token, NOW_S).expires_s == NOW_S + 10
    assert refused(verifier, token, NOW_S + 10) == "expired"
    assert refused(verifier, token, NOW_S - 60) == "not_yet"
    assert refused(verifier, signed({"sub": "a", "exp": "soon"})) == "malformed"
    assert refused(verifier, signed({"sub": "a", "exp": True})) == "malformed"


def test_a_token_that_was_issued_in_the_future_is_refused() -> None:
    """Otherwise it would outlive a revocation of all older tokens of its role."""
    assert refused(tokens(), signed({"sub": "alice", "iat": NOW_S + 601})) == "future"
    ahead = {"sub": "alice", "iat": NOW_S + 599}
    assert tokens().verify(signed(ahead), NOW_S).role == "alice"


@pytest.mark.parametrize(
    "claims",
    [
        b'{"sub": "alice", "iat": 1, "iat": 1800000000}',
        b'{"sub": "bob", "sub": "alice"}',
        b'{"sub": "alice", "more": {"a": 1, "a": 2}}',
    ],
)
def test_a_token_that_has_a_claim_twice_is_refused(claims: bytes) -> None:
    token = jwt.PyJWS().encode(claims, SECRET, algorithm="HS256")
    assert refused(tokens(), token) == "malformed"


def test_a_stranger_does_not_learn_the_algorithms_of_the_keys() -> None:
    with pytest.raises(WrongCredentialsError) as caught:
        tokens().verify(jwt.encode({"sub": "alice"}, "", algorithm="none"), NOW_S)
    assert "HS" not in str(caught.value)


def test_the_audience_counts_if_one_is_set() -> None:
    verifier = tokens(ClaimRules(audience="daybook"))
    assert verifier.verify(signed({"sub": "a", "aud": "daybook"}), NOW_S).role == "a"
    assert verifier.verify(signed({"sub": "a", "aud": ["x", "daybook"]}), NOW_S).role == "a"
    for claims in ({}, {"aud": "x"}, {"aud": ["x"]}, {"aud": "daybook2"}):
        assert refused(verifier, signed({"sub": "a", **claims})) == "audience"
    assert tokens().verify(signed({"sub": "a", "aud": "x"}), NOW_S).role == "a"


def test_the_role_is_in_the_claim_that_is_set() -> None:
    verifier = tokens(ClaimRules(role_claim="roles"))
    assert verifier.verify(signed({"sub": "a", "roles": ["b", "c"]}), NOW_S).role == "b"
    for value in (None, "", [], 7, {"a": 1}, [7], "x" * 1000, "a\nb"):
        assert refused(verifier, signed({"sub": "a", "roles": value})) == "role"


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "é", "{}", "e30.e30.e30"])
def test_what_is_not_a_token_is_refused(token: str) -> None:
    assert refused(tokens(), f"{token}  ") in ("malformed", "algorithm")


def test_a_token_of_bytes() -> None:
    assert text_of(b"abc\n") == "abc"
    for data in (b"\xff", b"x" * (TOKEN_BYTES_MAX + 1)):
        with pytest.raises(WrongCredentialsError):
            text_of(data)


def test_a_short_secret_allows_only_what_it_is_long_enough_for() -> None:
    key = secret_key(data_url(SECRET[:32]))
    assert key.algorithms == ("HS256",)
    verifier = Tokens([key], ClaimRules())
    token = jwt.encode({"sub": "a"}, SECRET[:32], algorithm="HS256")
    assert verifier.verify(token, NOW_S).role == "a"
    with pytest.raises(ConfigError, match="31 bytes"):
        secret_key(data_url(SECRET[:31]))


def test_a_key_is_read_from_all_places_that_pulsar_names(tmp_path: Path) -> None:
    file = tmp_path / "a key"
    file.write_bytes(SECRET)
    encoded = base64.b64encode(SECRET).decode()
    for place in (str(file), file.as_uri(), f"data:;base64,{encoded}", encoded):
        assert read_key(place) == SECRET
    assert read_key("data:,a%20b") == b"a b"
    assert read_key("data:text/plain,abc") == b"abc"


@pytest.mark.parametrize(
    "place", ["file:///not/there", "/not/there", "data:;base64,???", "data:abc", "!secret!"]
)
def test_an_error_about_a_key_does_not_quote_it(place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_key(place)
    assert "???" not in str(caught.value)
    assert "!secret!" not in str(caught.value)


def test_keys_of_other_kinds_are_refused() -> None:
    weak = ec.generate_private_key(ec.SECP224R1())
    with pytest.raises(ConfigError, match="P-256"):
        public_key(data_url(public_der(weak)))
    with pytest.raises(ConfigError, match="PEM or DER"):
        public_key(data_url(b"nothing of the kind"))
    with pytest.raises(ConfigError, match="PEM or DER"):
        private_key(data_url(public_der(RSA)))


def test_a_key_has_no_readable_form() -> None:
    assert repr(secret_key(data_url(SECRET))) == "TokenKey(HS256, HS384, HS512)"


@pytest.mark.parametrize("name", ["exp", "nbf"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400, -(10**400)])
def test_a_number_that_is_no_time_is_refused(name: str, value: float) -> None:
    with pytest.raises(WrongCredentialsError, match="is not a time"):
        ClaimRules().identity({"sub": "alice", name: value}, 0.0)
