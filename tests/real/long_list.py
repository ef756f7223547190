"""python -m tests.real.long_list [--ledgers N]: a topic whose list of ledgers is at its limit.

It uses a real cluster; the list of one log is filled up with N closed ledgers, each with metadata
of its own in ZooKeeper, as an older version would have left them.  The log is opened twice (first
while nothing may be trimmed, then with a short retention), trimmed and rolled, and the cost of each
step is printed.  Then a namespace of as many topics with long names is listed: the reply is far
larger than what ZooKeeper accepts as a request.
"""

import argparse
import itertools
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from random import SystemRandom

import trio

from daybook.bookie.ledger.client import LedgerClient, Quorums, open_ledger_client
from daybook.bookie.ledger.metadata import encode_metadata
from daybook.bookie.registry.paths import LedgerPaths
from daybook.clients.testing.standalone import StandaloneProcess
from daybook.managed_ledger.context import LogConfig
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.open import open_managed_ledgers
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.trim import Retention
from daybook.managed_ledger.records import LAST_OFFSET, log_path, set_property
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.arena import ArenaPool
from daybook.wire.batch import encode_payload_head
from daybook.wire.clock import SystemClock
from daybook.wire.metadata.store import (
    ANY,
    VALUE_BYTES_MAX,
    Create,
    Delete,
    MetadataStore,
    Operation,
)
from daybook.wire.metadata.zookeeper import open_zookeeper
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.tcp import TcpNetwork

_NAME = "public/default/persistent/long-list"
_MANY = "public/many/persistent"
_NAME_CHARS = 200
_FULL = LogConfig(quorums=Quorums(3, 3, 2), roll_entries=5, retention=Retention(time_ms=None))
_TRIMMED = replace(_FULL, retention=Retention(time_ms=0))
_BATCH = 200
_FREE = 1000  # The cluster has fewer ledgers when it starts.


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real.long_list")
    parser.add_argument("--ledgers", type=int, default=25_000)
    options = parser.parse_args()
    with StandaloneProcess() as cluster:
        trio.run(_measure, cluster.zookeeper, options.ledgers)


async def _measure(zookeeper: str, count: int) -> None:
    async with open_zookeeper(zookeeper, session_timeout_s=10.0) as store:
        async with _client(store) as client:
            await _measure_list(store, client, count)
        await _measure_listing(store, count)


async def _measure_list(store: MetadataStore, client: LedgerClient, count: int) -> None:
    async with open_managed_ledgers(
        client=client,
        store=store,
        clock=SystemClock(),
        rng=SystemRandom(),
        allows=lambda _: True,
    ) as logs:
        with _timed(f"{count} ledgers numbered"):
            ids = await _numbers(store, count)
        log = await logs.open(_NAME, _FULL)
        await _append(log, 7)
        await log.close()
        with _timed("and made"):
            size = await _fill(store, client, ids)
        print(f"the list takes {size} bytes, of {VALUE_BYTES_MAX}", flush=True)

        with _timed("opened, nothing may go"):
            log = await logs.open(_NAME, _FULL)
        print(f"{len(log.ledgers.ids)} ledgers, {log.ledgers.bytes} bytes; {log.room}; {log.full}")
        with _timed("read behind them"):
            assert await log.read(Position(ids[-1] + 1, 0), max_entries=9, max_bytes=1)
        with _timed("a cursor created"):
            await log.open_cursor("s", initial=log.last_confirmed)
        with _timed("looked for what may go: nothing"):
            assert await log.trim() == []
        with _timed("closed"):
            await log.close()

        with _timed("opened and trimmed"):
            log = await logs.open(_NAME, _TRIMMED)
        print(f"{len(log.ledgers.ids)} ledgers, {log.ledgers.bytes} bytes", flush=True)
        assert len(log.ledgers.ids) < 10
        before = log.current_ledger_id
        with _timed("appended to, and rolled"):
            await _append(log, 12)
            with trio.fail_after(60):
                while log.current_ledger_id == before:  # noqa: ASYNC110  nobody is told of it
                    await trio.sleep(0.01)
        with _timed("and the ledgers that were trimmed are deleted"):
            paths, last = LedgerPaths("/ledgers"), ids[-1]
            while await store.get(paths.ledger(last)) is not None:  # noqa: ASYNC110  ZooKeeper
                await trio.sleep(0.1)
        await log.close()


async def _measure_listing(store: MetadataStore, count: int) -> None:
    paths = [f"{log_path(_MANY)}/{n:06d}{'x' * (_NAME_CHARS - 6)}" for n in range(count)]
    await store.create(f"{log_path(_MANY)}/first", b"", make_parents=True)
    with _timed(f"{count} topics with names of {_NAME_CHARS} characters made"):
        await _in_batches(store, [Create(path, b"") for path in paths])
    with _timed("listed"):
        names = await store.get_children(log_path(_MANY)) or []
    print(f"{len(names)} names, {sum(map(len, names))} bytes", flush=True)
    assert len(names) == count + 1
    with _timed("deleted"):
        await _in_batches(store, [Delete(path, ANY) for path in paths])
    assert await store.get_children(log_path(_MANY)) == ["first"]


async def _numbers(store: MetadataStore, count: int) -> list[int]:
    """Return ids that ZooKeeper never assigns again: it counts a record's former children."""
    idgen = LedgerPaths("/ledgers").idgen
    if await store.get(idgen) is None:
        await store.create(idgen, b"", make_parents=True)
    ids = range(_FREE, _FREE + count)
    await _in_batches(store, [Create(f"{idgen}/X{n}", b"") for n in range(ids.stop)])
    return list(ids)


async def _fill(store: MetadataStore, client: LedgerClient, ids: list[int]) -> int:
    """Put closed ledgers in front; return the size of the list."""
    record = await store.get(log_path(_NAME))
    assert record is not None
    info = ManagedLedgerInfo.FromString(record.value)
    ours, paths = list(info.ledgerInfo), LedgerPaths("/ledgers")
    metadata = encode_metadata(await client.metadata(ours[0].ledgerId))
    for parent in sorted({paths.ledger(ledger_id).rpartition("/")[0] for ledger_id in ids}):
        if await store.get(parent) is None:
            await store.create(parent, b"", make_parents=True)
    await _in_batches(store, [Create(paths.ledger(each), metadata) for each in ids])
    del info.ledgerInfo[:]
    for ledger_id in ids:
        info.ledgerInfo.add(
            ledgerId=ledger_id, entries=50_000, size=50_000_000, timestamp=1_700_000_000_000
        )
    info.ledgerInfo.extend(ours)
    size = info.ByteSize()
    for row, offset in zip(info.ledgerInfo, itertools.count(10**6), strict=False):
        if size + 50 > VALUE_BYTES_MAX:
            break
        size -= row.ByteSize()
        set_property(row, LAST_OFFSET, str(offset))
        size += row.ByteSize()
    await store.set(log_path(_NAME), info.SerializeToString(), record.stat.version)
    return info.ByteSize()


async def _append(log: ManagedLedger, count: int) -> None:
    done = trio.Event()
    left = count

    def stored(position: Position | None, error: Exception | None) -> None:
        nonlocal left
        assert position is not None, error
        left -= 1
        if not left:
            done.set()

    for number in range(count):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=number)
        log.append([bytes(encode_payload_head(metadata, b"x")), b"x"], 1, stored)
    await done.wait()


async def _in_batches(store: MetadataStore, operations: Sequence[Operation]) -> None:
    for i in range(0, len(operations), _BATCH):
        await store.multi(operations[i : i + _BATCH])


@contextmanager
def _timed(what: str) -> Generator[None]:
    started_s = time.perf_counter()
    yield
    print(f"{time.perf_counter() - started_s:8.3f} s  {what}", flush=True)


@asynccontextmanager
async def _client(store: MetadataStore) -> AsyncGenerator[LedgerClient]:
    async with trio.open_nursery() as nursery:
        flusher = Flusher()
        nursery.start_soon(flusher.run)
        async with open_ledger_client(
            store=store,
            network=TcpNetwork(),
            rng=SystemRandom(),
            clock=SystemClock(),
            arenas=ArenaPool(),
            flusher=flusher,
        ) as client:
            while len(client.directory.usable()) < 3:  # noqa: ASYNC110  the bookies have started
                await trio.sleep(0.05)
            yield client
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    main()
