"""Every command and every path has a right; who may what: nobody, a wrong role, a right one."""

import re
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.routing import Route

from daybook.broker.admin import bundles, namespaces, schemas, sinks, subscriptions, topics
from daybook.broker.admin.access import Access, domain_of
from daybook.broker.admin.app import create_app
from daybook.broker.admin.handling import Call, Endpoints, Handler, TargetsOf
from daybook.broker.admin.sink_bodies import BatchBody
from daybook.broker.config import parse
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import TenantInfo
from daybook.broker.protocol import session
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.configured import authentication_of
from daybook.broker.security.resources import Resource, of_topic
from daybook.broker.security.rights import COMMANDS, ON_TOPICS, PATHS, Right
from daybook.broker.topics.producer import Producer
from daybook.wire.logging import silent_log
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.broker.security.test_sessions import SETTINGS, token
from tests.broker.test_topic_watchers import Topics
from tests.harness.broker import TOPIC, Cluster, open_broker
from tests.harness.clocks import FixedClock

T = pb.BaseCommand
LOCKED = {**SETTINGS, "authorization": True, "super_users": ["root"]}
NAMESPACE = "public/default"
SCHEMA = pb.Schema(name="x", schema_data=b"", type=pb.Schema.String)
POLICIES = {
    "auth_policies": {
        "namespace_auth": {"reader": ["consume"], "helper": ["functions"]},
        "destination_auth": {
            TOPIC: {"writer": ["produce"]},
            f"non-{TOPIC}": {"writer": ["produce"]},
        },
        "subscription_auth_roles": {},
    }
}
ROLES = ("stranger", "helper", "writer", "reader", "owner", "root")
ALLOWED: Mapping[Right, set[str]] = {
    Right.OPEN: set(ROLES),
    Right.IDENTIFIED: set(ROLES),
    Right.LOOKUP: {"writer", "reader", "owner", "root"},
    Right.PRODUCE: {"writer", "owner", "root"},
    Right.CONSUME: {"reader", "owner", "root"},
    Right.STAGE: {"writer", "owner", "root"},
    Right.DECIDE: {"owner", "root"},
    Right.ADMIN: {"owner", "root"},
    Right.METRICS: {"root"},
    Right.SUPER_USER: {"root"},
    Right.BROKER: {"root"},
}


async def store_policies(store: Any, fields: Any = POLICIES) -> None:
    tenant = TenantInfo(["owner"], ["test"])
    await store.create(records.policies_path("public"), records.encode(tenant), make_parents=True)
    await store.create(records.policies_path(NAMESPACE), records.encode(fields))


# -- commands


def test_every_command_that_is_served_has_a_right_and_no_other() -> None:
    assert COMMANDS.keys() == session._SERVED | {T.AUTH_RESPONSE}


def requests() -> dict[int, tuple[Any, type[Any]]]:
    """Return a request for each command that names a topic or a namespace, and its answer."""
    return {
        T.LOOKUP: (pb.CommandLookupTopic(topic=TOPIC), pb.CommandLookupTopicResponse),
        T.PARTITIONED_METADATA: (
            pb.CommandPartitionedTopicMetadata(topic=TOPIC),
            pb.CommandPartitionedTopicMetadataResponse,
        ),
        T.GET_SCHEMA: (pb.CommandGetSchema(topic=TOPIC), pb.CommandGetSchemaResponse),
        T.GET_TOPICS_OF_NAMESPACE: (
            pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE),
            pb.CommandGetTopicsOfNamespaceResponse,
        ),
        T.WATCH_TOPIC_LIST: (
            pb.CommandWatchTopicList(namespace=NAMESPACE, watcher_id=1, topics_pattern=".*"),
            pb.CommandWatchTopicListSuccess,
        ),
        T.PRODUCER: (
            pb.CommandProducer(topic=TOPIC, producer_id=1),
            pb.CommandProducerSuccess,
        ),
        T.GET_OR_CREATE_SCHEMA: (
            pb.CommandGetOrCreateSchema(
                topic=TOPIC, schema=pb.Schema(name="x", schema_data=b"", type=pb.Schema.String)
            ),
            pb.CommandGetOrCreateSchemaResponse,
        ),
        T.SUBSCRIBE: (
            pb.CommandSubscribe(
                topic=TOPIC, subscription="s", consumer_id=1, subType=pb.CommandSubscribe.Shared
            ),
            pb.CommandSuccess,
        ),
    }


def refused(answer: Any) -> bool:
    """Return True if the answer says that a right lacks."""
    code = getattr(answer, "error", None) or getattr(answer, "error_code", None)
    if code != pb.AuthorizationError:
        return False
    reason = getattr(answer, "message", "") or getattr(answer, "error_message", "")
    assert "lacks the right" in reason
    return True


@pytest.mark.parametrize("command", [n for n, r in COMMANDS.items() if n in requests()])
async def test_who_may_send_a_command(command: int) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session)
        for role in ROLES:
            client = await connected(cluster, role)
            request, answer = requests()[command]
            got = await client.ask(request, answer)
            assert refused(got) is (role not in ALLOWED[COMMANDS[command]]), role


def test_all_other_commands_concern_what_the_connection_has_opened() -> None:
    others = {number for number in COMMANDS if number not in requests()}
    assert {COMMANDS[number] for number in others} == {Right.OPEN, Right.IDENTIFIED}


async def connected(cluster: Cluster, role: str) -> Any:
    client = await cluster.client(connect=False)
    client.tell(
        pb.CommandConnect(
            client_version="test",
            protocol_version=19,
            auth_method_name="token",
            auth_data=token(role),
        )
    )
    await client.wait(pb.CommandConnected)
    return client


async def test_a_producer_that_makes_a_subscription_needs_its_right() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        await store_policies(cluster.broker.session)
        client = await connected(cluster, "writer")
        answer = await client.producer(initial_subscription_name="s")
        assert refused(answer)
        assert isinstance(await client.producer(), pb.CommandProducerSuccess)


async def test_a_revoked_right_closes_producers_and_consumers() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        store = cluster.broker.session
        await store_policies(store)
        writer, reader, root = [await connected(cluster, r) for r in ("writer", "reader", "root")]
        await writer.producer()
        await root.producer()
        await reader.subscribe(kind=pb.CommandSubscribe.Shared)
        await root.subscribe(kind=pb.CommandSubscribe.Shared)
        await store.set(records.policies_path(NAMESPACE), b"{}", -1)
        (closed,) = await writer.wait(pb.CommandCloseProducer)
        assert closed.producer_id == 1
        await reader.wait(pb.CommandCloseConsumer)
        assert refused(await writer.producer())
        assert refused(await reader.subscribe(kind=pb.CommandSubscribe.Shared))
        (topic,) = cluster.broker.topics.loaded.values()
        assert [role_of(each) for each in topic.producers.by_name.values()] == ["root"]
        (subscription,) = topic.subscriptions.by_name.values()
        assert [role_of(each) for each in subscription.consumers.values()] == ["root"]
        root.send(1)
        await root.receipts(1)


@pytest.mark.parametrize("namespace_auth", [{}, {"reader": ["consume"]}])
async def test_a_watcher_that_has_lost_its_right_is_told_no_more_names(
    namespace_auth: dict[str, list[str]],
) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        store = cluster.broker.session
        await store_policies(store)
        reader = await connected(cluster, "reader")
        watch, success = requests()[T.WATCH_TOPIC_LIST]
        await reader.ask(watch, success)
        changed = {"auth_policies": {"namespace_auth": namespace_auth}}
        await store.set(records.policies_path(NAMESPACE), records.encode(changed), -1)
        root = await connected(cluster, "root")
        await root.ask(watch, success)
        await Topics(cluster.broker.store).create("t-new")
        await root.wait(pb.CommandWatchTopicUpdate)
        if namespace_auth:
            (update,) = await reader.wait(pb.CommandWatchTopicUpdate)
            assert list(update.new_topics) == [f"{TOPIC}-new"]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not reader.bodies(pb.CommandWatchTopicUpdate)


def role_of(opened: Producer | Consumer) -> str:
    assert opened.connection.caller is not None
    return opened.connection.caller.role


async def test_an_admin_who_is_dismissed_loses_its_producers() -> None:
    async with open_broker(settings=LOCKED) as cluster:
        store = cluster.broker.session
        await store_policies(store)
        owner = await connected(cluster, "owner")
        await owner.producer()
        await store.set(records.policies_path("public"), records.encode(TenantInfo()), -1)
        await owner.wait(pb.CommandCloseProducer)


async def test_a_right_that_is_revoked_while_a_consumer_is_opened_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_broker(settings=LOCKED) as cluster:
        store = cluster.broker.session
        await store_policies(store)
        reader = await connected(cluster, "reader")
        await reader.subscribe(kind=pb.CommandSubscribe.Shared)
        check = cluster.broker.authorization.check

        async def check_and_revoke(*arguments: Any) -> None:
            await check(*arguments)
            await store.set(records.policies_path(NAMESPACE), b"{}", -1)
            if not closed:  # So the rights were checked again before the second one is there.
                closed.extend(await reader.wait(pb.CommandCloseConsumer))

        closed: list[Any] = []
        monkeypatch.setattr(cluster.broker.authorization, "check", check_and_revoke)
        cluster.broker.revocation._changed.clear()
        await reader.subscribe(2, kind=pb.CommandSubscribe.Shared)
        monkeypatch.setattr(cluster.broker.authorization, "check", check)
        closed += await reader.wait(pb.CommandCloseConsumer)
        assert [each.consumer_id for each in closed] == [1, 2]


# -- paths


async def answered(_: Call[Any]) -> None:
    """Stand for every handler: the matrix is about what comes before it."""


class Stubs(Endpoints[Any]):
    def route(
        self,
        path: str,
        handlers: Mapping[str, Handler[Any]],
        targets: TargetsOf[Any] | None = None,
    ) -> Route:
        return super().route(path, dict.fromkeys(handlers, answered), targets)


class OneTopic:
    """Stands for the sinks of a broker, all of which write to one topic."""

    async def targets(self, name: str, topics: Iterable[str]) -> list[Resource]:
        del name, topics
        return [of_topic(TopicName.parse(TOPIC))]

    async def targets_of_state(self, name: str, topics: Iterable[str]) -> list[Resource]:
        return await self.targets(name, topics)

    async def targets_of_abort(self, name: str, body: BatchBody) -> list[Resource]:
        del name, body
        return [of_topic(TopicName.parse(TOPIC))]

    def targets_of_attempt(self, name: str, attempt: str) -> list[Resource]:
        del name, attempt
        return [of_topic(TopicName.parse(TOPIC))]


def app(access: Access) -> Starlette:
    endpoints = Stubs(OneTopic(), 1 << 10, silent_log(), access)
    modules: list[Any] = [bundles, subscriptions, namespaces, sinks, schemas, topics]
    return Starlette(routes=[route for each in modules for route in each.routes(endpoints)])


BODY = b'{"queryId": "q", "batchId": 0, "topics": {}}'  # Requests about sinks have one.


async def status(of: Starlette, method: str, path: str, **headers: str) -> int:
    return await asked(of, method, path, headers)


async def asked(
    of: Starlette,
    method: str,
    path: str,
    headers: Mapping[str, str],
    *,
    body: bytes = BODY,
    query: bytes = b"",
) -> int:
    """Return the status of the answer."""
    return (await full_answer(of, method, path, headers, body=body, query=query))[0]


async def full_answer(
    of: Starlette,
    method: str,
    path: str,
    headers: Mapping[str, str],
    *,
    body: bytes = BODY,
    query: bytes = b"",
) -> tuple[int, bytes]:
    """Return the status of the answer, and its body."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [
        (name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()
    ]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": raw,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("broker", 80),
        "root_path": "",
    }
    await of(scope, receive, send)
    return int(sent[0]["status"]), b"".join(each.get("body", b"") for each in sent[1:])


def access(settings: Any = LOCKED, fields: Any = None) -> tuple[Access, Any]:
    config = parse(settings)
    store = MemoryStore(FixedClock()).session("us")
    policies = Policies(store, config)
    authentication = authentication_of(config, clock=FixedClock(), rng=Random(1), log=silent_log())
    return Access(config, authentication, Authorization(store, policies, config)), store


NAMES = {"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s"}


def example(template: str) -> str:
    return re.sub(r"\{(\w+)(:path)?\}", lambda m: NAMES.get(m[1], "1"), template)


def bearer(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token(role).decode()}"}


async def test_who_may_send_a_request() -> None:
    admits, store = access()
    await store_policies(store)
    served = app(admits)
    paths = served_paths(admits)
    assert len(paths) > 250
    for method, template in paths:
        path, right = example(template), PATHS[method, template]
        assert await status(served, method, path) == 401, (method, path)
        for role in ROLES:
            expected = 204 if role in ALLOWED[right] else 403
            found = await status(served, method, path, **bearer(role))
            assert found == expected, (method, path, role, right)


async def test_wrong_credentials_are_refused_in_rest_too() -> None:
    admits, store = access({**LOCKED, "anonymous_role": "reader"})
    await store_policies(store)
    served = app(admits)
    path = "/lookup/v2/topic/persistent/public/default/t"
    assert await status(served, "GET", path) == 204
    for wrong in ("Bearer x", "Basic eDp5", "Digest x", "x"):
        assert await status(served, "GET", path, authorization=wrong) == 401


async def test_a_missing_namespace_is_refused_like_any_other() -> None:
    admits, store = access()
    await store_policies(store)
    served = app(admits)
    path = "/admin/v2/persistent/public/missing/t/stats"
    assert await status(served, "GET", path, **bearer("reader")) == 403
    assert await status(served, "GET", path, **bearer("root")) == 204


async def test_an_original_principal_never_adds_a_right() -> None:
    admits, store = access()
    await store_policies(store)
    served = app(admits)
    path = "/admin/v2/persistent/public/default/t"

    async def asked(role: str, original: str, where: str = path, method: str = "DELETE") -> int:
        headers = {**bearer(role), "X_Original_Principal": original}
        return await status(served, method, where, **headers)

    assert await asked("root", "owner") == 204
    assert await asked("root", "writer") == 403
    assert await asked("owner", "root") == 403
    assert await asked("stranger", "root") == 403
    assert await asked("proxy", "root") == 403, "a proxy needs the right, too"
    assert await status(served, "DELETE", path, **bearer("proxy")) == 403
    internal = "/admin/v2/daybook/bundles/public/default/1/hold"
    assert await asked("root", "", internal, "POST") == 204
    assert await asked("root", "owner", internal, "POST") == 403
    assert await asked("root", "root", internal, "POST") == 204


def served_paths(admits: Access) -> list[tuple[str, str]]:
    """Return method and template of all requests that the REST serves."""
    routes: set[tuple[str, str]] = set()

    class Collecting(Stubs):
        def route(
            self,
            path: str,
            handlers: Mapping[str, Handler[Any]],
            targets: TargetsOf[Any] | None = None,
        ) -> Route:
            routes.update((method, path) for method in handlers)
            assert (targets is not None) is any(PATHS[m, path] in ON_TOPICS for m in handlers)
            return super().route(path, handlers, targets)

    endpoints = Collecting(None, 1 << 10, silent_log(), admits)
    modules: list[Any] = [bundles, subscriptions, namespaces, sinks, schemas, topics]
    for each in modules:
        each.routes(endpoints)
    return sorted(routes)


def test_a_route_without_a_right_cannot_be_made() -> None:
    admits, _ = access()
    endpoints = Stubs(None, 1 << 10, silent_log(), admits)
    with pytest.raises(KeyError):
        endpoints.route("/admin/v2/new", {"GET": answered})


@pytest.mark.parametrize(
    "wrong",
    [
        {"authorization": True},
        {**SETTINGS, "authorization": True},
        {**LOCKED, "anonymous_role": "root"},
    ],
)
def test_authorization_needs_somebody_who_can_grant_rights(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"super_users|authentication"):
        parse(wrong)


@pytest.mark.parametrize("tenant", ["a%2F%2Fb", "%2F", "..%2F..", "..", "public%2Fdefault"])
@pytest.mark.parametrize("path", ["tenants", "namespaces"])
async def test_a_tenant_that_cannot_be_one_is_no_bug(path: str, tenant: str) -> None:
    admits, store = access()
    await store_policies(store)
    for role in ("stranger", "root"):
        found = await status(app(admits), "GET", f"/admin/v2/{path}/{tenant}", **bearer(role))
        assert found == 412


@pytest.mark.parametrize(
    ("path", "domain"),
    [
        ("/admin/v2/persistent/non-persistent/ns/t", "persistent"),
        ("/admin/v2/non-persistent/persistent/ns/t", "non-persistent"),
        ("/admin/v2/persistent/t/non-persistent/x", "persistent"),
        ("/admin/v2/schemas/non-persistent/ns/t/schema", "persistent"),
        ("/lookup/v2/topic/persistent/non-persistent/ns/t", "persistent"),
        ("/lookup/v2/topic/non-persistent/t/ns/t", "non-persistent"),
    ],
)
def test_a_tenant_with_the_name_of_a_domain_is_not_taken_for_it(path: str, domain: str) -> None:
    assert domain_of(path) == domain


@pytest.mark.parametrize("tenant", ["persistent", "non-persistent"])
async def test_rights_in_a_tenant_with_the_name_of_a_domain(tenant: str) -> None:
    """Such a tenant cannot be made any more, but Pulsar may have made one."""
    admits, store = access()
    await store_policies(store)
    namespace = f"{tenant}/default"
    granted = {f"persistent://{namespace}/t": {"writer": ["produce"]}}
    policies = {"auth_policies": {"namespace_auth": {}, "destination_auth": granted}}
    await store.create(records.policies_path(tenant), records.encode(TenantInfo([], [])))
    await store.create(records.policies_path(namespace), records.encode(policies))
    served = app(admits)
    for domain, expected in (("persistent", 204), ("non-persistent", 403)):
        path = f"/lookup/v2/topic/{domain}/{namespace}/t"
        assert await status(served, "GET", path, **bearer("writer")) == expected


METRICS_BY: list[tuple[dict[str, Any], dict[str, int]]] = [
    (SETTINGS, {"": 200, "stranger": 200, "root": 200}),
    ({**SETTINGS, "authenticate_metrics": True}, {"": 401, "stranger": 200, "root": 200}),
    (LOCKED, {"": 401, "stranger": 403, "reader": 403, "root": 200}),
    ({**LOCKED, "metrics_roles": ["reader"]}, {"": 401, "stranger": 403, "reader": 200}),
    ({**LOCKED, "authenticate_metrics": False}, {"": 200, "stranger": 200}),
]


@pytest.mark.parametrize(("settings", "expected"), METRICS_BY)
async def test_who_may_read_the_metrics(settings: dict[str, Any], expected: dict[str, int]) -> None:
    admits, _ = access(settings)

    async def metrics() -> bytes:
        return b"x 1\n"

    async def ready() -> str:
        return ""

    served: Any = create_app(
        Nobody(),  # type: ignore[arg-type]
        metrics,
        why_not_ready=ready,
        body_bytes_max=1,
        log=silent_log(),
        access=admits,
        metrics_need_credentials=parse(settings).metrics_need_credentials,
    )
    for role, code in expected.items():
        headers = bearer(role) if role else {}
        assert await status(served, "GET", "/metrics", **headers) == code, role
        assert await status(served, "GET", "/healthz", **headers) == 200


class Nobody:
    """Operations that no request of the test reaches."""

    schemas = None


@pytest.mark.parametrize("wrong", [{"authenticate_metrics": True}, {"metrics_roles": ["x"]}])
def test_settings_of_metrics_that_could_not_count(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs auth"):
        parse(wrong)


async def test_a_role_has_its_number_of_producers_and_consumers() -> None:
    limits = {"producers_per_role_max": 2, "consumers_per_role_max": 2}
    async with open_broker(settings={**LOCKED, **limits}) as cluster:
        await store_policies(cluster.broker.session)
        one, two = await connected(cluster, "owner"), await connected(cluster, "owner")
        root = await connected(cluster, "root")

        async def produce(client: Any, number: int) -> Any:
            return await client.producer(number, topic=f"{TOPIC}-{number}")

        async def consume(client: Any, number: int) -> Any:
            return await client.subscribe(number, topic=f"{TOPIC}-{number}", name=f"s{number}")

        for open_one, close, busy in (
            (produce, pb.CommandCloseProducer(producer_id=1), pb.ProducerBusy),
            (consume, pb.CommandCloseConsumer(consumer_id=1), pb.ConsumerBusy),
        ):
            assert not hasattr(await open_one(one, 1), "message")
            assert not hasattr(await open_one(two, 2), "message")
            refused_one = await open_one(two, 3)
            assert refused_one.error == busy
            assert "_per_role_max" in refused_one.message
            for number in range(10, 15):
                assert not hasattr(await open_one(root, number), "message")
            await one.ask(close, pb.CommandSuccess)
            assert not hasattr(await open_one(two, 3), "message")
        use = cluster.broker.context.role_use
        assert (use.producers["owner"], use.consumers["owner"]) == (2, 2)
        two.frames.close()
        root.frames.close()
        with trio.fail_after(60):
            while use.producers or use.consumers:  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert not hasattr(await produce(one, 1), "message")
        assert not hasattr(await consume(one, 1), "message")


@pytest.mark.parametrize("name", ["connections", "producers", "consumers"])
def test_limits_of_roles_need_roles(name: str) -> None:
    with pytest.raises(ValueError, match="needs authentication"):
        parse({f"{name}_per_role_max": 5})
