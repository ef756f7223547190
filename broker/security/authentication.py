"""All ways in which clients of one broker prove who they are.

    credentials                   result
    none                          the anonymous role if there is one, else refused
    of a method that is set       the role that they prove; refused if they are wrong
    of another method             refused

Wrong credentials are refused even if there is an anonymous role: a client that believes to have a
role must not go on with another one.  A certificate is a credential only if the method "tls" is
set; a client that sends other credentials is judged by those.

A connection that is open by a token is told when the token loses its force (`watch`), because its
key was removed or because it was revoked.
"""

import base64
import binascii
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from daybook.broker.errors import AuthenticationError, ExpiredError, UnavailableError
from daybook.broker.security.certificates import identity_of
from daybook.broker.security.identity import Identity
from daybook.broker.security.oidc import OpenIdTokens
from daybook.broker.security.token_trust import Standing, TokenTrust
from daybook.broker.security.tokens import (
    EXPIRED,
    REVOKED,
    WrongCredentialsError,
    text_of,
    unverified,
)
from daybook.wire.clock import WallClock

_NONE = ("", "none")
_UNKNOWN = "unknown"  # One label for all methods that clients make up.


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Credentials as a client sends them, without a readable form: they cannot get into a log."""

    method: str = ""
    data: bytes = b""
    # From the client's certificate, which the connection has verified: "" if it has not exactly one
    # name, None if the client has shown no certificate.
    common_name: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.method!r})"


Verify = Callable[[Credentials], Awaitable[Identity]]
Call: TypeAlias = Callable[[], None]
_TOLD_AT_ONCE = 200  # connections, before other tasks get their turn


@dataclass(slots=True)
class AuthenticationCounts:
    """Counts since the broker started; the keys are methods, and methods with reasons."""

    succeeded: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])


class Authentication:
    """The methods of one broker."""

    def __init__(
        self,
        methods: Mapping[str, Verify],
        anonymous_role: str = "",
        trust: TokenTrust | None = None,
    ) -> None:
        """`trust` is that of the method "token", None without it."""
        self.counts = AuthenticationCounts()
        self.trust = trust
        self._watchers: dict[object, Call] = {}
        self._methods = dict(methods)
        self._anonymous_role = anonymous_role

    @property
    def methods(self) -> list[str]:
        return sorted(self._methods)

    async def identify(self, credentials: Credentials) -> Identity:
        """Return who a client is.  Raise AuthenticationError, ExpiredError if only time is over."""
        method = self._method_of(credentials)
        if method in _NONE:
            return self._nobody(credentials)
        verify = self._methods.get(method)
        if verify is None:
            self.counts.failed[_UNKNOWN, "method"] += 1
            raise AuthenticationError(
                f"this broker does not know the authentication method {method[:32]!r}: use"
                f" {' or '.join(self.methods)}"
            )
        try:
            identity = await verify(credentials)
        except WrongCredentialsError as error:
            self.counts.failed[method, error.kind] += 1
            refused = ExpiredError if error.kind == EXPIRED else AuthenticationError
            raise refused(f"{error} (method {method})") from None
        except UnavailableError:
            self.counts.failed[method, "busy"] += 1
            raise
        self.counts.succeeded[method] += 1
        return identity

    # -- tokens that lose their force

    def standing(self, identity: Identity) -> Standing:
        """Return what has become of the credentials that have proven this identity."""
        return Standing.GOOD if self.trust is None else self.trust.standing(identity)

    def watch(self, watcher: object, call: Call) -> None:
        """Call whenever the standing of a token may have changed, until `forget` is called."""
        self._watchers[watcher] = call

    def forget(self, watcher: object) -> None:
        self._watchers.pop(watcher, None)

    async def run(self) -> None:
        """Tell those that watch of changes, until cancelled."""
        while self.trust is not None:
            await self.trust.wait_changed()
            for number, watcher in enumerate(list(self._watchers), 1):
                call = self._watchers.get(watcher)
                if call is not None:
                    call()
                if not number % _TOLD_AT_ONCE:
                    await trio.lowlevel.checkpoint()

    def note_revoked(self) -> None:
        """Count a client that was cut, because its token was revoked."""
        self.counts.failed["token", REVOKED] += 1

    def note_not_renewed(self) -> None:
        """Count a client that did not renew its credentials, or with those of another role."""
        self.counts.failed["renewal", "not_renewed"] += 1

    def _method_of(self, credentials: Credentials) -> str:
        if credentials.method in _NONE and not credentials.data:
            certified = credentials.common_name is not None and "tls" in self._methods
            return "tls" if certified else ""
        return credentials.method

    def _nobody(self, credentials: Credentials) -> Identity:
        if credentials.data:
            self.counts.failed[_UNKNOWN, "method"] += 1
            raise AuthenticationError("the credentials do not name their authentication method")
        if not self._anonymous_role:
            self.counts.failed["none", "missing"] += 1
            raise AuthenticationError(
                f"this broker asks for credentials: use {' or '.join(self.methods)}"
            )
        self.counts.succeeded["anonymous"] += 1
        return Identity(self._anonymous_role, "anonymous")


def by_token(trust: TokenTrust, of_issuers: OpenIdTokens | None, clock: WallClock) -> Verify:
    """Return the method "token": tokens of this broker's keys, and those of issuers."""

    async def verify(credentials: Credentials) -> Identity:
        token, now_s = text_of(credentials.data), clock.now_ms() / 1000
        if of_issuers is not None and of_issuers.issues(unverified(token)[1].get("iss")):
            identity = await of_issuers.verify(token, now_s)
            trust.look()
        else:
            trust.look()
            identity = trust.verify(token, now_s)
        # Nothing awaits between this and the caller's `watch`, so no change is missed.
        trust.check(identity)
        return identity

    return verify


def by_certificate(roles: Mapping[str, str]) -> Verify:
    """Return the method "tls": the client has a certificate, and sends nothing else."""

    async def verify(credentials: Credentials) -> Identity:
        return identity_of(credentials.common_name or "", roles)

    return verify


def of_header(authorization: str, method: str, common_name: str | None) -> Credentials:
    """Return the credentials of an HTTP request.  Raise AuthenticationError.

    `method` is what the client has named in X-Pulsar-Auth-Method-Name, "" if it has named nothing.
    """
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "":
            return Credentials(method, common_name=common_name)
        case "bearer":
            credentials = Credentials("token", value.strip().encode(errors="replace"), common_name)
        case "basic":
            credentials = Credentials("basic", _decoded(value), common_name)
        case _:
            raise AuthenticationError(
                "the header Authorization is neither Bearer nor Basic, and this broker knows"
                " nothing else"
            )
    if method and method != credentials.method:
        raise AuthenticationError(
            f"the header Authorization does not fit the authentication method {method[:32]!r}"
        )
    return credentials


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationError("the header Authorization cannot be parsed") from None
