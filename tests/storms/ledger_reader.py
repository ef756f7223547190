"""A reader of a ledger in a storm: what `bookie.ledger.reader` does around the machine."""

from typing import TYPE_CHECKING

from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol import read
from daybook.bookie.ledger.protocol.placement import NO_ENTRY, BookieId
from daybook.bookie.ledger.protocol.read import Verdict
from tests.storms.ledger_clients import Answer, Client, Request, Stored

if TYPE_CHECKING:
    from tests.storms.ledger_world import LedgerWorld


class Reader(Client):
    """Follows the ledger: asks for the LAC, then for everything up to it; fences nobody."""

    def __init__(self, storm: "LedgerWorld", host: int, metadata: LedgerMetadata) -> None:
        super().__init__(storm, "reader", host)
        self._metadata = metadata
        self._lac = metadata.last_entry_id
        self._lacs: dict[BookieId, int] = {}
        self._protocol: read.ReadProtocol | None = None
        if metadata.closed:
            self._read_all()
        else:
            for bookie in metadata.last_fragment.ensemble:
                self.ask(Request(self, bookie, "last", NO_ENTRY))

    def _read_all(self) -> None:
        storm, metadata = self.storm, self._metadata
        storm.check_readable_up_to(self._lac)
        storm.say(f"reader may read up to {self._lac}")
        self._protocol = read.ReadProtocol(
            storm.quorums, metadata.fragments, 0, self._lac + 1, avoid=storm.avoided()
        )
        self._step(read.Start())

    def _step(self, event: read.Event) -> None:
        assert self._protocol is not None
        for effect in self._protocol.step(event):
            match effect:
                case read.Ask(bookie, first, count):
                    for entry_id in range(first, first + count):
                        self.ask(Request(self, bookie, "read", entry_id))
                case read.Found():
                    self.storm.mark("read by a reader")
                case read.Failed(entry_id, absent):
                    self.storm.check_absence(entry_id, absent, self._metadata)
        if self._protocol.done:
            self.dead = True

    def answered(self, request: Request, answer: Answer) -> None:
        if not self.settle(request):
            return
        if request.kind == "last":
            self._heard_last(request.bookie, answer)
            return
        match answer:
            case Stored(payload):
                self.storm.rule("S5", payload == f"payload {request.entry_id}", payload)
                verdict = Verdict.FOUND
            case "no":
                verdict = Verdict.ABSENT
            case _:
                verdict = Verdict.UNKNOWN
        self._step(read.Answered(request.bookie, request.entry_id, verdict))

    def _heard_last(self, bookie: BookieId, answer: Answer) -> None:
        if self._protocol is not None or answer == "error":
            return
        self._lacs[bookie] = answer[1].lac if isinstance(answer, tuple) else NO_ENTRY
        last = self._metadata.last_fragment
        if self.storm.quorums.is_covered([last.ensemble.index(b) for b in self._lacs]):
            self._lac = max(last.first_entry_id - 1, *self._lacs.values())
            self._read_all()

    def given_up(self, request: Request) -> None:
        if self.settle(request) and self._protocol is not None and request.kind == "read":
            self._step(read.Answered(request.bookie, request.entry_id, Verdict.UNKNOWN))

    def slow(self) -> None:
        if self._protocol is not None and not self.dead:
            self._step(read.Slow())
