"""One ledger whose writer lets bookies sync later, among bookies that start anew.

A bookie that starts anew has lost, from some entry on, what it had taken and not forced; all
connections to it have ended, which its writer learns a bit later, or when it next uses one.  What
is confirmed has to be on disks.
"""

from collections.abc import Sequence
from typing import ClassVar

from daybook.bookie.ledger.protocol import deferred, write
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble
from tests.storms.chance import Chance
from tests.storms.ledger_base import LedgerBase
from tests.storms.ledger_clients import Answer, Request, Writer
from tests.storms.ledger_world import NAMES, Bookie, LedgerWorld
from tests.storms.storm import OFTEN, SOME


class DeferredWriter(Writer):
    """`bookie.ledger.deferred_writer`, and the part of `bookie.ledger.bookie_client` it needs."""

    def __init__(
        self, storm: LedgerWorld, host: int, ensemble: Ensemble, missing: Ensemble
    ) -> None:
        super().__init__(storm, host, ensemble, missing)
        self._deferred = deferred.DeferredProtocol(storm.quorums.ack)
        self._connections: dict[BookieId, int] = {}
        self._forces: dict[BookieId, Request] = {}  # the one that may be answered

    def force(self) -> None:
        self._defer(deferred.ForceUpTo(self.protocol.last_add_pushed))

    def ask(self, request: Request) -> None:
        request.connection = self._connections.get(request.bookie, 0)
        super().ask(request)

    def ended(self, bookie: BookieId, connection: int) -> None:
        """The connection before that one has ended."""
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
                    self._defer(deferred.Forced(bookie))
            case _, "ok":
                if bookie in self.protocol.ensemble:
                    self._defer(deferred.Acknowledged(bookie, request.entry_id))
            case _, "fenced":
                self.step(write.Refused("fenced"))
            case _:
                self.given_up(request)

    def given_up(self, request: Request) -> None:
        self._failed(request.bookie)

    def _failed(self, bookie: BookieId) -> None:
        for request in [r for r in self.requests if r.bookie == bookie]:
            self.settle(request)
        self._forces.pop(bookie, None)
        self._defer(deferred.Lost(bookie))
        if self.protocol.last_add_pushed > self.protocol.lac:
            self.step(write.AddFailed(bookie))

    def _defer(self, event: deferred.Event) -> None:
        for effect in self._deferred.step(event):
            match effect:
                case deferred.AskToForce(bookie):
                    request = self._forces[bookie] = Request(self, bookie, "force", -1)
                    self.ask(request)
                case deferred.Held(bookie, first, count):
                    self.storm.mark("forced")
                    self.step(write.Added(bookie, first, count))
                case deferred.Taken():
                    self.storm.mark("taken")


class DeferredStorm(LedgerBase):
    kind = "deferred"
    writer_class = DeferredWriter
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
        super().__init__(chance, trace)

    def _add_actors(self) -> None:
        super()._add_actors()
        self.actor(self._force, OFTEN)
        self.actor(self._start_anew, SOME)

    def _force(self) -> None:
        writer = self.writer
        assert isinstance(writer, DeferredWriter)
        if not writer.withdrawn and not writer.dead:
            writer.force()

    def _start_anew(self) -> None:
        """Of what was not forced, a prefix is on disk."""
        bookie = self.bookies[self.chance.one_of(NAMES[: len(self.bookies)])]
        unsynced = self._unsynced.pop(bookie.name, [])
        kept = self.chance.below(len(unsynced) + 1)
        for entry_id in unsynced[kept:]:
            self.mark("lost what it had taken")
            del bookie.entries[entry_id]
        self.mark("started anew")
        self.say(f"{bookie.name} starts anew, without {unsynced[kept:]}")
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
        if request.fence:  # It is synced, and everything before it.
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

    def _check_progress(self) -> None:
        self._force()
        super()._check_progress()
