"""A reader that follows the ledger without recovering it: the real `ReadProtocol`.

The reader reads the metadata.  If the ledger is not closed, it asks the bookies for the LAC, as
`read_last_confirmed` does.  Then it reads everything up to the LAC.  No entry up to there may be
absent (S13), unless the fragments were changed meanwhile: then a reader would read them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol import read
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.protocol.read import (
    Ask,
    Failed,
    Found,
    ReadProtocol,
    Verdict,
)
from daybook.wire.messages.bookie import LAST_ENTRY, Status
from tests.harness.calls import Call
from tests.model.ledger.clients import (
    Heard,
    Input,
    Option,
    Output,
    Rules,
    SendingChannel,
    Told,
    bookie_id,
    bookie_number,
)
from tests.model.ledger.messages import Asked, Said
from tests.model.ledger.metadata import Task
from tests.model.ledger.settings import LedgerSettings


class Stage(Enum):
    NEW = auto()
    ASKING = auto()  # for the LAC
    READING = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class Following:
    """`answered` are positions in the last fragment; `lac` is the largest of the answers."""

    stage: Stage
    metadata: LedgerMetadata | None = None
    answered: tuple[int, ...] = ()
    lac: int = -1
    machine: read.Snapshot = ()
    give_ups: int = 0


OVER = Following(Stage.OVER)


class ReaderRules(Rules[Following]):
    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings

    def first(self) -> Following:
        return Following(Stage.NEW, give_ups=self._settings.read_give_ups)

    def step(self, value: Following, event: Input, out: Output) -> Following:
        if isinstance(event, Heard) and not self.wants(value, event.bookie, event.what):
            return value  # The reader no longer waits for this answer.
        match event:
            case Told(Call("found", (metadata, _))):
                return self._open(value, metadata, out)
            case Told():
                raise AssertionError("a reader asks the store for nothing else")
            case Heard(bookie, what):
                if what.entry_id == LAST_ENTRY:
                    return self._heard_last(value, bookie, what, out)
                return self._heard(value, bookie, what.entry_id, what.verdict, out)
            case Option("asks others, too"):
                protocol = self._restored(value)
                return self._now(value, protocol, protocol.slow(), out)
            case Option(_, bookie, entry_id):
                fewer = Following(value.stage, value.metadata, lac=value.lac, machine=value.machine)
                return self._heard(fewer, bookie_id(bookie), entry_id, Verdict.UNKNOWN, out)
            case _:
                assert_never(event)

    def _open(self, value: Following, metadata: LedgerMetadata, out: Output) -> Following:
        if metadata.closed:
            return self._read(metadata, metadata.last_entry_id, value.give_ups, out)
        for bookie in metadata.last_fragment.ensemble:
            SendingChannel(bookie, out).read(LAST_ENTRY, None)
        return Following(Stage.ASKING, metadata, give_ups=value.give_ups)

    def _heard_last(self, value: Following, bookie: BookieId, what: Said, out: Output) -> Following:
        """Handle an answer; read as soon as no ack quorum is left that might know a later LAC."""
        metadata = value.metadata
        assert metadata is not None
        fragment = metadata.last_fragment
        position = fragment.ensemble.index(bookie)
        answered = tuple(sorted({*value.answered, position}))
        entry = what.decoded() if what.status is Status.OK else None
        lac = max(value.lac, -1 if entry is None else entry.lac)
        if not metadata.quorums.is_covered(answered):
            return Following(Stage.ASKING, metadata, answered, lac, give_ups=value.give_ups)
        return self._read(metadata, max(lac, fragment.first_entry_id - 1), value.give_ups, out)

    def _read(self, metadata: LedgerMetadata, lac: int, give_ups: int, out: Output) -> Following:
        out.promised = lac
        out.notes.append(f"may read up to {lac}")
        protocol = ReadProtocol(metadata.quorums, metadata.fragments, 0, lac + 1)
        value = Following(Stage.READING, metadata, lac=lac, give_ups=give_ups)
        return self._now(value, protocol, protocol.start(), out)

    def _heard(
        self, value: Following, bookie: BookieId, entry_id: int, verdict: Verdict, out: Output
    ) -> Following:
        protocol = self._restored(value)
        return self._now(value, protocol, protocol.answered(bookie, entry_id, verdict), out)

    def _restored(self, value: Following) -> ReadProtocol:
        metadata = value.metadata
        assert metadata is not None
        protocol = ReadProtocol(metadata.quorums, metadata.fragments, 0, value.lac + 1)
        protocol.restore(value.machine)
        return protocol

    def _now(
        self,
        value: Following,
        protocol: ReadProtocol,
        effects: Sequence[read.Effect],
        out: Output,
    ) -> Following:
        for effect in effects:
            match effect:
                case Ask(bookie, first, count):
                    for entry_id in range(first, first + count):
                        SendingChannel(bookie, out).read(entry_id, None)
                case Found(entry_id):
                    out.notes.append(f"has e{entry_id}")
                case Failed(entry_id, absent):
                    if absent:
                        out.missed = (entry_id, value.metadata)
                    out.notes.append(f"e{entry_id} is {'absent' if absent else 'not to be had'}")
                    return OVER
                case _:
                    assert_never(effect)
        if protocol.done:
            return OVER
        return Following(
            Stage.READING,
            value.metadata,
            lac=value.lac,
            machine=protocol.canonical(),
            give_ups=value.give_ups,
        )

    def options(self, value: Following) -> Sequence[Option]:
        if value.stage is not Stage.READING:
            return []
        slow = [Option("asks others, too")] if self._settings.slow else []
        if not value.give_ups:
            return slow
        return slow + [
            Option("gives up reading from", bookie_number(bookie), entry_id)
            for entry_id, (order, absent, unknown, asked) in value.machine
            for bookie in order[:asked]
            if bookie not in absent + unknown
        ]

    def task(self, value: Following) -> Task | None:
        return None

    def wants(self, value: Following, bookie: BookieId, answer: Said) -> bool:
        return self._makes_a_difference(value, bookie, answer.entry_id)

    def cares(self, value: Following, bookie: BookieId, request: Asked) -> bool:
        return self._makes_a_difference(value, bookie, request.entry_id)

    def waits(self, value: Following, bookie: BookieId) -> bool:
        entries = [LAST_ENTRY, *(entry_id for entry_id, _ in value.machine)]
        return any(self._makes_a_difference(value, bookie, each) for each in entries)

    def _makes_a_difference(self, value: Following, bookie: BookieId, entry_id: int) -> bool:
        metadata = value.metadata
        if metadata is None:
            return False
        if entry_id == LAST_ENTRY:
            ensemble = metadata.last_fragment.ensemble
            asking = value.stage is Stage.ASKING and bookie in ensemble
            return asking and ensemble.index(bookie) not in value.answered
        for each, (order, absent, unknown, asked) in value.machine:
            if each == entry_id:
                return bookie in order[:asked] and bookie not in absent + unknown
        return False
