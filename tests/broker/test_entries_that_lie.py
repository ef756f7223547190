"""Entries that claim more than their bytes can hold: only their producer is refused."""

import zlib
from typing import Any

import pytest
from trio.testing import MockClock

from daybook.wire.batch import encode_batch
from daybook.wire.proto import pulsar_pb2 as pb
from tests.harness.broker import Client, open_broker, payload_of

_SHARED = pb.CommandSubscribe.Shared


def _batch(count: int) -> bytes:
    """Return the smallest batch there is: messages without data."""
    return encode_batch((pb.SingleMessageMetadata(payload_size=0), b"") for _ in range(count))


_LIES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "more messages than bytes": (_batch(2), {"num_messages_in_batch": 1 << 18}),
    "one message too many": (_batch(10), {"num_messages_in_batch": 11}),
    "no bytes": (b"", {"num_messages_in_batch": 2}),
    "encrypted": (
        b"x" * 60,
        {"num_messages_in_batch": 11, "encryption_algo": "RSA", "encryption_param": b"0" * 12},
    ),
    "compressed to less than any compression can": (
        b"x" * 100,
        {"num_messages_in_batch": 1 << 18, "compression": pb.ZLIB, "uncompressed_size": 5_000_000},
    ),
    "less than they are when they are unpacked": (
        zlib.compress(_batch(1000)),
        {"num_messages_in_batch": 1001, "compression": pb.ZLIB, "uncompressed_size": 6_000},
    ),
    "a chunk behind the last": (b"x", {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": 2}),
    "a chunk before the first": (b"x", {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": -1}),
    "more chunks than bytes": (
        b"x",
        {"uuid": "u", "num_chunks_from_msg": 2_000_000_000, "total_chunk_msg_size": 10},
    ),
}

_TRUTHS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a batch": (_batch(10), {"num_messages_in_batch": 10}),
    "a batch of one without bytes": (b"", {"num_messages_in_batch": 1}),
    "compressed": (
        zlib.compress(_batch(100_000), 9),
        {"num_messages_in_batch": 100_000, "compression": pb.ZLIB, "uncompressed_size": 600_000},
    ),
    "a chunk": (
        b"x",
        {"uuid": "u", "num_chunks_from_msg": 2, "chunk_id": 1, "total_chunk_msg_size": 2},
    ),
}


async def _answer(client: Client, kind: str, known: dict[str, Any]) -> Any:
    data, claims = known[kind]
    client.send_payload(0, payload_of(0, data, **claims))
    client.send(1)
    (receipt,) = await client.receipts(1)
    return receipt


@pytest.mark.parametrize("kind", _LIES)
async def test_an_entry_that_cannot_hold_what_it_claims_is_refused(
    autojump_clock: MockClock, kind: str
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        assert (await _answer(client, kind, _LIES))[0] == 1
        (error,) = await client.wait(pb.CommandSendError)
        assert error.sequence_id == 0
        assert error.error == pb.NotAllowedError


@pytest.mark.parametrize("kind", _TRUTHS)
async def test_an_entry_that_can_hold_what_it_claims_is_stored(
    autojump_clock: MockClock, kind: str
) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        assert (await _answer(client, kind, _TRUTHS))[0] == 0


async def test_a_small_entry_does_not_stop_a_shared_subscription(autojump_clock: MockClock) -> None:
    async with open_broker() as cluster:
        client = await cluster.client()
        await client.producer()
        await client.subscribe(kind=_SHARED, permits=1_000_000)
        await _answer(client, "more messages than bytes", _LIES)
        assert len(await client.deliveries(1)) == 1
