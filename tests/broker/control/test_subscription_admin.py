"""REST of subscriptions and single messages, over whole brokers on simulated seams."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import trio

import daybook
from daybook.broker.admin.app import create_app
from daybook.broker.server import RunningBroker
from daybook.clients.python.consumer import Consumer
from daybook.wire.batch import encode_payload, iter_batch, parse_metadata
from daybook.wire.logging import silent_log
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import ORDERS, World, send, simulated

TOPICS = "/admin/v2/persistent/public/default"
SUB = f"{TOPICS}/orders/subscription/sub"
PARTS = "persistent://public/default/parts"
NAMESPACE = "/admin/v2/namespaces/public/default"


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.status = status
        self.headers = headers
        self.data = data

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)


class Rest:
    """The admin REST of one broker, called without a socket."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker

        async def ready() -> str:
            return ""

        self._app = create_app(
            broker.operations,
            broker.metrics.scrape,
            why_not_ready=ready,
            body_bytes_max=1 << 20,
            log=silent_log(),
        )

    async def ask(self, method: str, path: str, body: object = None, **query: str) -> Answer:
        """Return the answer; the first try names no owner, as admin clients do."""
        text = "&".join(f"{name}={value}" for name, value in query.items())
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": text.encode(),
            "headers": [],
        }
        content = b"" if body is None else msgspec.json.encode(body)
        sent: list[Any] = []

        async def receive() -> dict[str, object]:
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": content, "more_body": False}

        async def collect(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(message)

        await self._app(scope, receive, collect)
        start, *rest = sent
        headers = {k.decode(): v.decode("latin-1") for k, v in start["headers"]}
        return Answer(start["status"], headers, b"".join(each["body"] for each in rest))

    async def do(self, method: str, path: str, body: object = None, **query: str) -> Answer:
        answer = await self.ask(method, path, body, **query)
        assert answer.status in (200, 204), (answer.status, answer.data)
        return answer

    async def backlog(self, name: str = "sub", topic: str = "orders") -> tuple[int, int, bool]:
        found = (await self.do("GET", f"{TOPICS}/{topic}/stats")).json["subscriptions"][name]
        return found["msgBacklog"], found["backlogSize"], found["backlogExact"]


async def start(world: World, count: int = 10) -> Rest:
    """Return a broker with a topic that has single messages and a batch of five at the end."""
    rest = Rest(await world.broker("one"))
    await rest.do("PUT", f"{TOPICS}/orders")
    await rest.do("PUT", f"{SUB}", {"ledgerId": -1, "entryId": -1})
    async with world.client("one") as client:
        async with await client.create_producer(ORDERS.full, batching=False) as producer:
            for number in range(count - 5):
                await producer.send(b"%d" % number)
        async with await client.create_producer(ORDERS.full, compression="zstd") as producer:
            for number in range(count - 5, count):
                producer.send_nowait(b"%d" % number, key="k", properties={"n": str(number)})
            await producer.flush()
    return rest


async def received(world: World, name: str, count: int) -> list[bytes]:
    async with world.client("one") as client:
        return [m.data for m in await take(await client.subscribe(ORDERS.full, name), count)]


async def take(consumer: Consumer, count: int) -> list[Any]:
    async with consumer:
        return [await consumer.receive() for _ in range(count)]


def test_messages_are_skipped_one_by_one_even_inside_a_batch() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        before = await rest.backlog()
        assert (before[0], before[2]) == (10, True)
        found = (await rest.do("POST", f"{SUB}/skip/3", dryRun="true")).json
        assert (found["messages"], found["entries"]) == (3, 3)
        assert await rest.backlog() == before
        assert (await rest.do("POST", f"{SUB}/skip/3")).status == 204
        assert (await rest.backlog())[0] == 7
        await rest.do("POST", f"{SUB}/skip/4")  # two single ones, and two of the batch
        assert (await rest.backlog())[0] == 3
        assert await received(world, "sub", 3) == [b"7", b"8", b"9"]
        await rest.do("POST", f"{SUB}/skip/100")
        assert await rest.backlog() == (0, 0, True)
        assert (await rest.ask("POST", f"{SUB}/skip/0")).status == 412
        missing = f"{TOPICS}/orders/subscription/none/skip/1"
        assert (await rest.ask("POST", missing)).status == 404

    simulated(story)


def test_old_messages_expire_and_newer_ones_stay() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        await trio.sleep(60)
        async with world.client("one") as client:
            await send(client, ORDERS.full, 4, first=10)
        await rest.do("PUT", f"{TOPICS}/orders/subscription/other", {"ledgerId": -1, "entryId": -1})
        found = (await rest.do("POST", f"{SUB}/expireMessages/30", dryRun="true")).json
        assert found["messages"] == 10
        await rest.do("POST", f"{SUB}/expireMessages/3600")
        assert (await rest.backlog())[0] == 14
        await rest.do("POST", f"{SUB}/expireMessages/30")
        assert (await rest.backlog())[0] == 4
        assert (await rest.backlog("other"))[0] == 14
        await rest.do("POST", f"{TOPICS}/orders/all_subscription/expireMessages/30")
        assert (await rest.backlog("other"))[0] == 4
        assert (await rest.ask("POST", f"{SUB}/expireMessages/0")).status == 412

    simulated(story)


@pytest.mark.parametrize(
    ("entry", "index", "excluded", "first"),
    [
        (5, 0, False, 5),
        (5, 2, False, 7),
        (5, 2, True, 8),
        (5, -1, False, 5),
        (5, -1, True, 10),
        (5, 4, False, 9),
        (5, 4, True, 10),
        (5, 99, False, 10),
        (3, 0, False, 3),
        (3, 0, True, 4),
    ],
)
def test_a_subscription_is_moved_to_a_message_within_a_batch(
    entry: int, index: int, excluded: bool, first: int
) -> None:
    """By `resetcursor`, and a new subscription begins at such a message."""

    async def story(world: World) -> None:
        rest = await start(world)
        await rest.do("POST", f"{SUB}/skip/9")
        last = (await rest.do("GET", f"{TOPICS}/orders/lastMessageId")).json
        place = {
            "ledgerId": last["ledgerId"],
            "entryId": entry,
            "batchIndex": index,
            "isExcluded": excluded,
        }
        async with world.client("one") as client:
            await send(client, ORDERS.full, 1, first=10)
        assert (await rest.do("POST", f"{SUB}/resetcursor", place)).status == 204
        assert (await rest.do("PUT", f"{TOPICS}/orders/subscription/new", place)).status == 204
        for name in ("sub", "new"):
            assert (await rest.backlog(name))[0] == 11 - first
            assert (await received(world, name, 1)) == [b"%d" % first]

    simulated(story)


def test_a_message_id_names_the_partition_that_is_moved() -> None:
    async def story(world: World) -> None:
        rest = Rest(await world.broker("one"))
        await rest.do("PUT", f"{TOPICS}/parts/partitions", 3)
        for index in range(3):
            async with world.client("one") as client:
                await send(client, f"{PARTS}-partition-{index}", 4)
        await rest.do("PUT", f"{TOPICS}/parts/subscription/sub", {"ledgerId": -1, "entryId": -1})
        sub = f"{TOPICS}/parts/subscription/sub"
        await rest.do("POST", f"{sub}/skip_all")

        async def backlogs() -> list[int]:
            path = f"{TOPICS}/parts-partition-{{}}/stats"
            found = [(await rest.do("GET", path.format(index))).json for index in range(3)]
            return [each["subscriptions"]["sub"]["msgBacklog"] for each in found]

        last = (await rest.do("GET", f"{TOPICS}/parts-partition-2/lastMessageId")).json
        place = {"ledgerId": last["ledgerId"], "entryId": 0}
        for wrong in (-1, 3):
            refused = await rest.ask(
                "POST", f"{sub}/resetcursor", {**place, "partitionIndex": wrong}
            )
            assert refused.status == 405
            assert "partitionIndex" in str(refused.json)
        place["partitionIndex"] = 2
        assert (await rest.do("POST", f"{sub}/resetcursor", place)).status == 204
        assert (await backlogs())[:2] == [0, 0]
        assert (await backlogs())[2] > 0
        other = f"{TOPICS}/parts-partition-1/subscription/sub/resetcursor"
        assert (await rest.ask("POST", other, place)).status == 412
        assert (await backlogs())[1] == 0

    simulated(story)


@pytest.mark.parametrize(("excluded", "left"), [(False, 7), (True, 8)])
def test_messages_expire_up_to_a_position(excluded: bool, left: int) -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        last = (await rest.do("GET", f"{TOPICS}/orders/lastMessageId")).json
        place = {"ledgerId": last["ledgerId"], "entryId": 2, "isExcluded": excluded}
        await rest.do("POST", f"{SUB}/expireMessages", place)
        assert (await rest.backlog())[0] == left

    simulated(story)


def test_single_messages_are_shown_with_their_metadata() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        one = await rest.do("GET", f"{SUB}/position/2")
        assert one.data == b"1"
        assert one.headers["x-pulsar-message-id"].endswith(":1")
        assert "x-pulsar-publish-time" in one.headers
        assert one.headers["x-pulsar-broker-entry-metadata-index"] == "1"
        assert "x-pulsar-num-batch-message" not in one.headers
        batch = await rest.do("GET", f"{TOPICS}/orders/examinemessage")
        assert batch.headers["x-pulsar-num-batch-message"] == "5"
        assert batch.headers["x-pulsar-compression"] == "ZSTD"
        assert [data for _, data in iter_batch(batch.data, 5)] == [b"%d" % n for n in range(5, 10)]
        first = await rest.do(
            "GET",
            f"{TOPICS}/orders/examinemessage",
            initialPosition="earliest",
            messagePosition="3",
        )
        assert first.data == b"2"
        again = await rest.do(
            "GET", f"{TOPICS}/orders/examinemessage", initialPosition="latest", messagePosition="2"
        )
        assert again.data == b"4"
        ledger, entry = again.headers["x-pulsar-message-id"].split(":")
        same = await rest.do("GET", f"{TOPICS}/orders/ledger/{ledger}/entry/{entry}")
        assert (same.data, same.headers) == (again.data, again.headers)
        await rest.do("POST", f"{SUB}/skip/5")
        peeked = await rest.do("GET", f"{SUB}/position/1")
        assert peeked.headers["x-pulsar-num-batch-message"] == "5"
        for path in (
            f"{SUB}/position/2",
            f"{TOPICS}/orders/ledger/{ledger}/entry/99",
            f"{TOPICS}/orders/ledger/999999/entry/0",
            f"{TOPICS}/none/examinemessage",
        ):
            assert (await rest.ask("GET", path)).status == 404
        far = await rest.ask("GET", f"{TOPICS}/orders/examinemessage", messagePosition="99")
        assert far.status == 404
        assert (await rest.ask("GET", f"{SUB}/position/0")).status == 412
        for number in ("--5", "9" * 5000, "", "x"):
            path = f"{TOPICS}/orders/examinemessage"
            assert (await rest.ask("GET", path, messagePosition=number)).status == 412
        wrong = await rest.ask("GET", f"{TOPICS}/orders/examinemessage", initialPosition="middle")
        assert wrong.status == 412

    simulated(story)


def test_a_message_is_found_by_its_offset() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        path = f"{TOPICS}/orders/getMessageIdByIndex"
        last = (await rest.do("GET", f"{TOPICS}/orders/lastMessageId")).json
        for offset, entry, index in ((0, 0, -1), (4, 4, -1), (5, 5, 0), (7, 5, 2), (9, 5, 4)):
            found = (await rest.do("GET", path, index=str(offset))).json
            assert (found["entryId"], found["batchIndex"]) == (entry, index)
        assert found == last
        for none in ("10", "999999999999999999"):
            answer = await rest.ask("GET", path, index=none)
            assert answer.status == 404
            assert f"has no offset {none}: it holds 0 to 9" in answer.json["reason"]
        for wrong in ("-1", "x", "", "9" * 5000):
            assert (await rest.ask("GET", path, index=wrong)).status == 412
        await rest.do("DELETE", f"{TOPICS}/orders/truncate")
        gone = await rest.ask("GET", path, index="3")
        assert (gone.status, "it holds none" in gone.json["reason"]) == (404, True)

    simulated(story)


def test_to_ask_for_offsets_creates_no_topic() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        await rest.do("PUT", f"{TOPICS}/wide/partitions", 2)
        async with world.client("one") as client:
            held = await client.offsets(ORDERS.full)
            assert (held.first, held.next) == (0, 10)
            assert (await client.offsets("wide-partition-1")).next == 0
            for ask in (client.offsets, client.offset_ranges):
                with pytest.raises(daybook.TopicNotFoundError):
                    await ask("odrers")
        assert not [name for name in (await rest.do("GET", TOPICS)).json if "odrers" in name]

    simulated(story)


def test_a_peek_says_which_messages_of_a_batch_are_acknowledged() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        await rest.do("POST", f"{SUB}/skip/5")
        whole = await rest.do("GET", f"{SUB}/position/1")
        assert "x-daybook-pending" not in whole.headers
        await rest.do("POST", f"{SUB}/skip/2")
        part = await rest.do("GET", f"{SUB}/position/1")
        assert b64decode(part.headers["x-daybook-pending"]) == bytes([0b11100])

    simulated(story)


def test_properties_of_a_message_cannot_break_the_headers() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        async with (
            world.client("one") as client,
            await client.create_producer(ORDERS.full, batching=False) as producer,
        ):
            bad = {"a b": "1", "c": "x\r\nSet-Cookie: y", "d": "\u00e4\u4e2d", "good": "yes"}
            await producer.send(b"x", properties=bad)
        answer = await rest.do("GET", f"{TOPICS}/orders/examinemessage")
        names = [name for name in answer.headers if "property" in name]
        assert names == ["x-pulsar-property-good", "x-pulsar-property"]
        assert msgspec.json.decode(answer.headers["x-pulsar-property"]) == bad

    simulated(story)


def test_properties_of_a_subscription_survive_the_unload_of_its_topic() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        assert (await rest.do("GET", f"{SUB}/properties")).json == {}
        await rest.do("PUT", f"{SUB}/properties", {"team": "billing", "n": "1"})
        await rest.do("PUT", f"{TOPICS}/orders/unload")
        assert (await rest.do("GET", f"{SUB}/properties")).json == {"team": "billing", "n": "1"}
        stats = (await rest.do("GET", f"{TOPICS}/orders/stats")).json
        assert stats["subscriptions"]["sub"]["subscriptionProperties"]["team"] == "billing"
        assert (await rest.backlog())[0] == 10
        await rest.do("PUT", f"{SUB}/properties", {})
        assert (await rest.do("GET", f"{SUB}/properties")).json == {}
        large = {"k": "x" * 70_000}
        assert (await rest.ask("PUT", f"{SUB}/properties", large)).status == 412

    simulated(story)


def test_the_backlog_is_analyzed_and_its_size_from_a_message_on() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        found = (await rest.do("POST", f"{SUB}/analyzeBacklog")).json
        assert (found["entries"], found["messages"], found["aborted"]) == (6, 10, False)
        assert found["filterAcceptedMessages"] == 10
        assert found["firstMessageId"].endswith(":0")
        total = (await rest.do("GET", f"{TOPICS}/orders/stats")).json["storageSize"]
        assert found["bytes"] == total == (await rest.backlog())[1]
        last = (await rest.do("GET", f"{TOPICS}/orders/lastMessageId")).json
        sizes = [
            (await rest.do("PUT", f"{TOPICS}/orders/backlogSize", {**last, "entryId": n})).json
            for n in range(-1, 7)
        ]
        assert sizes[0] == sizes[1] == total
        assert sizes == sorted(sizes, reverse=True)
        assert (len(set(sizes)), sizes[-1]) == (7, 0)
        everything = {"ledgerId": -1, "entryId": -1}
        found = (await rest.do("PUT", f"{TOPICS}/orders/backlogSize", everything)).json
        assert found == total
        offline = (await rest.do("GET", f"{TOPICS}/orders/backlog")).json
        assert (offline["messageBacklog"], offline["totalMessages"]) == (10, 6)
        assert offline["cursorDetails"]["sub"]["cursorBacklog"] == 10

    simulated(story)


def test_what_is_stored_of_a_topic_is_shown() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        info = (await rest.do("GET", f"{TOPICS}/orders/internal-info")).json
        assert len(info["ledgers"]) >= 1
        assert info["cursors"]["sub"]["markDelete"]["entryId"] == -1
        stats = (await rest.do("GET", f"{TOPICS}/orders/internalStats")).json
        cursor = stats["cursors"]["sub"]
        assert cursor["individuallyDeletedMessages"] == "[]"
        assert cursor["numberOfEntriesSinceFirstNotAckedMessage"] == 6
        for key in ("currentLedgerSize", "pendingAddEntriesCount", "waitingCursorsCount"):
            assert isinstance(stats[key], int)

    simulated(story)


def test_truncation_drops_what_is_stored_and_trimming_keeps_what_is_needed() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        await rest.do("POST", f"{TOPICS}/orders/trim")
        assert (await rest.backlog())[0] == 10
        await rest.do("DELETE", f"{TOPICS}/orders/truncate")
        assert await rest.backlog() == (0, 0, True)
        stats = (await rest.do("GET", f"{TOPICS}/orders/stats")).json
        assert stats["storageSize"] == 0
        async with world.client("one") as client:
            await send(client, ORDERS.full, 2, first=10)
        assert await received(world, "sub", 2) == [b"10", b"11"]

    simulated(story)


def test_backlogs_of_a_namespace_are_cleared_and_subscriptions_removed() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        await rest.do("PUT", f"{TOPICS}/many/partitions", 2)
        everything = {"ledgerId": -1, "entryId": -1}
        for topic in ("orders", "many"):
            await rest.do("PUT", f"{TOPICS}/{topic}/subscription/x", everything)
        async with world.client("one") as client:
            await send(client, TopicName.parse("many").full, 6)
        await rest.do("POST", f"{NAMESPACE}/clearBacklog/sub")
        assert (await rest.backlog())[0] == 0
        assert (await rest.backlog("x"))[0] == 10
        found = (await rest.do("POST", f"{TOPICS}/many/subscription/x/skip/2", dryRun="true")).json
        assert found["messages"] == 4  # two of each partition
        for bundle in (await rest.do("GET", f"{NAMESPACE}/bundles")).json["boundaries"][:1]:
            assert bundle == "0x00000000"
        assert (
            await rest.ask("POST", f"{NAMESPACE}/0x00000000_0x00000001/clearBacklog")
        ).status == 404
        await rest.do("POST", f"{NAMESPACE}/clearBacklog")
        assert (await rest.backlog("x"))[0] == 0
        assert (await rest.backlog("x", "many-partition-0"))[0] == 0
        await rest.do("POST", f"{NAMESPACE}/unsubscribe/x")
        assert (await rest.do("GET", f"{TOPICS}/orders/subscriptions")).json == ["sub"]
        assert (await rest.do("GET", f"{TOPICS}/many/subscriptions")).json == []

    simulated(story)


def test_what_another_broker_owns_is_asked_there() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        other = Rest(await world.broker("two"))
        await trio.sleep(1)
        answer = await other.ask("POST", f"{SUB}/skip/1")
        assert answer.status in (307, 503)
        assert (await rest.backlog())[0] == 10

    simulated(story)


def test_explain_over_rest() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        found = (await rest.do("GET", f"{SUB}/explain")).json
        assert found["blockers"][0]["cause"] == "noConsumers"
        assert (found["msgBacklog"], found["backlogExact"]) == (10, True)
        assert (await rest.ask("GET", f"{TOPICS}/orders/subscription/none/explain")).status == 404

    simulated(story)


def test_a_message_expires_by_its_own_age_however_the_clocks_of_producers_differ() -> None:
    """One producer's clock is days behind, and its messages lie between those of another one."""

    async def story(world: World) -> None:
        rest = await start(world)
        await trio.sleep(60)
        topic = await rest.broker.topics.get(ORDERS, create=False)
        real = topic.log.append

        async with world.client("one") as client:
            await send(client, ORDERS.full, 3, first=10)

            def append(payload: Any, messages: int, done: Any) -> None:
                metadata, body = parse_metadata(memoryview(b"".join(payload)))
                metadata.publish_time = 1
                real((encode_payload(metadata, bytes(body)),), messages, done)

            topic.log.append = append  # type: ignore[method-assign]
            await send(client, ORDERS.full, 1, first=13)
            topic.log.append = real  # type: ignore[method-assign]
        found = (await rest.do("POST", f"{SUB}/expireMessages/30", dryRun="true")).json
        assert found["messages"] == 10
        await rest.do("POST", f"{SUB}/expireMessages/30")
        assert await received(world, "sub", 4) == [b"10", b"11", b"12", b"13"]

    simulated(story)


def test_truncation_drops_what_deduplication_and_compaction_would_keep() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        await rest.do("POST", f"{TOPICS}/orders/deduplicationEnabled", True)
        await rest.do("PUT", f"{TOPICS}/orders/compaction")
        await trio.sleep(60)
        done = (await rest.do("GET", f"{TOPICS}/orders/compaction")).json
        assert done["status"] == "SUCCESS"
        async with world.client("one") as client:
            async with await client.create_producer(ORDERS.full, name="p") as producer:
                await producer.send(b"secret", sequence_id=7)
            await rest.do("DELETE", f"{TOPICS}/orders/truncate")
            stats = (await rest.do("GET", f"{TOPICS}/orders/stats")).json
            assert stats["storageSize"] == 0
            inside = (await rest.do("GET", f"{TOPICS}/orders/internalStats")).json
            assert inside["compactedLedger"]["ledgerId"] == -1
            async with await client.create_producer(ORDERS.full, name="p") as producer:
                assert producer.last_sequence_id == 7, "the topic remembers its producers"
                await producer.send(b"new", sequence_id=8)
            async with await client.create_reader(
                ORDERS.full, start="earliest", read_compacted=True
            ) as reader:
                assert (await reader.receive()).data == b"new"

    simulated(story)


def test_stored_properties_and_the_last_move_of_a_subscription_are_in_the_statistics() -> None:
    async def story(world: World) -> None:
        rest = await start(world)
        async with world.client("one") as client:
            for value in ("first", "second"):  # Only the call that creates it stores them.
                async with await client.subscribe(
                    ORDERS.full, "marked", subscription_properties={"of": value}
                ):
                    pass
            with pytest.raises(TypeError, match="must be text"):
                await client.subscribe(
                    ORDERS.full,
                    "other",
                    subscription_properties={"of": 1},  # type: ignore[dict-item]
                )

        async def stats() -> dict[str, object]:
            found = (await rest.do("GET", f"{TOPICS}/orders/stats")).json
            one: dict[str, object] = found["subscriptions"]["marked"]
            return one

        before = await stats()
        assert before["subscriptionProperties"] == {"of": "first"}
        assert before["lastMovedTimestamp"] == 0
        await rest.do("POST", f"{TOPICS}/orders/subscription/marked/resetcursor/0")
        moved = (await stats())["lastMovedTimestamp"]
        assert isinstance(moved, int)
        assert moved > 0
        await rest.do("PUT", f"{TOPICS}/orders/unload")
        after = await stats()
        assert after["lastMovedTimestamp"] == moved
        assert after["subscriptionProperties"] == {"of": "first"}

    simulated(story)
