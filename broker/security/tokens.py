"""Tokens: JSON Web Tokens that are signed with one of the keys of this broker.

A token names its role in the claim `sub`, or in another one that is set.  `exp` and `nbf` count,
and so does `aud` if an audience is set.  The algorithm must be one of the key: a token with `alg:
none`, or one that is signed with an HMAC of a public key, is refused.  So is a token that was
issued (`iat`) in the future, or that has a claim twice: it could get around a revocation of all
older tokens of its role.

The digest of a token is that of its signed part, header and claims.  The signature is left out: the
holder of a token can write it in several ways, all of them valid, and must not get another digest.

The module is pure: callers pass the time.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any

import jwt

from daybook.broker.security.identity import Identity, TokenProof, checked_role
from daybook.broker.security.keys import TokenKey

TOKEN_BYTES_MAX = 16 << 10
EXPIRED = "expired"
"""The kind of an error: nothing is wrong with the token but its age."""
REVOKED = "revoked"
MALFORMED, SIGNATURE = "malformed", "signature"

_LEEWAY_S = 5.0  # Clocks of two hosts differ.
_FUTURE_S = 600.0  # how far the clock of an issuer may be ahead


# Strangers do not learn which keys there are; the broker logs the algorithms of its keys.
_ALGORITHM = "no key of this broker is for the algorithm (alg) with which the token is signed"


class WrongCredentialsError(Exception):
    """The credentials are wrong.  `kind` is a short word for metrics; no secret is in the text."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """The rules for the claims of a token."""

    role_claim: str = "sub"
    audience: str = ""  # "": not looked at
    issuer: str = ""  # "": not looked at

    def identity(
        self, claims: Mapping[str, Any], now_s: float, token: TokenProof | None = None
    ) -> Identity:
        """Return the identity that the claims prove at this time.  Raise WrongCredentialsError."""
        expires_s = _time(claims, "exp")
        if expires_s is not None and now_s >= expires_s:
            raise WrongCredentialsError(EXPIRED, "the token has expired")
        not_before_s = _time(claims, "nbf")
        if not_before_s is not None and now_s < not_before_s - _LEEWAY_S:
            raise WrongCredentialsError("not_yet", "the token is not valid yet")
        issued_s = _issued(claims)
        if issued_s is not None and issued_s > now_s + _FUTURE_S:
            raise WrongCredentialsError(
                "future",
                "the token was issued in the future (iat): compare the clocks",
            )
        if self.issuer and claims.get("iss") != self.issuer:
            raise WrongCredentialsError("issuer", "the token is of another issuer")
        if self.audience and self.audience not in _texts(claims.get("aud")):
            raise WrongCredentialsError(
                "audience", f"the token is not meant for the audience {self.audience!r}"
            )
        role = checked_role(claims.get(self.role_claim))
        if role is None:
            raise WrongCredentialsError(
                "role", f"the token names no role in its claim {self.role_claim!r}"
            )
        return Identity(role, "token", expires_s, token)


class Tokens:
    """Verifies tokens of some keys."""

    def __init__(self, keys: Iterable[TokenKey], rules: ClaimRules) -> None:
        self._keys = tuple(keys)
        self._rules = rules

    def verify(self, token: str, now_s: float) -> Identity:
        """Return the identity that a token proves.  Raise WrongCredentialsError."""
        kinds: set[str] = set()
        for key in self._keys:
            try:
                claims = claims_of(token, key)
            except WrongCredentialsError as error:
                kinds.add(error.kind)
            else:
                return self._rules.identity(claims, now_s, proof_of(token, claims, key.id))
        if SIGNATURE in kinds:
            raise WrongCredentialsError(SIGNATURE, "the signature of the token is wrong")
        if MALFORMED in kinds:
            raise WrongCredentialsError(MALFORMED, "the token cannot be parsed")
        raise WrongCredentialsError("algorithm", _ALGORITHM)


def digest_of(token: str) -> bytes:
    """Return the SHA-256 of the signed part of a token."""
    return sha256(token.strip().rpartition(".")[0].encode()).digest()


def proof_of(token: str, claims: Mapping[str, Any], key_id: bytes | None) -> TokenProof:
    """Return the facts about a token that was verified."""
    token_id = claims.get("jti")
    return TokenProof(
        digest_of(token), key_id, None if token_id is None else str(token_id), _issued(claims)
    )


def text_of(data: bytes) -> str:
    """Return a token that a client has sent.  Raise WrongCredentialsError."""
    if len(data) > TOKEN_BYTES_MAX:
        raise WrongCredentialsError(MALFORMED, "the token is too long")
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise WrongCredentialsError(MALFORMED, "the token cannot be parsed") from None


def claims_of(token: str, key: TokenKey) -> dict[str, Any]:
    """Return the claims if the signature is of this key.  Times are not checked here."""
    # Times are compared with the clock of the host, which a simulation replaces.
    unchecked = {
        "verify_exp": False,
        "verify_nbf": False,
        "verify_iat": False,
        "verify_aud": False,
        "verify_iss": False,
        "verify_sub": False,
        "verify_jti": False,
    }
    try:
        claims = jwt.decode(token, key.key, algorithms=list(key.algorithms), options=unchecked)  # type: ignore[arg-type]
        _check_no_claim_twice(token)
        return claims
    except jwt.InvalidSignatureError:
        raise WrongCredentialsError(SIGNATURE, "the signature of the token is wrong") from None
    except jwt.InvalidAlgorithmError:
        raise WrongCredentialsError("algorithm", _ALGORITHM) from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise WrongCredentialsError(MALFORMED, "the token cannot be parsed") from None


def _check_no_claim_twice(token: str) -> None:
    """Raise ValueError if a name stands twice in an object, of which readers take either."""
    part = token.split(".")[1]
    json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)), object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of a token, *before* anything is verified: to find its key."""
    try:
        parsed = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise WrongCredentialsError(MALFORMED, "the token cannot be parsed") from None
    return parsed["header"], parsed["payload"]


def create(key: TokenKey, claims: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Return a token with these claims.  `headers` may name the key (`kid`)."""
    return jwt.encode(
        dict(claims),
        key.key,  # type: ignore[arg-type]
        algorithm=key.algorithms[0],
        headers=dict(headers),
    )


def _issued(claims: Mapping[str, Any]) -> float | None:
    """Return when the token was issued; None if it does not say that."""
    try:
        return _time(claims, "iat")
    except WrongCredentialsError:
        return None


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            time_s = float(value)
            if isfinite(time_s):
                return time_s
    raise WrongCredentialsError(MALFORMED, f"the claim {name} of the token is not a time")


def _texts(value: object) -> list[object]:
    if isinstance(value, list):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return [value]
