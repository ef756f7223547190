"""REST on the subscriptions of readers: they are their roles', as on the port of the protocol."""

from random import Random
from typing import Any, cast

import pytest
from starlette.types import ASGIApp

from daybook.broker.admin.access import Access
from daybook.broker.admin.app import create_app
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.owned_topics import OwnedTopics
from daybook.broker.admin.replica_limit import ReplicaLimit
from daybook.broker.ownership.membership import Identity
from daybook.broker.security.configured import authentication_of
from daybook.broker.service.lookup import LookupResult
from daybook.wire.logging import silent_log
from tests.broker.security.test_readers import DRAWN, ROLES, SHARED, is_open, subscribe
from tests.broker.security.test_rights import (
    LOCKED,
    bearer,
    connected,
    full_answer,
    store_policies,
)
from tests.harness.broker import TOPIC, Broker, open_broker
from tests.harness.clocks import FixedClock

_TOPIC = "/admin/v2/persistent/public/default/t/subscription/{name}"
_NAMESPACE = "/admin/v2/namespaces/public/default"
_START = b'{"ledgerId": -1, "entryId": -1}'
REQUESTS = [
    ("POST", f"{_TOPIC}/skip_all", b"", b""),
    ("POST", f"{_TOPIC}/skip_all", b"dryRun=true", b""),
    ("POST", f"{_TOPIC}/skip/1", b"", b""),
    ("POST", f"{_TOPIC}/resetcursor", b"", _START),
    ("POST", f"{_TOPIC}/resetcursor/1", b"", b""),
    ("POST", f"{_TOPIC}/expireMessages/1", b"", b""),
    ("POST", f"{_TOPIC}/expireMessages", b"", _START),
    ("POST", f"{_TOPIC}/analyzeBacklog", b"", b""),
    ("GET", f"{_TOPIC}/explain", b"", b""),
    ("GET", f"{_TOPIC}/position/1", b"", b""),
    ("GET", f"{_TOPIC}/properties", b"", b""),
    ("PUT", f"{_TOPIC}/properties", b"", b"{}"),
    ("DELETE", _TOPIC, b"", b""),
    ("DELETE", _TOPIC, b"force=true", b""),
    ("POST", f"{_NAMESPACE}/clearBacklog/{{name}}", b"", b""),
    ("POST", f"{_NAMESPACE}/unsubscribe/{{name}}", b"", b""),
]
VOLATILE = ("DELETE", _TOPIC.replace("/persistent", "/non-persistent"), b"force=true", b"")


def rest(broker: Broker) -> ASGIApp:
    """Return the REST of a broker that owns all topics."""
    identity = Identity("here:8080", "1", "pulsar://here:6650", "http://here:8080")
    broker.lookups.result = LookupResult(
        identity.service_url, None, redirect=False, authoritative=True
    )
    parts: Any = dict.fromkeys(
        ("tenancy", "leader", "schemas", "bundles", "of_brokers", "peer_calls")
    )
    ownership: Any = type("Owns", (), {"identity": identity})
    operations = Operations(
        cluster="test",
        partitions_max=1,
        replicas=ReplicaLimit(1, frozenset()),
        store=broker.session,
        policies=broker.policies,
        ownership=ownership,
        lookups=broker.lookups,
        topics=broker.topics,
        owned=OwnedTopics(broker.topics, identity.broker_id, broker.authorization),
        **parts,
    )
    authentication = authentication_of(
        broker.config, clock=FixedClock(), rng=Random(1), log=silent_log()
    )
    return create_app(
        operations,
        cast("Any", None),
        why_not_ready=cast("Any", None),
        body_bytes_max=1 << 10,
        log=silent_log(),
        access=Access(broker.config, authentication, broker.authorization),
    )


async def send(
    app: ASGIApp, request: tuple[str, str, bytes, bytes], role: str, **more: str
) -> tuple[int, str]:
    method, path, query, body = request
    headers = {**bearer(role), **more}
    path = path.format(name=DRAWN)
    status, answer = await full_answer(
        cast("Any", app), method, path, headers, body=body, query=query
    )
    return status, answer.decode()


@pytest.mark.parametrize("request_", [*REQUESTS, VOLATILE])
async def test_rest_reaches_no_reader_of_another_role(
    request_: tuple[str, str, bytes, bytes],
) -> None:
    topic = f"non-{TOPIC}" if request_ is VOLATILE else TOPIC
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, ROLES)
        bob = await connected(cluster, "bob")
        assert is_open(await subscribe(bob, topic, DRAWN))
        app = rest(cluster.broker)
        for headers in ({}, {"x_original_principal": "alice"}):
            status, said = await send(app, request_, "root" if headers else "alice", **headers)
            assert status == 403, said
            assert f"{DRAWN} is that of a reader of another role" in said
        assert is_open(await subscribe(bob, topic, DRAWN, 2))  # It is there, with its consumer.
        for role in ("bob", "owner", "root"):
            status, said = await send(app, request_, role)
            assert status != 403, said


async def test_rest_reaches_a_subscription_that_is_no_readers() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, ROLES)
        bob = await connected(cluster, "bob")
        assert is_open(await subscribe(bob, TOPIC, DRAWN, durable=True, kind=SHARED))
        assert (await send(rest(cluster.broker), REQUESTS[0], "alice"))[0] == 204
