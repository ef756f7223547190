"""Certificates, authorities, keys, tokens, passwords and rights are exchanged under load.

Streams of both clients go on meanwhile, and none of them loses a message or has one refused.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import pulsar
import pytest

import daybook
from daybook.clients.python import blocking
from daybook.clients.python.tls import TlsOptions
from tests.harness.certificates import Authority, Issued
from tests.harness.processes import wait_until
from tests.harness.secure import SPREAD, SecureCluster, token
from tests.real.streams import PATIENCE_S, Connected, OfficialClient, OwnClient, Stream

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("exchanged")]

ROLES = ("own-token", "own-certificate", "official-token", "official-certificate")
LASTS_S = 4.0
STEP = 150  # messages of each stream between two exchanges
EXCHANGED = "the certificates have changed and are in force"
NEW_KEYS = "the keys of tokens have changed and are in force"
NEW_SECRET = bytes(range(200, 232))
ROUNDS = 3
_serial = itertools.count()


class Exchange:
    """The streams, and what a test exchanges."""

    def __init__(self, cluster: SecureCluster) -> None:
        self.cluster = cluster
        self.streams: list[Stream] = []
        self._moves = itertools.count(1)
        self._over = threading.Event()
        self._tokens = threading.Thread(target=self._renew_tokens)
        for role in ROLES:
            self.certify(role, cluster.authority)
        self._write_tokens()

    # -- credentials, in files

    def token_file(self, role: str) -> Path:
        return self.cluster.directory / f"{role}.token"

    def issued(self, role: str) -> Issued:
        return Issued(*(self.cluster.directory / f"{role}-own.{kind}" for kind in ("pem", "key")))

    def certify(self, role: str, authority: Authority) -> None:
        """Exchange the certificate of a role."""
        _exchange(authority.issue(f"{role}-new", role, hosts=()), self.issued(role))

    def _write_tokens(self) -> None:
        for role in ROLES:
            path = self.token_file(role)
            _replace(path, token(role, LASTS_S, self.cluster.key).encode())

    def _renew_tokens(self) -> None:
        while not self._over.wait(0.5):
            self._write_tokens()

    # -- clients

    def client(self, role: str, topic: str) -> Connected:
        """Connect as a role, in the way that the name of the role says."""
        url, trusted = self.cluster.url(), self.cluster.trusted
        mine, file = self.issued(role), self.token_file(role)
        match role:
            case "own-token":
                tls = TlsOptions(trusted=trusted)
                return OwnClient(url, tls, topic, token=f"file://{file}")
            case "own-certificate":
                tls = TlsOptions(trusted=trusted, certificate=mine.certificate, key=mine.key)
                return OwnClient(url, tls, topic)
            case "official-token":
                supplied: Any = pulsar.AuthenticationToken(lambda: file.read_text())
                return OfficialClient(url, trusted, topic, supplied)
            case _:
                shown = pulsar.AuthenticationTLS(str(mine.certificate), str(mine.key))
                return OfficialClient(url, trusted, topic, shown)

    def start(self) -> None:
        self._tokens.start()
        for role, topic in zip(ROLES, SPREAD, strict=True):
            self.streams.append(Stream(role, partial(self.client, role, topic)))

    def close(self) -> None:
        self._over.set()
        if self._tokens.ident is not None:
            self._tokens.join()
        for stream in self.streams:
            stream.stop()

    # -- steps of a test

    def go_on(self) -> None:
        """Return when each stream has sent more, and newcomers of each role have been let in."""
        wanted = [(stream, stream.sent + STEP) for stream in self.streams]
        for stream, sent in wanted:
            wait_until(lambda s=stream, n=sent: s.is_past(n), f"{stream.name} goes on")  # type: ignore[misc]
        for role in ROLES:
            newcomer = self.client(role, f"newcomers-{next(_serial)}")
            newcomer.send(b"hello")
            assert newcomer.receive(PATIENCE_S) == b"hello"
            newcomer.close()

    def move(self) -> None:
        """Move each topic to the other broker."""
        with self.cluster.admin() as admin:
            self.cluster.spread_bundles(admin, SPREAD, first=next(self._moves))

    def wait_in_force(self, change: Callable[[], None]) -> None:
        """Change files of TLS, and wait until both brokers use them."""

        def shake_hands() -> None:
            with suppress(daybook.TlsError):  # A handshake lets a broker look at its files.
                for url in self.cluster.url().split(","):
                    one = url if "://" in url else f"pulsar+ssl://{url}"
                    tls = TlsOptions(trusted=self.cluster.trusted)
                    given = token("admin", key=self.cluster.key)
                    blocking.connect(one, tls=tls, token=given).close()

        self.wait_logged(change, EXCHANGED, shake_hands)

    def wait_logged(
        self, change: Callable[[], None], text: str, look: Callable[[], None] = lambda: None
    ) -> None:
        """Change files, and wait until both brokers have logged that they use them."""
        before = [_count(each.log, text) for each in self.cluster.brokers]
        change()

        def in_force() -> bool:
            look()
            now = [_count(each.log, text) for each in self.cluster.brokers]
            return all(new > old for new, old in zip(now, before, strict=True))

        wait_until(in_force, "both brokers use the new files")

    def check(self) -> None:
        """End the streams, and compare what they sent with what the topics hold."""
        self._over.set()
        self._tokens.join()
        for stream in self.streams:
            stream.finish()
        admin = token("admin", key=self.cluster.key)
        with blocking.connect(self.cluster.url(), tls=self.cluster.tls, token=admin) as client:
            for stream, topic in zip(self.streams, SPREAD, strict=True):
                assert _stored(client, topic) == list(range(stream.sent)), stream.name
        assert _refused(self.cluster) & set(ROLES) == set()


def _replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)


def _exchange(new: Issued, old: Issued) -> None:
    new.certificate.replace(old.certificate)
    new.key.replace(old.key)


def _count(log: Path, text: str) -> int:
    return log.read_text().count(text)


def _stored(client: blocking.Client, topic: str) -> list[int]:
    with client.create_reader(topic, start="earliest") as reader:
        found: list[int] = []
        while reader.has_message_available():
            found.append(int(reader.receive(PATIENCE_S).data or b""))
    return found


def _refused(cluster: SecureCluster) -> set[str]:
    """Return the roles of which something was refused."""
    lines = (cluster.directory / "audit.jsonl").read_text().splitlines()
    return {each.get("role") or "" for each in map(json.loads, lines) if not each["allowed"]}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    directory = tmp_path_factory.mktemp("exchanged")
    second, revoked = directory / "second.key", directory / "revoked"
    second.write_text("none")
    revoked.write_text("")
    cluster = SecureCluster(
        directory,
        bookies=3,
        audit_file=directory / "audit.jsonl",
        token_secret_keys=f'["{second}"]',
        revoked_tokens_file=revoked,
    )
    try:
        cluster.start()
        cluster.grant({role: ["produce", "consume"] for role in (*ROLES, "late")})
        cluster.spread(SPREAD)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def exchange(secure: SecureCluster) -> Iterator[Exchange]:
    running = Exchange(secure)
    try:
        running.start()
        yield running
    finally:
        running.close()


def test_everything_is_exchanged_under_load(exchange: Exchange, secure: SecureCluster) -> None:
    """A new authority, new certificates of everybody, then the old authority is trusted no more."""
    exchange.go_on()
    old, new = secure.authority, Authority(secure.directory, "new-ca")
    both = old.trusted.read_bytes() + new.trusted.read_bytes()
    exchange.wait_in_force(lambda: secure.trust(both))
    exchange.go_on()
    exchange.wait_in_force(lambda: secure.certify(new))
    exchange.move()
    exchange.go_on()
    for role in ROLES:
        exchange.certify(role, new)
    exchange.move()
    exchange.go_on()
    exchange.wait_in_force(lambda: secure.trust(new.trusted.read_bytes()))
    exchange.go_on()
    _check_that_only_the_new_authority_counts(secure, old, new)

    for number in range(ROUNDS):
        _exchange_password(secure, f"word-{number}", f"word-{number - 1}")
    with ThreadPoolExecutor(1) as pool:  # The client of the token waits most of the time.
        expired = pool.submit(_let_a_token_expire, secure)
        _grant_and_revoke(exchange, secure)
        expired.result()
    _exchange_the_key(exchange, secure)
    _revoke_a_token(secure)
    exchange.go_on()
    exchange.check()


def _check_that_only_the_new_authority_counts(
    secure: SecureCluster, old: Authority, new: Authority
) -> None:
    url = secure.url()
    given: dict[str, Any] = {"token": token("admin"), "timeout_s": 20}
    blocking.connect(url, tls=TlsOptions(trusted=new.trusted), **given).close()
    with pytest.raises(daybook.TlsError):
        blocking.connect(url, tls=TlsOptions(trusted=old.trusted), **given)
    former = old.issue("own-certificate-former", "own-certificate", hosts=())
    shown = TlsOptions(trusted=new.trusted, certificate=former.certificate, key=former.key)
    with pytest.raises(daybook.BrokerError):
        blocking.connect(url, tls=shown, timeout_s=1)


def _exchange_the_key(exchange: Exchange, secure: SecureCluster) -> None:
    """Add the new key of tokens, exchange all tokens, the brokers' own too, remove the old key."""
    former = secure.key
    with _sending(secure, token("late", key=former), "late-key") as sends:
        exchange.wait_logged(
            lambda: _replace(secure.directory / "second.key", NEW_SECRET), NEW_KEYS
        )
        secure.key = NEW_SECRET
        _replace(secure.broker_token, token("broker", 3600, NEW_SECRET).encode())
        exchange.go_on()
        exchange.wait_logged(lambda: _replace(secure.secret, b"none"), NEW_KEYS)
        sends.wait_cut()
    exchange.move()
    with pytest.raises(daybook.NotAllowedError):
        blocking.connect(secure.url(), tls=secure.tls, token=token("late", key=former), timeout_s=5)


def _revoke_a_token(secure: SecureCluster) -> None:
    """A client whose token is revoked is cut, and the one of the next token goes on."""
    bad, good = (
        jwt.encode({"sub": "late", "jti": name}, secure.key, "HS256") for name in ("bad", "good")
    )
    with _sending(secure, bad, "late-bad") as cut, _sending(secure, good, "late-good") as goes_on:
        _replace(secure.directory / "revoked", b"id bad\n")
        cut.wait_cut()
        goes_on.send()
    with pytest.raises(daybook.NotAllowedError):
        blocking.connect(secure.url(), tls=secure.tls, token=bad, timeout_s=5)


class _Sending:
    """A producer of a client that has no other token than the first."""

    def __init__(self, producer: blocking.Producer) -> None:
        self._producer = producer

    def send(self) -> None:
        self._producer.send(b"x")

    def wait_cut(self) -> None:
        until = time.monotonic() + PATIENCE_S
        with pytest.raises((daybook.NotAllowedError, daybook.InDoubtError)):  # noqa: PT012
            while time.monotonic() < until:
                self.send()
                time.sleep(0.05)


@contextmanager
def _sending(secure: SecureCluster, given: str, topic: str) -> Generator[_Sending]:
    with blocking.connect(secure.url(), tls=secure.tls, token=given) as client:
        sending = _Sending(client.create_producer(f"{SPREAD[0]}-{topic}"))
        sending.send()
        yield sending


def _exchange_password(secure: SecureCluster, word: str, former: str) -> None:
    hashed = bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode()
    path = secure.directory / "users"
    _replace(path, f"alice:{hashed}\n".encode())
    blocking.connect(secure.url(), tls=secure.tls, basic=f"alice:{word}").close()
    with pytest.raises(daybook.NotAllowedError):
        blocking.connect(secure.url(), tls=secure.tls, basic=f"alice:{former}", timeout_s=5)


def _let_a_token_expire(secure: SecureCluster) -> None:
    """A client that has no other token is disconnected, and stores nothing more."""
    with _sending(secure, token("late", LASTS_S), "late") as sends:
        sends.wait_cut()


def _grant_and_revoke(exchange: Exchange, secure: SecureCluster) -> None:
    """A role gets rights on the topics of the others, and loses them while it uses them."""
    with secure.admin() as admin:
        for number in range(2):
            topic = f"{SPREAD[number]}-shared"
            path = f"/admin/v2/persistent/public/default/{topic}/permissions/guest"
            admin.create_topic(topic)
            host = Stream("own-token", partial(exchange.client, "own-token", topic))
            admin.call("POST", path, body=["produce"])
            with blocking.connect(secure.url(), tls=secure.tls, token=token("guest")) as client:
                producer = client.create_producer(topic)
                wait_until(partial(host.is_past, STEP), "the host goes on")
                admin.call("DELETE", path)
                with pytest.raises(daybook.NotAllowedError):
                    client.create_producer(topic)
                with pytest.raises((daybook.NotAllowedError, daybook.InDoubtError)):
                    producer.send(b"0")
            wait_until(partial(host.is_past, host.sent + STEP), "the host goes on")
            host.finish()
