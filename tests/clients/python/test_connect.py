"""The first contact with a cluster: the errors when it fails, and how soon they come."""

import asyncio
import logging
import re
from typing import Any

import pytest
import trio

import daybook
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork
from tests.clients.python.fake_broker import PATIENCE_S, fake_cluster

T = pb.BaseCommand


async def a_port_where_nobody_listens() -> int:
    listener = await TcpNetwork().listen("127.0.0.1", 0)
    listener.close()
    return listener.port


async def test_an_unreachable_broker_is_an_error_in_the_time_of_the_first_contact() -> None:
    port = await a_port_where_nobody_listens()
    with pytest.raises(daybook.UnavailableError, match=r"tried for 0.2 s.*Is a broker running"):
        async with daybook.connect(f"pulsar://127.0.0.1:{port}", timeout_s=0.2):
            pass


async def test_without_a_time_for_the_first_contact_the_cause_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = await a_port_where_nobody_listens()
    limits = daybook.ClientLimits(operation_timeout_s=0.5)
    with caplog.at_level(logging.INFO, logger="daybook.client"):
        async with daybook.connect(
            f"pulsar://127.0.0.1:{port}", timeout_s=None, limits=limits
        ) as client:
            with pytest.raises(daybook.UnavailableError):
                await client.create_producer("t")
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"127.0.0.1:{port}" in said
    assert "trying again" in said


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04\0\0\0\0"])
async def test_something_else_than_a_broker_says_so_at_once(answer: bytes) -> None:
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener[0].socket.getsockname()[1]

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(answer)
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listener)
        with (
            trio.fail_after(PATIENCE_S),
            pytest.raises(daybook.WrongProtocolError, match="is not the service port of a broker"),
        ):
            async with daybook.connect(f"pulsar://127.0.0.1:{port}", timeout_s=PATIENCE_S):
                pass
        nursery.cancel_scope.cancel()


async def test_a_port_that_hangs_up_is_perhaps_no_broker() -> None:
    """ZooKeeper does that."""
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener[0].socket.getsockname()[1]

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, hang_up, listener)
        with pytest.raises(daybook.UnavailableError, match="before any greeting: is that the serv"):
            async with daybook.connect(f"pulsar://127.0.0.1:{port}", timeout_s=0.5):
                pass
        nursery.cancel_scope.cancel()


async def test_one_wrong_address_of_two_does_not_matter() -> None:
    port = await a_port_where_nobody_listens()
    async with fake_cluster() as cluster:
        url = f"pulsar://127.0.0.1:{port},{cluster.url.removeprefix('pulsar://')}"
        async with daybook.connect(url) as client:
            assert await client.partitions("t") == 0


async def test_each_address_that_fails_is_named_with_its_reason() -> None:
    """One refuses, one is silent, one answers as another kind of server."""
    closed, silent = (
        await a_port_where_nobody_listens(),
        await trio.open_tcp_listeners(0, host="127.0.0.1"),
    )
    wrong = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ports = [closed, *(each[0].socket.getsockname()[1] for each in (silent, wrong))]

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await trio.sleep_forever()

    limits = daybook.ClientLimits(connect_timeout_s=0.2)
    url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, wrong)
        with pytest.raises(daybook.UnavailableError) as caught:
            async with daybook.connect(url, timeout_s=1, limits=limits):
                pass
        nursery.cancel_scope.cancel()
    said = str(caught.value)
    assert f"127.0.0.1:{ports[0]}: connection refused" in said
    assert f"127.0.0.1:{ports[1]} accepted the connection, but did not answer" in said
    assert f"127.0.0.1:{ports[2]} is not the service port of a broker" in said


class Firewall:
    """A network that drops all data."""

    async def connect(self, host: str, port: int) -> Any:
        await trio.sleep_forever()

    async def listen(self, host: str, port: int) -> Any:
        raise NotImplementedError


async def test_an_address_from_which_nothing_comes_is_told_from_a_silent_broker() -> None:
    limits = daybook.ClientLimits(connect_timeout_s=0.1)
    with pytest.raises(
        daybook.UnavailableError, match=r"b:6650: no connection within 0.1 s \(is a"
    ):
        async with daybook.connect("pulsar://b", timeout_s=0.5, limits=limits, network=Firewall()):
            pass
    admin = daybook.admin.Admin("http://b", network=Firewall(), timeout_s=0.1)
    with pytest.raises(daybook.UnavailableError, match=r"b:8080: no connection within 0.1 s"):
        await admin.brokers()


def test_asyncio_is_told_what_to_use_instead() -> None:
    async def main() -> None:
        async with daybook.connect("pulsar://127.0.0.1:1"):
            pass

    with pytest.raises(RuntimeError, match=r"use daybook.aio.connect under asyncio"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (["pulsar://a:1"], "service_url must be text, not list; write the brokers into one text"),
        (None, "service_url must be text, not NoneType"),
        (b"pulsar://a:1", "service_url must be text, not bytes"),
    ],
)
async def test_a_service_url_that_is_no_text_is_named(url: Any, said: str) -> None:
    for connect in (daybook.connect, daybook.blocking.connect):
        with pytest.raises(TypeError, match=re.escape(said)):
            connect(url)
    with pytest.raises(TypeError, match="admin_url must be text"):
        daybook.blocking.connect_admin(url)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pb.TopicTerminatedError, daybook.TopicTerminatedError),
        (pb.NotAllowedError, daybook.NotAllowedError),
        (pb.ProducerBusy, daybook.BusyError),
        (pb.ProducerFenced, daybook.ProducerFencedError),
        (pb.InvalidTopicName, daybook.RefusedError),
        (pb.TopicNotFound, daybook.TopicNotFoundError),
        (pb.AuthenticationError, daybook.AuthenticationError),
        (pb.AuthorizationError, daybook.AuthorizationError),
        (pb.IncompatibleSchema, daybook.IncompatibleSchemaError),
    ],
)
async def test_a_refusal_that_is_final_is_raised_at_once(
    code: int, kind: type[daybook.RefusedError]
) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        for command, ask in (
            (T.PRODUCER, lambda: client.create_producer("t")),
            (T.SUBSCRIBE, lambda: client.subscribe("t", "s")),
            (T.SUBSCRIBE, lambda: client.create_reader("t")),
        ):
            cluster.brokers["b1"].refusals[command] = [(code, "because")]
            with pytest.raises(daybook.RefusedError, match="because") as caught:
                await ask()
            assert type(caught.value) is kind
            assert cluster.brokers["b1"].refusals[command] == []  # It was asked once.


async def test_a_wrong_argument_is_named() -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s")
        with pytest.raises(TypeError, match=r"properties\['a'\] must be text, not int: write '1'"):
            await producer.send(b"", properties={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="key must be text or bytes, not int"):
            await producer.send(b"", key=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="topic must be text, not list; open one"):
            await client.create_producer(["t", "u"])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="subscription is empty"):
            await client.subscribe("t", "")
        with pytest.raises(TypeError, match=r"properties\['a'\] must be text"):
            await client.subscribe("t", "s2", properties={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="consumer_name must be text, not int"):
            await client.subscribe("t", "s", consumer_name=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="name must be text, not int"):
            await client.create_producer("t", name=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="compression must be text, not None"):
            await client.create_producer("t", compression=None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"start must be 'earliest', .*, not NoneType"):
            await client.create_reader("t", start=None)  # type: ignore[arg-type]
        for refused in (5, [5]):
            with pytest.raises(TypeError, match="a Message or a MessageId, not int"):
                await consumer.ack(refused)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"message must be .*, not int"):
            await consumer.ack_cumulative(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a Message or a MessageId, not int"):
            consumer.nack(5)  # type: ignore[arg-type]
        await producer.send(b"and all goes on")


@pytest.mark.parametrize("batching", [True, False])
async def test_large_keys_and_properties_count_with_the_data(batching: bool) -> None:
    async with fake_cluster() as cluster, daybook.connect(cluster.url) as client:
        producer = await client.create_producer("t", batching=batching, batch_bytes_max=32 << 20)
        text = "x" * (5 << 20)
        for beside in ({"key": text}, {"key": text.encode()}, {"properties": {"name": text}}):
            with pytest.raises(daybook.MessageTooLargeError):
                producer.send_nowait(b"x", **beside)
        # Together they are larger than a frame, even if a batch could hold them.
        for _ in range(5):
            producer.send_nowait(bytes(3 << 20))
        await producer.flush()
        entries = cluster.topics["persistent://public/default/t"].entries
        assert [entry.count for entry in entries] == [1] * 5


async def test_a_wrong_way_in_is_told_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"write `async with daybook.connect"):
        await daybook.connect("pulsar://localhost")
    with (
        pytest.raises(TypeError, match=r"or daybook.blocking.connect without trio"),
        daybook.connect("pulsar://localhost"),
    ):
        pass
