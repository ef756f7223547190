"""The base of writer, recoverers and readers: a host that is stepped by inputs, as a table.

A client of the model is a value and a function: `step(value, input)` returns the next value and the
output.  The function restores the real machine from the value, gives it the input, and takes a
snapshot; it is called once for each pair, and its result is looked up afterwards.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from daybook.bookie.ledger.codecs import AddBatch
from daybook.bookie.ledger.metadata import LedgerMetadata
from daybook.bookie.ledger.protocol import write
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble, Quorums
from daybook.wire.messages.bookie import encode_read
from daybook.wire.transport import Buffer
from tests.harness.calls import Call
from tests.model.ledger.messages import LEDGER_ID, Asked, Said, asked, said
from tests.model.ledger.metadata import Task
from tests.model.numbering import Numbering
from tests.model.search import BrokenRuleError

V = TypeVar("V", bound=Hashable)


def bookie_id(number: int) -> BookieId:
    return BookieId(f"b{number}")


def bookie_number(bookie: BookieId) -> int:
    return int(bookie[1:])


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer of a bookie."""

    bookie: BookieId
    what: Said


@dataclass(frozen=True, slots=True)
class Told:
    """The answer of the metadata store to a request, or to the first read.

    It is a call of the client's `UpdateProtocol`.
    """

    answer: Call


@dataclass(frozen=True, slots=True)
class Option:
    """A step that a client may take by itself: `name`, and the bookie that it is about.

    With `link` it is possible only while a message to or from that bookie is under way, with `adds`
    only while an add is.  With `cut` the connection breaks, too.
    """

    name: str
    bookie: int = -1
    entry_id: int = -1
    link: bool = False
    adds: bool = False
    cut: bool = False

    def __str__(self) -> str:
        about = f" {bookie_id(self.bookie)}" if self.bookie >= 0 else ""
        entry = f" about entry {self.entry_id}" if self.entry_id >= 0 else ""
        return f"{self.name}{about}{entry}{', the connection is cut' if self.cut else ''}"


Input: TypeAlias = Heard | Told | Option


@dataclass(slots=True)
class Output:
    """The output of a step."""

    sends: list[tuple[BookieId, bytes]] = field(default_factory=list[tuple[BookieId, bytes]])
    confirmed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    fences: bool = False  # the first fences are sent
    reads: bool = False  # recovery reads are sent
    finished: LedgerMetadata | None = None  # the metadata that a recovery has reported
    written: LedgerMetadata | None = None  # a write without a request: only a mutant does it
    promised: int | None = None  # the LAC up to which a reader may read
    missed: tuple[int, LedgerMetadata | None] | None = None  # an entry that a reader did not find
    notes: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Outcome:
    """An output in numbers, with the client's next state."""

    after: int
    sends: tuple[tuple[int, int], ...]
    confirmed: tuple[tuple[int, int], ...]
    fences: bool
    reads: bool
    finished: LedgerMetadata | None
    written: LedgerMetadata | None
    promised: int | None
    missed: tuple[int, LedgerMetadata | None] | None
    text: str
    plain: bool  # only `sends` may be set


@dataclass(frozen=True, slots=True)
class SendingChannel:
    """The part of a `LedgerChannel` that shells use.  Answers come as `Heard`, not by callback."""

    bookie: BookieId
    out: Output

    def add(self, entry_id: int, frame: Sequence[Buffer]) -> None:
        self.out.sends.append((self.bookie, b"".join(map(bytes, frame))))

    def add_all(self, adds: AddBatch) -> None:
        for frame in adds.frames:
            self.out.sends.append((self.bookie, b"".join(map(bytes, frame))))

    def read(self, entry_id: int, callback: object, *, fence_key: bytes | None = None) -> None:
        frame = encode_read(LEDGER_ID, entry_id, fence_key=fence_key)
        self.out.sends.append((self.bookie, frame))

    def close(self) -> None:
        """Do nothing: `wants` drops later answers."""


def awaits_adds(machine: write.Snapshot, quorums: Quorums, bookie: BookieId) -> bool:
    """Return True if a writer continues only when the bookie answers, or is given up."""
    state, ensemble, missing, lac, pushed, held, _, _ = machine
    if state is not write.State.OPEN or bookie not in ensemble:
        return False
    position = ensemble.index(bookie)
    return position not in missing and any(
        quorums.holds(position, entry_id) and not held[position] >> entry_id - lac - 1 & 1
        for entry_id in range(lac + 1, pushed + 1)
    )


class Rules(ABC, Generic[V]):
    """One kind of client.  Each method must be a function of its arguments."""

    @abstractmethod
    def step(self, value: V, event: Input, out: Output) -> V: ...

    @abstractmethod
    def options(self, value: V) -> Sequence[Option]: ...

    @abstractmethod
    def task(self, value: V) -> Task | None: ...

    @abstractmethod
    def wants(self, value: V, bookie: BookieId, answer: Said) -> bool:
        """Return False if the answer will make no difference, whatever happens before."""

    @abstractmethod
    def cares(self, value: V, bookie: BookieId, request: Asked) -> bool:
        """Return False if no answer to that request will make a difference."""

    @abstractmethod
    def waits(self, value: V, bookie: BookieId) -> bool:
        """Return True if the client cannot continue before the bookie answers or is given up."""


class Table(Generic[V]):
    def __init__(
        self,
        rules: Rules[V],
        first: V,
        requests: Numbering[bytes],
        answers: Numbering[bytes],
        store_answers: Numbering[Call],
    ) -> None:
        self.rules = rules
        self.states: Numbering[V] = Numbering(first)
        self._requests = requests
        self._answers = answers
        self._store_answers = store_answers
        self._heard: dict[tuple[int, int, int], Outcome] = {}
        self._told: dict[tuple[int, int], Outcome] = {}
        self._taken: dict[tuple[int, Option], Outcome] = {}
        self._options: list[Sequence[Option]] = []
        self._tasks: list[Task | None] = []
        self._wants: dict[tuple[int, int, int], bool] = {}
        self._cares: dict[tuple[int, int, int], bool] = {}
        self._waits: dict[tuple[int, int], bool] = {}

    def hear(self, state: int, bookie: int, answer: int) -> Outcome:
        key = (state, bookie, answer)
        outcome = self._heard.get(key)
        if outcome is None:
            what = said(self._answers[answer])
            outcome = self._step(state, Heard(bookie_id(bookie), what), str(what))
            self._heard[key] = outcome
        return outcome

    def told(self, state: int, answer: int) -> Outcome:
        key = (state, answer)
        outcome = self._told.get(key)
        if outcome is None:
            what = self._store_answers[answer]
            outcome = self._told[key] = self._step(state, Told(what), what.name)
        return outcome

    def take(self, state: int, option: Option) -> Outcome:
        key = (state, option)
        outcome = self._taken.get(key)
        if outcome is None:
            outcome = self._taken[key] = self._step(state, option, str(option))
        return outcome

    def _step(self, state: int, event: Input, text: str) -> Outcome:
        out = Output()
        try:
            value = self.rules.step(self.states[state], event, out)
        except (AssertionError, ValueError, LookupError) as error:
            raise BrokenRuleError("code", f"{text}: {error!r}") from error
        sends = tuple(
            (bookie_number(bookie), self._requests.of(frame)) for bookie, frame in out.sends
        )
        notes = [*out.notes, *_sent(out.sends)]
        told = (out.confirmed, out.fences, out.reads, out.finished, out.written, out.missed)
        return Outcome(
            self.states.of(value),
            sends,
            tuple(out.confirmed),
            out.fences,
            out.reads,
            out.finished,
            out.written,
            out.promised,
            out.missed,
            ": ".join([text, "; ".join(notes)]) if notes else text,
            not any(told) and out.promised is None,
        )

    def options(self, state: int) -> Sequence[Option]:
        while len(self._options) <= state:
            self._options.append(self.rules.options(self.states[len(self._options)]))
        return self._options[state]

    def task(self, state: int) -> Task | None:
        while len(self._tasks) <= state:
            self._tasks.append(self.rules.task(self.states[len(self._tasks)]))
        return self._tasks[state]

    def wants(self, state: int, bookie: int, answer: int) -> bool:
        key = (state, bookie, answer)
        wanted = self._wants.get(key)
        if wanted is None:
            what = said(self._answers[answer])
            wanted = self.rules.wants(self.states[state], bookie_id(bookie), what)
            self._wants[key] = wanted
        return wanted

    def cares(self, state: int, bookie: int, request: int) -> bool:
        key = (state, bookie, request)
        cares = self._cares.get(key)
        if cares is None:
            what = asked(self._requests[request])
            cares = self._cares[key] = self.rules.cares(self.states[state], bookie_id(bookie), what)
        return cares

    def waits(self, state: int, bookie: int) -> bool:
        key = (state, bookie)
        waits = self._waits.get(key)
        if waits is None:
            waits = self._waits[key] = self.rules.waits(self.states[state], bookie_id(bookie))
        return waits


def replaced(ensemble: Ensemble, failed: Ensemble, bookies: int) -> Ensemble | None:
    """Return an ensemble with spares in place of failed bookies, like `BookieDirectory.replace`.

    The choice among several spares changes only names while all of them are fresh.
    """
    spares = [bookie_id(number) for number in range(bookies) if bookie_id(number) not in ensemble]
    changed = tuple(spares.pop(0) if bookie in failed and spares else bookie for bookie in ensemble)
    return changed if changed != ensemble else None


def _sent(sends: Sequence[tuple[BookieId, bytes]]) -> list[str]:
    """Describe the requests, and the bookies that get each; equal requests are listed once."""
    by_text: dict[str, list[str]] = {}
    for bookie, frame in sends:
        by_text.setdefault(str(asked(frame)), []).append(bookie)
    return [f"{text} to {' '.join(bookies)}" for text, bookies in by_text.items()]
