"""A cluster that asks who its clients are, with the official Pulsar client and ours."""

import base64
import itertools
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

import bcrypt
import jwt
import pulsar
import pytest

import daybook
from daybook.clients.python import blocking
from daybook.clients.testing.standalone import ANY_PORTS, StandaloneProcess

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("security")]

PATIENCE_S = 120
TIMEOUT_MS = PATIENCE_S * 1000
SECRET = bytes(range(100, 164))
PASSWORD = "correct horse battery staple"
BROKER_TOKEN = jwt.encode({"sub": "broker"}, SECRET, "HS512")


def token(role: str, lasts_s: float | None = None) -> str:
    claims: dict[str, Any] = {"sub": role}
    if lasts_s is not None:
        claims["exp"] = time.time() + lasts_s
    return jwt.encode(claims, SECRET, "HS256")


ADMIN = token("admin")
WRONG_TOKEN = jwt.encode({"sub": "writer"}, bytes(range(7, 39)), "HS256")
WRONG_PASSWORD = "open-sesame-7351"
HIDDEN = "(not shown)"  # in place of a secret setting
ROOMS: dict[Path, Path] = {}  # the directory with the credentials of each cluster


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """Run a cluster with tokens, passwords and rights, and let `writer` and `reader` in."""
    directory = tmp_path_factory.mktemp("locked")
    users = directory / "users"
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    users.write_text(f"ben:{hashed}\n")
    own = directory / "broker.token"
    own.write_text(BROKER_TOKEN)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AUTHENTICATION": '["token", "basic"]',
            "TOKEN_SECRET_KEY": "data:;base64," + base64.b64encode(SECRET).decode(),
            "BASIC_FILE": str(users),
            "AUTHORIZATION": "true",
            "SUPER_USERS": '["admin", "broker"]',
            "BROKER_TOKEN_FILE": str(own),
            "AUTH_REFRESH_S": "10",
            "BALANCE_INTERVAL_S": "1000000",
            "AUDIT_FILE": str(directory / "audit"),
        }.items():
            patch.setenv(f"DAYBOOK_BROKER_{name}", value)
        running = StandaloneProcess(directory=directory / "data", options=ANY_PORTS)
    ROOMS[running.directory] = directory
    with running:
        for role, actions in {
            "writer": ["produce"],
            "reader": ["consume"],
            "ben": ["produce", "consume"],
        }.items():
            grant(running, f"namespaces/public/default/permissions/{role}", actions)
        yield running


def grant(cluster: StandaloneProcess, path: str, actions: list[str] | None) -> None:
    """Grant rights over REST, or revoke them."""
    asked(cluster, path, "POST" if actions else "DELETE", actions)


def asked(
    cluster: StandaloneProcess, path: str, method: str, body: object = None, role: str = "admin"
) -> bytes:
    """Return the answer of the REST to a role."""
    request = urllib.request.Request(
        f"{cluster.ready['brokers'][0]['admin_url']}/admin/v2/{path}",
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"Authorization": f"Bearer {token(role)}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        found: bytes = answer.read()
    return found


def official(cluster: StandaloneProcess, authentication: Any, timeout_s: int = 30) -> pulsar.Client:
    return pulsar.Client(
        cluster.service_url,
        authentication=authentication,
        operation_timeout_seconds=timeout_s,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def test_the_official_client_with_tokens(locked: StandaloneProcess, topic: str) -> None:
    writer = official(locked, pulsar.AuthenticationToken(token("writer")))
    reader = official(locked, pulsar.AuthenticationToken(token("reader")))
    try:
        consumer = reader.subscribe(topic, "s")
        producer = writer.create_producer(topic)
        producer.send(b"hello")
        assert consumer.receive(TIMEOUT_MS).data() == b"hello"
        with pytest.raises(pulsar.AuthorizationError):
            reader.create_producer(topic)
        with pytest.raises(pulsar.AuthorizationError):
            writer.subscribe(topic, "other")
    finally:
        writer.close()
        reader.close()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: None,
        lambda: pulsar.AuthenticationToken("x"),
        lambda: pulsar.AuthenticationToken(token("writer", -1)),
        lambda: pulsar.AuthenticationToken(jwt.encode({"sub": "writer"}, bytes(32))),
        lambda: pulsar.AuthenticationBasic("ben", "wrong"),
        lambda: pulsar.AuthenticationBasic("eve", PASSWORD),
    ],
    ids=["nobody", "no token", "expired", "another key", "wrong password", "unknown user"],
)
def test_the_official_client_with_wrong_credentials(
    locked: StandaloneProcess, topic: str, wrong: Callable[[], Any]
) -> None:
    client = official(locked, wrong(), timeout_s=3)
    try:
        # The client tries again when a broker refuses its CONNECT, and gives up after its timeout.
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
    finally:
        client.close()


def test_the_official_client_with_a_password(locked: StandaloneProcess, topic: str) -> None:
    client = official(locked, pulsar.AuthenticationBasic("ben", PASSWORD))
    try:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        assert consumer.receive(TIMEOUT_MS).data() == b"hello"
    finally:
        client.close()


def test_the_official_client_renews_its_token(locked: StandaloneProcess, topic: str) -> None:
    issued: list[float] = []

    def issue() -> str:
        issued.append(time.monotonic())
        return token("writer", 3)

    client = official(locked, pulsar.AuthenticationToken(issue))
    try:
        producer = client.create_producer(topic)
        asked_first = len(issued)
        until = time.monotonic() + 12
        while time.monotonic() < until:
            producer.send(b"x")
            time.sleep(0.1)
        assert len(issued) >= asked_first + 3
    finally:
        client.close()


def test_the_official_client_with_a_token_that_expires(
    locked: StandaloneProcess, topic: str
) -> None:
    client = official(locked, pulsar.AuthenticationToken(token("writer", 4)))
    try:
        producer = client.create_producer(topic, send_timeout_millis=15_000)
        producer.send(b"x")
        with pytest.raises(pulsar.PulsarException):  # noqa: PT012
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                producer.send(b"y")
                time.sleep(0.2)
    finally:
        client.close()


def test_our_client_and_a_right_that_is_revoked(locked: StandaloneProcess, topic: str) -> None:
    role = "guest"
    asked(locked, f"persistent/public/default/{topic}/partitions", "PUT", 1)
    path = f"persistent/public/default/{topic}/permissions/{role}"
    grant(locked, path, ["produce", "consume"])
    with blocking.connect(locked.service_url, token=token(role)) as client:
        producer = client.create_producer(topic)
        producer.send(b"x")
        grant(locked, path, None)
        # The send under way may have been stored, so it may end in doubt.
        with pytest.raises((daybook.NotAllowedError, daybook.InDoubtError)):  # noqa: PT012
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                producer.send(b"y")
                time.sleep(0.05)
        with pytest.raises(daybook.AuthorizationError, match="lacks the right"):
            producer.send(b"z")


def serve_at_both(cluster: StandaloneProcess, admin: blocking.Admin, topics: list[str]) -> None:
    """Move the topics to both brokers in turn: each bundle of a topic to another one."""
    lookup = "/lookup/v2/topic/persistent/public/default"
    bundles = sorted({str(admin.call("GET", f"{lookup}/{topic}/bundle")) for topic in topics})
    assert len(bundles) > 1
    brokers = [urlsplit(each["admin_url"]).netloc for each in cluster.ready["brokers"]]
    with blocking.connect(cluster.service_url, token=ADMIN) as client:
        for topic in topics:
            client.lookup(topic)  # so that all bundles are owned
    for bundle, broker in zip(bundles, itertools.cycle(brokers)):
        path = f"/admin/v2/namespaces/public/default/{bundle}/unload"
        admin.call("PUT", path, query={"destinationBroker": broker})


def test_brokers_ask_each_other_for_a_client(locked: StandaloneProcess, topic: str) -> None:
    """The statistics of partitions come from both brokers, with the right of the client."""
    with blocking.connect_admin(locked.admin_url, token=ADMIN) as admin:
        admin.create_topic(topic, partitions=8)
        serve_at_both(locked, admin, [f"{topic}-partition-{number}" for number in range(8)])
    path = f"persistent/public/default/{topic}/partitioned-stats"
    for role in ("admin", "writer"):
        stats = json.loads(asked(locked, path, "GET", role=role))
        assert len(stats["partitions"]) == 8
        owners = {each["ownerBroker"] for each in stats["partitions"].values()}
        assert len(owners) == 2, "the partitions are to be on both brokers"
    with pytest.raises(urllib.error.HTTPError) as caught:
        asked(locked, path, "GET", role="stranger")
    assert caught.value.code == 403


def test_another_broker_takes_over_at_once(locked: StandaloneProcess, topic: str) -> None:
    """A broker that dies is found dead by its peer, which has to prove who it is."""
    with blocking.connect(locked.service_url, token=token("writer")) as client:
        producer = client.create_producer(topic)
        producer.send(b"x")
        url = client.lookup(topic)
        (owner,) = [b["name"] for b in locked.ready["brokers"] if b["service_url"] == url]
        locked.local("kill", owner)
        producer.send(b"y")
        locked.local("start", owner)
    log = next(p for p in logs(locked) if owner not in p.name and "broker" in p.name)
    assert "another broker is dead" in log.read_text()


def logs(cluster: StandaloneProcess) -> list[Path]:
    return sorted((cluster.directory / "logs").iterdir())


def forms(secret: str) -> set[str]:
    """Return the forms in which a secret could be written down, each of them without its name."""
    raw = secret.encode()
    found = {
        secret,
        quote(secret),
        quote_plus(secret),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        raw.hex(),
        repr(raw),
    }
    if secret.count(".") == 2:  # The last part of a token is what makes it one.
        found.add(secret.rpartition(".")[2])
    return found


def secrets(cluster: StandaloneProcess) -> dict[str, set[str]]:
    """Return all forms of all secrets of the run, by name."""
    hashed = (ROOMS[cluster.directory] / "users").read_text().strip().partition(":")[2]
    key = base64.b64encode(SECRET).decode()
    return {
        "the password": forms(PASSWORD),
        "the hash of the password": forms(hashed),
        "the header of a password": {base64.b64encode(f"ben:{PASSWORD}".encode()).decode()},
        "the token of the broker": forms(BROKER_TOKEN),
        "the token of the administrator": forms(ADMIN),
        "the token of the writer": forms(token("writer")),
        "a wrong token": forms(WRONG_TOKEN),
        "a wrong password": forms(WRONG_PASSWORD),
        "the key": {key, key.rstrip("="), SECRET.hex(), repr(SECRET)},
    }


def misuse(cluster: StandaloneProcess) -> None:
    """Send secrets where they do not belong: in URLs, names, headers and wrong methods."""
    for each in cluster.ready["brokers"]:
        url = each["admin_url"]
        for secret in (ADMIN, WRONG_TOKEN, PASSWORD):
            for headers in (
                {},
                {"Authorization": f"Bearer {secret}"},
                {"Authorization": f"Basic {secret}"},
                {"Authorization": secret},
                {"X-Pulsar-Auth-Method-Name": "token", "X-Original-Principal": "x"},
            ):
                for path in (
                    f"/admin/v2/clusters?token={quote(secret)}",
                    f"/metrics?access_token={quote(secret)}",
                    "/admin/v2/persistent/public/default/none/stats",
                ):
                    request = urllib.request.Request(url + path, headers=headers)
                    with suppress(urllib.error.HTTPError):
                        urllib.request.urlopen(request, timeout=PATIENCE_S).close()
        wrong = base64.b64encode(f"ben:{WRONG_PASSWORD}".encode()).decode()
        request = urllib.request.Request(
            f"{url}/admin/v2/clusters", headers={"Authorization": f"Basic {wrong}"}
        )
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=PATIENCE_S)


def told(cluster: StandaloneProcess, topic: str) -> Iterator[tuple[str, str]]:
    """Yield what the brokers tell those who may ask for everything, by name."""
    paths = [
        "/metrics",
        "/admin/v2/brokers/configuration/runtime",
        "/admin/v2/brokers/internal-configuration",
        "/admin/v2/broker-stats/load-report",
        "/admin/v2/namespaces/public/default",
        f"/admin/v2/persistent/public/default/{topic}/stats",
        f"/admin/v2/persistent/public/default/{topic}/internalStats",
        f"/admin/v2/persistent/public/default/{topic}/explain",
        f"/admin/v2/persistent/public/default/{topic}/subscription/s/explain",
        "/admin/v2/persistent/public/default/none/stats",
    ]
    for each in cluster.ready["brokers"]:
        for path in paths:
            request = urllib.request.Request(
                each["admin_url"] + path, headers={"Authorization": f"Bearer {ADMIN}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                    yield path, answer.read().decode()
            except urllib.error.HTTPError as error:
                yield path, error.read().decode()
    token_file = ROOMS[cluster.directory] / "admin.token"
    token_file.write_text(ADMIN)
    for words in (["explain", "topic", topic], ["topics", "stats", topic]):
        command = [sys.executable, "-m", "daybook.clients.cli.main", *words]
        where = ["--admin-url", cluster.admin_url, "--token-file", str(token_file)]
        done = subprocess.run(
            [*command, *where], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        yield " ".join(words), done.stdout + done.stderr


def test_no_secret_is_told_or_written_down(locked: StandaloneProcess, topic: str) -> None:
    """This test comes last, when the logs have everything that the others caused."""
    with blocking.connect(locked.service_url, token=token("writer")) as client:
        with client.create_producer(topic) as producer:
            producer.send(b"x")
        with (
            blocking.connect(locked.service_url, basic=f"ben:{PASSWORD}") as other,
            other.subscribe(topic, "s"),
        ):
            misuse(locked)
            answers = list(told(locked, topic))
    assert any("msgRateIn" in text for _, text in answers)
    assert any(HIDDEN in text for _, text in answers), "the settings are shown"
    room = ROOMS[locked.directory]
    written = [(path.name, path.read_text()) for path in logs(locked)]
    written += [(path.name, path.read_text()) for path in room.glob("audit*")]
    assert len(written) > len(logs(locked)), "there is an audit log"
    text = "".join(each for _, each in written)
    assert "clients may send their credentials over ports without TLS" in text
    assert '"allowed":false' in text
    for name, all_forms in secrets(locked).items():
        for where, each in (*written, *answers):
            for form in all_forms:
                assert form not in each, (name, where)
    assert (room / "audit").stat().st_mode & 0o077 == 0
