"""Rights about sinks: their paths name no topics, so the rights are those on what they write to."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette

from daybook.broker.admin import sinks as routes
from daybook.broker.admin.sink_operations import SinkOperations
from daybook.broker.errors import NotFoundError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import PartitionedTopic
from daybook.broker.security.rights import PATHS
from daybook.managed_ledger.protocol.sink import SinkPartition, SinkRecord, Source
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.record import encode_record, record_path
from daybook.wire.logging import silent_log
from daybook.wire.metadata.store import MetadataStore
from daybook.wire.topics import TopicName
from tests.broker.security.test_rights import (
    Stubs,
    access,
    asked,
    bearer,
    full_answer,
    status,
    store_policies,
)

MINE, THEIRS = "persistent://public/default/mine", "persistent://public/default/theirs"
ROOT = "/admin/v2/daybook/sinks"
GRANTS = {
    "auth_policies": {
        "namespace_auth": {"all": ["produce"], "reader": ["consume"]},
        "destination_auth": {MINE: {"writer": ["produce"]}},
        "subscription_auth_roles": {},
    }
}
# Requests about a batch, and those that a driver sends about a sink.
OF_BATCHES = [("POST", "attempts"), ("POST", "commit"), ("POST", "abort")]
OF_ATTEMPTS = [("PUT", "attempts/a"), ("DELETE", "attempts/a"), ("POST", "attempts/a/close")]
DECISIONS = [("POST", "forget"), ("POST", "move"), ("POST", "resolve")]


class Attempts:
    """The attempts of one broker: one of the sink `s`."""

    def __init__(self, *topics: str) -> None:
        self._topics = topics

    def topics(self, sink: str, name: str) -> list[str]:
        if (sink, name) != ("s", "a"):
            raise NotFoundError("this broker has no such attempt")
        return list(self._topics)


class Ledgers:
    """Staging ledgers: 1 has the topic MINE, 2 has THEIRS, 3 was not closed, others are gone."""

    async def topics_of(self, ledger_id: int, sink: str, attempt: str) -> list[str] | None:
        assert (sink, attempt) == ("s", f"attempt-{ledger_id}")
        return {1: [MINE], 2: [THEIRS], 3: None}.get(ledger_id, [])


class World:
    """The REST of sinks, whose handlers do nothing."""

    def __init__(self, *of_attempt: str) -> None:
        admits, self.store = access()
        found: Any = Attempts(*of_attempt)
        nothing: Any = None
        ledgers: Any = Ledgers()
        sinks = Sinks(self.store, ledgers, nothing, nothing)
        parts = SinkOperations(sinks, found, nothing, nothing, lambda: True, None)
        endpoints = Stubs(parts, 1 << 10, silent_log(), admits)
        self.app = Starlette(routes=routes.routes(endpoints))

    async def made(self) -> "World":
        await store_policies(self.store, GRANTS)
        path = records.partitioned_path(TopicName.parse(MINE))
        await self.store.create(path, records.encode(PartitionedTopic(2)), make_parents=True)
        return self

    async def wrote_to(self, *topics: str) -> None:
        """Let the sink `s` have written to these topics."""
        store: MetadataStore = self.store
        partitions = {topic: SinkPartition(1, 0, 0) for topic in topics}
        source = Source("q", "/checkpoint")
        value = encode_record(SinkRecord("id", source=source, partitions=partitions))
        await store.create(record_path("s"), value, make_parents=True)

    async def ask(
        self,
        role: str,
        method: str,
        path: str,
        topics: Mapping[str, int] | None = None,
        ledgers: Sequence[int] = (),
    ) -> int:
        shares = [{"attempt": f"attempt-{each}", "ledgerId": each} for each in ledgers]
        batch = {"queryId": "q", "batchId": 0, "topics": dict(topics or {}), "shares": shares}
        body = json.dumps(batch).encode()
        return await asked(self.app, method, f"{ROOT}/{path}", bearer(role), body=body)


@pytest.mark.parametrize(("method", "path"), OF_BATCHES)
async def test_a_batch_needs_produce_on_each_of_its_topics(method: str, path: str) -> None:
    world = await World().made()
    mine, both = {MINE: 2}, {MINE: 2, THEIRS: 0}
    for role, topics, expected in [
        ("writer", mine, 204),
        ("writer", {f"{MINE}-partition-1": 0}, 204),
        ("writer", {f"{MINE}-partition-2": 0}, 403),
        ("writer", {"mine": 0}, 204),
        ("writer", both, 403),
        ("writer", {THEIRS: 0}, 403),
        ("writer", {"persistent://other/ns/mine": 0}, 403),
        ("writer", {}, 403),
        ("all", both, 204),
        ("owner", both, 204),
        ("owner", {"persistent://other/ns/mine": 0}, 403),
        ("reader", mine, 403),
        ("stranger", mine, 403),
        ("root", {}, 204),
    ]:
        found = await world.ask(role, method, f"s/{path}", topics)
        assert found == expected, (role, topics)


@pytest.mark.parametrize(("method", "path"), OF_BATCHES)
async def test_a_batch_needs_produce_where_the_sink_has_written(method: str, path: str) -> None:
    """Nobody takes part in the sink of others by naming a topic of their own."""
    world = await World().made()
    await world.wrote_to(f"{THEIRS}-partition-0")
    assert await world.ask("writer", method, f"s/{path}", {MINE: 1}) == 403
    assert await world.ask("all", method, f"s/{path}", {MINE: 1}) == 204
    assert await world.ask("writer", method, f"another/{path}", {MINE: 1}) == 204


async def test_what_is_aborted_needs_produce_on_its_own_topics() -> None:
    world = await World().made()
    for role, ledgers, expected in [
        ("writer", [1], 204),
        ("writer", [1, 2], 403),
        ("writer", [2], 403),
        ("writer", [3], 403),  # Nobody knows its topics.
        ("writer", [4], 204),
        ("all", [1, 2, 4], 204),
        ("all", [3], 403),
        ("root", [1, 2, 3, 4], 204),
    ]:
        found = await world.ask(role, "POST", "s/abort", {MINE: 0}, ledgers)
        assert found == expected, (role, ledgers)


async def test_an_open_attempt_of_this_broker_is_aborted_by_those_who_may_stage_it() -> None:
    body = {"queryId": "q", "batchId": 0, "topics": {MINE: 0}}
    data = json.dumps({**body, "shares": [{"attempt": "a", "ledgerId": 3}]}).encode()
    for topic, expected in [(MINE, 204), (THEIRS, 403)]:
        world = await World(topic).made()
        path = f"{ROOT}/s/abort"
        assert await asked(world.app, "POST", path, bearer("writer"), body=data) == expected


@pytest.mark.parametrize(("method", "path"), OF_ATTEMPTS)
async def test_an_attempt_needs_produce_on_its_topics(method: str, path: str) -> None:
    mine, both = await World(MINE).made(), await World(MINE, THEIRS).made()
    assert await mine.ask("writer", method, f"s/{path}", {THEIRS: 0}) == 204
    assert await mine.ask("stranger", method, f"s/{path}", {}) == 403
    assert await both.ask("writer", method, f"s/{path}", {MINE: 0}) == 403
    assert await both.ask("all", method, f"s/{path}") == 204
    assert await both.ask("all", method, f"other/{path}") == 404
    assert await (await World().made()).ask("all", method, f"s/{path}") == 403


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/roll-forward")])
async def test_the_state_of_a_sink_is_told_to_those_who_write_by_it(method: str, path: str) -> None:
    world = await World().made()
    for missing in ("writer", "all", "owner"):
        assert await world.ask(missing, method, f"s{path}") == 403
    assert await world.ask("root", method, f"s{path}") == 204
    await world.wrote_to(f"{MINE}-partition-0", f"{MINE}-partition-1")
    assert await world.ask("writer", method, f"s{path}") == 204
    assert await world.ask("reader", method, f"s{path}") == 403


@pytest.mark.parametrize("theirs", [THEIRS, "persistent://public/default/__change_events"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("POST", "/roll-forward"), *((m, f"/{p}") for m, p in DECISIONS)],
)
async def test_a_stranger_does_not_learn_that_there_is_a_sink(
    method: str, path: str, theirs: str
) -> None:
    """Neither does a role that names a topic of its own."""
    world = await World().made()

    async def ask(role: str, query: str) -> tuple[int, bytes]:
        where = f"{ROOT}/s{path}"
        found = await full_answer(world.app, method, where, bearer(role), query=query.encode())
        # The real handlers say this to a role that gets past the rights: there is no sink yet.
        return (404, b'{"reason":"there is no sink s"}') if found[0] == 204 else found

    asked = [(role, f"topic={MINE}") for role in ("stranger", "writer")]
    asked += [(role, "") for role in ("stranger", "writer", "reader")]
    missing = [await ask(role, query) for role, query in asked]
    await world.wrote_to(theirs)
    assert [await ask(role, query) for role, query in asked] == missing
    decides = any(path == f"/{each}" for _, each in DECISIONS)
    # A driver that names its topic asks before its first batch, so it learns that there is none.
    expected = {403} if decides else {403, 404}
    assert {code for code, _ in missing} == expected


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/roll-forward")])
async def test_a_sink_with_a_name_and_no_batch_is_none_for_a_driver(method: str, path: str) -> None:
    world = await World().made()
    value = encode_record(SinkRecord("id"))
    await world.store.create(record_path("s"), value, make_parents=True)
    for role, expected in (("writer", 404), ("stranger", 403), ("root", 204)):
        where = f"{ROOT}/s{path}"
        query = f"topic={MINE}".encode()
        found = await asked(world.app, method, where, bearer(role), query=query)
        assert found == expected, role


@pytest.mark.parametrize(("method", "path"), OF_BATCHES)
async def test_the_refusal_of_a_batch_does_not_tell_where_the_sink_writes(
    method: str, path: str
) -> None:
    world = await World().made()
    await world.wrote_to(f"{THEIRS}-partition-0")
    body = json.dumps({"queryId": "q", "batchId": 0, "topics": {MINE: 1}}).encode()
    where = f"{ROOT}/s/{path}"
    code, said = await full_answer(world.app, method, where, bearer("writer"), body=body)
    assert code == 403
    assert b"on the topics of the sink s:" in said
    assert b"theirs" not in said
    code, said = await full_answer(world.app, method, where, bearer("stranger"), body=body)
    assert code == 403
    assert MINE.encode() in said  # which it has named


async def test_a_driver_names_the_topic_of_an_empty_sink() -> None:
    world = await World().made()
    await world.wrote_to()

    async def ask(role: str, topic: str) -> int:
        path = f"{ROOT}/s/roll-forward"
        query = f"topic={topic}".encode()
        return await asked(world.app, "POST", path, bearer(role), query=query)

    assert await ask("writer", MINE) == 204
    assert await ask("writer", THEIRS) == 403
    assert await ask("stranger", MINE) == 403


@pytest.mark.parametrize(("method", "path"), DECISIONS)
async def test_decisions_are_those_of_the_tenant(method: str, path: str) -> None:
    world = await World().made()
    await world.wrote_to(MINE)
    for role, expected in {"writer": 403, "all": 403, "owner": 204, "root": 204}.items():
        assert await world.ask(role, method, f"s/{path}", {MINE: 0}) == expected, role
    assert await world.ask("owner", method, f"another/{path}") == 403


async def test_only_super_users_list_all_sinks() -> None:
    world = await World().made()
    assert await status(world.app, "GET", ROOT, **bearer("all")) == 403
    assert await status(world.app, "GET", ROOT, **bearer("root")) == 204


def test_every_request_about_sinks_is_tried_here() -> None:
    tried = {(m, f"{ROOT}/s/{p}") for m, p in OF_BATCHES + OF_ATTEMPTS + DECISIONS}
    tried |= {("GET", f"{ROOT}/s"), ("POST", f"{ROOT}/s/roll-forward"), ("GET", ROOT)}
    served = {
        (method, path.replace("{sink}", "s").replace("{attempt}", "a"))
        for method, path in PATHS
        if path.startswith(ROOT)
    }
    assert tried == served


async def test_a_revoked_right_ends_a_sink() -> None:
    world = await World(MINE).made()
    assert await world.ask("writer", "PUT", "s/attempts/a") == 204
    await world.store.set(records.policies_path("public/default"), b"{}", -1)
    assert await world.ask("writer", "PUT", "s/attempts/a") == 403
    assert await world.ask("writer", "POST", "s/commit", {MINE: 0}) == 403
