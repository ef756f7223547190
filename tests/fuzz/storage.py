"""Targets: the contents of a bookie's disk, byte by byte and as whole directories.

A directory is made by a script: segments of batches of records, mostly as a bookie writes them,
some with other marks, sizes and positions, then bytes are changed and files cut.  In each case the
bookie starts or says why not; each entry that it serves was written under that id.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import trio
from trio.testing import MockClock

from daybook.bookie.registry.cookies import Cookie
from daybook.bookie.registry.paths import LedgerPaths
from daybook.bookie.server.cookie_validation import StartError, validate_cookies
from daybook.bookie.server.host import START_ERRORS
from daybook.bookie.server.registration import replace_mark
from daybook.bookie.storage.index import (
    Checkpoint,
    block_key,
    block_number_of_key,
    checkpoint_key,
    ledger_key,
    ledger_of_key,
)
from daybook.bookie.storage.ledger_state import LedgerState, decode_row, encode_row
from daybook.bookie.storage.limits import StoreLimits
from daybook.bookie.storage.log import LogLimits
from daybook.bookie.storage.records import (
    BATCH_HEADER_BYTES,
    BatchFlag,
    Kind,
    SegmentHeader,
    UnsupportedVersionError,
    decode_batch_header,
    decode_record,
    decode_records,
    encode_batch_header,
    encode_record_header,
    record_seed,
)
from daybook.bookie.storage.status import StoreError, StoreStatus
from daybook.bookie.storage.store import LedgerStore, open_store
from daybook.bookie.storage.write_cache import Block, WriteCache
from daybook.wire.metadata.memory import MemoryStore
from tests import strategies
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, outermost, require
from tests.harness.clocks import FixedClock
from tests.harness.disk import Platter

_KEY = b"key"
_CREATION = 5


# -- bytes


def run_records(data: bytes) -> None:
    SegmentHeader.decode(data)
    decode_batch_header(_CREATION, 0, data)
    seed = record_seed(_CREATION)
    view = memoryview(data)
    decode_record(seed, 0, view)
    records, whole = decode_records(seed, 0, view)
    written = b"".join(
        encode_record_header(seed, r.position, r.kind, r.ledger_id, r.entry_id, r.payload)
        + r.payload
        for r in records
    )
    require(not whole or written == data, "whole records that are not the bytes")
    require(len(written) <= len(data), "more records than bytes")


def record_seeds() -> Mapping[str, bytes]:
    return {
        "records": _records(
            _CREATION, 0, [(Kind.MASTER_KEY, 7, -1, _KEY), (Kind.ENTRY, 7, 0, b"entry")]
        ),
        "segment": SegmentHeader(_CREATION).encode(),
        "batch": encode_batch_header(_CREATION, 0, BatchFlag.NONE, 2, 88, 0),
    }


def _records(creation_id: int, position: int, records: list[tuple[Kind, int, int, bytes]]) -> bytes:
    seed, out = record_seed(creation_id), b""
    for kind, ledger_id, entry_id, payload in records:
        at = position + len(out)
        out += encode_record_header(seed, at, kind, ledger_id, entry_id, payload) + payload
    return out


def run_index(data: bytes) -> None:
    choices = Choices(data)
    match choices.below(4):
        case 0:
            row = choices.rest()
            state = decode_row(7, row)
            again = decode_row(7, encode_row(state))
            require(again.explicit_body == state.explicit_body, "a row loses its explicit LAC")
            require(again.master_key == state.master_key, "a row loses its key")
        case 1:
            block = Block.decode(choices.rest())
            for entry_id in (0, 1, 255):
                block.find(entry_id)
            require(Block.decode(block.encode()).low == block.low, "a block changes")
            block.merge(block)
        case 2:
            checkpoint = Checkpoint.decode(choices.rest())
            require(Checkpoint.decode(checkpoint.encode()) == checkpoint, "a checkpoint changes")
        case _:
            key = choices.rest()
            ledger_of_key(key[:9])
            block_number_of_key(key[9:])


def index_seeds() -> Mapping[str, bytes]:
    state = LedgerState(7, _KEY, fenced=True, last_entry=9, explicit_lac=4, explicit_body=b"lac")
    return {
        "row": b"\0" + encode_row(state),
        "block": b"\1" + _block([(0, 90, 5), (1, 95, 6), (200, 101, 7)]).encode(),
        "checkpoint": b"\2" + Checkpoint(90, limbo=False).encode(),
        "keys": b"\3" + ledger_key(7) + block_key(7, 1),
    }


def _block(places: list[tuple[int, int, int]]) -> Block:
    recent = WriteCache()
    for place in places:
        recent.add(*place)
    return next(block for _, block in recent.blocks())


# -- directories


@dataclass(slots=True)
class Made:
    """Directories made by a script."""

    files: dict[str, bytearray] = field(default_factory=dict[str, bytearray])
    index: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    end: int = 0


def make(choices: Choices) -> Made:
    made = Made()
    for number in range(1 + choices.below(3)):
        _make_segment(made, choices, _CREATION + number)
    if choices.one_in(3):
        _make_index(made, choices)
    while choices:
        _damage(made, choices)
    return made


def _make_segment(made: Made, choices: Choices, creation_id: int) -> None:
    first = made.end + (choices.below(50) if choices.one_in(8) else 0)
    data = bytearray(SegmentHeader(creation_id).encode())
    mark = made.end
    for _ in range(choices.below(4)):
        position = first + len(data)
        records = [_make_record(made, choices) for _ in range(choices.below(4))]
        body = _records(creation_id, position + BATCH_HEADER_BYTES, records)
        flags = BatchFlag.END if choices.one_in(8) else BatchFlag.NONE
        count, size = len(records), len(body)
        if choices.one_in(16):
            count, size, mark = choices.below(9), choices.below(999), choices.below(2000)
        data += encode_batch_header(creation_id, position, flags, count, size, mark) + body
        mark = first + len(data)
    made.files[f"d0/log/{first:020d}.log"] = data
    made.end = first + len(data)


def _make_record(made: Made, choices: Choices) -> tuple[Kind, int, int, bytes]:
    ledger_id, entry_id = choices.below(3), choices.below(6)
    match choices.below(8):
        case 0:
            return Kind.MASTER_KEY, ledger_id, -1, _KEY
        case 1:
            return Kind.FENCE, ledger_id, -1, b""
        case 2:
            return Kind.EXPLICIT_LAC, ledger_id, entry_id, choices.blob(20)
        case 3 if choices.one_in(4):
            return choices.pick((Kind.TOMBSTONE, Kind.LIMBO)), ledger_id, -1, b""
        case _:
            # A bookie writes an entry again only unchanged: the first bytes count.
            entry = made.entries.setdefault(
                (ledger_id, entry_id),
                strategies.ledger_entry(ledger_id, entry_id, choices.blob(30), entry_id - 1),
            )
            return Kind.ENTRY, ledger_id, entry_id, entry


def _make_index(made: Made, choices: Choices) -> None:
    made.index[checkpoint_key()] = Checkpoint(choices.below(made.end + 1), False).encode()
    state = LedgerState(choices.below(3), _KEY, last_entry=choices.below(6))
    made.index[ledger_key(state.ledger_id)] = encode_row(state)
    places = [(choices.below(6), choices.below(made.end), choices.below(99)) for _ in range(2)]
    made.index[block_key(state.ledger_id, 0)] = _block(places).encode()


def _damage(made: Made, choices: Choices) -> None:
    data = made.files[choices.pick(list(made.files))]
    at = choices.below(len(data) + 1)
    match choices.below(6):
        case 0:
            del data[at:]
        case 1:
            data += choices.blob(60)
        case 2:
            data[at : at + choices.below(60)] = b""
        case 3 if made.index:
            key = choices.pick(list(made.index))
            made.index[key] = choices.blob(40)
        case 4:
            data[at:at] = data[choices.below(len(data) + 1) :][: choices.below(99)]
        case _:
            data[at : at + 1] = choices.take(1)


def run_boot(data: bytes) -> None:
    made = make(Choices(data))
    with outermost(*START_ERRORS):
        trio.run(_boot, made, clock=MockClock(autojump_threshold=0))


async def _boot(made: Made) -> None:
    platter = Platter(Random(1))
    disk = platter.mount()
    await disk.make_directory("d0/log")
    for path, content in made.files.items():
        await disk.write_file(path, bytes(content))
    platter.index("d0/index").apply(made.index, [])
    limits = StoreLimits(log=LogLimits(segment_bytes=4000), checkpoint_entries=5, free_bytes_min=0)
    before: set[tuple[int, int]] = set()
    for _ in range(2):
        async with open_store(
            disk=platter.mount(),
            directories=["d0"],
            index=platter.indexes().open,
            clock=FixedClock(strategies.NOW_MS),
            limits=limits,
        ) as store:
            found, absent = await _read_all(store, made)
            require(before.isdisjoint(absent), "an entry that was read is said not to be there")
            before |= found
            await _use(store)


async def _read_all(
    store: LedgerStore, made: Made
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the entries that exist, and those that are reported absent."""
    found, absent = set[tuple[int, int]](), set[tuple[int, int]]()
    for ledger_id in range(3):
        with suppress(StoreError):
            store.last_add_confirmed(ledger_id)
            require(all(i >= 0 for i in await store.entry_ids(ledger_id)), "an id nobody gave")
            await store.read_lac(ledger_id)
        for entry_id in range(6):
            try:
                entry = bytes(await store.read(ledger_id, entry_id))
            except StoreError as error:
                if error.status in (StoreStatus.NO_ENTRY, StoreStatus.NO_LEDGER):
                    absent.add((ledger_id, entry_id))
                continue
            written = made.entries.get((ledger_id, entry_id))
            require(entry == written, "an entry that was not written")
            found.add((ledger_id, entry_id))
    return found, absent


async def _use(store: LedgerStore) -> None:
    """Check that the bookie serves: adds are answered, one way or another."""
    answers: list[StoreStatus] = []
    answered = trio.Event()

    def done(status: StoreStatus) -> None:
        answers.append(status)
        answered.set()

    entry = memoryview(strategies.ledger_entry(9, 0))
    store.add(9, 0, _KEY, entry, recovery=False, done=done)
    with trio.fail_after(60):
        await answered.wait()
    require(len(answers) == 1, "an add is answered twice")
    if answers == [StoreStatus.OK]:
        require(await store.read(9, 0) == entry, "what was just added is something else")


def boot_seeds() -> Mapping[str, bytes]:
    return {
        "empty": b"",
        "one segment": b"\0\3" + b"\3\0\1\0\7\1\2\5hello\4\1\3\3abc\0" * 3,
        "three segments": b"\2" + b"\0\2" + b"\3\0\1\0\7\1\2\5hello\4\1\3\3abc\0" * 6,
        "index": b"\0\2" + b"\2\0\1\0\7\1\2\5hello\0" * 2 + b"\2" + bytes(range(1, 30)),
    }


# -- the bookie's identity


def run_identity(data: bytes) -> None:
    choices = Choices(data)
    local = [choices.blob(200) for _ in range(1 + choices.below(2))]
    stored, mark = choices.blob(200), choices.blob(40)
    with outermost(StartError):
        trio.run(_examine, local, stored, mark)


async def _examine(local: list[bytes], stored: bytes, mark: bytes) -> None:
    platter, store = (
        Platter(Random(1)),
        MemoryStore(FixedClock(strategies.NOW_MS)).session("bookie"),
    )
    disk, paths = platter.mount(), LedgerPaths()
    directories = [f"d{number}" for number in range(len(local))]
    for directory, text in zip(directories, local, strict=True):
        await disk.make_directory(directory)
        if text:
            await disk.write_file(f"{directory}/VERSION", text)
    if mark:
        await disk.write_file("d0/REGISTRATION", mark)
    if stored:
        await store.create(paths.cookie("b:1"), stored, make_parents=True)
    before, now = await replace_mark(disk, "d0", f"{Random(2).getrandbits(128):032x}")
    require(
        (await replace_mark(disk, "d0", f"{Random(3).getrandbits(128):032x}"))[0] == now,
        "a mark is not read as written",
    )
    require(isinstance(before, str), "a mark that is no text")
    identity = await validate_cookies(
        disk, directories, store, paths, instance_id="id", wanted_id="", default_id="b:1"
    )
    await identity.write_cookies()
    again = await validate_cookies(
        disk, directories, store, paths, instance_id="id", wanted_id="", default_id="b:1"
    )
    require(again.cookie == identity.cookie and not again.new, "it does not know itself")


def identity_seeds() -> Mapping[str, bytes]:
    cookie = Cookie("b:1", ("d0",), ("d0",), "id").encode()
    sized = bytes((len(cookie),)) + cookie
    return {
        "new": b"\0\0\0\0",
        "known": b"\0" + sized + sized + b"\0",
        "lost": b"\0\0" + sized,
        "foreign": b"\0" + sized.replace(b'"id"', b'"no"') + sized,
    }


TARGETS = (
    Target(
        name="storage.records",
        run=run_records,
        errors=(UnsupportedVersionError,),
        seeds=record_seeds,
    ),
    Target(
        name="storage.index",
        run=run_index,
        errors=(UnsupportedVersionError, OSError),
        seeds=index_seeds,
    ),
    Target(
        name="storage.boot",
        run=run_boot,
        errors=START_ERRORS,
        seeds=boot_seeds,
        input_bytes_max=400,
        steps_max=1_000_000,
        examples=40,
        weight=2.0,
    ),
    Target(
        name="storage.identity",
        run=run_identity,
        errors=(StartError,),
        seeds=identity_seeds,
        input_bytes_max=600,
        steps_a_byte=1000,
        examples=60,
    ),
)
