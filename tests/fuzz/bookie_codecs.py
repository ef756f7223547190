"""Targets: messages between ledger clients and bookies, both ways and in both protocols."""

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from daybook.wire.digest import Digester, DigestType
from daybook.wire.entry import (
    decode_entry,
    decode_lac,
    encode_header,
    encode_lac,
    peek_ids,
    peek_lac,
)
from daybook.wire.errors import WireError
from daybook.wire.fields import U32
from daybook.wire.messages import blocks, bookie, bookie_v3
from daybook.wire.messages.bookie import Add, Auth, BatchRead, Read, Status, Unsupported
from daybook.wire.messages.entry_list import decode_entry_list, encode_entry_list, group_entries
from daybook.wire.proto import bookkeeper_pb2 as pb
from tests import strategies
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target, require

WIRE_ERRORS = (WireError,)
_LENGTH = U32.size
KEY = strategies.KEY


def run_request(data: bytes) -> None:
    request = bookie.decode_request(memoryview(data))
    match request:
        case Add():
            recovery = bool(request.flags & bookie.Flag.RECOVERY_ADD)
            head = bookie.encode_add_header(
                request.master_key, len(request.entry), recovery=recovery
            )
            add = _request(head + request.entry)
            if not request.entry.nbytes >= 16:
                return  # The ids of a request are those of its entry.
            same = (
                isinstance(add, Add)
                and replace(add, header=request.header, flags=request.flags) == request
            )
            require(same, "an add changes when it is encoded again")
        case Read():
            frame = bookie.encode_read(
                request.ledger_id, request.entry_id, fence_key=request.master_key
            )
            read = _request(frame)
            same = (
                isinstance(read, Read)
                and replace(read, header=request.header, flags=request.flags) == request
            )
            require(same, "a read changes when it is encoded again")
        case BatchRead():
            frame = bookie.encode_batch_read(
                request.ledger_id,
                request.first_entry_id,
                request.request_id,
                entries_max=request.entries_max,
                bytes_max=request.bytes_max,
            )
            many = _request(frame)
            same = (
                isinstance(many, BatchRead)
                and replace(
                    many, header=request.header, flags=request.flags, master_key=request.master_key
                )
                == request
            )
            require(same, "a batch read changes when it is encoded again")
            bookie.encode_batch_answer_header(request, Status.OK, 0)
        case Auth():
            require(isinstance(request.plugin, str), "the name of a plugin that is no text")
            bookie.encode_auth(request.plugin, version=request.header >> 24)
        case Unsupported():
            bookie.encode_add_answer(request.header, request.status, -1, -1)
        case _:
            assert_never(request)


def _request(frame: bytes) -> bookie.Request:
    return bookie.decode_request(memoryview(frame)[_LENGTH:])


def request_seeds() -> Mapping[str, bytes]:
    frames = {
        "add": strategies.add_frame(7, 3),
        "recovery": strategies.add_frame(7, 3, recovery=True),
        "read": bookie.encode_read(7, 3),
        "fence": bookie.encode_read(7, -1, fence_key=KEY),
        "batch": bookie.encode_batch_read(7, 0, 9, entries_max=10, bytes_max=1000),
        "auth": bookie.encode_auth("plugin", b"payload"),
        "old": b"\0\0\0\x2c" + b"\0\0\0\1" + KEY + bytes(20),
    }
    return {name: frame[_LENGTH:] for name, frame in frames.items()}


def run_block(data: bytes) -> None:
    """Decode a block, or the answer to one."""
    choices = Choices(data)
    if not choices.flag():
        run = blocks.decode_block_answer(memoryview(choices.rest()))
        require(run.first <= run.last, "a run that ends before it begins")
        return
    frame = memoryview(choices.rest())
    block = blocks.decode_block(frame)
    require(len(block.sizes) > 0, "a block of nothing")
    at = 0
    for entry_id, size in enumerate(block.sizes, block.first):
        add = bookie.decode_request(block.adds[at + _LENGTH : at + blocks.ADD_BYTES + size])
        assert isinstance(add, Add)
        found = add.ledger_id, add.entry_id, add.master_key, len(add.entry), add.flags
        same = block.ledger_id, entry_id, block.master_key, size, 0
        require(found == same, "an add of a block is another one by itself")
        at += blocks.ADD_BYTES + size
    require(at == len(block.adds) == len(frame) - 4, "bytes of a block are left over")


def block_seeds() -> Mapping[str, bytes]:
    adds = b"".join(strategies.add_frame(7, entry_id) for entry_id in range(3, 6))
    request = b"\1" + (blocks.encode_block_header(len(adds)) + adds)[_LENGTH:]
    answer = b"\0" + blocks.encode_block_answer(Status.OK, 7, 3, 5)[_LENGTH:]
    return {"block": request, "answer": answer}


def run_answers(data: bytes) -> None:
    """Decode several frames, each with its length, as a writer receives them in one go."""
    frames = list(split_frames(data))
    runs, rest = bookie.decode_add_answers(frames)
    for run in runs:
        require(run.first <= run.last, "a run that ends before it begins")
    answered = sum(run.last - run.first + 1 for run in runs)
    require(answered + len(rest) == len(frames), "answers are lost")
    for frame in frames:
        bookie.decode_answer(frame)


def split_frames(data: bytes) -> list[memoryview]:
    """Split bytes into frames by their lengths; the last frame may be shorter than its length."""
    view, frames, at = memoryview(data), list[memoryview](), 0
    while at + _LENGTH <= len(view):
        (size,) = U32.unpack_from(view, at)
        frames.append(view[at + _LENGTH : at + _LENGTH + size])
        at += _LENGTH + size
    return frames


def answer_seeds() -> Mapping[str, bytes]:
    entry = strategies.ledger_entry(7, 3)
    header = bookie.ADD_HEADER
    batch = bookie.BatchRead(0x02070000, 0, 7, 3, 9, 10, 1000, None)
    sized = U32.pack(len(entry)) + entry
    return {
        "adds": b"".join(
            bookie.encode_add_answer(header, status, 7, entry_id)
            for status, entry_id in ((0, 0), (0, 1), (0, 3), (104, 4))
        ),
        "read": bookie.encode_read_answer(0x02020000, 0, 7, 3, len(entry)) + entry,
        "no": bookie.encode_read_answer(0x02020000, Status.NO_ENTRY, 7, 3),
        "batch": bookie.encode_batch_answer_header(batch, 0, 2 * len(sized)) + sized + sized,
        "auth": bookie.encode_auth("plugin", b"payload"),
    }


def run_v3(data: bytes) -> None:
    choices = Choices(data)
    if choices.flag():
        request = bookie_v3.decode_request(choices.rest())
        status = Status.OK
        response = bookie_v3.response_to(request, status)
        require(response.IsInitialized(), "an answer without all that it must have")
        again = bookie_v3.decode_request(bookie_v3.encode(request)[_LENGTH:])
        require(again == request, "a request changes when it is encoded again")
    else:
        answer = bookie_v3.decode_response(choices.rest())
        bookie_v3.from_v3(answer.status)
        same = bookie_v3.decode_response(bookie_v3.encode(answer)[_LENGTH:]) == answer
        require(same, "an answer changes when it is encoded again")


def v3_seeds() -> Mapping[str, bytes]:
    entry = strategies.ledger_entry(7, 3)
    requests = {
        "add": bookie_v3.encode_add(1, 7, 3, KEY, entry, recovery=True),
        "read": bookie_v3.encode_read(1, 7, 3, fence_key=KEY),
        "poll": bookie_v3.encode_long_poll(1, 7, 2, 100),
        "write lac": bookie_v3.encode_write_lac(1, 7, 2, KEY, b"packet"),
        "read lac": bookie_v3.encode_read_lac(1, 7),
        "force": bookie_v3.encode_force(1, 7),
        "info": bookie_v3.encode_bookie_info(1),
        "list": bookie_v3.encode_list_entries(1, 7),
    }
    seeds = {name: b"\1" + frame[_LENGTH:] for name, frame in requests.items()}
    for name, frame in requests.items():
        request = bookie_v3.decode_request(frame[_LENGTH:])
        response = bookie_v3.response_to(request, Status.OK)
        if name == "read":
            response.readResponse.status = pb.EOK
            response.readResponse.ledgerId, response.readResponse.entryId = 7, 3
            response.readResponse.body = entry
        seeds[f"{name} answer"] = b"\0" + bookie_v3.encode(response)[_LENGTH:]
    return seeds


def run_ledger_entry(data: bytes) -> None:
    choices = Choices(data)
    digester = Digester(choices.pick(list(DigestType)), b"password")
    lac_packet, any_id = choices.flag(), choices.flag()
    ledger_id, entry_id = choices.number(), choices.number()
    buffer = memoryview(choices.rest())
    if lac_packet:
        lac = decode_lac(buffer, digester, ledger_id)
        packet = encode_lac(ledger_id, lac, digester)
        require(packet == bytes(buffer[: len(packet)]), "a LAC changes when it is encoded again")
        return
    peek_lac(buffer)
    ids = peek_ids(buffer)
    entry = decode_entry(buffer, digester, ledger_id, None if any_id else entry_id)
    require(ids == (entry.ledger_id, entry.entry_id), "other ids than were peeked at")
    header = encode_header(
        entry.ledger_id, entry.entry_id, entry.lac, entry.length, digester, [entry.payload]
    )
    require(header + entry.payload == bytes(buffer), "an entry changes when it is encoded again")


def ledger_entry_seeds() -> Mapping[str, bytes]:
    seeds: dict[str, bytes] = {}
    for number, kind in enumerate(DigestType):
        digester = Digester(kind, b"password")
        header = encode_header(7, 3, 2, 5, digester, [b"hello"])
        seeds[f"entry {kind.name}"] = bytes((number, 0, 0, 7, 3)) + header + b"hello"
        seeds[f"lac {kind.name}"] = bytes((number, 1, 0, 7, 3)) + encode_lac(7, 2, digester)
    return seeds


def run_entry_list(data: bytes) -> None:
    groups = decode_entry_list(data)
    again = encode_entry_list(groups)
    require(again[64:] == data[64 : len(again)], "a list of entries changes")
    for group in groups:
        require(group.first in group and group.first + group.size - 1 in group, "its first run")
        require(group.first - 1 not in group, "an entry in front of the first")
        require(group.last + group.size not in group, "an entry behind the last")


def entry_list_seeds() -> Mapping[str, bytes]:
    ids = {"none": [], "one": [5], "striped": [0, 1, 3, 4, 6, 7, 20, 1 << 60]}
    return {name: encode_entry_list(group_entries(each)) for name, each in ids.items()}


TARGETS = (
    Target(
        name="bookie.request",
        run=run_request,
        errors=WIRE_ERRORS,
        seeds=request_seeds,
        valid=strategies.bookie_requests,
    ),
    Target(name="bookie.block", run=run_block, errors=WIRE_ERRORS, seeds=block_seeds),
    Target(name="bookie.answers", run=run_answers, errors=WIRE_ERRORS, seeds=answer_seeds),
    Target(
        name="bookie.v3",
        run=run_v3,
        errors=WIRE_ERRORS,
        seeds=v3_seeds,
        valid=strategies.bookie_v3_messages,
    ),
    Target(name="bookie.entry", run=run_ledger_entry, errors=WIRE_ERRORS, seeds=ledger_entry_seeds),
    Target(
        name="bookie.entry_list",
        run=run_entry_list,
        errors=WIRE_ERRORS,
        seeds=entry_list_seeds,
        valid=strategies.entry_lists,
    ),
)
