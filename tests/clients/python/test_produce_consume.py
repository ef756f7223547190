"""Produce and consume against a fake broker, as an application sees it."""

import trio

import daybook
from tests.clients.python.fake_broker import PATIENCE_S, fake_cluster


async def test_a_message_goes_there_and_back() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("orders")
        consumer = await client.subscribe("orders", "billing")
        sent = await producer.send(
            b"hello", key="k", properties={"a": "b", "c": ""}, event_time_ms=5
        )
        message = await consumer.receive()
        assert message.data == b"hello"
        assert (message.key, message.properties) == ("k", {"a": "b", "c": ""})
        assert message.event_time_ms == 5
        assert message.message_id == sent
        assert message.offset == 0
        assert message.topic == "persistent://public/default/orders"
        await consumer.ack(message)


async def test_many_messages_share_entries_and_keep_their_order() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        consumer = await client.subscribe("orders", "billing")
        producer = await client.create_producer("orders", compression="lz4")
        for n in range(5000):
            producer.send_nowait(b"%d" % n * 10)
        await producer.flush()
        entries = len(cluster.topics["persistent://public/default/orders"].entries)
        assert entries < 20
        got: list[daybook.Message] = []
        while len(got) < 5000:
            got += await consumer.receive_batch(700)
        assert [m.data for m in got] == [b"%d" % n * 10 for n in range(5000)]
        assert [m.offset for m in got] == list(range(5000))
        assert [m.sequence_id for m in got] == list(range(5000))
        with trio.fail_after(PATIENCE_S):
            await consumer.ack(got)
            await consumer.flush_acks()
        subscription = cluster.topics["persistent://public/default/orders"].subscriptions["billing"]
        assert subscription.acked == set(range(entries))
