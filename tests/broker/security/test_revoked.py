"""The list of revoked tokens: its lines, and the tokens that they cover."""

import hashlib
from contextlib import suppress
from datetime import datetime

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from hypothesis import given
from hypothesis import strategies as st

from daybook.broker.security.identity import Identity, TokenProof
from daybook.broker.security.keys import TokenKey
from daybook.broker.security.revoked import Revoked, parse
from daybook.broker.security.tokens import ClaimRules, Tokens, digest_of

DIGEST = hashlib.sha256(b"x").digest()


def covered(
    text: str, *, role: str = "alice", token_id: str | None = None, issued_s: float | None = None
) -> bool:
    return parse(text.encode()).covers(
        Identity(role, "token", None, TokenProof(DIGEST, b"key", token_id, issued_s))
    )


def test_a_token_is_revoked_by_its_id() -> None:
    assert covered("id 7\n", token_id="7")
    assert covered("  id   a b  \r\n", token_id="a b")
    assert not covered("id 7\n", token_id="77")
    assert not covered("id None\n", token_id=None)


def test_a_token_is_revoked_by_its_digest() -> None:
    assert covered(f"digest {DIGEST.hex()}\n")
    assert covered(f"digest {DIGEST.hex().upper()}\n")
    assert not covered(f"digest {hashlib.sha256(b'y').hexdigest()}\n")


@pytest.mark.parametrize(
    ("issued_s", "expected"), [(999.0, True), (999.9, True), (1000.0, False), (None, True)]
)
def test_older_tokens_of_a_role_are_revoked_and_so_are_those_without_a_time(
    issued_s: float | None, expected: bool
) -> None:
    for time in ("1000", "1970-01-01T00:16:40Z", "1970-01-01T01:16:40+01:00"):
        assert covered(f"role alice {time}\n", issued_s=issued_s) is expected
    assert not covered("role ben 1000\n", issued_s=issued_s)


def test_the_latest_time_of_a_role_counts() -> None:
    assert covered("role alice 2000\nrole alice 1000\n", issued_s=1500.0)
    assert covered("role alice 1000\nrole alice 2000\n", issued_s=1500.0)
    assert covered("role the alice 2000\n", role="the alice", issued_s=1500.0)


def test_comments_and_empty_lines_mean_nothing() -> None:
    assert parse(b"") == Revoked()
    assert len(parse(b"# id 7\n\n   \n#x\n")) == 0


def test_others_than_tokens_are_never_revoked() -> None:
    assert not parse(b"role alice 2000\n").covers(Identity("alice", "basic"))


@pytest.mark.parametrize(
    "wrong",
    [
        "7",
        "id",
        "ID 7",
        "token 7",
        "digest abc",
        f"digest {DIGEST.hex()[2:]}",
        f"digest {DIGEST.hex()} x",
        "role alice",
        "role 1000",
        "role alice soon",
        "role alice 2026-11-28T06:00:00",
        "role alice 1e9",
        "role alice -5",
        "\xff",
    ],
)
def test_a_wrong_line_is_named_and_not_quoted(wrong: str) -> None:
    with pytest.raises(ValueError, match="line 3 is wrong") as caught:
        parse(b"id 1\n\n" + wrong.encode("latin-1") + b"\nid 2\n")
    assert "alice" not in str(caught.value).replace("`role alice 2026-11-28T06:00:00Z`", "")
    assert DIGEST.hex()[2:] not in str(caught.value)


_TIMES = st.one_of(st.datetimes(timezones=st.timezones()).map(datetime.isoformat), st.text())


@given(
    st.one_of(st.binary(), _TIMES.map(lambda time: f"role x {time}\n".encode("utf-8", "replace")))
)
def test_a_file_of_any_content_is_a_list_or_an_error(content: bytes) -> None:
    with suppress(ValueError):
        assert len(parse(content)) <= content.count(b"\n")


def test_half_a_line_is_wrong() -> None:
    with pytest.raises(ValueError, match="line 2 is not complete"):
        parse(b"id 1\nid 2")


def test_a_token_that_is_written_in_another_way_has_the_same_digest() -> None:
    """Its holder can write the signature anew, but not what is signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    token = jwt.encode({"sub": "alice", "jti": 7}, key, "ES256")
    signed, _, signature = token.rpartition(".")
    raw = jwt.utils.base64url_decode(signature.encode())
    r, s = decode_dss_signature(jwt.utils.raw_to_der_signature(raw, ec.SECP256R1()))
    n = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = jwt.utils.der_to_raw_signature(encode_dss_signature(r, n - s), ec.SECP256R1())
    forged = f"{signed}.{jwt.utils.base64url_encode(other).decode()}"
    verifier = Tokens([TokenKey(key.public_key(), ("ES256",))], ClaimRules())
    proofs = [verifier.verify(each, 0.0).token for each in (token, forged)]
    assert forged != token
    assert proofs[0] == proofs[1]
    assert proofs[0] is not None
    assert (proofs[0].digest, proofs[0].id) == (digest_of(token), "7")
