"""A recoverer: the real shell of an attempt with its `RecoverProtocol`, without tasks.

The steps of `recover_ledger` before and after an attempt, marking and closing, are steps of the
model.  A recovery whose closing write is refused would restart; here another recoverer does that.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, assert_never, cast

from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol import recover
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble
from daybook.bookie.ledger.protocol.recover import Phase
from daybook.bookie.ledger.protocol.update import Gone, NotAllowed, NotDone, Settled
from daybook.bookie.ledger.recovery import Recovery
from daybook.bookie.registry.cookies import CookieGeneration
from daybook.wire.entry import Entry
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
    awaits_adds,
    bookie_id,
    bookie_number,
    replaced,
)
from tests.model.ledger.messages import LEDGER_ID, Asked, Said, asked
from tests.model.ledger.metadata import End, Mark, Outcome, Task, begin, go_on
from tests.model.ledger.settings import LedgerSettings
from tests.model.search import BrokenRuleError

_NOTHING = memoryview(b"")


class Stage(Enum):
    NEW = auto()
    MARKING = auto()
    RUNNING = auto()
    CLOSING = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class Recovering:
    """`entries` were read and are not yet written back: id, length of the ledger, payload."""

    stage: Stage
    marked: StoredMetadata | None = None
    machine: recover.Snapshot | None = None
    entries: tuple[tuple[int, int, bytes], ...] = ()
    task: Task | None = None
    give_ups: int = 0
    changes: int = 0


OVER = Recovering(Stage.OVER)


class RecovererRules(Rules[Recovering]):
    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings

    def first(self) -> Recovering:
        settings = self._settings
        return Recovering(
            Stage.NEW, give_ups=settings.recovery_give_ups, changes=settings.recovery_changes
        )

    def step(self, value: Recovering, event: Input, out: Output) -> Recovering:
        if isinstance(event, Heard) and not self._listens(value, event):
            return value
        run = _Run(self._settings, value, out)
        match event:
            case Heard(bookie, what):
                run.heard(bookie, what)
            case Told(answer):
                run.told(answer)
            case Option():
                run.take(event)
            case _:
                assert_never(event)
        return run.value()

    def _listens(self, value: Recovering, heard: Heard) -> bool:
        """Return False if the channel was closed or the read given up: the answer is dropped."""
        if value.stage is not Stage.RUNNING:
            return False
        return heard.what.is_add or self.wants(value, heard.bookie, heard.what)

    def options(self, value: Recovering) -> Sequence[Option]:
        machine = value.machine
        if value.stage is not Stage.RUNNING or machine is None:
            return []
        found: list[Option] = []
        if machine.phase is Phase.FENCING:
            if self._settings.fence_give_ups:
                found += [
                    Option("gives up fencing", bookie_number(bookie))
                    for bookie in machine.writing[1]
                    if bookie not in machine.fenced + machine.silent
                ]
            return found
        if value.give_ups:
            for entry_id, (order, absent, unknown, count) in machine.inquiries:
                found += [
                    Option("gives up reading from", bookie_number(bookie), entry_id)
                    for bookie in order[:count]
                    if bookie not in absent + unknown
                ]
            _, ensemble, missing, *_ = machine.writing
            found += [
                Option("gives up writing to", bookie_number(bookie), adds=True)
                for position, bookie in enumerate(ensemble)
                if position not in missing
            ]
        return found

    def task(self, value: Recovering) -> Task | None:
        return value.task

    def wants(self, value: Recovering, bookie: BookieId, answer: Said) -> bool:
        if value.stage is not Stage.RUNNING or value.machine is None:
            return False
        if answer.is_add and answer.status is not Status.OK:
            return True
        return self._makes_a_difference(value, bookie, answer.is_add, answer.entry_id)

    def cares(self, value: Recovering, bookie: BookieId, request: Asked) -> bool:
        return (
            value.stage is Stage.RUNNING
            and value.machine is not None
            and self._makes_a_difference(value, bookie, request.is_add, request.entry_id)
        )

    def _makes_a_difference(
        self, value: Recovering, bookie: BookieId, is_add: bool, entry_id: int
    ) -> bool:
        machine = value.machine
        assert machine is not None
        if is_add:
            lac = machine.writing[3]
            return entry_id > lac or value.give_ups > 0  # An add under way can be given up.
        if entry_id == LAST_ENTRY:
            answered = machine.fenced + machine.silent
            return machine.phase is Phase.FENCING and bookie not in answered
        return _unanswered(machine, entry_id, bookie)

    def waits(self, value: Recovering, bookie: BookieId) -> bool:
        machine = value.machine
        if value.stage is not Stage.RUNNING or machine is None:
            return False
        if machine.phase is Phase.FENCING:
            answered = machine.fenced + machine.silent
            return bookie in machine.writing[1] and bookie not in answered
        if awaits_adds(machine.writing, self._settings.quorums, bookie):
            return True
        return any(_unanswered(machine, entry_id, bookie) for entry_id, _ in machine.inquiries)


def _unanswered(machine: recover.Snapshot, entry_id: int, bookie: BookieId) -> bool:
    """Return True if the bookie was asked for the entry and has not answered."""
    for each, (order, absent, unknown, count) in machine.inquiries:
        if each == entry_id:
            return bookie in order[:count] and bookie not in absent + unknown
    return False


class _Run:
    """One step of a recoverer.  It is also the cluster that the shell sees."""

    def __init__(self, settings: LedgerSettings, before: Recovering, out: Output) -> None:
        self._settings = settings
        self._stage = before.stage
        self._marked = before.marked
        self._task = before.task
        self._give_ups = before.give_ups
        self._changes = before.changes
        self._may_abort = settings.fence_give_ups
        self._out = out
        self.held_bytes = 0  # `BookieClient.held_bytes`, which the attempt counts up
        self._attempt: Recovery | None = None
        if before.marked is not None:
            self._attempt = self._restored(before.marked, before)

    def _restored(self, marked: StoredMetadata, before: Recovering) -> Recovery:
        attempt = self._new_attempt(marked)
        if before.machine is not None:
            attempt._protocol.restore(before.machine)
            pushed = before.machine.writing[4]
            for entry_id, length, payload in before.entries:
                found = Entry(LEDGER_ID, entry_id, -1, length, memoryview(payload))
                attempt._entries[entry_id] = found
                if entry_id <= pushed:
                    attempt._frame(entry_id)
        return attempt

    def _new_attempt(self, marked: StoredMetadata) -> Recovery:
        limits = SimpleNamespace(recovery_reads_max=self._settings.reads_max)
        context = SimpleNamespace(
            limits=limits, bookies=self, directory=self, nursery=self, metadata_store=self
        )
        return Recovery(cast("Any", context), LEDGER_ID, marked)

    def value(self) -> Recovering:
        if self._stage is Stage.OVER:
            return OVER
        attempt = self._attempt
        if self._stage is not Stage.RUNNING or attempt is None:
            return Recovering(
                self._stage, task=self._task, give_ups=self._give_ups, changes=self._changes
            )
        entries = attempt._entries
        return Recovering(
            self._stage,
            self._marked,
            attempt._protocol.canonical(),
            tuple((e, entries[e].length, bytes(entries[e].payload)) for e in sorted(entries)),
            self._task,
            self._give_ups,
            self._changes,
        )

    # -- the context of the shell

    def open_channel(self, bookie: BookieId, *_: object) -> SendingChannel:
        return SendingChannel(bookie, self._out)

    def replace(
        self, ensemble: Ensemble, failed: Sequence[BookieId], *_: object, **_named: object
    ) -> Ensemble | None:
        changed = None
        if self._changes:
            changed = replaced(ensemble, tuple(failed), self._settings.bookies)
        if changed is not None:
            self._changes -= 1
            self._out.notes.append(f"writes to {'+'.join(changed)} from now on")
        return changed

    def start_soon(self, call: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Run the task at once: bookies have one generation here, so it never waits."""
        with suppress(StopIteration):
            call(*args).send(None)

    async def generations_of(self, _: object) -> list[CookieGeneration]:
        return []

    # -- inputs

    def told(self, answer: Call) -> None:
        if self._stage is Stage.NEW:
            assert answer.name == "found"
            self._stage = Stage.MARKING
            self._is_now(begin(Mark(), StoredMetadata(*answer.args)))
        else:
            assert self._task is not None
            self._is_now(go_on(self._task, answer))

    def heard(self, bookie: BookieId, what: Said) -> None:
        """Pass the answer on as `LedgerChannel` does."""
        attempt = self._running()
        buffer = memoryview(what.entry)
        if not what.is_add:
            if what.entry_id == LAST_ENTRY:
                attempt._fenced(bookie, what.status, buffer)
            else:
                attempt._read(bookie, what.entry_id, what.status, buffer)
        elif what.status is Status.OK:
            attempt.added(bookie, what.entry_id, 1)
        elif what.status in (Status.FENCED, Status.UNAUTHORIZED):
            attempt.add_refused(bookie, what.status)
        else:
            attempt.add_failed(bookie, what.status.name)
        self._settle()

    def take(self, option: Option) -> None:
        bookie, attempt = bookie_id(option.bookie), self._running()
        match option.name:
            case "gives up fencing":
                attempt._fenced(bookie, None, _NOTHING)
            case "gives up reading from":
                self._give_ups -= 1
                attempt._read(bookie, option.entry_id, None, _NOTHING)
            case _:
                self._give_ups -= 1
                attempt.add_failed(bookie, "no answer")
        self._settle()

    def _running(self) -> Recovery:
        assert self._attempt is not None
        return self._attempt

    def _settle(self) -> None:
        """If the attempt has ended, continue as `recover_ledger` does."""
        attempt, marked = self._running(), self._marked
        self._check_reads()
        reading = attempt._protocol.phase is not Phase.FENCING
        self._out.reads = reading and any(not asked(f).is_add for _, f in self._out.sends)
        if attempt._error is not None:
            if self._give_ups == self._settings.recovery_give_ups and not self._may_abort:
                raise BrokenRuleError("L2", f"recovery fails without a fault: {attempt._error}")
            self._stage = Stage.OVER
            self._out.notes.append(str(attempt._error))
        elif attempt._end is not None:
            assert marked is not None
            end = attempt._end
            self._stage = Stage.CLOSING
            purpose = End(marked.version, end.last_entry_id, end.length, end.changes)
            self._is_now(begin(purpose, marked))

    def _check_reads(self) -> None:
        """W5: recovery reads an entry from the bookies that the metadata it has marked name."""
        if not self._settings.white_box or self._marked is None:
            return
        for bookie, frame in self._out.sends:
            about = asked(frame)
            if about.is_add or about.entry_id == LAST_ENTRY:
                continue
            if bookie not in self._marked.metadata.ensemble_at(about.entry_id):
                raise BrokenRuleError("W5", f"a recovery asks {bookie} for e{about.entry_id}")

    # -- the metadata

    def _is_now(self, progress: Task | Outcome) -> None:
        if isinstance(progress, Task):
            self._task = progress
            self._out.notes.append(str(progress))
            return
        closing = self._stage is Stage.CLOSING
        self._task = None
        self._stage = Stage.OVER
        match progress:
            case Settled(metadata, version):
                if metadata.closed:
                    self._out.finished = metadata
                    self._out.notes.append(f"recovered, the end is {metadata.last_entry_id}")
                else:
                    assert not closing
                    self._start(StoredMetadata(metadata, version))
            case NotAllowed() | NotDone() | Gone():
                self._out.notes.append("ends without a result")
            case _:
                assert_never(progress)

    def _start(self, marked: StoredMetadata) -> None:
        self._stage = Stage.RUNNING
        self._marked = marked
        self._attempt = self._new_attempt(marked)
        self._out.fences = True
        self._attempt._handle(self._attempt._protocol.start)
        self._settle()
