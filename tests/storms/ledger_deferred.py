"""Storms over one ledger with deferred sync, among bookies that restart.

A bookie that restarts has lost, from some entry on, the entries that it had acknowledged and not
forced.  All connections to it have ended; its writer learns that a bit later, or when it next uses
one.  A confirmed entry has to be on disks.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from daybook.bookie.ledger.protocol import deferred, read
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble
from daybook.bookie.ledger.protocol.read import Verdict
from tests.storms.chance import Chance
from tests.storms.ledger import SETUPS
from tests.storms.ledger_clients import Answer, Client, Recoverer, Request, Writer
from tests.storms.ledger_world import NAMES, Bookie, LedgerWorld
from tests.storms.storm import OFTEN, SOME

RECOVERERS = ("r1", "r2", "r3")
ATTEMPTS_AT_END = 20
DELIVERIES_AT_END = 5000


class DeferredWriter(Writer):
    """Does what `bookie.ledger.deferred_writer` does, with its part of `bookie_client`."""

    def __init__(
        self, storm: LedgerWorld, host: int, ensemble: Ensemble, missing: Ensemble
    ) -> None:
        super().__init__(storm, host, ensemble, missing)
        self._deferred = deferred.DeferredProtocol(storm.quorums.ack)
        self._connections: dict[BookieId, int] = {}
        self._forces: dict[BookieId, Request] = {}  # the latest: answers to older ones are void

    def force(self) -> None:
        self._perform_deferred(self._deferred.force_up_to(self.protocol.last_add_pushed))

    def ask(self, request: Request) -> None:
        request.connection = self._connections.get(request.bookie, 0)
        super().ask(request)

    def ended(self, bookie: BookieId, connection: int) -> None:
        """Fail the requests to the bookie: the connection before this one has ended."""
        if connection > self._connections.get(bookie, 0):
            self._connections[bookie] = connection
            self._failed(bookie)

    def answered(self, request: Request, answer: Answer) -> None:
        bookie = request.bookie
        if request.connection != self._connections.get(bookie, 0):
            return
        self.settle(request)
        match request.kind, answer:
            case "force", "ok":
                if self._forces.get(bookie) is request:
                    del self._forces[bookie]
                    self._perform_deferred(self._deferred.forced(bookie))
            case _, "ok":
                if bookie in self.protocol.ensemble:
                    self._perform_deferred(self._deferred.acknowledged(bookie, request.entry_id))
            case _, "fenced":
                self.perform(self.protocol.refused("fenced"))
            case _:
                self.given_up(request)

    def given_up(self, request: Request) -> None:
        self._failed(request.bookie)

    def _failed(self, bookie: BookieId) -> None:
        for request in [r for r in self.requests if r.bookie == bookie]:
            self.settle(request)
        self._forces.pop(bookie, None)
        self._perform_deferred(self._deferred.lost(bookie))
        if self.protocol.last_add_pushed > self.protocol.lac:
            self.perform(self.protocol.add_failed(bookie))

    def _perform_deferred(self, effects: Iterable[deferred.Effect]) -> None:
        for effect in effects:
            match effect:
                case deferred.AskToForce(bookie):
                    request = self._forces[bookie] = Request(self, bookie, "force", -1)
                    self.ask(request)
                case deferred.Held(bookie, first, count):
                    self.storm.mark("forced")
                    self.perform(self.protocol.added(bookie, first, count))
                case deferred.Taken():
                    self.storm.mark("taken")


class DeferredStorm(LedgerWorld):
    kind = "deferred"
    wanted: ClassVar[dict[str, float]] = {
        "recovered": 0.7,
        "taken": 0.5,
        "forced": 0.2,
        "started anew": 0.1,
        "lost what it had taken": 0.03,
        "used a connection that had ended": 0.005,
        "ensemble changed": 0.02,
        "fenced writer": 0.05,
        "recovered what was not confirmed": 0.05,
    }

    def __init__(self, chance: Chance, trace: list[str] | None = None) -> None:
        self._unsynced: dict[BookieId, list[int]] = {}  # in the order in which they came
        self._epochs: dict[BookieId, int] = {}
        count, quorums = chance.one_of(SETUPS)
        clients = 2 + len(RECOVERERS)
        super().__init__(chance, trace, bookies=count, quorums=quorums, clients=clients)
        self._recoverers_max = chance.one_of((1, 1, 1, 2, 2, 3))
        self._entries_max = chance.one_of((1, 1, 1, 2, 2, 3, 6))
        ensemble = self.ensemble
        self.writer = DeferredWriter(self, count + 1, ensemble, self._away(ensemble))
        self.recoverers: list[Recoverer] = []
        self.say(f"{count} bookies, {quorums}, the ensemble is {' '.join(ensemble)}")
        self._add_actors()

    def _add_actors(self) -> None:
        self.actor(self.network.deliver, (1.0,))
        self.actor(self._append, OFTEN)
        self.actor(self._recover, (0.003, 0.01, 0.03, 0.1, 0.3))
        self.actor(self._give_up, SOME)
        self.actor(self._cut, SOME)
        self.actor(self._go_away, SOME)
        self.actor(self._tell_writer, (0.0, 0.02, 0.1))
        self.actor(self._close, (0.0, 0.0, 0.003, 0.01, 0.03))
        self.actor(self._crash, (0.0, 0.0, 0.003, 0.01))
        self.actor(self._force, OFTEN)
        self.actor(self._start_anew, SOME)

    def _away(self, ensemble: Ensemble) -> Ensemble:
        """Draw the members that are away when the ledger is created; they are sent nothing."""
        one = self.chance.below(4 * len(ensemble))
        live = [position for position in range(len(ensemble)) if position != one]
        if one >= len(ensemble) or not self.quorums.can_confirm(live):
            return ()
        self.bookies[ensemble[one]].up = False
        self.mark("went on degraded")
        return (ensemble[one],)

    # -- the actors

    def _append(self) -> None:
        left = self._entries_max - 1 - self.writer.protocol.last_add_pushed
        if left and not self.writer.withdrawn and not self.writer.dead:
            self.writer.append(1 + self.chance.below(min(left, 3)))

    def _recover(self) -> None:
        index = self.chance.below(self._recoverers_max)
        name = RECOVERERS[index]
        if any(recoverer.name == name for recoverer in self.recoverers):
            return
        if self.recoverers:
            self.mark("several recoveries")
        if self.writer.changing:
            self.mark("change in flight when fenced")
        self.say(f"{name} begins to recover")
        self.recoverers.append(Recoverer(self, name, self.register_host + 2 + index))

    def _give_up(self) -> None:
        clients = [c for c in self._clients() if c.requests and not c.dead]
        if clients:
            client = self.chance.one_of(clients)
            request = self.chance.one_of(client.requests)
            self.say(f"{client.name} has waited too long for {request.bookie}: {request}")
            client.given_up(request)

    def _clients(self) -> Sequence[Client]:
        return [self.writer, *self.recoverers]

    def _cut(self) -> None:
        if lost := self.network.cut():
            self.mark("lost")
            self.say(f"a connection is cut, {lost} messages are lost")

    def _go_away(self) -> None:
        bookie = self.bookies[self.chance.one_of(NAMES[: len(self.bookies)])]
        bookie.up = not bookie.up
        self.say(f"{bookie.name} is {'back' if bookie.up else 'away'}")

    def _tell_writer(self) -> None:
        if not self.writer.withdrawn and not self.writer.dead:
            self.writer.news()

    def _close(self) -> None:
        if not self.writer.withdrawn and not self.writer.dead:
            self.writer.close()

    def _crash(self) -> None:
        client = self.chance.one_of(self._clients())
        self.say(f"{client.name} dies")
        client.dead = True

    def _force(self) -> None:
        writer = self.writer
        assert isinstance(writer, DeferredWriter)
        if not writer.withdrawn and not writer.dead:
            writer.force()

    def _start_anew(self) -> None:
        """Restart a bookie: a prefix of the entries that were not forced is on its disk."""
        bookie = self.bookies[self.chance.one_of(NAMES[: len(self.bookies)])]
        unsynced = self._unsynced.pop(bookie.name, [])
        kept = self.chance.below(len(unsynced) + 1)
        for entry_id in unsynced[kept:]:
            self.mark("lost what it had taken")
            del bookie.entries[entry_id]
        self.mark("started anew")
        self.say(f"{bookie.name} restarts without {unsynced[kept:]}")
        self._epochs[bookie.name] = self._epochs.get(bookie.name, 0) + 1
        self._tell_of_the_end(bookie.name)

    def _tell_of_the_end(self, bookie: BookieId) -> None:
        writer = self.writer
        assert isinstance(writer, DeferredWriter)
        self.network.send(
            self.host_of[bookie], writer.host, writer.ended, bookie, self._epochs[bookie]
        )

    # -- bookies

    def serve(self, request: Request) -> None:
        has_ended = request.connection != self._epochs.get(request.bookie, 0)
        if request.client is self.writer and has_ended:
            self.mark("used a connection that had ended")
            self._tell_of_the_end(request.bookie)
            return
        super().serve(request)

    def _carry_out(self, bookie: Bookie, request: Request) -> Answer:
        if request.kind == "force":
            self._unsynced.pop(bookie.name, None)
            return "ok"
        if request.fence:  # A fence is synced, and so is everything before it.
            self._unsynced.pop(bookie.name, None)
        had = request.entry_id in bookie.entries
        answer = super()._carry_out(bookie, request)
        if request.kind == "add" and answer == "ok":
            unsynced = self._unsynced.setdefault(bookie.name, [])
            if request.recovery:
                unsynced[:] = [e for e in unsynced if e != request.entry_id]
            elif not had:
                unsynced.append(request.entry_id)
        return answer

    def _holds(self, bookie: Bookie, entry_id: int) -> bool:
        unsynced: Sequence[int] = self._unsynced.get(bookie.name, ())
        return entry_id in bookie.entries and entry_id not in unsynced

    # -- the end

    def finish(self) -> None:
        self.heal()
        self._check_progress()
        self._one_stays_away()
        for attempt in range(ATTEMPTS_AT_END):
            if self.metadata.closed:
                break
            for recoverer in self.recoverers:
                recoverer.dead = True
            self.say("the last one begins to recover")
            host = self.register_host + 2 + attempt % len(RECOVERERS)
            self.recoverers.append(Recoverer(self, "the last one", host))
            self._calm_down()
        self.rule("L2", self.metadata.closed, "recovery does not end")
        self._calm_down()
        self._read_everything()

    def _one_stays_away(self) -> None:
        """Keep one bookie away: a ledger that can be written without it can be read without it."""
        quorums = self.quorums
        if 2 <= quorums.ack < quorums.write and self.chance.happens(0.5):
            name = self.chance.one_of(NAMES[: len(self.bookies)])
            self.bookies[name].up = False
            self.say(f"{name} stays away")

    def _calm_down(self) -> None:
        """Deliver everything; a client that then lacks an answer gives the request up."""
        for _ in range(DELIVERIES_AT_END):
            self.network.deliver_all(DELIVERIES_AT_END)
            waiting = [c for c in self._clients() if c.requests and not c.dead]
            if not waiting:
                break
            waiting[0].given_up(waiting[0].requests[0])

    def _check_progress(self) -> None:
        """L1: a writer that nobody disturbs gets everything confirmed that it has appended."""
        self._force()
        writer = self.writer
        if writer.withdrawn or writer.dead or self.recoverers or self.chance.happens(0.3):
            return
        for _ in range(5):
            while writer.requests:
                writer.given_up(writer.requests[0])
            for bookie in writer.protocol.missing:
                writer.perform(writer.protocol.bookie_returned(bookie))
            self.network.deliver_all(DELIVERIES_AT_END)
        pushed = writer.protocol.last_add_pushed
        self.rule("L1", self.acked == pushed, f"{self.acked} is confirmed, {pushed} was sent")

    def _read_everything(self) -> None:
        """S3, S5: a reader finds each entry."""
        assert self.end is not None
        count = self.end + 1
        reader = read.ReadProtocol(self.quorums, self.metadata.fragments, 0, count)
        effects = reader.start()
        found = 0
        while effects:
            effect = effects.pop(0)
            match effect:
                case read.Ask(bookie, first, run):
                    for entry_id in range(first, first + run):
                        verdict = self._verdict(self.bookies[bookie], entry_id)
                        effects += reader.answered(bookie, entry_id, verdict)
                case read.Found():
                    found += 1
                case read.Failed(entry_id):
                    self.rule("S3", False, f"entry {entry_id} cannot be read")
        self.rule("S3", found == count, f"{found} of {count} entries were read")

    def _verdict(self, bookie: Bookie, entry_id: int) -> Verdict:
        if not bookie.up:
            return Verdict.UNKNOWN
        return Verdict.FOUND if entry_id in bookie.entries else Verdict.ABSENT
