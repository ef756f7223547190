"""One ledger, its writer, recoverers and bookies, as plain data: the rules without any shell.

Everything that is under way lies in one list, and the seed decides what happens next: a message
arrives (in any order, or first in first out between two hosts), is lost, is given up and arrives
all the same; a bookie is away for a while; the metadata store does not answer, and what it was
asked for is carried out, or is not, or later.  Each seed draws its own set-up, small ones mostly.

The rules of `safety` (S, W) are checked after each step that could break them, against what the
simulation itself has seen.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from bookie.ledger.metadata import LedgerMetadata, LedgerState
from bookie.ledger.protocol import read, recover, update, write
from bookie.ledger.protocol.placement import BookieId, Ensemble, Fragment, Quorums
from bookie.ledger.protocol.read import Verdict

NAMES = [BookieId(f"b{number}") for number in range(1, 7)]
SETUPS = [  # bookies, quorums
    (2, Quorums(2, 2, 1)),
    (2, Quorums(2, 2, 2)),
    (3, Quorums(2, 2, 1)),
    (3, Quorums(2, 2, 2)),
    (3, Quorums(3, 2, 2)),
    (3, Quorums(3, 2, 1)),
    (3, Quorums(3, 3, 2)),
    (4, Quorums(3, 3, 2)),
    (5, Quorums(3, 3, 2)),
    (5, Quorums(4, 3, 2)),
    (5, Quorums(4, 2, 2)),
    (6, Quorums(4, 3, 3)),
]


class SafetyError(AssertionError):
    """A rule was broken; the message begins with its name."""


@dataclass(frozen=True)
class Odds:
    """How likely things are; drawn for each seed."""

    append: float
    lose: float
    give_up: float
    away: float
    unknown: float
    unavailable: float
    recover: float
    close: float
    spare: float
    fifo: bool

    @classmethod
    def draw(cls, rng: random.Random) -> "Odds":
        def some(power: float) -> float:
            return 0.0 if rng.random() < 0.3 else rng.random() ** power

        return cls(
            append=rng.random() * 0.5,
            lose=some(4) * 0.5,
            give_up=some(2) * 0.3,
            away=some(5) * 0.3,
            unknown=some(2) * 0.5,
            unavailable=some(3) * 0.5,
            recover=rng.random() ** 2 * 0.2,
            close=some(3) * 0.1,
            spare=1 - some(2),
            fifo=rng.random() < 0.5,
        )


CALM = Odds(0, 0, 0, 0, 0, 0, 0, 0, 1, fifo=True)


@dataclass
class Stored:
    payload: str
    lac: int
    length: int


@dataclass
class Bookie:
    name: BookieId
    up: bool = True
    fenced: bool = False
    entries: dict[int, Stored] = field(default_factory=dict)


@dataclass
class Request:
    """What a client asks of a bookie; `done` once its client has heard of it, or given it up."""

    client: "Client"
    bookie: BookieId
    kind: str  # add, fence, read
    entry_id: int
    stored: Stored | None = None
    recovery: bool = False
    fence: bool = False
    done: bool = False


@dataclass
class Message:
    """On its way.  `arrive` is called once, or never."""

    source: str
    target: str
    arrive: Callable[[], None]


class Client:
    """What writer and recoverers have in common."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.requests: list[Request] = []

    def ask(self, request: Request) -> None:
        self.requests.append(request)
        self.world.send(self.name, request.bookie, lambda: self.world.serve(request))

    def hear(self, request: Request, answer: object) -> None:
        if not self.dead:
            self.answered(request, answer)

    def answered(self, request: Request, answer: object) -> None:
        raise NotImplementedError

    def given_up(self, request: Request) -> None:
        raise NotImplementedError

    def settle(self, request: Request) -> bool:
        """False if the answer comes too late."""
        if request.done or self.dead:
            return False
        request.done = True
        self.requests.remove(request)
        return True

    def change_metadata(
        self, stored: tuple[LedgerMetadata, int], decide: update.Decide, then: Callable[..., None]
    ) -> None:
        protocol = update.UpdateProtocol(decide)

        def go(effect: update.Effect) -> None:
            if self.dead:
                return
            match effect:
                case update.Write() | update.Read():
                    self.world.metadata_request(self, effect, lambda e: go(protocol.step(e)))
                case _:
                    then(effect)

        go(protocol.start(*stored))


class Writer(Client):
    def __init__(self, world: "World", ensemble: Ensemble) -> None:
        super().__init__(world, "writer")
        self.protocol = write.WriteProtocol(ensemble, world.quorums)
        self.frames: dict[int, Stored] = {}
        self.stored = (world.metadata, world.version)
        self.withdrawn = False
        self.closing = False

    def step(self, event: write.Event) -> None:
        for effect in self.protocol.step(event):
            self.perform(effect)

    def append(self) -> None:
        entry_id = self.protocol.last_add_pushed + 1
        if entry_id == self.world.entries_max:
            return
        stored = Stored(f"payload {entry_id}", self.protocol.lac, 10 * (entry_id + 1))
        self.frames[entry_id] = stored
        self.step(write.Append())

    def perform(self, effect: write.Effect) -> None:
        match effect:
            case write.Send(first, count, to):
                for bookie in to:
                    for entry_id in range(first, first + count):
                        frame = self.frames[entry_id]
                        self.ask(Request(self, bookie, "add", entry_id, frame))
            case write.Confirm(first, count):
                for entry_id in range(first, first + count):
                    self.world.confirmed(entry_id)
            case write.ChangeEnsemble(first_entry_id, failed):
                ensemble = self.world.replace(self.protocol.ensemble, failed)
                if ensemble is None:
                    self.world.later(lambda: self.step(write.ChangePostponed()))
                    return
                wanted = Fragment(first_entry_id, ensemble)
                decide = update.change_ensemble(self.stored[0].last_fragment, wanted)
                self.change_metadata(self.stored, decide, lambda e: self.changed(wanted, e))
            case write.Starved():
                pass
            case write.Withdraw():
                self.withdrawn = True

    def changed(self, wanted: Fragment, effect: update.Effect) -> None:
        match effect:
            case update.Settled(metadata, version):
                self.stored = (metadata, version)
                self.step(write.EnsembleChanged(wanted.ensemble))
            case update.NotDone():
                self.step(write.ChangePostponed())
            case _:
                self.step(write.Refused("no longer open"))

    def answered(self, request: Request, answer: object) -> None:
        """An answer counts, also if it comes after the request was given up."""
        self.settle(request)
        if answer == "ok":
            self.step(write.Added(request.bookie, request.entry_id))
        elif answer == "fenced":
            self.step(write.Refused("fenced"))

    def given_up(self, request: Request) -> None:
        for other in [r for r in self.requests if r.bookie == request.bookie]:
            self.settle(other)
        self.step(write.AddFailed(request.bookie))

    def close(self) -> None:
        self.closing = True
        lac = self.protocol.lac
        busy = self.protocol.state is write.State.REPLACING
        self.step(write.Stop())
        if not busy:
            decide = update.close_by_writer(lac, 10 * (lac + 1))
            self.change_metadata(self.stored, decide, lambda effect: None)


class Recoverer(Client):
    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.protocol: recover.RecoverProtocol | None = None
        self.marked: tuple[LedgerMetadata, int] | None = None
        self.entries: dict[int, Stored] = {}
        self.change_metadata(world.stale(), update.mark_in_recovery, self.mark_settled)

    def mark_settled(self, effect: update.Effect) -> None:
        if not isinstance(effect, update.Settled):
            self.dead = True
        elif effect.metadata.closed:
            self.finished(effect.metadata)
        else:
            self.marked = (effect.metadata, effect.version)
            self.protocol = recover.RecoverProtocol(
                self.world.quorums,
                effect.metadata.fragments,
                reads_max=self.world.rng.choice([1, 2, 4]),
            )
            self.step(recover.Start())

    def step(self, event: recover.Event) -> None:
        if self.protocol is not None and not self.dead:
            for effect in self.protocol.step(event):
                self.perform(effect)

    def perform(self, effect: recover.Effect) -> None:
        assert self.protocol is not None
        assert self.marked is not None
        match effect:
            case recover.Fence(bookies):
                for bookie in bookies:
                    self.ask(Request(self, bookie, "fence", -1, fence=True))
            case recover.FencingRead(bookie, first, count):
                for entry_id in range(first, first + count):
                    fence = self.world.reads_fence
                    self.ask(Request(self, bookie, "read", entry_id, fence=fence))
            case write.Send(first, count, to):
                for entry_id in range(first, first + count):
                    found = self.entries[entry_id]
                    stored = Stored(found.payload, self.protocol.lac, found.length)
                    for bookie in to:
                        self.ask(Request(self, bookie, "add", entry_id, stored, recovery=True))
            case write.ChangeEnsemble(_, failed):
                ensemble = self.world.replace(self.protocol.ensemble, failed)
                event = write.EnsembleChanged(ensemble) if ensemble else write.ChangePostponed()
                self.world.later(lambda: self.step(event))
            case recover.CloseLedger(last_entry_id, length, changes):
                decide = update.close_by_recovery(self.marked[1], last_entry_id, length, changes)
                self.change_metadata(self.marked, decide, self.close_settled)
            case recover.Abort():
                self.world.hit("aborted")
                self.dead = True
            case write.Confirm() | recover.Drop():
                pass

    def close_settled(self, effect: update.Effect) -> None:
        if isinstance(effect, update.Settled):
            self.finished(effect.metadata)
        self.dead = True

    def finished(self, metadata: LedgerMetadata) -> None:
        self.dead = True
        self.world.recovered(metadata)

    def answered(self, request: Request, answer: object) -> None:
        if not self.settle(request):
            return
        if request.kind == "add":
            self.step(write.Added(request.bookie, request.entry_id))
        elif request.kind == "fence":
            last = None
            if isinstance(answer, tuple):
                entry_id, stored = answer
                last = recover.LastEntry(entry_id, stored.lac, stored.length)
            self.step(recover.FenceAnswered(request.bookie, True, last))
        elif isinstance(answer, Stored):
            if self.protocol is not None and self.protocol.wants(request.entry_id):
                self.entries[request.entry_id] = answer
            found = recover.ReadAnswered(
                request.bookie, request.entry_id, Verdict.FOUND, answer.length
            )
            self.step(found)
        else:
            self.step(recover.ReadAnswered(request.bookie, request.entry_id, Verdict.ABSENT))

    def given_up(self, request: Request) -> None:
        if not self.settle(request):
            return
        match request.kind:
            case "add":
                self.step(write.AddFailed(request.bookie))
            case "fence":
                self.step(recover.FenceAnswered(request.bookie, False))
            case _:
                self.step(recover.ReadAnswered(request.bookie, request.entry_id, Verdict.UNKNOWN))


class World:
    """Everything, and the rules that it has to keep."""

    def __init__(
        self,
        seed: int,
        *,
        reads_fence: bool = True,
        setup: tuple[int, Quorums] | None = None,
        odds: Odds | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.reads_fence = reads_fence
        count, self.quorums = setup or self.rng.choice(SETUPS)
        self.odds = odds or Odds.draw(self.rng)
        self.bookies = {name: Bookie(name) for name in NAMES[:count]}
        ensemble = tuple(self.rng.sample(list(self.bookies), self.quorums.ensemble))
        self.metadata = LedgerMetadata(quorums=self.quorums, fragments=(Fragment(0, ensemble),))
        self.version = 0
        self.history = [(self.metadata, 0)]
        self.under_way: list[Message] = []
        self.acked = -1
        self.end: int | None = None
        self.marks: dict[str, int] = {}
        self.speeds: dict[tuple[str, str], float] = {}
        self.entries_max = self.rng.choice([1, 1, 2, 3, 6])
        self.recoverers_max = self.rng.choice([1, 1, 2, 3])
        self.writer = Writer(self, ensemble)
        self.recoverers: list[Recoverer] = []

    def hit(self, mark: str) -> None:
        self.marks[mark] = self.marks.get(mark, 0) + 1

    # What happens

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.tick()
        self.heal()
        self.check_readable()
        assert self.end is not None
        if self.end > self.acked:
            self.hit("recovered what was not confirmed")
        if len(self.recoverers) > 1:
            self.hit("several recoveries")

    def tick(self) -> None:
        chance, odds = self.rng.random, self.odds
        if chance() < odds.append and not self.writer.withdrawn:
            self.writer.append()
        if chance() < odds.recover and len(self.recoverers) < self.recoverers_max:
            self.recoverers.append(Recoverer(self, f"r{len(self.recoverers)}"))
        if chance() < odds.away:
            bookie = self.rng.choice(list(self.bookies.values()))
            bookie.up = not bookie.up
        if chance() < odds.give_up:
            self.give_up_something()
        if chance() < 0.1 and not self.writer.withdrawn:
            self.news_for_writer()
        if chance() < odds.close and not self.writer.withdrawn:
            self.writer.close()
        self.deliver()

    def news_for_writer(self) -> None:
        missing = self.writer.protocol.missing
        if missing and self.rng.random() < 0.5:
            self.writer.step(write.BookieReturned(self.rng.choice(missing)))
        else:
            self.writer.step(write.SpareFound())

    def give_up_something(self) -> None:
        clients = [c for c in (self.writer, *self.recoverers) if c.requests and not c.dead]
        if clients:
            client = self.rng.choice(clients)
            client.given_up(self.rng.choice(client.requests))

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        self.under_way.append(Message(source, target, arrive))

    def later(self, call: Callable[[], None]) -> None:
        self.send("", "", call)

    def deliver(self) -> None:
        if not self.under_way:
            return
        message = self.rng.choices(self.under_way, [self.speed(m) for m in self.under_way])[0]
        if self.odds.fifo and message.source:
            ends = (message.source, message.target)
            message = next(m for m in self.under_way if (m.source, m.target) == ends)
        self.under_way.remove(message)
        message.arrive()

    def speed(self, message: Message) -> float:
        """Each link has its own, so that some are always late."""
        ends = (message.source, message.target)
        if ends not in self.speeds:
            self.speeds[ends] = self.rng.random() ** 5 + 0.001
        return self.speeds[ends]

    def serve(self, request: Request) -> None:
        bookie = self.bookies[request.bookie]
        if not bookie.up or self.rng.random() < self.odds.lose:
            self.hit("lost")
            return
        answer = self.carry_out(bookie, request)
        if self.rng.random() < self.odds.lose:
            return
        client = request.client
        self.send(bookie.name, client.name, lambda: client.hear(request, answer))

    def carry_out(self, bookie: Bookie, request: Request) -> object:
        if request.fence:
            bookie.fenced = True
        if request.kind == "fence":
            last = max(bookie.entries, default=None)
            return "no" if last is None else (last, bookie.entries[last])
        if request.kind == "read":
            return bookie.entries.get(request.entry_id, "no")
        assert request.stored is not None
        if bookie.fenced and not request.recovery:
            self.hit("fenced")
            return "fenced"
        self.store(bookie, request.entry_id, request.stored)
        return "ok"

    def replace(self, ensemble: Ensemble, failed: Ensemble) -> Ensemble | None:
        spares = [b for b in self.bookies if b not in ensemble]
        if self.rng.random() > self.odds.spare:
            return None
        self.rng.shuffle(spares)
        changed = tuple(spares.pop() if b in failed and spares else b for b in ensemble)
        if changed != ensemble:
            self.hit("ensemble changed")
        return changed if changed != ensemble else None

    def stale(self) -> tuple[LedgerMetadata, int]:
        """What a reader may find in the metadata store: the newest, or something older."""
        return self.rng.choice(self.history[-2:])

    # The metadata store

    def metadata_request(
        self,
        client: Client,
        effect: update.Write | update.Read,
        then: Callable[[update.Event], None],
    ) -> None:
        chance, odds = self.rng.random, self.odds

        def execute_late() -> None:
            execute()

        def execute() -> update.Event:
            if isinstance(effect, update.Read):
                return update.Stored(self.metadata, self.version)
            if effect.version != self.version:
                return update.Conflict()
            self.write_metadata(effect.metadata)
            return update.Written(self.version)

        def arrive() -> None:
            if chance() < odds.unavailable:
                then(update.Unavailable())
            elif isinstance(effect, update.Write) and chance() < odds.unknown:
                self.hit("unknown outcome")
                if chance() < 0.6:  # carried out now, or later
                    self.later(execute_late)
                then(update.Unknown())
            else:
                then(execute())

        self.send(client.name, "metadata", arrive)

    # Rules

    def rule(self, name: str, holds: bool, detail: object = "") -> None:
        if not holds:
            raise SafetyError(f"{name}: {detail}")

    def confirmed(self, entry_id: int) -> None:
        self.rule("S7", entry_id == self.acked + 1, entry_id)
        if self.metadata.closed:
            self.rule("S1", entry_id <= self.metadata.last_entry_id, f"{entry_id} acked late")
        self.acked = entry_id
        self.check_copies(entry_id)

    def store(self, bookie: Bookie, entry_id: int, stored: Stored) -> None:
        self.rule("S5", stored.payload == f"payload {entry_id}", stored)
        self.rule("S6", stored.lac <= self.acked, f"{stored.lac} > {self.acked}")
        before = bookie.entries.get(entry_id)
        if before is None or before.lac < stored.lac:
            bookie.entries[entry_id] = stored

    def write_metadata(self, after: LedgerMetadata) -> None:
        before = self.metadata
        allowed = {
            LedgerState.OPEN: list(LedgerState),
            LedgerState.IN_RECOVERY: [LedgerState.IN_RECOVERY, LedgerState.CLOSED],
            LedgerState.CLOSED: [],
        }
        self.rule("S9", after.state in allowed[before.state], (before.state, after.state))
        kept = after.fragments[: len(before.fragments) - 1]
        self.rule("S10", kept == before.fragments[:-1], after.fragments)
        if after.state is not LedgerState.CLOSED and before.fragments != after.fragments:
            self.rule("S10", after.state is LedgerState.OPEN, "fragments during recovery")
            self.rule("S10", after.last_fragment.first_entry_id == self.acked + 1, self.acked)
        if after.closed and len(after.fragments) > len(before.fragments):
            self.hit("ensemble changed by recovery")
        self.metadata, self.version = after, self.version + 1
        self.history.append((after, self.version))
        if after.closed:
            self.rule("S1", self.acked <= after.last_entry_id, (self.acked, after.last_entry_id))
            self.end = after.last_entry_id
            length = 10 * (after.last_entry_id + 1)
            guessed = after.last_entry_id < before.last_fragment.first_entry_id
            exact = after.length == length
            self.rule("length", exact or (guessed and after.length < length), after)
        for entry_id in range(max(self.acked, self.end if self.end is not None else -1) + 1):
            self.check_copies(entry_id)

    def check_copies(self, entry_id: int) -> None:
        holders = [b for b in self.write_set(entry_id) if entry_id in self.bookies[b].entries]
        rule = "S4" if self.end is None else "S11"
        self.rule(rule, len(holders) >= self.quorums.ack, f"{entry_id} is on {holders}")

    def write_set(self, entry_id: int) -> list[BookieId]:
        ensemble = self.metadata.ensemble_at(entry_id)
        return [ensemble[position] for position in self.quorums.write_set(entry_id)]

    def recovered(self, metadata: LedgerMetadata) -> None:
        self.rule("S12", metadata.last_entry_id == self.end, (metadata.last_entry_id, self.end))
        self.hit("recovered")

    # The end

    def heal(self) -> None:
        """All is well again: a recovery has to come to an end, and a reader finds everything."""
        self.odds = CALM
        for bookie in self.bookies.values():
            bookie.up = True
        self.check_progress()
        for _ in range(20):
            if self.metadata.closed:
                break
            for recoverer in self.recoverers:
                recoverer.dead = True
            self.recoverers.append(Recoverer(self, "the last one"))
            for _ in range(3000):
                if not self.under_way or self.metadata.closed:
                    break
                self.deliver()
        self.rule("L2", self.metadata.closed, "recovery does not end")
        while self.under_way:
            self.deliver()

    def check_progress(self) -> None:
        """L1: a writer whom nobody disturbs gets everything confirmed that it has appended."""
        writer = self.writer
        if writer.withdrawn or self.recoverers or self.rng.random() < 0.3:
            return
        for _ in range(5):
            while writer.requests:
                writer.given_up(writer.requests[0])
            for bookie in writer.protocol.missing:
                writer.step(write.BookieReturned(bookie))
            while self.under_way:
                self.deliver()
        self.rule("L1", self.acked == writer.protocol.last_add_pushed, self.acked)

    def check_readable(self) -> None:
        """S5, S3: a reader gets each entry, from whichever copy it is given."""
        assert self.end is not None
        count = self.end + 1
        reader = read.ReadProtocol(self.quorums, self.metadata.fragments, 0, count)
        effects = reader.step(read.Start())
        found = 0
        while effects:
            effect = effects.pop(0)
            match effect:
                case read.Ask(bookie, first, run):
                    for entry_id in range(first, first + run):
                        has = entry_id in self.bookies[bookie].entries
                        verdict = Verdict.FOUND if has else Verdict.ABSENT
                        effects += reader.step(read.Answered(bookie, entry_id, verdict))
                case read.Found():
                    found += 1
                case read.Failed(entry_id):
                    self.rule("S3", False, f"{entry_id} cannot be read")
        self.rule("S3", found == count, found)
