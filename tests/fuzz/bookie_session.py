"""Target: whole sessions with a bookie, in both protocols, with invalid traffic, too.

A script opens up to three connections and sends adds in any order, with other keys and other ids,
reads, fences, LACs, waits for a LAC, lists, half frames, oversized ones, and packets of the other
protocol.  The bookie is whole, on a disk in memory.

Beside it a ledger client adds and reads, and must not notice.  In the end every connection is
closed or answers, no acknowledged entry is lost, and nothing remains when all connections are gone.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.fields import U32
from daybook.wire.messages import bookie, bookie_v3
from daybook.wire.messages.blocks import decode_block_answer, encode_block_header
from daybook.wire.messages.bookie import AddRun, ReadAnswer, Status
from daybook.wire.messages.entry_list import decode_entry_list
from daybook.wire.proto import bookkeeper_pb2 as pb
from tests import strategies
from tests.fuzz.choices import Choices
from tests.fuzz.filling import fill
from tests.fuzz.target import Target, require
from tests.fuzz.world import BOOKIE, BOOKIE_PORT, World, play, settle, until

CONNECTIONS_MAX = 3
LEDGERS = 3
_WELL = 1 << 40  # the ledger of the bystander
_STEP_S = 0.001
_KEYS = (strategies.KEY, bytes(20), b"another key of 20 by")
_PROBE = 1 << 41  # a ledger that does not exist


@dataclass(slots=True, eq=False)
class Talker:
    frames: FrameConnection
    v3: bool
    torn: bool = False
    answers: int = 0
    acked: dict[tuple[int, int], None] = field(default_factory=dict[tuple[int, int], None])

    async def listen(self) -> None:
        """Check that the bookie's answers parse, in the protocol of the connection."""
        while batch := await self.frames.receive():
            for frame in batch:
                self.answers += 1
                try:
                    self._heard(frame)
                except WireError:
                    # After a torn frame the bookie may answer in an unknown version.
                    if not self.torn:
                        raise

    def _heard(self, frame: memoryview) -> None:
        if self.v3:
            self._heard_v3(bookie_v3.decode_response(frame))
            return
        if len(frame) > 1 and frame[1] == bookie.Operation.ADD_BLOCK:
            run = decode_block_answer(frame)
            if run.status == Status.OK:
                for entry_id in range(run.first, run.last + 1):
                    self.acked[run.ledger_id, entry_id] = None
            return
        answer = bookie.decode_answer(frame)
        if isinstance(answer, AddRun) and answer.status == Status.OK:
            self.acked[answer.ledger_id, answer.first] = None

    def _heard_v3(self, response: pb.Response) -> None:
        if response.HasField("addResponse") and response.addResponse.status == pb.EOK:
            add = response.addResponse
            self.acked[add.ledgerId, add.entryId] = None
        listed = response.getListOfEntriesOfLedgerResponse
        if listed.availabilityOfEntriesOfLedger:
            decode_entry_list(listed.availabilityOfEntriesOfLedger)


class Script:
    """Carries out one input."""

    def __init__(self, world: World, choices: Choices) -> None:
        self._world = world
        self._choices = choices
        self.talkers: list[Talker] = []
        self.all: list[Talker] = []
        self._txn = 0

    async def step(self) -> None:
        choices = self._choices
        kind = choices.below(16)
        if kind == 0 or not self.talkers:
            await self._open(v3=choices.flag())
            return
        talker = choices.pick(self.talkers)
        match kind:
            case 14:
                self._nonsense(talker)
            case 15 if choices.one_in(3):
                talker.frames.close("the script says so")
                self.talkers.remove(talker)
            case 15:
                await trio.sleep(choices.pick((0.01, 0.2, 7.0)))
            case 13 if talker.v3:
                request = pb.Request()
                fill(request, choices)
                if choices.flag():
                    request.header.version = pb.VERSION_THREE
                talker.frames.send([bookie_v3.encode(request)])
            case _:
                talker.frames.send([self._request_v3() if talker.v3 else self._request()])

    async def _open(self, *, v3: bool) -> None:
        if len(self.talkers) < CONNECTIONS_MAX:
            talker = Talker(await self._world.connect(BOOKIE, BOOKIE_PORT), v3)
            self._world.nursery.start_soon(talker.listen)
            self.talkers.append(talker)
            self.all.append(talker)

    def _ids(self) -> tuple[int, int]:
        choices = self._choices
        ledger_id = choices.below(LEDGERS) if not choices.one_in(8) else choices.number()
        return ledger_id, choices.number(6)

    def _entry(self, ledger_id: int, entry_id: int) -> bytes:
        choices = self._choices
        lac = choices.number(6) if choices.one_in(4) else entry_id - 1
        lac = max(-(1 << 63), lac)
        entry = strategies.ledger_entry(ledger_id, entry_id, choices.blob(30), lac)
        return entry[: choices.below(40)] if choices.one_in(16) else entry

    def _key(self) -> bytes:
        return self._choices.pick(_KEYS) if self._choices.one_in(6) else strategies.KEY

    def _request(self) -> bytes:
        choices = self._choices
        ledger_id, entry_id = self._ids()
        match choices.below(8):
            case 0 | 1 | 2:
                entry = self._entry(ledger_id, entry_id)
                recovery = choices.one_in(4)
                return bookie.encode_add_header(self._key(), len(entry), recovery=recovery) + entry
            case 3 | 4:
                return bookie.encode_read(ledger_id, entry_id)
            case 5:
                return bookie.encode_read(ledger_id, entry_id, fence_key=self._key())
            case 6:
                return bookie.encode_batch_read(
                    ledger_id,
                    entry_id,
                    choices.number(),
                    entries_max=choices.below(9) - 1,
                    bytes_max=choices.number(200),
                )
            case _:
                if choices.flag():
                    return bookie.encode_auth("plugin", choices.blob(9))
                return self._block(ledger_id, entry_id)

    def _block(self, ledger_id: int, first: int) -> bytes:
        """Build a block, mostly of adds that belong together."""
        choices, key = self._choices, self._key()
        adds = b""
        for number in range(choices.below(6)):
            entry_id = min((1 << 63) - 1, first + (0 if choices.one_in(16) else number))
            entry = self._entry(ledger_id, entry_id)
            adds += bookie.encode_add_header(key, len(entry), recovery=choices.one_in(24)) + entry
        return encode_block_header(len(adds)) + adds

    def _request_v3(self) -> bytes:
        choices = self._choices
        ledger_id, entry_id = self._ids()
        self._txn += 1
        match choices.below(10):
            case 0 | 1 | 2:
                entry = self._entry(ledger_id, entry_id)
                return bookie_v3.encode_add(
                    self._txn, ledger_id, entry_id, self._key(), entry, recovery=choices.one_in(4)
                )
            case 3:
                return bookie_v3.encode_read(self._txn, ledger_id, entry_id)
            case 4:
                key = self._key()
                return bookie_v3.encode_read(self._txn, ledger_id, entry_id, fence_key=key)
            case 5:
                timeout_ms = choices.number(20)
                return bookie_v3.encode_long_poll(self._txn, ledger_id, entry_id, timeout_ms)
            case 6:
                key, body = self._key(), choices.blob(30)
                return bookie_v3.encode_write_lac(self._txn, ledger_id, entry_id, key, body)
            case 7:
                return bookie_v3.encode_read_lac(self._txn, ledger_id)
            case 8:
                return bookie_v3.encode_force(self._txn, ledger_id)
            case _:
                if choices.flag():
                    return bookie_v3.encode_bookie_info(self._txn)
                return bookie_v3.encode_list_entries(self._txn, ledger_id)

    def _nonsense(self, talker: Talker) -> None:
        choices = self._choices
        talker.torn = True
        match choices.below(4):
            case 0:
                talker.frames.send([U32.pack(choices.number() & 0xFFFFFFFF)])
            case 1:
                body = choices.blob(60)
                talker.frames.send([U32.pack(len(body)) + body])
            case 2:
                frame = self._request()
                talker.frames.send([frame[: choices.below(len(frame))]])
            case _:
                talker.frames.send([self._request() if talker.v3 else self._request_v3()])


class Bystander:
    """A healthy client that adds to a ledger of its own, entry by entry."""

    def __init__(self, frames: FrameConnection) -> None:
        self._frames = frames
        self._sent = 0
        self._acked = -1
        self._read: list[bytes] = []

    async def run(self) -> None:
        while batch := await self._frames.receive():
            for frame in batch:
                match bookie.decode_answer(frame):
                    case AddRun(status=Status.OK, ledger_id=ledger_id, first=first, last=last):
                        require(ledger_id == _WELL and first == self._acked + 1, "another answer")
                        self._acked = last
                    case ReadAnswer(status=Status.OK, entry=entry):
                        self._read.append(bytes(entry))
                    case answer:
                        require(False, f"the bystander is told {answer}")
        require(False, f"the bystander is cut: {self._frames.close_reason}")

    def add(self) -> None:
        self._frames.send([strategies.add_frame(_WELL, self._sent)])
        self._sent += 1

    async def check(self) -> None:
        self.add()
        self._read.clear()
        await until(lambda: self._acked == self._sent - 1, "the bystander waits for an add")
        for entry_id in range(self._sent):
            self._frames.send([bookie.encode_read(_WELL, entry_id)])
        await until(lambda: len(self._read) == self._sent, "the bystander waits for a read")
        wanted = {strategies.ledger_entry(_WELL, entry_id) for entry_id in range(self._sent)}
        require(set(self._read) == wanted, "the bystander reads something else")


async def _scenario(world: World, data: bytes) -> None:
    choices = Choices(data)
    bystander = Bystander(await world.connect(BOOKIE, BOOKIE_PORT))
    world.nursery.start_soon(bystander.run)
    bystander.add()
    script = Script(world, choices)
    while choices:
        await script.step()
        await trio.sleep(_STEP_S)
        bystander.add()
    await _check_talkers(script)
    await bystander.check()
    for talker in script.talkers:
        talker.frames.close("the script is over")
    await settle(world)
    await _check_bookie(world, script)
    await bystander.check()


async def _check_talkers(script: Script) -> None:
    """Check that clients that did not break the protocol are still served."""
    await trio.sleep(1)
    for talker in script.talkers:
        if talker.torn:
            continue
        before = talker.answers
        probe = bookie_v3.encode_read(1, _PROBE, 0) if talker.v3 else bookie.encode_read(_PROBE, 0)
        with suppress(ConnectionLostError):
            talker.frames.send([probe])
        await until(partial(_has_answered, talker, before), "a session is stuck")


def _has_answered(talker: Talker, answers_before: int) -> bool:
    return talker.frames.closed or talker.answers > answers_before


async def _check_bookie(world: World, script: Script) -> None:
    assert world.bookie is not None
    statistics = world.bookie.server.statistics()
    require(statistics.connections == 1, "a connection is left over")
    require(statistics.add_bytes == 0, "adds are counted that are decided")
    require(statistics.answer_bytes == 0, "answers are left over")
    store = world.bookie.store
    require(not store.statistics().failure, f"the storage fails: {store.statistics().failure}")
    await store.maintenance.checkpoint()
    require(not store.statistics().failure, f"the storage fails: {store.statistics().failure}")
    for talker in script.all:
        for ledger_id, entry_id in talker.acked:
            require(len(await store.read(ledger_id, entry_id)), "an acknowledged entry is lost")


def run_bookie_session(data: bytes) -> None:
    play(lambda world: _scenario(world, data), with_broker=False)


def bookie_session_seeds() -> Mapping[str, bytes]:
    calls = [bytes((1, 0, 0, i % 3, i // 2, i, 5, *b"hello", 0)) for i in range(12)]
    return {
        "v2": b"\0\0" + b"".join(calls),
        "v3": b"\0\1" + b"".join(calls),
        "both": b"\0\0\0\1" + b"".join(calls),
        "any": bytes(range(256)),
    }


TARGETS = (
    Target(
        name="session.bookie",
        run=run_bookie_session,
        errors=(),
        seeds=bookie_session_seeds,
        input_bytes_max=500,
        steps_max=500_000,
        steps_a_byte=5_000,
        memory_bytes_max=32 << 20,  # arenas of the host and its clients, and the bookie itself
        examples=40,
        weight=5.0,
    ),
)
