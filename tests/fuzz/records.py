"""Targets: records of the metadata store, and the small files of a bookie."""

from collections.abc import Mapping
from typing import Any

import trio

from daybook.bookie.errors import LedgerError, RegistryError
from daybook.bookie.ledger.metadata import LedgerMetadata, decode_metadata, encode_metadata
from daybook.bookie.registry.cookies import Cookie
from daybook.bookie.registry.paths import check_bookie_id
from daybook.bookie.registry.registrations import BookieInfo
from daybook.broker.config import parse as parse_config
from daybook.broker.errors import BrokerError
from daybook.broker.namespaces import records as broker_records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.policy_types import Persistence, Retention
from daybook.broker.namespaces.records import (
    BrokerRecord,
    ClusterData,
    GuardRecord,
    LeaderRecord,
    LocalPolicies,
    OwnerRecord,
    PartitionedTopic,
    TenantInfo,
)
from daybook.managed_ledger.ack_set import AckSet
from daybook.managed_ledger.cursor_ledger import (
    Recovered,
    add_ranges,
    encode_change,
    encode_snapshot,
    recover,
)
from daybook.managed_ledger.errors import LogCorruptError
from daybook.managed_ledger.ledger_list import LedgerList, sealed_ledger, set_sealed, stored_offset
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.protocol.cursor import Change
from daybook.managed_ledger.records import owner_of, parse, set_property
from daybook.managed_ledger.records_pb2 import CompressedInfo, ManagedCursorInfo, ManagedLedgerInfo
from daybook.wire.compression import CompressionType, compress
from daybook.wire.errors import MalformedError
from daybook.wire.fields import U32
from daybook.wire.metadata.memory import MemoryStore
from tests import strategies
from tests.fuzz.bookie_codecs import split_frames
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, require
from tests.harness.clocks import FixedClock

_LENGTHS = {3: 10, 5: 1000, 6: 0, 9: 70}
_INFLATED_BYTES_MAX = 64 << 20

# -- of ledgers and bookies


def run_ledger_metadata(data: bytes) -> None:
    metadata = decode_metadata(data, created_ms=1)
    require(decode_metadata(encode_metadata(metadata), 1) == metadata, "metadata change")
    metadata.ensemble_at(0)
    metadata.quorums.write_set(metadata.last_fragment.first_entry_id)
    owner_of(metadata.custom)
    if not metadata.closed:
        ended = metadata.closed_at(5, 100)
        require(isinstance(ended, LedgerMetadata) and ended.closed, "a ledger that does not end")
        decode_metadata(encode_metadata(ended))


def ledger_metadata_seeds() -> Mapping[str, bytes]:
    v3 = (
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 3\nlength: 0\n"
        b'state: OPEN\nsegment {\n  ensembleMember: "a:1"\n  ensembleMember: "b:1"\n'
        b'  ensembleMember: "c:1"\n  firstEntryId: 0\n}\ndigestType: CRC32C\n'
        b'password: ""\nackQuorumSize: 2\nlastEntryId: -1\n'
    )
    v1 = b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta:1\tb:1\tc:1\n7\td:1\tb:1\tc:1"
    closed = v1 + b"\n9\tCLOSED"
    text = decode_metadata(v3)
    return {
        "text": v3,
        "first": v1,
        "first closed": closed,
        "first in recovery": v1 + b"\n-102\tCLOSED",
        "binary": encode_metadata(
            LedgerMetadata(
                quorums=text.quorums,
                fragments=text.fragments,
                custom={"component": b"managed-ledger"},
                created_ms=7,
                keeps_created=True,
            ).closed_at(5, 100)
        ),
    }


def run_cookie(data: bytes) -> None:
    cookie = Cookie.decode(data)
    require(Cookie.decode(cookie.encode()) == cookie, "a cookie changes when it is encoded again")


def cookie_seeds() -> Mapping[str, bytes]:
    return {
        "five": Cookie("b:1", ("j",), ("l", "m"), "id", ("i",)).encode(),
        "four": b'4\nbookieHost: "b:1"\njournalDir: "j"\nledgerDirs: "1\\tl"\n',
        "three": b"3\nb:1\nj\n1\tl\n",
    }


def run_bookie_info(data: bytes) -> None:
    """Decode the id (the first part) and the registration (the second one)."""
    choices = Choices(data)
    bookie_id = choices.blob(40).decode("latin-1")
    value = choices.rest()
    check_bookie_id(bookie_id)
    info = BookieInfo.decode(bookie_id, value)
    again = BookieInfo.decode(bookie_id, info.encode())
    require(again == info, "a registration changes when it is encoded again")


def bookie_info_seeds() -> Mapping[str, bytes]:
    info = BookieInfo("b:3181", "host", 3181, {"k": "v"}, 8000)
    return {"ours": b"\x06b:3181" + info.encode(), "bare": b"\x06b:3181"}


# -- of logs and cursors


def run_log_record(data: bytes) -> None:
    info = parse(ManagedLedgerInfo(), data, "the list")
    context: Any = None  # unused here
    ledgers = LedgerList(context, "the list", info, 1)
    stored_offset(info, "the list")
    for ledger in info.ledgerInfo:
        ledgers.seal(sealed_ledger(ledger, 7))
    for row in ledgers.sealed:
        ledgers.next_position(row.last)
        ledgers.previous_position(row.last)
        ledgers.floor(row.last)
        ledgers.entry_at(Position(row.ledger_id, 0))
        set_sealed(info, row)
    if ledgers.sealed:
        ledgers.entries_between(Position(0, -1), ledgers.sealed[-1].last)
    set_property(info, "index", "9")
    require(stored_offset(info, "the list") == 10, "an offset is lost")
    again = parse(ManagedLedgerInfo(), info.SerializeToString(), "the list")
    require(again == info, "the list changes when it is written again")


def compressed(message: bytes, size: int | None = None) -> bytes:
    """Compress a record as Pulsar does."""
    head = CompressedInfo(
        compressionType=int(CompressionType.LZ4),
        uncompressedSize=len(message) if size is None else size,
    ).SerializeToString()
    body = bytes(compress(CompressionType.LZ4, message))
    return b"\x47\x78" + U32.pack(len(head)) + head + body


def log_record_seeds() -> Mapping[str, bytes]:
    info = ManagedLedgerInfo()
    for ledger_id, entries in _LENGTHS.items():
        info.ledgerInfo.add(ledgerId=ledger_id, entries=entries, size=entries * 9, timestamp=7)
    info.ledgerInfo.add(ledgerId=11)
    set_property(info.ledgerInfo[0], "daybook.last", "9")
    set_property(info, "index", "1079")
    info.terminatedPosition.ledgerId, info.terminatedPosition.entryId = 11, 4
    plain = info.SerializeToString()
    return {"plain": plain, "compressed": compressed(plain)}


def run_cursor_record(data: bytes) -> None:
    info = parse(ManagedCursorInfo(), data, "the cursor")
    recovered = Recovered(_LENGTHS)
    mark_delete = Position(info.markDeleteLedgerId, info.markDeleteEntryId)
    recovered.properties = {p.name: p.value for p in info.properties}
    add_ranges(recovered.acked, info.individualDeletedMessages, _LENGTHS)
    recovered.acked.discard_through(mark_delete)
    _same_snapshot(mark_delete, recovered.acked, recovered.properties)


def _same_snapshot(mark_delete: Position, acked: AckSet, properties: dict[str, int]) -> None:
    written = recover(encode_snapshot(mark_delete, acked, properties), _LENGTHS)
    require(written.mark_delete == mark_delete, "a snapshot has another mark-delete position")
    require(written.properties == properties, "a snapshot has other properties")
    require(list(written.acked.ranges()) == list(acked.ranges()), "a snapshot loses positions")
    require(len(written.acked) == len(acked), "a set that does not know how large it is")


def cursor_record_seeds() -> Mapping[str, bytes]:
    info = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=3, markDeleteEntryId=4)
    info.properties.add(name="p", value=7)
    ranges = info.individualDeletedMessages.add()
    ranges.lowerEndpoint.ledgerId, ranges.lowerEndpoint.entryId = 3, 5
    ranges.upperEndpoint.ledgerId, ranges.upperEndpoint.entryId = 5, 9
    plain = info.SerializeToString()
    elsewhere = ManagedCursorInfo(cursorsLedgerId=12, markDeleteLedgerId=3, markDeleteEntryId=4)
    return {
        "plain": plain,
        "compressed": compressed(plain),
        "elsewhere": elsewhere.SerializeToString(),
    }


def run_cursor_ledger(data: bytes) -> None:
    records = [bytes(frame) for frame in split_frames(data)]
    recovered = recover(records, _LENGTHS)
    if recovered.mark_delete is not None:
        _same_snapshot(recovered.mark_delete, recovered.acked, recovered.properties)


def cursor_ledger_seeds() -> Mapping[str, bytes]:
    few, many = AckSet(), AckSet()
    few.add_range(5, 3, 9)
    for entry_id in range(0, 900, 3):
        many.add(Position(5, entry_id))
    changes = [
        encode_change(Change(Position(5, 2), ((5, 20, 29), (9, 0, 0)))),
        encode_change(Change(Position(3, -1), (), reset=True)),
    ]
    parts = [
        bytes((0, 1, 2, i, 2)) + piece
        for i, piece in enumerate(_halves(encode_snapshot(Position(5, 1), few, {})[0]))
    ]
    return {
        name: b"".join(U32.pack(len(each)) + each for each in records)
        for name, records in {
            "few": encode_snapshot(Position(5, 1), few, {"p": 1}),
            "many": encode_snapshot(Position(5, 1), many, {}),
            "changes": [*encode_snapshot(Position(3, 4), few, {}), *changes],
            "parts": parts,
        }.items()
    }


def _halves(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


# -- of brokers

_KINDS: tuple[Any, ...] = (
    ClusterData,
    TenantInfo,
    LocalPolicies,
    PartitionedTopic,
    OwnerRecord,
    BrokerRecord,
    LeaderRecord,
    GuardRecord,
    dict[str, object],
    Retention,
    Persistence,
)


def run_broker_record(data: bytes) -> None:
    choices = Choices(data)
    kind: type[Any] = choices.pick(_KINDS)
    record = broker_records.decode(kind, choices.rest())
    again = broker_records.decode(kind, broker_records.encode(record))
    require(again == record, "a record changes when it is encoded again")


def broker_record_seeds() -> Mapping[str, bytes]:
    examples = (
        ClusterData("http://b:8080", None, "pulsar://b:6650"),
        TenantInfo(["admin"], ["standalone"]),
        b'{"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1}}',
        PartitionedTopic(4, properties={"k": "v"}),
        OwnerRecord("pulsar://b:6650", "http://b:8080"),
        BrokerRecord("pulsar://b:6650", protocols={"daybook": "life-1"}),
        LeaderRecord("b:8080", "http://b:8080"),
        GuardRecord("b:8080", "life-1", formats=["cursor-change-2"]),
        {"retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}},
        Retention(-1, 10),
        Persistence(3, 3, 2),
    )
    return {
        type(each).__name__: bytes((number,))
        + (each if isinstance(each, bytes) else broker_records.encode(each))
        for number, each in enumerate(examples)
    }


def run_policies(data: bytes) -> None:
    """Read the records of a namespace, left by any writer, like a broker."""
    choices = Choices(data)
    values = {
        broker_records.policies_path("t/n"): choices.blob(1000),
        broker_records.local_policies_path("t/n"): choices.rest(),
    }
    trio.run(_read_policies, {path: value for path, value in values.items() if value})


async def _read_policies(values: Mapping[str, bytes]) -> None:
    store = MemoryStore(FixedClock(strategies.NOW_MS)).session("broker")
    for path, value in values.items():
        await store.create(path, value, make_parents=True)
    policies = Policies(store, parse_config({"cluster": "c"}))
    found = await policies.namespace("t/n")
    require(found.bundles.count >= 1, "a namespace without bundles")
    for bundle_hash in (0, 1, (1 << 32) - 1):
        require(found.bundles.range_of(bundle_hash), "a hash in no bundle")
    in_force = await policies.effective_in("t/n")
    require(in_force.max_producers >= 0, "a limit below 0")
    require(in_force == await policies.effective_in("t/n"), "policies that change by themselves")


def policies_seeds() -> Mapping[str, bytes]:
    policies = (
        b'{"bundles":{"boundaries":["0x00000000","0x80000000","0xffffffff"],"numBundles":2},'
        b'"retention_policies":{"retentionTimeInMinutes":1,"retentionSizeInMB":2},'
        b'"persistence":{"bookkeeperEnsemble":3,"bookkeeperWriteQuorum":3,"bookkeeperAckQuorum":2}}'
    )
    local = b'{"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1}}'
    size = len(policies).to_bytes(2, "big")
    return {"both": size + policies + local, "policies": size + policies}


TARGETS = (
    Target(
        name="record.ledger",
        run=run_ledger_metadata,
        errors=(LedgerError,),
        seeds=ledger_metadata_seeds,
        valid=strategies.ledger_records,
        steps_max=100_000,
        steps_a_byte=1000,
        weight=1.5,
    ),
    Target(
        name="record.cookie",
        run=run_cookie,
        errors=(RegistryError,),
        seeds=cookie_seeds,
        valid=strategies.cookies.map(Cookie.encode),
        steps_a_byte=1000,
    ),
    Target(
        name="record.bookie",
        run=run_bookie_info,
        errors=(RegistryError,),
        seeds=bookie_info_seeds,
        valid=strategies.bookie_infos.map(lambda info: b"\x03b:1" + info.encode()),
    ),
    Target(
        name="record.log",
        run=run_log_record,
        errors=(LogCorruptError,),
        seeds=log_record_seeds,
        valid=strategies.messages(ManagedLedgerInfo).map(ManagedLedgerInfo.SerializeToString),
        memory_bytes_max=2 * _INFLATED_BYTES_MAX,
    ),
    Target(
        name="record.cursor",
        run=run_cursor_record,
        errors=(LogCorruptError,),
        seeds=cursor_record_seeds,
        valid=strategies.messages(ManagedCursorInfo).map(ManagedCursorInfo.SerializeToString),
        memory_bytes_max=2 * _INFLATED_BYTES_MAX,
        steps_max=1_000_000,
        weight=1.5,
    ),
    Target(
        name="cursor.ledger",
        run=run_cursor_ledger,
        errors=(LogCorruptError,),
        seeds=cursor_ledger_seeds,
        memory_bytes_max=2 * _INFLATED_BYTES_MAX,
        steps_max=1_000_000,
        weight=1.5,
    ),
    Target(
        name="record.broker",
        run=run_broker_record,
        errors=(MalformedError,),
        seeds=broker_record_seeds,
    ),
    Target(name="record.policies", run=run_policies, errors=(BrokerError,), seeds=policies_seeds),
)
