"""Makes the authentication of a broker from its settings: reads keys and files."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import trio

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import AuthenticationError
from daybook.broker.security.authentication import (
    Authentication,
    Credentials,
    Verify,
    by_certificate,
    by_token,
)
from daybook.broker.security.basic import Passwords
from daybook.broker.security.broker_token import BrokerToken
from daybook.broker.security.identity import Identity
from daybook.broker.security.oidc import Fetch, OpenIdTokens, fetch_https
from daybook.broker.security.token_trust import KeyPlace, TokenTrust
from daybook.broker.security.tokens import ClaimRules
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.settings import ConfigError

SECRETS = frozenset({"token_secret_key", "token_secret_keys"})
"""Settings that are never shown."""


def authentication_of(
    config: BrokerConfig, *, clock: WallClock, rng: Random, log: Log, fetch: Fetch = fetch_https
) -> Authentication | None:
    """Return the methods that are set; None if clients are not asked.  Raise ConfigError."""
    if not config.authentication:
        return None
    trust: TokenTrust | None = None
    methods: dict[str, Verify] = {}
    for method in config.authentication:
        match method:
            case "token":
                trust = _trust(config, log)
                methods[method] = by_token(trust, _openid(config, fetch, log), clock)
            case "basic":
                methods[method] = _by_password(Passwords(Path(config.basic_file), rng, log))
            case "tls":
                methods[method] = by_certificate(config.certificate_roles)
    return Authentication(methods, config.anonymous_role, trust)


async def check_own_token(
    config: BrokerConfig, authentication: Authentication | None, token: BrokerToken, log: Log
) -> None:
    """Check that other brokers, which have the same settings, will know this broker.

    Raise ConfigError if its role lacks the rights that a broker needs.  A token that is not valid
    now is logged only: it can be exchanged while the broker runs.
    """
    if authentication is None:
        return
    if not config.broker_token_file:
        log.warning(
            "other brokers will not know this broker, because broker_token_file is not set: a"
            " takeover waits for the end of a session, and calls between brokers are refused"
        )
        return
    try:
        own = await authentication.identify(Credentials(token.method, token.read()))
    except AuthenticationError as error:
        log.error(
            "other brokers will not know this broker: exchange the token",
            broker_token_file=config.broker_token_file,
            why=str(error),
        )
        return
    if own.role in config.proxy_roles:
        raise ConfigError(f"broker_token_file has the role {own.role!r}, which is a proxy role")
    if config.authorization and own.role not in config.super_users:
        raise ConfigError(
            f"broker_token_file has the role {own.role!r}: add it to super_users, because brokers"
            " hand topics over to each other"
        )


async def watch_own_token(
    config: BrokerConfig, authentication: Authentication, token: BrokerToken, log: Log
) -> None:
    """Check the token of this broker again when keys or the list of revoked tokens change."""
    changed = trio.Event()
    authentication.watch(token, lambda: changed.set())
    while True:
        await changed.wait()
        changed = trio.Event()
        try:
            await check_own_token(config, authentication, token, log)
        except ConfigError as error:
            log.error("other brokers will refuse calls of this broker", why=str(error))


def _trust(config: BrokerConfig, log: Log) -> TokenTrust:
    places = [
        KeyPlace("token_secret_key", config.token_secret_key, True),
        *_key_places("token_secret_keys", config.token_secret_keys, secret=True),
        KeyPlace("token_public_key", config.token_public_key, False),
        *_key_places("token_public_keys", config.token_public_keys, secret=False),
    ]
    rules = ClaimRules(config.token_role_claim, config.token_audience)
    given = [each for each in places if each.place]
    return TokenTrust(given, config.revoked_tokens_file, rules, log)


def _key_places(setting: str, places: Sequence[str], *, secret: bool) -> list[KeyPlace]:
    """Return the places of a list.  Each is named by its number, because it may be a secret."""
    return [
        KeyPlace(f"{setting}, number {number} of {len(places)}", place, secret)
        for number, place in enumerate(places, 1)
    ]


def _openid(config: BrokerConfig, fetch: Fetch, log: Log) -> OpenIdTokens | None:
    if not config.oidc_issuers:
        return None
    return OpenIdTokens(
        config.oidc_issuers,
        audience=config.oidc_audience,
        role_claim=config.oidc_role_claim,
        fetch=fetch,
        log=log,
    )


def _by_password(passwords: Passwords) -> Verify:
    async def verify(credentials: Credentials) -> Identity:
        return await passwords.verify(credentials.data)

    return verify
