"""Requests that would fill the metadata store, or name what cannot be, are refused with 412."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio

from daybook.broker.admin.sink_bodies import BatchBody, check_abort
from daybook.broker.admin.sink_operations import SinkOperations, SinkView
from daybook.broker.errors import ConflictError as BrokerConflictError
from daybook.broker.errors import PreconditionError, TooManyRequestsError
from daybook.broker.security.identity import CALLER, Caller, Identity
from daybook.broker.sinks.attempts import ATTEMPTS_MAX
from daybook.clients.python.errors import AdminError, ConflictError
from daybook.clients.python.http import http_request
from daybook.clients.python.sink_requests import Batch, SinkRequests
from daybook.managed_ledger.protocol.sink import (
    NO_BATCH,
    SinkPartition,
    SinkRefusedError,
)
from daybook.managed_ledger.records import TREE
from daybook.managed_ledger.sinks import stored as stored_sinks
from daybook.managed_ledger.sinks.batch import ShareRef
from daybook.managed_ledger.sinks.cleaning import StagingCleaner
from daybook.managed_ledger.sinks.ledgers import SinkLedger, sink_ledger_of
from daybook.managed_ledger.sinks.record import of_role_path
from tests.broker.sinks.test_rest import BATCH, batch_of
from tests.broker.sinks.world import CHECKPOINT, PARTITIONS, SINK, TOPIC, World, simulated

ROOT = "/admin/v2/daybook/sinks"
GOOD: Mapping[str, object] = {"queryId": "q", "batchId": 0, "topics": {TOPIC: PARTITIONS}}
SHARE = {"attempt": "a" * 32, "ledgerId": 1}


class LateClock:
    """The time at which everything is older than a week."""

    def now_ms(self) -> int:
        return 1 << 50


def share(**other: object) -> dict[str, object]:
    return {"shares": [{**SHARE, **other}]}


WRONG: list[tuple[str, dict[str, object]]] = [
    ("checkpoint has at most 8192 bytes", {"checkpoint": "x" * 900_000}),
    ("checkpoint has at most 8192 bytes", {"checkpoint": "x" * 2_000_000}),
    ("query has at most 1024 bytes", {"queryId": "q" * 1025}),
    ("control characters", {"queryId": "a\nb"}),
    ("control characters", {"queryId": "a\0b"}),
    ("number of a batch must be", {"batchId": 1 << 63}),
    ("number of a batch must be", {"batchId": -1}),
    ("at most 1000 topics", {"topics": {f"{TOPIC}{n}": 0 for n in range(60_000)}}),
    ("topic has at most 1024 bytes", {"topics": {"t" * 1025: 0}}),
    ("must be from 0 to 1000000", {"topics": {TOPIC: -1}}),
    ("must be from 0 to 1000000", {"topics": {TOPIC: 1 << 40}}),
    ("names no topic", {"topics": {}}),
]
WRONG_SHARES: list[tuple[str, dict[str, object]]] = [
    ("at most 50000 tasks", {"shares": [None] * 50_001}),
    ("not the name of an attempt", share(attempt="../x")),
    ("not the name of an attempt", share(attempt="")),
    ("not the name of an attempt", share(attempt="a\nb")),
    ("not the name of an attempt", share(attempt="a" * 65)),
    ("id of a staging ledger must be", share(ledgerId=-1)),
    ("id of a staging ledger must be", share(ledgerId=1 << 63)),
]


async def ask(world: World, method: str, path: str, body: object) -> tuple[int, str]:
    network = world.cluster.network.of("driver")
    data = json.dumps(body).encode()
    found = await http_request(
        network, "broker-1", 8080, method, f"{ROOT}/{path}", data, timeout_s=30.0
    )
    return found.status, found.body.decode()


def driver_of(world: World) -> SinkRequests:
    network = world.cluster.network.of("driver")
    return SinkRequests("http://broker-1:8080", network=network, timeout_s=10.0)


def test_a_batch_that_exceeds_a_limit_is_refused() -> None:
    async def story(world: World) -> None:
        for path, wrong in [("attempts", WRONG), ("commit", WRONG + WRONG_SHARES)]:
            for why, values in wrong:
                status, text = await ask(world, "POST", f"s/{path}", {**GOOD, **values})
                assert (status, why in text) == (412, True), (path, why, status, text[:200])
        for why, values in WRONG_SHARES:
            status, text = await ask(world, "POST", "s/abort", {**GOOD, **values})
            assert (status, why in text) == (412, True), (why, status, text[:200])
        for name in ("a%0Ab", "a%00b"):
            assert (await ask(world, "POST", f"{name}/commit", GOOD))[0] == 412
        assert await world.sinks.sinks.records.names() == []

    simulated(story)


def test_other_numbers_that_cannot_be_are_refused() -> None:
    async def story(world: World) -> None:
        driver = driver_of(world)
        attempt = await driver.begin(SINK, BATCH)
        path = f"{SINK}/attempts/{attempt.attempt}"
        for rows, hash_ in [(-1, 0), (1 << 63, 0), (0, -1), (0, 1 << 64)]:
            found = await ask(world, "POST", f"{path}/close", {"rows": rows, "hash": hash_})
            assert found[0] == 412, (rows, hash_, found)
        assert (await ask(world, "PUT", f"{path}?topic=t&first={'1' * 5000}", ""))[0] == 412
        share_ = await attempt.close(rows=0, hash_=0)
        await driver.commit(SINK, BATCH, [share_], checkpoint=CHECKPOINT)
        assert (await ask(world, "POST", f"{SINK}/move", {"checkpoint": "x" * 9000}))[0] == 412

    simulated(story)


def test_requests_that_store_nothing_leave_no_record() -> None:
    async def story(world: World) -> None:
        for path, shares in [("abort", []), ("abort", [SHARE]), ("commit", [SHARE])]:
            status, _ = await ask(world, "POST", f"s/{path}", {**GOOD, "shares": shares})
            assert status == (200 if path == "abort" else 409)
        assert await world.sinks.sinks.records.names() == []

    simulated(story)


@pytest.mark.parametrize("topics", [{TOPIC: PARTITIONS}, {"persistent://public/default/u": 0}])
def test_an_empty_first_batch_names_its_topics_in_the_record(topics: dict[str, int]) -> None:
    """So that the name belongs to those who may produce there."""
    (topic,) = topics
    named = f"{topic}-partition-0" if topics[topic] else topic

    async def story(world: World) -> None:
        driver = driver_of(world)
        empty = Batch("q", 0, topics)
        done = await driver.commit(SINK, empty, [None, None], checkpoint=CHECKPOINT)
        assert done.outcome == "committed"
        assert (await driver.roll_forward(SINK, topics=topics)).state == "APPLIED"
        stored = await world.sinks.sinks.records.find(SINK)
        assert stored is not None
        assert stored.record.partitions == {named: SinkPartition(-1, 0, NO_BATCH)}
        again = await driver.commit(SINK, empty, [None, None], checkpoint=CHECKPOINT)
        assert again.outcome == "done"

    simulated(story)


def test_a_batch_with_entries_follows_an_empty_one() -> None:
    async def story(world: World) -> None:
        driver = driver_of(world)
        await driver.commit(SINK, BATCH, [None], checkpoint=CHECKPOINT)
        second = Batch(BATCH.query_id, 1, BATCH.topics)
        attempt = await driver.begin(SINK, second)
        await attempt.append(f"{TOPIC}-partition-0", [batch_of("a", "b")])
        await attempt.append(f"{TOPIC}-partition-1", [batch_of("c")])
        found = await attempt.close(rows=3, hash_=1)
        await driver.commit(SINK, second, [found], checkpoint=CHECKPOINT)
        state = await driver.roll_forward(SINK, timeout_s=30)
        assert [(p.next, p.state) for p in state.partitions] == [(1, "applied")] * 2
        assert await world.read(0) == ["a", "b"]

    simulated(story)


def test_a_record_of_an_empty_batch_is_small() -> None:
    async def story(world: World) -> None:
        many = Batch("q", 0, {f"{TOPIC}-{n}-{'x' * 900}": 0 for n in range(1_000)})
        await driver_of(world).commit(SINK, many, [], checkpoint="c")
        stored = await world.sinks.sinks.store.get(f"/daybook/sinks/{SINK}")
        assert stored is not None
        assert len(stored.value) < 10_000

    simulated(story)


def test_a_role_has_a_quarter_of_the_slots_for_staging() -> None:
    async def story(world: World) -> None:
        running = world.cluster.broker("broker-1")
        assert running is not None
        attempts = running.sinks._attempts
        topics = {TOPIC: PARTITIONS}

        async def begin(role: str) -> ShareRef:
            return await world.cluster.call(
                "broker-1", lambda: attempts.begin(SINK, "q", 0, topics, role=role)
            )

        begun = [await begin("greedy") for _ in range(ATTEMPTS_MAX // 4)]
        with pytest.raises(TooManyRequestsError, match="the role 'greedy' stages 16 tasks"):
            await begin("greedy")
        others = [await begin("other"), await begin("")]
        attempts.give_up(SINK, begun[0].attempt)
        await begin("greedy")
        # Without authorization nobody has a role, and all slots are for all.
        while len(others) < ATTEMPTS_MAX - ATTEMPTS_MAX // 4:
            others.append(await begin(""))
        with pytest.raises(TooManyRequestsError, match="64 tasks stage through this broker"):
            await begin("")

    simulated(story)


@pytest.mark.parametrize("on", [True, False])
def test_the_role_of_a_caller_counts_with_authorization(on: bool) -> None:
    found: list[str] = []

    class Attempts:
        async def begin(self, *args: object, role: str) -> ShareRef:
            del args
            found.append(role)
            return ShareRef("a", 1)

    class Records:
        async def reserve(self, name: str, role: str) -> None:
            found.append(f"{role} reserves {name}")

    class Sinks:
        records = Records()

    nothing: Any = None
    attempts: Any = Attempts()
    sinks: Any = Sinks()
    parts = SinkOperations(sinks, attempts, nothing, nothing, lambda: True, None, by_role=on)

    async def begin() -> None:
        CALLER.set(Caller(Identity("proxy", "token"), "alice"))
        await parts.begin("s", BatchBody("q", 0, {TOPIC: 1}))

    trio.run(begin)
    assert found == (["alice reserves s", "alice"] if on else [""])


def test_the_topics_of_a_staging_ledger_are_known() -> None:
    async def story(world: World) -> None:
        driver, ledgers = driver_of(world), world.sinks.sinks.ledgers
        attempt = await driver.begin(SINK, BATCH)

        async def topics(ledger_id: int, name: str) -> object:
            return await ledgers.topics_of(ledger_id, SINK, name)

        assert await topics(attempt.ledger_id, attempt.attempt) is None
        await attempt.append(f"{TOPIC}-partition-0", [batch_of("a")])
        found = await attempt.close(rows=1, hash_=1)
        assert await topics(attempt.ledger_id, attempt.attempt) == [TOPIC]
        assert await topics(attempt.ledger_id, "another") == []
        assert await topics(1 << 40, attempt.attempt) == []
        sinks = world.sinks.sinks
        owner = SinkLedger(SINK, "manifest-1", BATCH.query_id, 0)
        for entries in ([b"{}"], []):
            written = await ledgers.write(owner, await sinks._quorums(), entries)
            assert await topics(written, "manifest-1") is None
        await driver.commit(SINK, BATCH, [found], checkpoint=CHECKPOINT)
        await driver.roll_forward(SINK, timeout_s=30)
        assert await topics(attempt.ledger_id, attempt.attempt) == []

    simulated(story)


def test_a_refused_commit_names_no_topics_of_others() -> None:
    async def story(world: World) -> None:
        driver = driver_of(world)
        attempt = await driver.begin(SINK, Batch("secret-query", 7, {TOPIC: PARTITIONS}))
        found = await attempt.close(rows=0, hash_=0)
        mine = Batch("q", 0, {"persistent://public/default/mine": 0})
        with pytest.raises(ConflictError, match="write the batch again") as refused:
            await driver.commit(SINK, mine, [found], checkpoint=CHECKPOINT)
        assert TOPIC not in str(refused.value)
        assert "secret" not in str(refused.value)

    simulated(story)


def test_the_number_of_sinks_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(stored_sinks, "SINKS_MAX", 2)

    async def story(world: World) -> None:
        driver = driver_of(world)
        for name in ("a", "b"):
            await driver.commit(name, BATCH, [], checkpoint=CHECKPOINT)
        with pytest.raises(AdminError, match="sinks forget"):
            await driver.commit("c", BATCH, [], checkpoint=CHECKPOINT)
        following = Batch(BATCH.query_id, 1, BATCH.topics)
        done = await driver.commit("a", following, [], checkpoint=CHECKPOINT)
        assert done.outcome == "committed"

    simulated(story)


def test_a_role_has_a_quarter_of_all_sinks(monkeypatch: Any) -> None:
    assert stored_sinks.ROLE_SINKS_MAX * 4 == stored_sinks.SINKS_MAX
    monkeypatch.setattr(stored_sinks, "ROLE_SINKS_MAX", 2)

    async def story(world: World) -> None:
        parts, store = world.sinks, world.sinks.sinks.store
        parts._by_role = True

        async def act(role: str, name: str, action: str, batch_id: int = 0) -> str:
            body = world.batch(batch_id)

            async def run() -> str:
                CALLER.set(Caller(Identity(role, "token")) if role else None)
                if action == "commit":
                    return (await parts.commit(name, body)).outcome
                begun = await parts.begin(name, body)
                await parts.give_up(name, str(begun["attempt"]))
                return "given up"

            return await world.cluster.call(world.here, run)

        assert await act("greedy", "a", "commit") == "committed"
        # Staging that was begun and given up has taken a name.
        assert await act("greedy", "b", "begin") == "given up"
        for action in ("begin", "commit"):
            with pytest.raises(BrokerConflictError, match=r"'greedy' has 2 sinks.*sinks forget"):
                await act("greedy", "c", action)
        assert sorted(await parts.sinks.records.names()) == ["a", "b"]
        # Sinks that are there go on, and others have their own number.
        assert await act("greedy", "a", "commit", 1) == "committed"
        assert await act("greedy", "b", "begin") == "given up"
        assert await act("other", "c", "commit") == "committed"
        assert await act("other", "a", "commit", 2) == "committed"
        # Without authorization there are no roles, and only the limit of all counts.
        for name in ("d", "e", "f"):
            assert await act("", name, "begin") == "given up"
            assert await act("", name, "commit") == "committed"
        shown = await world.call(lambda sinks: sinks.show("a"))
        assert isinstance(shown, SinkView)
        assert shown.role == "greedy"
        # A sink counts until its record is removed.
        await parts.sinks.forget("a")
        with pytest.raises(BrokerConflictError, match="which is the limit for one role"):
            await act("greedy", "g", "begin")
        cleaner = StagingCleaner(parts.sinks, LateClock())
        for name in ("a", "b"):
            assert await cleaner.remove_record(name)
        assert await store.get(of_role_path("greedy")) is None
        assert await act("greedy", "g", "begin") == "given up"

    simulated(story)


def test_requests_at_the_same_time_do_not_exceed_the_number_of_a_role(monkeypatch: Any) -> None:
    monkeypatch.setattr(stored_sinks, "ROLE_SINKS_MAX", 3)

    async def story(world: World) -> None:
        sinks, refused = world.sinks.sinks, 0

        async def reserve(name: str) -> None:
            nonlocal refused
            try:
                await sinks.records.reserve(name, "greedy")
            except SinkRefusedError:
                refused += 1

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                for name in "abcdefgh":
                    nursery.start_soon(reserve, name)

        await world.cluster.call(world.here, run)
        assert (len(await sinks.records.names()), refused) == (3, 5)

    simulated(story)


def test_a_removed_record_comes_back_for_its_role() -> None:
    """The cleaner makes a record for staging that is older than the record."""

    async def story(world: World) -> None:
        sinks = world.sinks.sinks
        owner = SinkLedger("s", "a", "q", 0, "greedy")
        ledger_id = await sinks.ledgers.write(owner, await sinks._quorums(), [b"{}"])
        stored = await sinks.ledgers.client.stored_metadata(ledger_id)
        assert sink_ledger_of(stored.metadata.custom) == owner
        tree = stored.metadata.custom[TREE].decode()
        assert await StagingCleaner(sinks, LateClock()).remove(ledger_id, stored, tree)
        found = await sinks.records.find("s")
        assert found is not None
        assert found.record.role == "greedy"
        assert await sinks.store.get_children(of_role_path("greedy")) == ["s"]
        # Somebody deletes the record, or the node that counts it, by hand.
        await sinks.store.delete("/daybook/sinks/s", -1)
        found = await sinks.records.find_or_create("s", "greedy")
        await sinks.store.delete(f"{of_role_path('greedy')}/s", -1)
        await sinks.records.delete_record(found)
        assert await sinks.records.find("s") is None

    simulated(story)


async def test_one_request_abandons_a_thousand_tasks_and_a_client_any_number() -> None:
    asked: list[int] = []

    class Counting(SinkRequests):
        async def _repeat(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
            del method, path, timeout_s
            asked.append(len(body["shares"]))
            return {"kept": [str(len(asked))]}, ""

    requests = Counting("http://broker:8080")
    batch = Batch("q", 0, {TOPIC: PARTITIONS})
    kept = await requests.abort("s", batch, [None] * 2_500, checkpoint=CHECKPOINT)
    assert (kept, asked) == (["1", "2", "3"], [1_000, 1_000, 500])
    check_abort(BatchBody("q", 0, {}, shares=[None] * 1_000))
    with pytest.raises(PreconditionError, match="at most 1000 tasks"):
        check_abort(BatchBody("q", 0, {}, shares=[None] * 1_001))
