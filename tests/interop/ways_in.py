"""The ways in to a broker that its clients try, right ones and wrong ones, and how they try them.

Each name is a row of the table in `docs/interop.md`.  `tests/test_ways_page.py` compares both.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TypeAlias

from tests.harness.certificates import Authority
from tests.harness.secure import (
    PASSWORD,
    SPREAD,
    STORE_PASSWORD,
    SecureCluster,
    environment_of,
    token,
)
from tests.interop.ways import AdminTool, PythonWays, Ways, go_ways, java_ways

PYTHON, JAVA, GO = "Python", "Java", "Go"
JAVA_ADMIN, GO_ADMIN = "pulsar-admin", "Go's admin"
CLIENTS = (PYTHON, JAVA, GO, JAVA_ADMIN, GO_ADMIN)
OF_MESSAGES = frozenset({PYTHON, JAVA, GO})
ADMINS = frozenset({JAVA_ADMIN, GO_ADMIN})
ALL = OF_MESSAGES | ADMINS

Fields: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Way:
    """A way in that lets a client in, or refuses it: `refusals` has the text that each shows."""

    name: str
    fields: Callable[[SecureCluster], Fields]
    clients: frozenset[str] = ALL
    refusals: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        return self.name


def _token(text: str) -> Fields:
    return {"auth": "token", "token": text}


def _with_file(auth: str, cluster: SecureCluster) -> Fields:
    path = cluster.directory / "alice.token"
    path.write_text(token("alice") + "\n")
    return {"auth": auth, "file": str(path)}


def _password(user: str, password: str) -> Fields:
    return {"auth": "basic", "user": user, "password": password}


def _by_https(cluster: SecureCluster, fields: Fields) -> Fields:
    return {**fields, "url": cluster.one_url("https")}


_NO_GO_ADMIN = ALL - {GO_ADMIN}

IN = (
    Way("certificate of the client", lambda c: c.certificate("alice")),
    Way(
        "certificate in a Java key store",
        lambda c: c.stores("alice"),
        frozenset({JAVA, JAVA_ADMIN}),
    ),
    Way("token, HS256", lambda _: _token(token("alice"))),
    Way("token, HS512", lambda _: _token(token("alice", algorithm="HS512"))),
    Way("token from a file", lambda c: _with_file("file", c)),
    Way("token from a function", lambda c: _with_file("supplier", c), OF_MESSAGES),
    Way("user and password", lambda _: _password("alice", PASSWORD), _NO_GO_ADMIN),
    Way("token of an issuer", lambda c: _token(c.issuer.token("alice"))),
    Way("OAuth 2, client credentials", lambda c: c.oauth2()),
    Way("lookup by https, token", lambda c: _by_https(c, _token(token("alice"))), OF_MESSAGES),
    Way(
        "lookup by https, certificate",
        lambda c: _by_https(c, c.certificate("alice")),
        OF_MESSAGES,
    ),
    Way(
        "lookup by https, password",
        lambda c: _by_https(c, _password("alice", PASSWORD)),
        OF_MESSAGES,
    ),
    Way(
        "lookup by https, OAuth 2",
        lambda c: _by_https(c, c.oauth2()),
        frozenset({JAVA, GO}),
    ),
)


def _credentials(why: str) -> dict[str, str]:
    """Return what clients show when the broker does not take their credentials.

    Python's client, and Go's, try again until their time is over.  Go's logs the reason.
    """
    return {
        PYTHON: "^refused Timeout ",
        JAVA: f"^refused AuthenticationException {why}",
        GO: rf"^refused .*connection error\n(.*\n)*.*Failed to establish connection.*'{why}",
        JAVA_ADMIN: f"^refused {why}",
        GO_ADMIN: f"^refused code: 401 reason: {why}",
    }


_HANDSHAKE = {
    PYTHON: "^refused Timeout ",
    JAVA: "^refused PulsarClientException .*(Connection already closed|Disconnected|reset)",
    GO: "^refused .*connection error",
    JAVA_ADMIN: "^refused .*(Remotely closed|[Cc]onnection reset|bad_certificate|alert)",
    GO_ADMIN: "^refused Get .*(EOF|connection reset|tls: )",
}
_TOO_FAR = {
    PYTHON: "^refused ConnectError ",
    JAVA: "^refused PulsarClientException .*Connection already closed",
    GO: r"^refused .*connection error\n(.*\n)*.*tls: failed to verify certificate",
    JAVA_ADMIN: "^refused .*(unable to find valid certification path|No .*subject alternative)",
    GO_ADMIN: "^refused Get .*tls: failed to verify certificate",
}
_ISSUER = {
    PYTHON: "^refused AuthenticationError ",
    JAVA: "^refused PulsarClientException .*AuthenticationException: .*the secret is wrong",
    GO: r"^refused .*connection error\n(.*\n)*.*the secret is wrong",
    JAVA_ADMIN: "^refused .*AuthenticationException: .*the secret is wrong",
    GO_ADMIN: "^refused Get .*the secret is wrong",
}


def _stranger(cluster: SecureCluster) -> Authority:
    return Authority(cluster.directory, "strangers")


def _unsigned() -> str:
    # {"alg":"none"} and {"sub":"alice"}, without a signature
    return "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9."


OUT = (
    Way("nobody", lambda _: {}, ALL, _credentials("this broker asks for credentials")),
    Way("text that is no token", lambda _: _token("x"), ALL, _credentials("the token cannot be")),
    Way(
        "expired token",
        lambda _: _token(token("alice", -5)),
        ALL,
        _credentials("the token has expired"),
    ),
    Way(
        "token of another key",
        lambda _: _token(token("alice", key=bytes(32))),
        ALL,
        _credentials("the signature of the token is wrong"),
    ),
    Way(
        "token without a signature",
        lambda _: _token(_unsigned()),
        ALL,
        _credentials("(the token cannot be parsed|no key of this broker is for the algorithm)"),
    ),
    Way(
        "wrong password",
        lambda _: _password("alice", "wrong"),
        _NO_GO_ADMIN,
        _credentials("the user or the password is wrong"),
    ),
    Way(
        "unknown user",
        lambda _: _password("eve", PASSWORD),
        _NO_GO_ADMIN,
        _credentials("the user or the password is wrong"),
    ),
    Way(
        "token for another audience",
        lambda c: _token(c.issuer.token("alice", aud="other")),
        ALL,
        _credentials("the token is not meant for the audience"),
    ),
    Way(
        "expired token of an issuer",
        lambda c: _token(c.issuer.token("alice", -5)),
        ALL,
        _credentials("the token has expired"),
    ),
    Way(
        "token of an unknown issuer",
        lambda c: _token(c.issuer.token("alice", iss="https://other.example")),
        ALL,
        _credentials(
            "the signature of the token is wrong|no key of this broker is for the algorithm"
        ),
    ),
    Way("OAuth 2, wrong secret", lambda c: c.oauth2("wrong"), ALL, _ISSUER),
    Way(
        "certificate of another authority",
        lambda c: c.certificate("alice-2", _stranger(c)),
        ALL,
        _HANDSHAKE,
    ),
    Way(
        "expired certificate of the client",
        lambda c: c.certificate("alice-3", valid_for=timedelta(seconds=-5)),
        ALL,
        _HANDSHAKE,
    ),
    Way(
        "brokers of another authority",
        lambda c: {**_token(token("alice")), "trusted": str(_stranger(c).trusted)},
        ALL,
        _TOO_FAR,
    ),
)
ELSEWHERE = Way(
    "brokers of another host",
    lambda _: _token(token("alice")),
    ALL,
    _TOO_FAR,
)
EXTRA = {
    # With other brokers than the ways above.
    "TLS alone": ALL,
    "token, RS256": ALL,
    "token, ES256": ALL,
    "host name not verified": frozenset({PYTHON, JAVA, JAVA_ADMIN}),
    "nothing verified": ALL,
    ELSEWHERE.name: ELSEWHERE.clients,
}

_serial = count()
REFUSED_S = 2  # how long a client that is refused tries again


def open_client(name: str, cluster: SecureCluster) -> Ways:
    """Start one of `CLIENTS`."""
    environ, where = environment_of(cluster), cluster.directory
    trust_store = cluster.stores("stores")["trust_store"]
    make: dict[str, Callable[[], Ways]] = {
        PYTHON: PythonWays,
        JAVA: partial(java_ways, where, environ),
        GO: partial(go_ways, where, environ),
        JAVA_ADMIN: partial(AdminTool, where, trust_store, STORE_PASSWORD),
        GO_ADMIN: partial(go_ways, where, environ, GO_ADMIN),
    }
    return make[name]()


def asked(client: Ways, secure: SecureCluster, do: str = "exchange", **fields: object) -> str:
    """Let a client do something; an admin client asks for statistics instead."""
    if client.name in ADMINS:
        do = "admin"
    given = {
        "url": secure.url(),
        "admin_url": secure.one_url("https"),
        "trusted": secure.authority.trusted,
        "topics": ",".join(SPREAD),
        "topic": SPREAD[0],
        "subscription": f"s-{next(_serial)}",
        "timeout": 60,
        **fields,
    }
    return client.ask(do, **given)


def check_in(client: Ways, answer: str) -> None:
    found = "statistics of 4 topics" if client.name in ADMINS else "12 messages"
    assert answer == f"ok {found}", answer


def check_refused(client: Ways, secure: SecureCluster, way: Way, **fields: object) -> None:
    given: dict[str, object] = {"timeout": REFUSED_S, **way.fields(secure), **fields}
    before = client.log_size
    answer = asked(client, secure, "produce", **given)
    shown = f"{answer}\n{client.log_from(before)}" if client.name == GO else answer
    assert re.search(way.refusals[client.name], shown), (way.refusals[client.name], shown)
