"""The writer: the real `LedgerWriter` with its `WriteProtocol`, without tasks.

The shell's own code appends, frames, handles answers and withdraws.  Its tasks that change the
metadata (a new ensemble, the close) run one at a time; here they are steps of the model.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, assert_never, cast

from daybook.bookie.errors import (
    LedgerClosedError,
    WriterWithdrawnError,
)
from daybook.bookie.ledger.context import LedgerLimits
from daybook.bookie.ledger.metadata_store import StoredMetadata
from daybook.bookie.ledger.protocol import write
from daybook.bookie.ledger.protocol.placement import BookieId, Ensemble
from daybook.bookie.ledger.protocol.update import NotAllowed, Settled
from daybook.bookie.ledger.protocol.write import State, WriteProtocol
from daybook.bookie.ledger.writer import LedgerWriter
from daybook.wire.messages.bookie import Status
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
from tests.model.ledger.messages import LEDGER_ID, Asked, Said, length_at, payload_of
from tests.model.ledger.metadata import Change, Close, Outcome, Purpose, Task, begin, go_on
from tests.model.ledger.settings import LedgerSettings
from tests.model.search import BrokenRuleError


@dataclass(frozen=True, slots=True)
class Writing:
    """`frames` are unconfirmed entries; with `close_due` the close follows the present task."""

    machine: write.Snapshot
    stored: StoredMetadata
    frames: tuple[tuple[int, bytes], ...] = ()
    task: Task | None = None
    close_due: bool = False
    closes: bool = False
    give_ups: int = 0
    changes: int = 0


class WriterRules(Rules[Writing]):
    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings

    def first(self, stored: StoredMetadata) -> Writing:
        settings = self._settings
        ensemble = stored.metadata.last_fragment.ensemble
        missing = ensemble[-1:] if settings.degraded else ()
        return Writing(
            WriteProtocol(ensemble, settings.quorums, missing=missing).snapshot(),
            stored,
            closes=settings.closes,
            give_ups=settings.give_ups,
            changes=settings.changes,
        )

    def step(self, value: Writing, event: Input, out: Output) -> Writing:
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

    def options(self, value: Writing) -> Sequence[Option]:
        state, ensemble, missing, lac, pushed, _, _, starved = value.machine
        if state is State.WITHDRAWN or value.close_due:
            return []
        settings = self._settings
        found: list[Option] = []
        if pushed + 1 < settings.entries and pushed - lac < settings.in_flight:
            found.append(Option("appends"))
        if value.give_ups:
            for position in range(len(ensemble)):
                if position not in missing:
                    found += self._ways_to_give_up(bookie_number(ensemble[position]))
        names: Ensemble = tuple(ensemble[position] for position in missing)
        if names and value.changes and replaced(ensemble, names, settings.bookies):
            found.append(Option("finds a spare"))
        if starved:
            found += [Option("sees the return of", bookie_number(name)) for name in names]
        if value.closes:
            found.append(Option("closes"))
        return found

    def _ways_to_give_up(self, bookie: int) -> list[Option]:
        names = ["gives up"]
        if self._settings.postponed:
            names.append("gives up, and goes on without,")
        return [
            Option(name, bookie, link=True, cut=cut)
            for name in names
            for cut in (False, True)[: 1 + bool(self._settings.cuts)]
        ]

    def task(self, value: Writing) -> Task | None:
        return value.task

    def wants(self, value: Writing, bookie: BookieId, answer: Said) -> bool:
        state, _, _, lac, *_ = value.machine
        if state is State.WITHDRAWN:
            return False
        # An add under way can be given up.
        return answer.status is not Status.OK or answer.entry_id > lac or value.give_ups > 0

    def cares(self, value: Writing, bookie: BookieId, request: Asked) -> bool:
        return value.machine[0] is not State.WITHDRAWN  # The add may be refused.

    def waits(self, value: Writing, bookie: BookieId) -> bool:
        return awaits_adds(value.machine, self._settings.quorums, bookie)


class _Run:
    """One step of the writer.  It is also the cluster that the shell sees."""

    def __init__(self, settings: LedgerSettings, before: Writing, out: Output) -> None:
        self._settings = settings
        self._task = before.task
        self._close_due = before.close_due
        self._closes = before.closes
        self._give_ups = before.give_ups
        self._changes = before.changes
        self._spares = True
        self._returned: BookieId | None = None
        self._out = out
        self._writer = self._restored(before)

    def _restored(self, before: Writing) -> LedgerWriter:
        context = SimpleNamespace(
            limits=LedgerLimits(),
            directory=self,
            metadata_store=SimpleNamespace(reachable=True),
            nursery=self,
            bookies=SimpleNamespace(flusher=self, open_channel=self.open_channel, held_bytes=0),
            mark_under_replicated=None,
        )
        writer = LedgerWriter(cast("Any", context), LEDGER_ID, before.stored)
        _, _, _, lac, pushed, *_ = before.machine
        writer._protocol.restore(before.machine)
        writer.last_add_confirmed, writer.length = lac, length_at(lac)
        writer.last_add_pushed, writer._pushed_length = pushed, length_at(pushed)
        for entry_id, frame in before.frames:
            writer._pending.append([frame])
            writer._lengths.append(length_at(entry_id))
        if before.machine[0] is State.WITHDRAWN:
            writer._error = WriterWithdrawnError("before")
        writer.set_listener(self._confirmed, lambda error: self._out.notes.append(str(error)))
        return writer

    def value(self) -> Writing:
        first = self._writer.last_add_confirmed + 1
        frames = [
            (entry_id, b"".join(map(bytes, frame)))
            for entry_id, frame in enumerate(self._writer._pending, first)
        ]
        return Writing(
            self._writer._protocol.canonical(),
            self._writer._stored,
            tuple(frames),
            self._task,
            self._close_due,
            self._closes,
            self._give_ups,
            self._changes,
        )

    # -- the context of the shell

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Do nothing: an `Option` reports a spare or a return."""

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Do nothing, likewise."""

    def is_usable(self, bookie: BookieId) -> bool:
        return bookie == self._returned

    def replace(
        self, ensemble: Ensemble, failed: Sequence[BookieId], *_: object
    ) -> Ensemble | None:
        if not self._changes or not self._spares:
            return None
        return replaced(ensemble, tuple(failed), self._settings.bookies)

    def mark(self, writer: LedgerWriter) -> None:
        """Do nothing: `take` flushes each append at once."""

    def open_channel(self, bookie: BookieId, *_: object) -> SendingChannel:
        return SendingChannel(bookie, self._out)

    def start_soon(self, task: object, *arguments: Any) -> None:
        if task == self._writer._change_ensemble:
            (wanted,) = arguments
            self._changes -= 1
            self._begin(Change(self._writer.metadata.last_fragment, wanted))

    def _confirmed(self, first: int, last: int) -> None:
        if self._settings.white_box and self._task is not None:
            raise BrokenRuleError("W4", "the LAC moves while a change is in flight")
        self._out.confirmed.append((first, last - first + 1))
        self._out.notes.append(f"ACKS e{first}" + (f" to e{last}" if last > first else ""))

    # -- inputs

    def heard(self, bookie: BookieId, what: Said) -> None:
        """Pass the answer on as `LedgerChannel.add_answered` does."""
        match what.status:
            case Status.OK:
                self._writer.added(bookie, what.entry_id, 1)
            case Status.FENCED | Status.UNAUTHORIZED:
                self._writer.add_refused(bookie, what.status)
            case _:
                self._writer.add_failed(bookie, what.status.name)

    def take(self, option: Option) -> None:
        match option.name:
            case "appends":
                entry_id = self._writer.append([payload_of(self._writer.last_add_pushed + 1)])
                self._writer.flush()
                self._out.notes.append(f"e{entry_id}")
            case "finds a spare":
                self._writer.try_again()
            case "sees the return of":
                self._returned = bookie_id(option.bookie)
                self._writer._look_for_returned()
            case "closes":
                self._close()
            case _:
                self._give_ups -= 1
                self._spares = option.name == "gives up"
                self._writer.add_failed(bookie_id(option.bookie), "no answer")

    def _close(self) -> None:
        """Close like `LedgerWriter.close`: changes of the metadata are made one by one."""
        self._closes = False
        self._writer._stop(LedgerClosedError("closed by its owner"))
        if self._task is None:
            self._begin_close()
        else:
            self._close_due = True

    def _begin_close(self) -> None:
        self._close_due = False
        self._begin(Close(self._writer.last_add_confirmed, self._writer.length))

    # -- the metadata

    def _begin(self, purpose: Purpose) -> None:
        self._is_now(purpose, begin(purpose, self._writer._stored))

    def told(self, answer: Call) -> None:
        assert self._task is not None
        self._is_now(self._task.purpose, go_on(self._task, answer))

    def _is_now(self, purpose: Purpose, progress: Task | Outcome) -> None:
        if isinstance(progress, Task):
            self._task = progress
            self._out.notes.append(str(progress))
            return
        self._task = None
        writer = self._writer
        if isinstance(purpose, Change):
            writer._ensemble_change_settled(purpose.wanted, progress)
        elif isinstance(progress, Settled | NotAllowed):
            writer._stored = StoredMetadata(progress.metadata, progress.version)
        if self._close_due:
            self._begin_close()
