"""The world around the clients of one ledger: bookies, the metadata register, and the rules.

Bookies store entries at once and durably, and keep their fences.  They may be away for a while, or
answer with an error, whether they carried the request out or not; other answers are true (the
bookie's own rules, B, are for `tests/bookie`).  The register may leave a compare-and-swap without
an answer, and carry it out later or never.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from daybook.bookie.ledger.metadata import LedgerMetadata, LedgerState
from daybook.bookie.ledger.protocol import update
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Fragment, Quorums
from tests.harness.calls import Call, call
from tests.storms.chance import Chance
from tests.storms.ledger_clients import (
    ENTRY_BYTES,
    Answer,
    Client,
    Request,
    Stored,
    Writer,
)
from tests.storms.network import Network
from tests.storms.storm import SOME, Storm

NAMES = [BookieId(f"b{number}") for number in range(1, 7)]
NEXT_STATES = {
    LedgerState.OPEN: tuple(LedgerState),
    LedgerState.IN_RECOVERY: (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.CLOSED: (),
}


@dataclass(slots=True)
class Bookie:
    name: BookieId
    up: bool = True
    fenced: bool = False
    entries: dict[int, Stored] = field(default_factory=dict[int, Stored])


class LedgerWorld(Storm):
    """The world; `clients` is the number of hosts besides bookies and register."""

    writer: Writer

    def __init__(
        self,
        chance: Chance,
        trace: list[str] | None,
        *,
        bookies: int,
        quorums: Quorums,
        clients: int,
    ) -> None:
        super().__init__(chance, trace)
        self.quorums = quorums
        self.bookies = {name: Bookie(name) for name in NAMES[:bookies]}
        self.host_of = {name: host for host, name in enumerate(self.bookies)}
        self.register_host = bookies
        self.network = Network(
            chance,
            bookies + 1 + clients,
            fifo=chance.happens(0.6),
            reliable=(self.register_host,),
        )
        self.ensemble = self._first_ensemble()
        fragments = (Fragment(0, self.ensemble),)
        self.metadata = LedgerMetadata(quorums=quorums, fragments=fragments)
        self.version = 0
        self.acked = -1
        self.end: int | None = None
        self._before = (self.metadata, 0)
        self._error = chance.one_of(SOME)
        self._unknown = chance.one_of((0.0, 0.1, 0.4))
        self._unavailable = chance.one_of((0.0, 0.0, 0.1, 0.3))
        self._no_spare = chance.one_of((0.0, 0.0, 0.3, 1.0))

    def _first_ensemble(self) -> Ensemble:
        first = self.chance.below(len(self.bookies))
        names = [*self.bookies][first:] + [*self.bookies][:first]
        return tuple(names[: self.quorums.ensemble])

    def heal(self) -> None:
        """End all faults, and bring all bookies back."""
        self._error = self._unknown = self._unavailable = self._no_spare = 0.0
        for bookie in self.bookies.values():
            bookie.up = True

    # -- bookies

    def serve(self, request: Request) -> None:
        bookie = self.bookies[request.bookie]
        if self.trace is not None:
            away = "" if bookie.up else ", which is away"
            self.say(f"{request.client.name} -> {bookie.name}{away}: {request}")
        if not bookie.up:
            return
        answer: Answer
        if self._error and self.chance.happens(self._error):
            self.mark("error")
            if self.chance.happens(0.5):
                self._carry_out(bookie, request)
            answer = "error"
        else:
            answer = self._carry_out(bookie, request)
        client = request.client
        self.network.send(self.host_of[bookie.name], client.host, client.hear, request, answer)

    def _carry_out(self, bookie: Bookie, request: Request) -> Answer:
        if request.fence:
            if not bookie.fenced and not bookie.entries:
                self.mark("a fence was all that a bookie knew")
            bookie.fenced = True
        if request.kind == "add":
            assert request.stored is not None
            if bookie.fenced and not request.recovery:
                self.mark("fenced writer")
                return "fenced"
            self._store(bookie, request.entry_id, request.stored)
            return "ok"
        if request.kind == "read":
            return bookie.entries.get(request.entry_id, "no")
        last = max(bookie.entries, default=None)
        return "no" if last is None else (last, bookie.entries[last])

    def _store(self, bookie: Bookie, entry_id: int, stored: Stored) -> None:
        self.rule("S5", stored.payload == f"payload {entry_id}", stored)
        self.rule("S6", stored.lac <= self.acked, f"an entry has LAC {stored.lac}")
        before = bookie.entries.get(entry_id)
        if before is None or before.lac < stored.lac:
            bookie.entries[entry_id] = stored

    def replace(self, ensemble: Ensemble, failed: Ensemble) -> Ensemble | None:
        """Return an ensemble with spares in place of failed bookies, like `BookieDirectory`."""
        spares = [b for b in self.bookies if b not in ensemble]
        if not spares or self.chance.happens(self._no_spare):
            return None
        spares = spares[self.chance.below(len(spares)) :]
        changed = tuple(spares.pop() if b in failed and spares else b for b in ensemble)
        return changed if changed != ensemble else None

    # -- the register

    def stale(self) -> tuple[LedgerMetadata, int]:
        """Return the metadata that a client may have read: the newest, or those before."""
        if self.chance.happens(0.3):
            return self._before
        return self.metadata, self.version

    def ask_register(
        self,
        client: Client,
        effect: update.Write | update.Read,
        then: Callable[[Call], None],
    ) -> None:
        self.network.send(
            client.host, self.register_host, self._register_asked, client, effect, then
        )

    def _register_asked(
        self,
        client: Client,
        effect: update.Write | update.Read,
        then: Callable[[Call], None],
    ) -> None:
        what = _text(effect) if self.trace is not None else ""
        answer: Call
        if self._unavailable and self.chance.happens(self._unavailable):
            answer = call("unavailable")
        elif isinstance(effect, update.Read):
            answer = call("found", self.metadata, self.version)
        elif self._unknown and self.chance.happens(self._unknown):
            self.mark("unknown outcome")
            if self.chance.happens(0.6):  # It is carried out later, otherwise never.
                host = self.register_host
                self.network.send(host, host, self._carried_out_late, effect)
            answer = call("outcome_unknown")
        else:
            answer = self._swap(effect)
        self.say(f"{client.name} -> register: {what}: {answer.name}")
        self.network.send(self.register_host, client.host, then, answer)

    def _carried_out_late(self, effect: update.Write) -> None:
        if self._swap(effect).name == "written":
            self.mark("carried out late")
            self.say(f"register: late, {_text(effect)}")

    def _swap(self, effect: update.Write) -> Call:
        """Carry the write out; return the answer as a call of the `UpdateProtocol`."""
        if effect.version != self.version:
            return call("conflicted")
        self._check_transition(self.metadata, effect.metadata)
        self._before = (self.metadata, self.version)
        self.metadata, self.version = effect.metadata, self.version + 1
        if self.metadata.closed:
            self.end = self.metadata.last_entry_id
        for entry_id in range(max(self.acked, -1 if self.end is None else self.end) + 1):
            self._check_copies(entry_id)
        return call("written", self.version)

    # -- rules

    def confirmed(self, entry_id: int) -> None:
        self.say(f"writer confirms {entry_id}")
        self.rule("S7", entry_id == self.acked + 1, f"{entry_id} is confirmed after {self.acked}")
        self.rule("W4", not self.writer.changing, f"{entry_id} is confirmed during a change")
        if self.end is not None:
            self.rule("S1", entry_id <= self.end, f"{entry_id} is after the end {self.end}")
        self.acked = entry_id
        self._check_copies(entry_id)

    def _check_transition(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        self.rule("S9", after.state in NEXT_STATES[before.state], f"{before.state} {after.state}")
        kept = after.fragments[: len(before.fragments) - 1]
        self.rule("S10", kept == before.fragments[:-1], after.fragments)
        if before.fragments != after.fragments:
            self.mark("ensemble changed")
            if not after.closed:
                is_open = after.state is LedgerState.OPEN
                self.rule("S10", is_open, "a fragment is written during recovery")
                first = after.last_fragment.first_entry_id
                self.rule("S10", first == self.acked + 1, f"from {first}, confirmed {self.acked}")
        if after.closed:
            self._check_close(before, after)

    def _check_close(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        end = after.last_entry_id
        self.rule("S1", self.acked <= end, f"the end is {end}, confirmed {self.acked}")
        if before.state is LedgerState.OPEN:
            self.mark("closed by its writer")
            self.rule("S4", self.acked == end, f"its writer ends it at {end}, not {self.acked}")
        elif end > self.acked:
            self.mark("recovered what was not confirmed")
        # If only bookies of an older fragment know the length, recovery finds a lower bound.
        exact = ENTRY_BYTES * (end + 1)
        guessed = end < before.last_fragment.first_entry_id
        right = after.length == exact or (guessed and after.length < exact)
        self.rule("length", right, f"{after.length} bytes, not {exact}")

    def _holds(self, bookie: Bookie, entry_id: int) -> bool:
        return entry_id in bookie.entries

    def _check_copies(self, entry_id: int) -> None:
        """S3, S4, S11: an ack quorum of the bookies that the metadata name holds the entry."""
        ensemble = self.metadata.ensemble_at(entry_id)
        copies = 0
        for position in self.quorums.write_set(entry_id):
            copies += self._holds(self.bookies[ensemble[position]], entry_id)
        if copies < self.quorums.ack:
            rule = "S4" if entry_id <= self.acked else "S11"
            self.rule(rule, False, f"{copies} of {' '.join(ensemble)} hold entry {entry_id}")

    def check_read(self, name: str, ensemble: Ensemble) -> None:
        """W1: recovery reads only when no ack quorum of any write set accepts entries."""
        open_positions = [p for p, b in enumerate(ensemble) if not self.bookies[b].fenced]
        for first in range(self.quorums.ensemble):
            write_set = [(first + i) % self.quorums.ensemble for i in range(self.quorums.write)]
            left = sum(position in open_positions for position in write_set)
            self.rule("W1", left < self.quorums.ack, f"{name} reads, {left} are not fenced")

    def check_end(
        self, name: str, end: int, denied: dict[int, set[BookieId]], metadata: LedgerMetadata
    ) -> None:
        """W6: so many bookies deny the next entry that it cannot be confirmed."""
        ensemble = metadata.ensemble_at(end + 1)
        write_set = {ensemble[position] for position in self.quorums.write_set(end + 1)}
        count = len(denied.get(end + 1, set()) & write_set)
        needed = self.quorums.write - self.quorums.ack + 1
        self.say(f"{name} has found the end: {end}")
        self.rule("W6", count >= needed, f"{name} ends before {end + 1} with {count} denials")

    def recovered(self, name: str, metadata: LedgerMetadata) -> None:
        self.mark("recovered")
        self.say(f"{name} says that it ends at {metadata.last_entry_id}")
        self.rule("S12", metadata.last_entry_id == self.end, f"{name}, not {self.end}")


def _text(effect: update.Write | update.Read) -> str:
    if isinstance(effect, update.Read):
        return "read"
    metadata = effect.metadata
    fragments = ", ".join(f"{f.first_entry_id}: {' '.join(f.ensemble)}" for f in metadata.fragments)
    end = f" at {metadata.last_entry_id}" if metadata.closed else ""
    return f"{metadata.state.name}{end}, {fragments}, if version {effect.version}"
