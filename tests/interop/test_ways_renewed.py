"""Apache Pulsar's clients whose tokens expire while they produce and consume."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daybook.broker.security.oidc import ASK_AGAIN_S
from tests.harness.processes import wait_until
from tests.harness.secure import SecureCluster, token
from tests.interop.ways import Ways
from tests.interop.ways_in import GO, JAVA, OF_MESSAGES, PYTHON, asked, open_client

pytestmark = pytest.mark.interop

LASTS_S = 4.0
STAYS_S = 14


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    directory = tmp_path_factory.mktemp("renewed")
    cluster = SecureCluster(directory, audit_file=directory / "audit.jsonl")
    try:
        cluster.start()
        cluster.grant()
        cluster.issuer.lasts_s = LASTS_S
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module", params=sorted(OF_MESSAGES))
def client(request: pytest.FixtureRequest, secure: SecureCluster) -> Iterator[Ways]:
    running = open_client(request.param, secure)
    yield running
    running.close()


@contextmanager
def renewed_file(path: Path) -> Iterator[Path]:
    """Put a token into a file, and a new one every half second: each lasts four seconds."""
    over = threading.Event()

    def write() -> None:
        new = path.with_suffix(".new")
        new.write_text(token("alice", LASTS_S))
        new.replace(path)

    def renew() -> None:
        while not over.wait(0.5):
            write()

    write()
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield path
    finally:
        over.set()
        thread.join()


def connections(cluster: SecureCluster) -> int:
    """Return how often alice has connected."""
    lines = map(json.loads, (cluster.directory / "audit.jsonl").read_text().splitlines())
    return sum(line["action"] == "CONNECT" and line.get("role") == "alice" for line in lines)


def counts(answer: str) -> tuple[int, int, int, str, int]:
    """Return how many messages were stored, came, came again; the failure; calls for a token."""
    pattern = r"ok stored=(\d+) received=(\d+) repeated=(\d+) failed=\{(.*)\} supplied=(\d+)"
    found = re.fullmatch(pattern, answer)
    assert found, answer
    return int(found[1]), int(found[2]), int(found[3]), found[4], int(found[5])


@pytest.mark.parametrize("way", ["supplier", "file", "oauth2"])
def test_a_client_renews_its_token(secure: SecureCluster, client: Ways, way: str) -> None:
    """The connections stay, each message comes once, and nothing is refused."""
    tokens_before = secure.issuer.asked["/token"]
    before = connections(secure)
    with renewed_file(secure.directory / "renewed.token") as path:
        given = secure.oauth2() if way == "oauth2" else {"auth": way, "file": str(path)}
        answer = asked(client, secure, "stay", topic=f"renewed-{way}", seconds=STAYS_S, **given)
    stored, received, repeated, failed, supplied = counts(answer)
    assert failed == "", answer
    assert stored >= 20
    assert (received, repeated) == (stored, 0)
    if way == "supplier":
        assert supplied >= 3
    if way == "oauth2":
        assert secure.issuer.asked["/token"] - tokens_before >= 3
    # There is one to each broker.  A busy machine may cost some; one for each token would be more.
    assert connections(secure) - before <= 6


def test_the_issuer_exchanges_its_key(secure: SecureCluster, client: Ways) -> None:
    """Clients go on with tokens of the new key, and the old key counts no more."""
    issuer = secure.issuer
    answer = asked(client, secure, topics="exchanged", **secure.oauth2())
    assert answer == "ok 3 messages"
    wait_until(
        lambda: time.monotonic() > issuer.keys_asked_s + ASK_AGAIN_S, "brokers may ask for keys"
    )
    old = issuer.token("alice", 3600)
    before = connections(secure)
    exchange = threading.Timer(3, issuer.rotate)
    exchange.start()
    answer = asked(client, secure, "stay", topic="exchanged", seconds=STAYS_S, **secure.oauth2())
    exchange.join()
    stored, received, repeated, failed, _ = counts(answer)
    assert failed == "", answer
    assert (received, repeated) == (stored, 0)
    # A busy machine may cost a connection or two; one for each token would be more.
    assert connections(secure) - before <= 6
    answer = asked(client, secure, "produce", topic="exchanged", auth="token", token=old, timeout=2)
    assert answer.startswith("refused "), answer


# A client whose token has expired, and which has no other, shows this.
EXPIRED = {PYTHON: "Timeout", JAVA: "TimeoutException=1", GO: "message send timeout"}
LOGGED = "the credentials have expired|the token has expired"


def test_a_client_without_a_new_token_is_disconnected(secure: SecureCluster, client: Ways) -> None:
    before = client.log_size
    answer = asked(
        client,
        secure,
        "stay",
        auth="token",
        token=token("alice", LASTS_S),
        topic="expired",
        seconds=60,
        timeout=10,
    )
    stored, _, _, failed, _ = counts(answer)
    assert stored > 0
    assert re.search(EXPIRED[client.name], failed), answer
    if client.name == GO:
        assert re.search(LOGGED, client.log_from(before))
    brokers = "".join(each.log.read_text() for each in secure.brokers)
    assert "the credentials have expired, and were not renewed in time" in brokers
