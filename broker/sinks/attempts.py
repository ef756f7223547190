"""Staging ledgers that clients write through this broker, for programs that reach only brokers.

An attempt lives in the memory of one broker and has one writer.  A broker that dies, an append that
fails, an answer that is lost: the attempt has failed, and the task begins another one.  So a
staging ledger that was closed in order holds exactly the entries that its task has sent.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from daybook.bookie.errors import LedgerError
from daybook.bookie.ledger.client import LedgerWriter, Quorums
from daybook.broker.errors import (
    ConflictError,
    NotFoundError,
    PreconditionError,
    TooManyRequestsError,
    UnavailableError,
)
from daybook.managed_ledger.protocol.sink import NO_BATCH
from daybook.managed_ledger.sinks.batch import ShareRef
from daybook.managed_ledger.sinks.errors import StagedEntryError
from daybook.managed_ledger.sinks.ledgers import SinkLedger, SinkLedgers
from daybook.managed_ledger.sinks.staging import (
    Runs,
    StagingEnd,
    check_staged,
    decode_body,
    encode_end,
    new_end,
)
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName

ATTEMPTS_MAX = 64
ROLE_ATTEMPTS_MAX = ATTEMPTS_MAX // 4
IDLE_S = 600.0
_LOOK_S = 30.0


@dataclass(slots=True)
class _Attempt:
    owner: SinkLedger
    partitions: Mapping[str, int]
    writer: LedgerWriter
    used_s: float
    role: str
    runs: Runs = field(default_factory=Runs)
    lock: trio.Lock = field(default_factory=trio.Lock)


class StagingAttempts:
    """The open attempts of one broker.  `entry_bytes_max` returns the largest message."""

    def __init__(
        self,
        ledgers: SinkLedgers,
        quorums: Callable[[], Awaitable[Quorums]],
        new_id: Callable[[], str],
        entry_bytes_max: Callable[[], int],
        log: Log,
    ) -> None:
        self._ledgers = ledgers
        self._quorums = quorums
        self._new_id = new_id
        self._entry_bytes_max = entry_bytes_max
        self._log = log
        self._open: dict[str, _Attempt] = {}
        self._beginning: list[str] = []  # the roles

    async def run(self) -> None:
        """Give up attempts that nothing is appended to any more."""
        try:
            while True:
                await trio.sleep(_LOOK_S)
                for attempt in list(self._open.values()):
                    idle_s = trio.current_time() - attempt.used_s
                    if idle_s >= IDLE_S and not attempt.lock.locked():
                        self._fail(attempt)
                        self._log.info(
                            "an attempt to stage a batch was given up by its client",
                            sink=attempt.owner.sink,
                            attempt=attempt.owner.attempt,
                        )
        finally:
            for attempt in list(self._open.values()):
                self._fail(attempt)

    async def begin(
        self,
        sink: str,
        query_id: str,
        batch_id: int,
        partitions: Mapping[str, int],
        *,
        role: str = "",
    ) -> ShareRef:
        """Create a staging ledger.  Raise BrokerError.

        A role has only a part of the attempts of a broker; without authorization it is "".
        """
        if not query_id or batch_id <= NO_BATCH:
            raise PreconditionError("a batch needs the id of its query and a number from 0 on")
        self._check_room(role)
        self._beginning.append(role)
        owner = SinkLedger(sink, self._new_id(), query_id, batch_id, role)
        try:
            writer = await self._ledgers.create(owner, await self._quorums())
        except (LedgerError, MetadataError) as error:
            raise UnavailableError(f"no staging ledger can be created now: {error}") from error
        finally:
            self._beginning.remove(role)
        now_s = trio.current_time()
        self._open[owner.attempt] = _Attempt(owner, dict(partitions), writer, now_s, role)
        return ShareRef(owner.attempt, writer.ledger_id)

    def _check_room(self, role: str) -> None:
        roles = [*self._beginning, *(attempt.role for attempt in self._open.values())]
        if role and roles.count(role) >= ROLE_ATTEMPTS_MAX:
            raise TooManyRequestsError(
                f"the role {role!r} stages {ROLE_ATTEMPTS_MAX} tasks through this broker, which is"
                " the limit for one role: use another broker, or try again later"
            )
        if len(roles) >= ATTEMPTS_MAX:
            raise TooManyRequestsError(
                f"{ATTEMPTS_MAX} tasks stage through this broker, which is the limit: use another"
                " broker, or try again later"
            )

    async def append(self, sink: str, name: str, topic: str, first: int, body: bytes) -> int:
        """Append the entries of a body to one topic partition; return the number of all entries.

        They are durable then.  Any error ends the attempt.
        """
        attempt = self._get(sink, name)
        async with attempt.lock:
            try:
                full = _check_topic(topic, attempt.partitions)
                if first != attempt.runs.entries:
                    raise ConflictError(
                        f"the attempt {name} has {attempt.runs.entries} entries, and the request"
                        f" continues behind {first}: an answer was lost, so begin another attempt"
                    )
                last = -1
                for entry in decode_body(memoryview(body)):
                    messages = check_staged(entry, self._entry_bytes_max())
                    last = attempt.writer.append([entry])
                    attempt.runs.add(full, messages, len(entry))
                if last >= 0:
                    await attempt.writer.wait_confirmed(last)
            except StagedEntryError as error:
                self._fail(attempt)
                raise PreconditionError(str(error)) from error
            except (LedgerError, MetadataError) as error:
                self._fail(attempt)
                raise _failed(name, error) from error
            except BaseException:
                self._fail(attempt)
                raise
            attempt.used_s = trio.current_time()
            return attempt.runs.entries

    async def close(self, sink: str, name: str, rows: int, hash_: int) -> tuple[int, StagingEnd]:
        """End an attempt; return its ledger, and what the ledger says about itself."""
        attempt = self._get(sink, name)
        async with attempt.lock:
            owner, writer = attempt.owner, attempt.writer
            end = new_end(
                owner.sink,
                owner.attempt,
                owner.query_id,
                owner.batch_id,
                attempt.partitions,
                attempt.runs,
                rows=rows,
                hash_=hash_,
            )
            try:
                await writer.wait_confirmed(writer.append([encode_end(end)]))
                await writer.close()
            except (LedgerError, MetadataError) as error:
                raise _failed(name, error) from error
            finally:
                self._fail(attempt)  # A writer that has closed its ledger is not affected.
            return writer.ledger_id, end

    def topics(self, sink: str, name: str) -> Sequence[str]:
        """Return the full names of the topics of an attempt.  Raise NotFoundError."""
        return list(self._get(sink, name).partitions)

    def give_up(self, sink: str, name: str) -> None:
        attempt = self._open.get(name)
        if attempt is not None and attempt.owner.sink == sink:
            self._fail(attempt)

    def _get(self, sink: str, name: str) -> _Attempt:
        attempt = self._open.get(name)
        if attempt is None or attempt.owner.sink != sink:
            raise NotFoundError(
                f"this broker has no attempt {name} of the sink {sink}: it failed, was idle for"
                f" {IDLE_S:g} s, or belongs to another broker; begin another one"
            )
        return attempt

    def _fail(self, attempt: _Attempt) -> None:
        self._open.pop(attempt.owner.attempt, None)
        attempt.writer.abandon()


def _failed(name: str, error: Exception) -> UnavailableError:
    return UnavailableError(f"the attempt {name} has failed, begin another one: {error}")


def _check_topic(topic: str, partitions: Mapping[str, int]) -> str:
    """Return the full name of a topic partition.  Raise PreconditionError if it is not counted."""
    try:
        name = TopicName.parse(topic)
    except MalformedError as error:
        raise PreconditionError(str(error)) from None
    known = partitions.get(name.full) == 0
    known |= 0 <= name.partition < partitions.get(name.base.full, 0)
    if not known or not name.persistent:
        raise PreconditionError(
            f"{name.full} is not one of the topic partitions that the driver has counted for the"
            f" batch ({dict(partitions)}): name the partition, such as {name.full}-partition-0"
        )
    return name.full
