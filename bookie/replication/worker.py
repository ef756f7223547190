"""The replication worker repairs the marked ledgers, the one with the fewest copies first.

It repairs one ledger at a time, as fast as the rate allows.  The repair under way is cancelled when
auto-recovery is paused, and when the session is lost, because the lock is lost with it.  A lock
that this worker holds while it repairs nothing was left over by a lock or release request without
an answer: the worker releases it.
"""

import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from daybook.bookie.errors import (
    LedgerError,
    MalformedMetadataError,
    NoSuchLedgerError,
    RegistryError,
)
from daybook.bookie.ledger.context import LedgerContext
from daybook.bookie.registry.underreplication import PauseWatcher, Underreplication
from daybook.bookie.replication.bookie_watcher import BookieWatcher
from daybook.bookie.replication.limits import ReplicationLimits
from daybook.bookie.replication.protocol.replica_check import (
    GONE,
    BookieStatus,
    bookies_of,
    bytes_to_copy,
    fewest_copies,
)
from daybook.bookie.replication.rereplicator import RepairOutcome, Rereplicator
from daybook.bookie.replication.status_records import StatusRecords, WorkerStatus
from daybook.wire.metadata.store import MetadataError, SessionState


@dataclass(frozen=True, slots=True)
class Candidate:
    """`copies` is the most that its worst entry has, `size` an estimate of the bytes to copy."""

    ledger_id: int
    copies: int
    size: int


class Backlog:
    """The ledgers to repair; one that failed waits for a back-off that doubles each time."""

    def __init__(self, backoff_s: float, backoff_s_max: float) -> None:
        self._backoff_s = backoff_s
        self._backoff_s_max = backoff_s_max
        self._candidates: dict[int, Candidate] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}

    @property
    def pending(self) -> int:
        return len(self._candidates)

    @property
    def rest_bytes(self) -> int:
        return sum(candidate.size for candidate in self._candidates.values())

    def replace(self, candidates: Iterable[Candidate]) -> None:
        self._candidates = {candidate.ledger_id: candidate for candidate in candidates}
        self._failures = {i: n for i, n in self._failures.items() if i in self._candidates}
        self._not_before = {i: t for i, t in self._not_before.items() if i in self._candidates}

    def next(self, now: float) -> Candidate | None:
        """Return the worst ledger whose back-off has ended; None if there is none."""
        return min(
            (c for c in self._candidates.values() if self._not_before.get(c.ledger_id, 0) <= now),
            key=lambda candidate: (candidate.copies, candidate.ledger_id),
            default=None,
        )

    def ended(self, ledger_id: int, now: float, *, done: bool) -> None:
        if done:
            for kept in (self._candidates, self._failures, self._not_before):
                kept.pop(ledger_id, None)
            return
        failures = self._failures[ledger_id] = self._failures.get(ledger_id, 0) + 1
        backoff_s = min(self._backoff_s * 2 ** min(failures - 1, 20), self._backoff_s_max)
        self._not_before[ledger_id] = now + backoff_s

    def forget_failures(self) -> None:
        """End all back-offs, because the bookies have changed."""
        self._not_before.clear()


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a long task; totals are estimates, and may grow."""

    done_bytes: int
    total_bytes: int
    started: float
    now: float

    @property
    def share(self) -> float:
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else 1.0

    @property
    def rate_bytes_per_s(self) -> float:
        return self.done_bytes / (self.now - self.started) if self.now > self.started else 0.0

    @property
    def eta_s(self) -> float | None:
        """The remaining seconds; None while the rate is not known."""
        rest = max(0, self.total_bytes - self.done_bytes)
        if not rest:
            return 0.0
        return rest / self.rate_bytes_per_s if self.done_bytes and self.rate_bytes_per_s else None


@dataclass(slots=True)
class _Copied:
    entries: int = 0
    size: int = 0


class Worker:
    def __init__(
        self,
        context: LedgerContext,
        underreplication: Underreplication,
        watcher: BookieWatcher,
        status_records: StatusRecords,
        limits: ReplicationLimits,
        name: str,
    ) -> None:
        self.name = name
        self.repaired = 0
        self._context = context
        self._underreplication = underreplication
        self._watcher = watcher
        self._status_records = status_records
        self._limits = limits
        self._copied = _Copied()
        self._rereplicator = Rereplicator(
            context, underreplication, watcher, status_records, limits, self._count_copied
        )
        self._backlog = Backlog(limits.backoff_s, limits.backoff_s_max)
        self._ledger_id: int | None = None
        self._doing = "starting"
        self._started = trio.current_time()
        self._done_before = 0
        self._pause_watcher = PauseWatcher(underreplication)

    def _count_copied(self, entries: int, size: int) -> None:
        self._copied.entries += entries
        self._copied.size += size

    # -- the loop

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            while True:
                try:
                    worked = await self._round()
                except MetadataError as error:
                    self._doing = f"waiting for the metadata store: {error}"
                    worked = False
                except RegistryError as error:
                    self._doing = f"cannot work: {error}"
                    worked = False
                if not worked:
                    await self._rest()

    async def _rest(self) -> None:
        """Wait until a bookie's status changes, or for `poll_s`."""
        changed = trio.Event()
        self._watcher.add_listener(changed.set)
        try:
            with trio.move_on_after(self._limits.poll_s):
                await changed.wait()
        finally:
            self._watcher.remove_listener(changed.set)
        if changed.is_set():
            self._backlog.forget_failures()  # A lost bookie may be back, or a spare present.

    async def _round(self) -> bool:
        """Repair the marked ledgers, the worst first; return False if none could be repaired."""
        if await self._pause_watcher.is_paused():
            self._doing = "paused"
            await self._pause_watcher.wait_changed()
            return True
        await self._watcher.wait_ready()
        await self._underreplication.check_layout()
        self._doing = "looking for work"
        self._backlog.replace(await self._candidates())
        self._rereplicator.lock_left = False  # `_candidates` has just released such locks.
        self._started, self._done_before = trio.current_time(), self._copied.size
        statuses = self._watcher.statuses()
        worked = False
        while (candidate := self._backlog.next(trio.current_time())) is not None:
            if await self._pause_watcher.is_paused() or self._watcher.statuses() != statuses:
                return True  # Another ledger may be the worst by now.
            if self._rereplicator.lock_left:
                return True  # No other worker can repair that ledger: release it first.
            outcome = await self._repair_interruptibly(candidate.ledger_id)
            worked = worked or outcome in (RepairOutcome.REPAIRED, RepairOutcome.GONE)
            self._backlog.ended(
                candidate.ledger_id,
                trio.current_time(),
                done=outcome in (RepairOutcome.REPAIRED, RepairOutcome.GONE),
            )
        self._doing = "nothing to do" if not self._backlog.pending else "waiting"
        return worked

    async def _candidates(self) -> list[Candidate]:
        """Return the marked ledgers that no other worker holds; clear alarms without a mark."""
        alarmed = await self._status_records.alarmed_ledgers()
        locked = await self._locked_by_others()
        here = [
            b for b, status in self._watcher.statuses().items() if status is not BookieStatus.LOST
        ]
        marked = [ledger_id async for ledger_id in self._underreplication.marked_ledgers()]
        for ledger_id in sorted(set(alarmed) - set(marked)):
            await self._status_records.clear_alarm(ledger_id)  # repaired by a worker without alarms
        marked = [ledger_id for ledger_id in marked if ledger_id not in locked]
        # In random order, so that ledgers that cannot be repaired do not hide the others.
        self._context.rng.shuffle(marked)
        candidates: list[Candidate] = []
        for ledger_id in marked[: self._limits.marks_max]:
            try:
                metadata = (await self._context.metadata_store.read(ledger_id)).metadata
            except (NoSuchLedgerError, MalformedMetadataError):
                # The rereplicator removes the mark of a deleted ledger, or raises an alarm.  Such
                # a ledger counts as the worst one: neither takes long.
                candidates.append(Candidate(ledger_id, 0, 0))
                continue
            gone = [
                b
                for b, status in self._watcher.statuses_of(bookies_of(metadata)).items()
                if status in GONE
            ]
            candidates.append(
                Candidate(ledger_id, fewest_copies(metadata, here), bytes_to_copy(metadata, gone))
            )
        return candidates

    async def _locked_by_others(self) -> list[int]:
        """Return the ledgers that others hold; release the locks of this worker.

        No repair is under way here, so a lock of this worker was left over.
        """
        assert self._ledger_id is None
        others: list[int] = []
        for ledger_id, lock in (await self._underreplication.locks()).items():
            if lock.ours:
                await self._underreplication.release(ledger_id)
            else:
                others.append(ledger_id)
        return others

    async def _repair_interruptibly(self, ledger_id: int) -> RepairOutcome:
        assert self._ledger_id is None, "one repair at a time"
        self._ledger_id, self._doing = ledger_id, "repairing"
        try:
            with self._until_interrupted():
                outcome = await self.rereplicate(ledger_id)
                if outcome is RepairOutcome.REPAIRED:
                    self.repaired += 1
                return outcome
            return RepairOutcome.LATER
        except LedgerError as error:
            _log.warning("ledger %d could not be repaired now: %s", ledger_id, error)
            return RepairOutcome.LATER
        except (MetadataError, RegistryError):
            raise
        except Exception:  # One ledger must not stop the repair of all others.
            _log.exception("ledger %d could not be repaired", ledger_id)
            return RepairOutcome.LATER
        finally:
            self._ledger_id = None

    @contextmanager
    def _until_interrupted(self) -> Generator[None]:
        """Cancel the block when auto-recovery is paused, or the session and its lock are lost."""
        store = self._underreplication.store
        with trio.CancelScope() as scope:
            self._pause_watcher.on_change = scope.cancel

            def session_changed(state: SessionState) -> None:
                if state is SessionState.LOST:
                    scope.cancel()

            store.add_session_listener(session_changed)
            try:
                yield
            finally:
                self._pause_watcher.on_change = None
                store.remove_session_listener(session_changed)

    async def rereplicate(self, ledger_id: int) -> RepairOutcome:
        """Repair a marked ledger as far as possible."""
        return await self._rereplicator.rereplicate(ledger_id)

    # -- status

    def status(self) -> WorkerStatus:
        rest = self._backlog.rest_bytes
        done = self._copied.size - self._done_before
        progress = Progress(done, done + rest, self._started, trio.current_time())
        return WorkerStatus(
            worker=self.name,
            doing=self._doing,
            ledger_id=self._ledger_id,
            pending=self._backlog.pending,
            mended=self.repaired,
            copied_entries=self._copied.entries,
            copied_bytes=self._copied.size,
            rest_bytes=rest,
            rate_bytes_per_s=round(progress.rate_bytes_per_s, 1),
            eta_s=None if progress.eta_s is None else round(progress.eta_s, 1),
        )

    async def _report(self) -> None:
        shown: WorkerStatus | None = None
        session_id = 0
        while True:
            status = self.status()
            # The record is ephemeral: a new session has to write it again.
            if status != shown or session_id != self._underreplication.store.session_id:
                try:
                    await self._status_records.write_status(status)
                    shown, session_id = status, self._underreplication.store.session_id
                except MetadataError:
                    shown = None
            await trio.sleep(self._limits.report_s)
