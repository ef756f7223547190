"""Tokens of OpenID Connect issuers, verified with the keys that an issuer publishes.

An issuer publishes its configuration at `<issuer>/.well-known/openid-configuration`, which names
the URL of its keys.  Both are fetched over https when a token of the issuer first comes, and kept.
Keys are fetched again when they are old, and when a token names a key that is not known, because
issuers exchange their keys: but at most once in `ASK_AGAIN_S` for each issuer, whatever clients
send.  Clients that need them meanwhile wait for the answer.  While the issuer cannot be reached,
the keys that were fetched last count, up to a bound.

`Fetch` is a seam: it returns the content of an https URL.
"""

import http.client
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import jwt
import msgspec
import trio

from daybook.broker.security.identity import Identity
from daybook.broker.security.keys import TokenKey, verifying
from daybook.broker.security.tokens import (
    ClaimRules,
    WrongCredentialsError,
    claims_of,
    proof_of,
    unverified,
)
from daybook.wire.logging import Log
from daybook.wire.settings import ConfigError

Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]

ASK_AGAIN_S = 30.0
_KEYS_AGE_S = 3600.0  # Then they are fetched again, at the next token.
_KEYS_AGE_MAX_S = 24 * 3600.0  # Then they no longer count, if the issuer cannot be reached.
_KEYS_MAX = 100
_ANSWER_BYTES_MAX = 256 << 10
_TIMEOUT_S = 10.0  # for the next bytes
_ANSWER_S = 30.0  # for both answers


class FetchError(Exception):
    """The issuer did not answer, or not with what it has to."""


@dataclass(slots=True)
class _Issuer:
    """The keys of one issuer, as they were fetched last."""

    url: str
    keys: dict[str, TokenKey] = field(
        default_factory=dict[str, TokenKey]
    )  # by key id; "" if it has none
    fetched_s: float = float("-inf")  # by trio's clock
    asked_s: float = float("-inf")
    asking: trio.Lock = field(default_factory=trio.Lock)


class OpenIdTokens:
    """Verifies tokens of the configured issuers."""

    def __init__(
        self,
        issuers: Sequence[str],
        *,
        audience: str,
        role_claim: str,
        fetch: Fetch,
        log: Log,
    ) -> None:
        self._issuers = {url: _Issuer(url) for url in issuers}
        self._audience = audience
        self._role_claim = role_claim
        self._fetch = fetch
        self._log = log

    def issues(self, issuer: object) -> bool:
        """Return True if this is one of the configured issuers."""
        return isinstance(issuer, str) and issuer in self._issuers

    async def verify(self, token: str, now_s: float) -> Identity:
        """Return the identity that a token proves.  Raise WrongCredentialsError."""
        header, claims = unverified(token)
        issuer = self._issuers.get(str(claims.get("iss")))
        if issuer is None:
            raise WrongCredentialsError("issuer", "the token is of an issuer that is not known")
        key = await self._key(issuer, str(header.get("kid") or ""))
        rules = ClaimRules(self._role_claim, self._audience, issuer.url)
        claims = claims_of(token, key)
        return rules.identity(claims, now_s, proof_of(token, claims, None))

    async def _key(self, issuer: _Issuer, key_id: str) -> TokenKey:
        for _ in range(2):
            now_s = trio.current_time()
            fresh = now_s < issuer.fetched_s + _KEYS_AGE_S
            if key_id in issuer.keys and fresh:
                return issuer.keys[key_id]
            awaited = issuer.asking.locked() and key_id not in issuer.keys
            if now_s < issuer.asked_s + ASK_AGAIN_S and not awaited:
                break
            async with issuer.asking:
                if now_s < issuer.asked_s + ASK_AGAIN_S:
                    continue  # Another task has asked meanwhile.
                issuer.asked_s = trio.current_time()
                await self._refresh(issuer)
        if key_id in issuer.keys and trio.current_time() < issuer.fetched_s + _KEYS_AGE_MAX_S:
            return issuer.keys[key_id]
        raise WrongCredentialsError("key", "the issuer has no key of the name in the token")

    async def _refresh(self, issuer: _Issuer) -> None:
        try:
            # The answer is for all clients: the end of this one's connection does not cut it.
            with trio.fail_after(_ANSWER_S, shield=True):
                issuer.keys = await fetched_keys(issuer.url, self._fetch)
            issuer.fetched_s = trio.current_time()
        except (FetchError, trio.TooSlowError) as error:
            self._log.warning(
                "the keys of an issuer of tokens cannot be fetched",
                issuer=issuer.url,
                why=str(error) or f"the answer was not complete after {_ANSWER_S:g} s",
            )


class _Configuration(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


async def fetched_keys(issuer: str, fetch: Fetch) -> dict[str, TokenKey]:
    """Return the keys that an issuer publishes, by their ids.  Raise FetchError."""
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    try:
        configuration = msgspec.json.decode(await fetch(url), type=_Configuration)
        if configuration.issuer != issuer:
            raise FetchError(f"the configuration names another issuer: {configuration.issuer!r}")
        _check_https(configuration.jwks_uri)
        found = msgspec.json.decode(await fetch(configuration.jwks_uri), type=_Keys)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FetchError(f"the answer of the issuer is not valid: {error}") from None
    keys: dict[str, TokenKey] = {}
    for each in found.keys[:_KEYS_MAX]:
        key = _key_of(each)
        if key is not None:
            keys[str(each.get("kid") or "")] = key
    return keys


def _key_of(jwk: dict[str, Any]) -> TokenKey | None:
    """Return a key for signatures, None for one of another kind."""
    if jwk.get("use", "sig") != "sig" or jwk.get("kty") not in ("RSA", "EC"):
        return None  # A symmetric key ("oct") is never taken from an issuer.
    try:
        key = verifying(jwt.PyJWK(jwk, algorithm=_algorithm_of(jwk)).key)
    except (jwt.PyJWTError, ConfigError, ValueError, TypeError, KeyError):
        return None
    said = jwk.get("alg")
    if said is None:
        return key
    return TokenKey(key.key, (said,)) if said in key.algorithms else None


def _algorithm_of(jwk: dict[str, Any]) -> str | None:
    return "RS256" if jwk.get("kty") == "RSA" else None


def _check_https(url: str) -> None:
    try:
        parts = urlsplit(url)
        right = parts.scheme == "https" and bool(parts.hostname) and not parts.username
    except ValueError:
        right = False
    if not right:
        raise FetchError("the URL of the keys has to begin with https://")


async def fetch_https(url: str) -> bytes:
    """Return the content of an https URL, without following redirects.  Raise FetchError."""
    return await trio.to_thread.run_sync(_fetch, url, abandon_on_cancel=True)


def _fetch(url: str) -> bytes:
    _check_https(url)
    parts = urlsplit(url)
    context = ssl.create_default_context()  # SSL_CERT_FILE names further authorities
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=_TIMEOUT_S, context=context
    )
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    try:
        connection.request("GET", target, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise FetchError(f"{url} answered with the status {answer.status}")
        content = answer.read(_ANSWER_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"{url}: {error}") from None
    finally:
        connection.close()
    if len(content) > _ANSWER_BYTES_MAX:
        raise FetchError(f"{url} answered with more than {_ANSWER_BYTES_MAX} bytes")
    return content
