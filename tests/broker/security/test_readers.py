"""Readers in a namespace whose subscriptions have to begin with the role (Prefix)."""

from typing import Any

import pytest
import trio.testing

from daybook.broker.namespaces import records
from daybook.broker.security.grants import is_of_reader
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.security.test_rights import LOCKED, NAMESPACE, connected, store_policies
from tests.harness.broker import TOPIC, Cluster, open_broker

ROLES = {"auth_policies": {"namespace_auth": {"alice": ["consume"], "bob": ["consume"]}}}
PREFIX = {**ROLES, "subscription_auth_mode": "Prefix"}
DRAWN = "reader-0123456789"
SHARED = pb.CommandSubscribe.Shared
TOPICS = pytest.mark.parametrize("topic", [TOPIC, f"non-{TOPIC}"])


async def subscribe(client: Any, topic: str, name: str, number: int = 1, **options: Any) -> Any:
    """Subscribe like a reader; return the answer."""
    options = {"durable": False, "kind": SHARED, **options}
    return await client.subscribe(number, topic=topic, name=name, **options)


def is_open(answer: Any) -> bool:
    return isinstance(answer, pb.CommandSuccess)


def refused(answer: Any) -> str:
    assert answer.error == pb.AuthorizationError
    return str(answer.message)


@pytest.mark.parametrize(
    ("name", "durable", "expected"),
    [
        (DRAWN, False, True),
        ("multiTopicsReader-0123456789", False, True),
        (DRAWN, True, False),
        ("Reader-0123456789abcdef0123456789abcdef", False, True),
        ("Reader-0123456789abcdef0123456789abcde", False, False),
        ("reader-sales", False, True),
        ("reader-sales", True, False),
        ("reader-sale", False, False),
        ("reader-billing", False, False),
        ("reader-Sales", False, False),
        ("reader-012345678", False, False),
        ("reader-01234567890", False, False),
        (f"x{DRAWN}", False, False),
        ("reader-ABCDEF0123", False, False),
        (f"{DRAWN}\n", False, False),
    ],
)
def test_only_a_drawn_name_is_of_a_reader(name: str, durable: bool, expected: bool) -> None:
    assert is_of_reader(name, durable=durable) is expected


@TOPICS
async def test_a_reader_needs_no_prefix(topic: str) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, PREFIX)
        alice = await connected(cluster, "alice")
        assert is_open(await subscribe(alice, topic, DRAWN))
        assert is_open(await subscribe(alice, topic, "alice-1", 2, durable=True))
        for number, (name, durable) in enumerate(
            [("billing", False), ("bob-1", False), ("reader-fedcba9876", True)], 3
        ):
            said = refused(await subscribe(alice, topic, name, number, durable=durable))
            assert f"subscription {name} has to begin with 'alice'" in said
        stranger = await connected(cluster, "stranger")
        assert "lacks the right 'consume'" in refused(await subscribe(stranger, topic, DRAWN))


@TOPICS
async def test_a_reader_stays_when_the_prefix_is_demanded(topic: str) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        store = cluster.broker.session
        await store_policies(store, ROLES)
        alice = await connected(cluster, "alice")
        assert is_open(await subscribe(alice, topic, DRAWN))
        assert is_open(await subscribe(alice, topic, "billing", 2))
        await store.set(records.policies_path(NAMESPACE), records.encode(PREFIX), -1)
        (closed,) = await alice.wait(pb.CommandCloseConsumer)
        assert closed.consumer_id == 2
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not alice.bodies(pb.CommandCloseConsumer)


@TOPICS
async def test_a_reader_is_not_in_the_place_of_another_role(topic: str) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, PREFIX)
        alice, bob = [await connected(cluster, each) for each in ("alice", "bob")]
        assert is_open(await subscribe(bob, topic, DRAWN))
        assert "of another role" in refused(await subscribe(alice, topic, DRAWN))
        again = await connected(cluster, "bob")
        assert is_open(await subscribe(again, topic, DRAWN))


async def test_a_reader_does_not_enter_a_durable_subscription() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, PREFIX)
        root, alice = [await connected(cluster, each) for each in ("root", "alice")]
        assert is_open(await subscribe(root, TOPIC, DRAWN, durable=True))
        answer = await subscribe(alice, TOPIC, DRAWN)
        assert answer.error == pb.NotAllowedError
        assert "is durable" in answer.message


async def test_the_roles_of_a_subscription_count_for_a_reader() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        policies = {**ROLES["auth_policies"], "subscription_auth_roles": {DRAWN: ["bob"]}}
        await store_policies(cluster.broker.session, {**PREFIX, "auth_policies": policies})
        alice = await connected(cluster, "alice")
        assert "is for other roles" in refused(await subscribe(alice, TOPIC, DRAWN))


SHORT = "reader-sales"


def granted(*roles: str) -> dict[str, Any]:
    """Return the policies of a namespace where these roles have some right."""
    grants: dict[str, Any] = {"namespace_auth": {"alice": ["consume"], "bob": ["consume"]}}
    for number, role in enumerate(roles):
        match number % 3:
            case 0:
                grants.setdefault("destination_auth", {}).setdefault(TOPIC, {})[role] = ["produce"]
            case 1:
                grants.setdefault("subscription_auth_roles", {})["x"] = [role]
            case _:
                grants["namespace_auth"][role] = ["consume"]
    return {"auth_policies": grants, "subscription_auth_mode": "Prefix"}


@TOPICS
async def test_a_reader_with_a_short_name_needs_no_prefix_and_keeps_it(topic: str) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, granted("sales", "al*", "readers"))
        alice, bob, root = [await connected(cluster, each) for each in ("alice", "bob", "root")]
        assert is_open(await subscribe(alice, topic, SHORT))
        for other in (bob, root):
            assert "of another role" in refused(await subscribe(other, topic, SHORT))
        assert "has to begin with" in refused(await subscribe(alice, topic, SHORT, 2, durable=True))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not alice.bodies(pb.CommandCloseConsumer)


@pytest.mark.parametrize("role", ["reader", "r", "reader-s", SHORT, "read*", "*", "*der"])
async def test_a_short_name_that_another_role_may_have_chosen_needs_the_prefix(role: str) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        for place in range(3):
            policies = granted(*["other"] * place, role)
            path = records.policies_path(NAMESPACE)
            if not place:
                await store_policies(cluster.broker.session, policies)
            else:
                await cluster.broker.session.set(path, records.encode(policies), -1)
                await trio.testing.wait_all_tasks_blocked(0.05)
            alice = await connected(cluster, "alice")
            assert "has to begin with" in refused(await subscribe(alice, TOPIC, SHORT))
            assert is_open(await subscribe(alice, TOPIC, DRAWN, 2))


async def test_a_reader_with_a_short_name_makes_way_for_a_role_that_may_choose_it() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        store = cluster.broker.session
        await store_policies(store, granted())
        alice = await connected(cluster, "alice")
        assert is_open(await subscribe(alice, TOPIC, SHORT))
        policies = granted("x", "y", "reader")
        await store.set(records.policies_path(NAMESPACE), records.encode(policies), -1)
        await alice.wait(pb.CommandCloseConsumer)
        await trio.testing.wait_all_tasks_blocked(0.05)
        reader = await connected(cluster, "reader")
        assert is_open(await subscribe(reader, TOPIC, SHORT, durable=True))


async def test_without_the_mode_roles_share_a_short_name() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session, ROLES)
        for client in await _two(cluster):
            assert is_open(await subscribe(client, TOPIC, SHORT))


async def test_without_authorization_readers_share_their_names() -> None:
    async with open_broker(settings={**LOCKED, "authorization": False}) as cluster:
        alice, bob = await _two(cluster)
        assert is_open(await subscribe(bob, TOPIC, DRAWN))
        assert is_open(await subscribe(alice, TOPIC, DRAWN))


async def _two(cluster: Cluster) -> list[Any]:
    return [await connected(cluster, each) for each in ("alice", "bob")]
