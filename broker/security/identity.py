"""A role, how it was proven, and for whom it asks.  The module is pure."""

from collections.abc import Container
from contextvars import ContextVar
from dataclasses import dataclass

from daybook.broker.errors import AuthorizationError

_ROLE_CHARS_MAX = 256
ORIGINAL_PRINCIPAL = "X-Original-Principal"
"""The header in which a proxy, or another broker, names the role for which it asks."""


@dataclass(frozen=True, slots=True)
class TokenProof:
    """The facts about a token by which it may lose its force later.

    `digest` is the SHA-256 of what is signed.  `key` is the id of the key that has verified it; it
    is None for a key of an issuer.
    """

    digest: bytes
    key: bytes | None
    id: str | None = None  # the claim `jti`
    issued_s: float | None = None  # the claim `iat`; None: not known


@dataclass(frozen=True, slots=True)
class Identity:
    """A role that a client has proven to have.

    `expires_s` is the time, in seconds since 1970, from which the proof no longer counts; None if
    it does not expire.
    """

    role: str
    method: str  # "token", "basic", "tls" or "anonymous"
    expires_s: float | None = None
    token: TokenProof | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The client behind a request: its own role, and the role for which it asks as a proxy.

    A request needs the right of every role in `roles`, so naming another role never adds a right.
    """

    identity: Identity
    original: str = ""

    @property
    def role(self) -> str:
        """Return the role for which the request is made."""
        return self.original or self.identity.role

    @property
    def roles(self) -> tuple[str, ...]:
        own = self.identity.role
        return (own, self.original) if self.original else (own,)


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The sender of the HTTP request that a task works for; None if it works for this broker."""


def on_behalf(
    identity: Identity, original: str, *, proxies: Container[str], proxies_only: bool = True
) -> Caller:
    """Return the caller if `identity` may ask for the role `original`, "" for itself.

    A role in `proxies` must name for whom it asks, and not another proxy: its own rights are wide,
    and it must not lend them by mistake.  Another role must not name anybody but itself, unless
    `proxies_only` is False.  Raise AuthorizationError.
    """
    if len(original) > _ROLE_CHARS_MAX:
        raise AuthorizationError("the original principal is too long to be a role")
    if identity.role in proxies:
        if not original or original in proxies:
            raise AuthorizationError(
                f"the role {identity.role!r} is a proxy role, so it has to name the role for which"
                " it asks (original principal), which must not be a proxy role"
            )
        return Caller(identity, original)
    if not original or original == identity.role:
        return Caller(identity)
    if proxies_only:
        raise AuthorizationError(
            f"the role {identity.role!r} may not ask for {original!r}: it is not one of proxy_roles"
        )
    return Caller(identity, original)


def checked_role(value: object) -> str | None:
    """Return a claim that is a role, or the first of a list of roles; None if it is neither."""
    if isinstance(value, list):
        value = value[0] if value else None  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, str) or not value or len(value) > _ROLE_CHARS_MAX:
        return None
    return value if value.isprintable() else None
