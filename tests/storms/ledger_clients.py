"""The clients of a ledger in a storm: they carry out the effects of the machines, nothing else.

The clients do with messages of the storm's network what the shells (`bookie.ledger.writer`,
`.recovery`) do with sockets and tasks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol import recover, update, write
from daybook.bookie.ledger.protocol.placement import (
    NO_ENTRY,
    BookieId,
    Ensemble,
    Fragment,
    fragment_at,
)
from daybook.bookie.ledger.protocol.read import Verdict

if TYPE_CHECKING:
    from tests.storms.ledger_world import LedgerWorld

ENTRY_BYTES = 10


@dataclass(slots=True)
class Stored:
    payload: str
    lac: int
    length: int


@dataclass(slots=True, eq=False)
class Request:
    """A request to a bookie; it is `done` once its client has the answer, or has given up."""

    client: "Client"
    bookie: BookieId
    kind: str  # add, last (which may fence), read, force
    entry_id: int
    stored: Stored | None = None
    recovery: bool = False
    fence: bool = False
    connection: int = 0  # the number of the connection on which a `DeferredWriter` sent it
    done: bool = False

    def __str__(self) -> str:
        what = f"{self.kind} {self.entry_id}" if self.entry_id != NO_ENTRY else self.kind
        lac = "" if self.stored is None else f" (lac {self.stored.lac})"
        flags = " recovery" * self.recovery + " fencing" * self.fence
        return f"{what}{lac}{flags}"


class Answer(Protocol):
    """An answer of a bookie: `Stored`, (entry id, Stored), or a word: ok, no, fenced, error."""


class Client:
    """The base class of all clients.  `host` is the client's number in the network."""

    def __init__(self, storm: "LedgerWorld", name: str, host: int) -> None:
        self.storm = storm
        self.name = name
        self.host = host
        self.dead = False
        self.requests: list[Request] = []

    def ask(self, request: Request) -> None:
        self.requests.append(request)
        storm = self.storm
        storm.network.send(self.host, storm.host_of[request.bookie], storm.serve, request)

    def hear(self, request: Request, answer: Answer) -> None:
        if not self.dead:
            if self.storm.trace is not None:
                self.storm.say(f"{request.bookie} -> {self.name}: {request}: {_text(answer)}")
            self.answered(request, answer)

    def answered(self, request: Request, answer: Answer) -> None:
        raise NotImplementedError

    def given_up(self, request: Request) -> None:
        raise NotImplementedError

    def settle(self, request: Request) -> bool:
        """Mark the request as done; return False if it was already, or the client is dead."""
        if request.done or self.dead:
            return False
        request.done = True
        self.requests.remove(request)
        return True

    def change_metadata(
        self,
        stored: tuple[LedgerMetadata, int],
        decide: update.Decide,
        then: Callable[[update.Effect], None],
    ) -> None:
        protocol = update.UpdateProtocol(decide)

        def go(effect: update.Effect) -> None:
            if self.dead:
                return
            match effect:
                case update.Write() | update.Read():
                    self.storm.ask_register(self, effect, lambda answer: go(answer.apply(protocol)))
                case _:
                    then(effect)

        go(protocol.start(*stored))


class Writer(Client):
    def __init__(
        self, storm: "LedgerWorld", host: int, ensemble: Ensemble, missing: Ensemble
    ) -> None:
        super().__init__(storm, "writer", host)
        self.protocol = write.WriteProtocol(ensemble, storm.quorums, missing=missing)
        self.frames: dict[int, Stored] = {}
        self.stored = (storm.metadata, storm.version)
        self.withdrawn = False
        self.changing = False  # a change of the ensemble is in flight
        self._closing = False

    def perform(self, effects: Iterable[write.Effect]) -> None:
        for effect in effects:
            self._perform(effect)

    def append(self, count: int) -> None:
        """Append `count` entries."""
        first = self.protocol.last_add_pushed + 1
        for entry_id in range(first, first + count):
            length = ENTRY_BYTES * (entry_id + 1)
            self.frames[entry_id] = Stored(f"payload {entry_id}", self.protocol.lac, length)
        self.perform(self.protocol.append(count))

    def _perform(self, effect: write.Effect) -> None:
        match effect:
            case write.Send(first, count, to):
                for bookie in to:
                    for entry_id in range(first, first + count):
                        self.ask(Request(self, bookie, "add", entry_id, self.frames[entry_id]))
            case write.Confirm(first, count):
                for entry_id in range(first, first + count):
                    self.storm.confirmed(entry_id)
            case write.ChangeEnsemble(first_entry_id, failed):
                self._change(first_entry_id, failed)
            case write.Starved(missing):
                self.storm.mark("starved")
                self.storm.say(f"writer waits for {', '.join(missing)}")
            case write.Withdraw(reason=reason):
                self.withdrawn = True
                self.storm.say(f"writer withdraws: {reason}")

    def _change(self, first_entry_id: int, failed: Ensemble) -> None:
        storm = self.storm
        ensemble = storm.replace(self.protocol.ensemble, failed)
        if ensemble is None:
            storm.network.send(self.host, self.host, self._change_postponed)
            return
        if storm.trace is not None:
            storm.say(f"writer wants {' '.join(ensemble)} from entry {first_entry_id}")
        self.changing = True
        wanted = Fragment(first_entry_id, ensemble)
        decide = update.change_ensemble(self.stored[0].last_fragment, wanted)
        self.change_metadata(self.stored, decide, lambda effect: self._changed(wanted, effect))

    def _change_postponed(self) -> None:
        self.perform(self.protocol.change_postponed())

    def _changed(self, wanted: Fragment, effect: update.Effect) -> None:
        self.changing = False
        match effect:
            case update.Settled(metadata, version):
                self.stored = (metadata, version)
                self.perform(self.protocol.ensemble_changed(wanted.ensemble))
            case update.NotDone():
                self.perform(self.protocol.change_postponed())
            case _:
                self.perform(self.protocol.refused("the ledger is no longer open"))
        if self._closing:
            self._write_end()

    def answered(self, request: Request, answer: Answer) -> None:
        """Handle an answer, which also counts after the request was given up."""
        self.settle(request)
        match answer:
            case "ok":
                self.perform(self.protocol.added(request.bookie, request.entry_id))
            case "fenced":
                self.perform(self.protocol.refused("fenced"))
            case _:
                self.given_up(request)

    def given_up(self, request: Request) -> None:
        for other in [r for r in self.requests if r.bookie == request.bookie]:
            self.settle(other)
        self.perform(self.protocol.add_failed(request.bookie))

    def news(self) -> None:
        """Report that a missing bookie is back, or that a spare one was found."""
        missing = self.protocol.missing
        if missing and self.storm.chance.happens(0.5):
            self.perform(self.protocol.bookie_returned(self.storm.chance.one_of(missing)))
        else:
            self.perform(self.protocol.spare_found())

    def close(self) -> None:
        self.storm.say("writer closes")
        self._closing = True
        self.perform(self.protocol.stop())
        if not self.changing:  # otherwise `_changed` does it: changes go one by one
            self._write_end()

    def _write_end(self) -> None:
        lac = self.protocol.lac
        decide = update.close_by_writer(lac, ENTRY_BYTES * (lac + 1))
        self.change_metadata(self.stored, decide, lambda effect: None)


class Recoverer(Client):
    def __init__(self, storm: "LedgerWorld", name: str, host: int) -> None:
        super().__init__(storm, name, host)
        self.protocol: recover.RecoverProtocol | None = None
        self.marked: tuple[LedgerMetadata, int] | None = None
        self.entries: dict[int, Stored] = {}
        self.denied: dict[int, set[BookieId]] = {}  # bookies that lack the entry, by entry
        self._reads_max = storm.chance.one_of((1, 2, 4))
        self._begin(storm.stale())

    def _begin(self, stored: tuple[LedgerMetadata, int]) -> None:
        self.change_metadata(stored, update.mark_in_recovery, self._mark_settled)

    def _mark_settled(self, effect: update.Effect) -> None:
        if not isinstance(effect, update.Settled):
            self.dead = True
        elif effect.metadata.closed:
            self._finished(effect.metadata)
        else:
            self.marked = (effect.metadata, effect.version)
            in_recovery = self.storm.metadata.state is not LedgerState.OPEN
            self.storm.rule("W3", in_recovery, f"{self.name} recovers a ledger that is open")
            self.entries.clear()
            self.denied.clear()
            self.protocol = recover.RecoverProtocol(
                self.storm.quorums, effect.metadata.fragments, reads_max=self._reads_max
            )
            self.step(lambda protocol: protocol.start())

    def step(self, give: Callable[[recover.RecoverProtocol], Iterable[recover.Effect]]) -> None:
        """Give the protocol an input, unless the recovery has ended or begins again."""
        if self.protocol is not None and not self.dead:
            for effect in give(self.protocol):
                self._perform(effect)

    def _perform(self, effect: recover.Effect) -> None:
        assert self.protocol is not None
        assert self.marked is not None
        match effect:
            case recover.Fence(bookies):
                for bookie in bookies:
                    self.ask(Request(self, bookie, "last", NO_ENTRY, fence=True))
            case recover.FencingRead(bookie, first, count):
                for entry_id in range(first, first + count):
                    self._read(bookie, entry_id)
            case write.Send(first, count, to):
                for entry_id in range(first, first + count):
                    found = self.entries[entry_id]
                    stored = Stored(found.payload, self.protocol.lac, found.length)
                    for bookie in to:
                        self.ask(Request(self, bookie, "add", entry_id, stored, recovery=True))
            case write.ChangeEnsemble(first_entry_id, failed):
                self._change(first_entry_id, self.storm.replace(self.protocol.ensemble, failed))
            case recover.CloseLedger(last_entry_id, length, changes):
                self.storm.check_end(self.name, last_entry_id, self.denied, self.marked[0])
                decide = update.close_by_recovery(self.marked[1], last_entry_id, length, changes)
                self.change_metadata(self.marked, decide, self._close_settled)
            case recover.Abort(reason):
                self.storm.mark("recovery aborted")
                self.storm.say(f"{self.name} gives up: {reason}")
                self.dead = True
            case write.Confirm() | recover.Drop():
                pass

    def _change(self, first_entry_id: int, ensemble: Ensemble | None) -> None:
        """Change the ensemble, which nobody else sees before the closing write."""
        send = self.storm.network.send
        if ensemble is None:
            send(self.host, self.host, self.step, lambda protocol: protocol.change_postponed())
            return
        self.storm.mark("ensemble changed in recovery")
        self.storm.say(f"{self.name} goes on with {' '.join(ensemble)} from {first_entry_id}")
        send(self.host, self.host, self.step, lambda protocol: protocol.ensemble_changed(ensemble))

    def _read(self, bookie: BookieId, entry_id: int) -> None:
        assert self.marked is not None
        fragments = self.marked[0].fragments
        self.storm.check_read(self.name, fragments[-1].ensemble)
        belongs = bookie in fragment_at(fragments, entry_id).ensemble
        self.storm.rule("W5", belongs, f"{self.name} asks {bookie} for {entry_id}")
        self.ask(Request(self, bookie, "read", entry_id, fence=True))

    def _close_settled(self, effect: update.Effect) -> None:
        match effect:
            case update.Settled(metadata):
                self._finished(metadata)
            case update.NotAllowed(metadata, version):
                self.protocol = None  # Recover again, from the metadata that are stored now.
                self._begin((metadata, version))
            case _:
                self.dead = True

    def _finished(self, metadata: LedgerMetadata) -> None:
        self.dead = True
        self.storm.recovered(self.name, metadata)

    def answered(self, request: Request, answer: Answer) -> None:
        if not self.settle(request) or self.protocol is None:
            return
        bookie, entry_id = request.bookie, request.entry_id
        match request.kind, answer:
            case _, "error":
                self._failed(request)
            case "add", _:
                self.step(lambda protocol: protocol.added(bookie, entry_id))
            case "last", (int(last), Stored(_, lac, length) as stored):
                self.entries.setdefault(last, stored)
                entry = recover.LastEntry(last, lac, length)
                self.step(lambda protocol: protocol.fence_answered(bookie, True, entry))
            case "last", _:
                self.step(lambda protocol: protocol.fence_answered(bookie, True))
            case _, Stored(_, _, length):
                if self.protocol.wants(entry_id):
                    self.entries[entry_id] = answer
                found = Verdict.FOUND
                self.step(lambda protocol: protocol.read_answered(bookie, entry_id, found, length))
            case _:
                self.denied.setdefault(entry_id, set()).add(bookie)
                absent = Verdict.ABSENT
                self.step(lambda protocol: protocol.read_answered(bookie, entry_id, absent))

    def given_up(self, request: Request) -> None:
        if self.settle(request):
            self._failed(request)

    def _failed(self, request: Request) -> None:
        bookie, entry_id = request.bookie, request.entry_id
        match request.kind:
            case "add":
                self.step(lambda protocol: protocol.add_failed(bookie))
            case "last":
                self.step(lambda protocol: protocol.fence_answered(bookie, False))
            case _:
                unknown = Verdict.UNKNOWN
                self.step(lambda protocol: protocol.read_answered(bookie, entry_id, unknown))


def _text(answer: Answer) -> str:
    match answer:
        case Stored(payload, lac):
            return f"{payload} (lac {lac})"
        case (entry_id, Stored(_, lac)):
            return f"{entry_id} (lac {lac})"
        case _:
            return str(answer)
