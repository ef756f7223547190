"""Apache Pulsar's clients with roles that may do some things, and not others."""

import re
from collections.abc import Iterator

import pytest

from tests.harness.secure import SPREAD, SecureCluster, token
from tests.interop.ways import Ways
from tests.interop.ways_in import (
    ADMINS,
    CLIENTS,
    GO,
    GO_ADMIN,
    JAVA,
    JAVA_ADMIN,
    OF_MESSAGES,
    PYTHON,
    asked,
    open_client,
)

pytestmark = pytest.mark.interop

PARTITIONED, ALONE = "rights-partitioned", "rights-alone"
PATTERN = "persistent://public/default/seen-.*"
REFUSED_S = 2


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    cluster = SecureCluster(tmp_path_factory.mktemp("rights"))
    try:
        cluster.start()
        cluster.grant()
        cluster.spread(SPREAD)
        with cluster.admin() as admin:
            admin.create_topic(PARTITIONED, partitions=4)
            admin.create_topic(ALONE, partitions=2)
            # This role has rights on one topic, and none on the namespace.
            path = f"/admin/v2/persistent/public/default/{ALONE}/permissions/single"
            admin.call("POST", path, body=["produce", "consume"])
            for name in ("seen-a", "seen-b", "unseen"):
                admin.create_topic(name)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module", params=sorted(OF_MESSAGES))
def client(request: pytest.FixtureRequest, secure: SecureCluster) -> Iterator[Ways]:
    running = open_client(request.param, secure)
    yield running
    running.close()


def as_role(client: Ways, secure: SecureCluster, role: str, do: str, **fields: object) -> str:
    given = {"auth": "token", "token": token(role), **fields}
    return asked(client, secure, do, **given)


# The error of a client whose role lacks a right.  Python's client logs the reason.
SHOWS = {
    PYTHON: "^refused AuthorizationError ",
    JAVA: "^refused AuthorizationException .*the role '{role}' lacks the right '{right}'",
    GO: "^refused .*AuthorizationError",
}
OVER_HTTP = {
    PYTHON: "^refused ConnectError ",
    JAVA: "^refused PulsarClientException .*the role '{role}' lacks the right '{right}'",
    GO: "^refused Code: 403, .*the role '{role}' lacks the right '{right}'",
}


@pytest.mark.parametrize(
    ("role", "do", "right"),
    [
        ("reader", "produce", "produce"),
        ("writer", "consume", "consume"),
        ("stranger", "produce", "produce or consume"),
        ("stranger", "consume", "produce or consume"),
        ("single", "produce", "produce or consume"),
    ],
)
@pytest.mark.parametrize("topic", [*SPREAD[:2], "rights-new"])
def test_a_role_without_the_right(
    secure: SecureCluster, client: Ways, role: str, do: str, right: str, topic: str
) -> None:
    answer = as_role(client, secure, role, do, topic=topic, timeout=REFUSED_S)
    shows = SHOWS[client.name].format(role=role, right=right)
    assert re.search(shows, answer), (shows, answer)


def test_a_role_without_the_right_to_look_a_topic_up_over_https(
    secure: SecureCluster, client: Ways
) -> None:
    where = secure.one_url("https")
    answer = as_role(client, secure, "stranger", "produce", url=where, timeout=REFUSED_S)
    shows = OVER_HTTP[client.name].format(role="stranger", right="produce or consume")
    assert re.search(shows, answer), (shows, answer)


@pytest.mark.parametrize(("role", "do"), [("writer", "produce"), ("reader", "consume")])
def test_a_role_with_one_right(secure: SecureCluster, client: Ways, role: str, do: str) -> None:
    done = {"produce": "ok stored", "consume": "ok subscribed"}
    for topic in SPREAD:
        assert as_role(client, secure, role, do, topic=topic) == done[do]


def test_topics_with_partitions(secure: SecureCluster, client: Ways) -> None:
    answer = as_role(client, secure, "alice", "partitions", topic=PARTITIONED)
    assert answer == "ok 4 partitions, 10 messages"
    answer = as_role(client, secure, "single", "partitions", topic=ALONE)
    assert answer == "ok 2 partitions, 10 messages"
    answer = as_role(client, secure, "writer", "partitions", topic=PARTITIONED, timeout=REFUSED_S)
    assert re.search(SHOWS[client.name].format(role="writer", right="consume"), answer), answer


def test_schemas(secure: SecureCluster, client: Ways) -> None:
    topic = f"rights-schema-{client.name}"
    assert as_role(client, secure, "alice", "schema", topic=topic) == "ok s 7"
    answer = as_role(client, secure, "reader", "schema", topic=topic, timeout=REFUSED_S)
    assert re.search(SHOWS[client.name].format(role="reader", right="produce"), answer), answer


def test_patterns(secure: SecureCluster, client: Ways) -> None:
    """The list of the topics needs a right on the namespace."""
    for name in ("seen-a", "seen-b", "unseen"):
        assert as_role(client, secure, "writer", "produce", topic=name) == "ok stored"
    # Only two messages of each run are new to a subscription of its own.
    given = {"pattern": PATTERN, "subscription": f"pattern-{client.name}", "count": 2}
    answer = as_role(client, secure, "reader", "pattern", **given)
    assert set(answer.split()) <= {"ok", "seen-a", "seen-b"}, answer
    for role in ("stranger", "single", "writer"):
        answer = as_role(client, secure, role, "pattern", **given, timeout=REFUSED_S)
        shows = {**SHOWS, PYTHON: "^refused LookupError "}[client.name]
        assert re.search(shows.format(role=role, right="consume"), answer), answer


# The error of an admin client whose role lacks a right.
ADMIN_SHOWS = {
    JAVA_ADMIN: "^refused the role '{role}' lacks the right '{right}'",
    GO_ADMIN: "^refused code: 403 reason: the role '{role}' lacks the right '{right}'",
}


@pytest.mark.parametrize("name", [name for name in CLIENTS if name in ADMINS])
def test_admin_clients(secure: SecureCluster, name: str) -> None:
    client = open_client(name, secure)
    try:
        given = {"auth": "token", "token": token("alice")}
        assert asked(client, secure, **given) == "ok statistics of 4 topics"
        for role in ("stranger", "writer", "single"):
            answer = asked(client, secure, auth="token", token=token(role))
            shows = ADMIN_SHOWS[name].format(role=role, right="consume")
            assert re.search(shows, answer), (shows, answer)
    finally:
        client.close()
