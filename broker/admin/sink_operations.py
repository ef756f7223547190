"""The operations for drivers of sinks and for administrators.  Any broker answers.

The owner of each topic partition is asked if it takes a batch before the commit, and to apply it
after that.  All operations raise only `BrokerError`s.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import msgspec
import trio

from daybook.bookie.errors import LedgerError
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.sink_bodies import BatchBody, Share, check_topics
from daybook.broker.admin.topic_owners import Local, RestCall, ask_each
from daybook.broker.errors import (
    BrokerError,
    ConflictError,
    NotFoundError,
    PreconditionError,
    StorageFailedError,
    UnavailableError,
    no_sink,
)
from daybook.broker.security.identity import CALLER
from daybook.broker.security.resources import Resource, of_sink, of_topic
from daybook.broker.sinks.attempts import StagingAttempts
from daybook.broker.topics.topics import Topics
from daybook.managed_ledger.errors import InvalidNameError
from daybook.managed_ledger.protocol.sink import (
    NO_BATCH,
    SinkRefusedError,
    SinkState,
    Source,
)
from daybook.managed_ledger.records import log_path
from daybook.managed_ledger.sinks.batch import Batch, Demand, ShareRef
from daybook.managed_ledger.sinks.commit import Sinks
from daybook.managed_ledger.sinks.errors import (
    SinkCorruptError,
    SinkError,
    StagingLostError,
)
from daybook.managed_ledger.sinks.record import check_name
from daybook.managed_ledger.sinks.staging import ENTRY_ROOM_BYTES
from daybook.managed_ledger.sinks.stored import StoredSink
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import MetadataError, NoRecordError
from daybook.wire.topics import TopicName

_T = TypeVar("_T")
WAIT_S_MAX = 20.0
_POLL_S = 0.2
_SWEEP_WAIT_S = 5.0  # The leader looks at other sinks, too.
_OLD_BROKER = (
    "a broker of an older release is registered, which could not apply the batch: upgrade all"
    " brokers first"
)


class PartitionView(msgspec.Struct, rename="camel"):
    topic: str
    next: int
    state: str
    reason: str = ""


class SinkView(msgspec.Struct, rename="camel"):
    name: str
    sink_id: str
    query_id: str
    checkpoint: str
    state: str
    batch_id: int
    rows: int
    once: bool
    partitions: list[PartitionView]
    abandoned: list[str]
    role: str  # for which it counts


class CommittedView(msgspec.Struct, rename="camel"):
    outcome: str
    warning: str
    sink: SinkView


class SinkOperations:
    """`allowed` returns True if all brokers of the cluster can apply batches.

    With `by_role` the attempts and the sinks of each role are limited.
    """

    def __init__(
        self,
        sinks: Sinks,
        attempts: StagingAttempts,
        operations: Operations,
        topics: Topics,
        allowed: Callable[[], bool],
        url: str | None,
        url_tls: str | None = None,
        *,
        by_role: bool = False,
    ) -> None:
        self.sinks = sinks
        self._attempts = attempts
        self._operations = operations
        self._topics = topics
        self._allowed = allowed
        self._url = url
        self._url_tls = url_tls
        self._by_role = by_role

    # -- rights

    async def targets(self, name: str, topics: Iterable[str]) -> list[Resource]:
        """Return the topics that are named, and then those to which the sink has written before.

        Without any, return the sink, on which a super user alone has rights.  A refusal of the
        second ones is the same as that of a sink without topics, or of one that does not exist.
        """
        with translated(name):
            check_name(name)
            named = list(topics)
            check_topics(named)
            asked = {TopicName.parse(topic) for topic in named}
            stored = await self.sinks.records.find(name)
            known = () if stored is None else stored.record.partitions
            others = {TopicName.parse(topic) for topic in known} - asked
        found = [of_topic(topic) for topic in sorted(asked, key=str)]
        found += [of_sink(name, topic) for topic in sorted(others, key=str)]
        return found or [Resource(sink=name)]

    async def targets_of_state(self, name: str, topics: Iterable[str]) -> list[Resource]:
        """Return what `targets` does, for a request about the state of a sink.

        A driver asks before its first batch, and names the topics of the batch.  There is no sink
        for a driver that has no right on those to which the sink has written.  The same is so for a
        sink that has a name and no batch yet.
        """
        found = await self.targets(name, topics)
        if all(each.sink for each in found):
            return found
        with translated(name):
            stored = await self.sinks.records.find(name)
        if stored is not None and stored.record.source is None:
            found.append(Resource(sink=name))
        return [replace(each, hidden=True) if each.sink else each for each in found]

    async def targets_of_abort(self, name: str, body: BatchBody) -> list[Resource]:
        """Return what `targets` does, and the topics of the attempts that are to be deleted.

        The body may name the attempts of others.  If the topics of one are unknown, only a super
        user has the right.
        """
        found = await self.targets(name, body.topics)
        shares = [share for share in _shares(body) if share is not None]
        staged: set[Resource] = set()

        async def look(share: ShareRef) -> None:
            with translated(name):
                topics = await self._topics_of(name, share)
                staged.update(of_sink(name, TopicName.parse(topic)) for topic in topics or ())
            if topics is None:
                staged.add(Resource(sink=name))

        await ask_each(shares, look)
        return [*found, *staged]

    async def _topics_of(self, name: str, share: ShareRef) -> Sequence[str] | None:
        try:
            return self._attempts.topics(name, share.attempt)
        except NotFoundError:
            return await self.sinks.ledgers.topics_of(share.ledger_id, name, share.attempt)

    def targets_of_attempt(self, name: str, attempt: str) -> list[Resource]:
        """Return the topics of an attempt.  Raise NotFoundError."""
        topics = self._attempts.topics(name, attempt)
        return [of_sink(name, TopicName.parse(topic)) for topic in topics] or [Resource(sink=name)]

    # -- staging

    async def begin(
        self, name: str, body: BatchBody, *, encrypted: bool = False
    ) -> dict[str, object]:
        """Begin an attempt.  A caller over TLS (`encrypted`) is told the URL of the https port."""
        with translated(name):
            check_name(name)
            partitions = _partitions(body)
        self._check_allowed()
        url = self._url_tls if encrypted else self._url
        role = self._role()
        if role:
            with translated(name):
                await self.sinks.records.reserve(name, role)
        share = await self._attempts.begin(
            name, body.query_id, body.batch_id, partitions, role=role
        )
        return {"attempt": share.attempt, "ledgerId": share.ledger_id, "url": url or ""}

    async def append(self, name: str, attempt: str, topic: str, first: int, body: bytes) -> int:
        return await self._attempts.append(name, attempt, topic, first, body)

    async def close(self, name: str, attempt: str, rows: int, hash_: int) -> Share:
        ledger_id, end = await self._attempts.close(name, attempt, rows, hash_)
        return Share(end.attempt, ledger_id, end.rows, end.hash, end.entries, end.bytes)

    async def give_up(self, name: str, attempt: str) -> None:
        await trio.lowlevel.checkpoint()
        self._attempts.give_up(name, attempt)

    # -- the batch

    async def commit(self, name: str, body: BatchBody) -> CommittedView:
        self._check_allowed()
        with translated(name):
            done = await self.sinks.commit(name, _batch(body), self._admit, role=self._role())
            return CommittedView(done.outcome, done.warning, await self._view(done.sink))

    async def abort(self, name: str, body: BatchBody) -> dict[str, list[str]]:
        shares = _shares(body)
        refs = [share for share in shares if share is not None]
        with translated(name):
            gone, kept = await self.sinks.abandon(name, refs, role=self._role())
        return {
            "abandoned": [share.attempt for share in gone],
            "kept": [share.attempt for share in kept],
        }

    def _role(self) -> str:
        """Return the role whose sinks are counted; "" without authorization."""
        caller = CALLER.get() if self._by_role else None
        return "" if caller is None else caller.role

    def _check_allowed(self) -> None:
        if not self._allowed():
            raise UnavailableError(_OLD_BROKER)

    async def _admit(self, demands: Mapping[str, Demand]) -> dict[str, int]:
        """Ask the owners of topic partitions if they take the batch."""
        created: dict[str, int] = {}

        async def ask(topic: str) -> None:
            demand = demands[topic]
            answer = await self._operations.owners.run_on_owner(
                TopicName.parse(topic),
                lambda name: self.admit_here(name, demand),
                RestCall("POST", "/sinks/admit", body=demand, own=True),
            )
            created[topic] = msgspec.convert(answer, int)

        await ask_each(list(demands), ask)
        return created

    async def roll_forward(self, name: str, wait_s: float) -> SinkView:
        """Apply what is committed, and return the sink when it is APPLIED, or when the time is up.

        Raise NotFoundError if there is no such sink.
        """
        deadline_s = trio.current_time() + min(wait_s, WAIT_S_MAX)
        waiting: dict[str, str] = {}
        while True:
            left_s = max(0.0, deadline_s - trio.current_time())
            stored = await self._find(name)
            if stored.record.state in (SinkState.COMMITTED, SinkState.BLOCKED):
                waiting = await self._apply(stored, deadline_s)
                with translated(name):
                    await self.sinks.finish(name)
                stored = await self._find(name)
            elif stored.record.state is SinkState.APPLIED:
                with translated(name):
                    await self.sinks.finish(name)  # It deletes what is left of the staging.
            if stored.record.state is not SinkState.COMMITTED or not left_s:
                with translated(name):
                    return await self._view(stored, waiting)
            await trio.sleep(_POLL_S)

    async def sweep(self, name: str) -> dict[str, str]:
        """Roll a sink forward; return why topic partitions block it."""
        view = await self.roll_forward(name, _SWEEP_WAIT_S)
        return {each.topic: each.reason for each in view.partitions if each.state == "blocked"}

    async def _apply(self, stored: StoredSink, deadline_s: float) -> dict[str, str]:
        """Ask the owners to apply a batch; return why topic partitions do not, in words."""
        record = stored.record
        waiting: dict[str, str] = {}

        async def ask(topic: str) -> None:
            try:
                with translated(stored.name):
                    pending = await self.sinks.pending.find(topic, record.sink_id)
                if pending is None or pending.applied:
                    return
                # With many topic partitions the last ones are asked when the time is up.
                left_s = max(0.0, deadline_s - trio.current_time())
                answer = await self._operations.owners.run_on_owner(
                    TopicName.parse(topic),
                    lambda name: self.apply_here(name, left_s),
                    RestCall("POST", "/sinks/apply", {"waitS": f"{left_s:.3f}"}, own=True),
                )
                reasons = msgspec.convert(answer, dict[str, str])
                if stored.name in reasons:
                    waiting[topic] = reasons[stored.name]
            except NotFoundError as error:
                await self._block_if_gone(stored, topic)
                waiting[topic] = str(error)
            except BrokerError as error:
                waiting[topic] = str(error)

        topics = [each for each in record.in_batch if not record.partitions[each].blocked]
        await ask_each(topics, ask)
        return waiting

    async def _block_if_gone(self, stored: StoredSink, topic: str) -> None:
        """Block the batch if the topic was deleted, which the metadata store says for certain."""
        path = log_path(TopicName.parse(topic).managed_ledger_name)
        with translated(stored.name):
            if await self.sinks.store.get_newest(path) is None:
                why = "the topic was deleted after the commit"
                await self.sinks.block(stored.name, stored.record.sink_id, topic, why)

    # -- here, as the owner of a topic

    async def on_owner(self, topic: TopicName, local: Local, *, authoritative: bool) -> object:
        return await self._operations.owners.run_here(topic, local, authoritative=authoritative)

    async def admit_here(self, topic: TopicName, demand: Demand) -> int:
        """Return the transaction that created the topic's list.

        Raise BrokerError if the topic would not take the batch from a producer.
        """
        policies = await self._operations.policies.effective_in(topic.namespace)
        create = policies.auto_topic_creation.allow_auto_topic_creation
        served = await self._topics.get(topic, create=create)
        served.check_open()
        limit = served.policies.max_message_bytes
        if limit and demand.largest + ENTRY_ROOM_BYTES > limit:
            raise PreconditionError(
                f"an entry of the batch has {demand.largest} bytes, and {topic} takes at most"
                f" {limit - ENTRY_ROOM_BYTES} from a sink (maxMessageSize)"
            )
        if served.producers.is_exclusive:
            raise ConflictError(
                f"{topic} has an exclusive producer, so no sink can write to it: close that"
                " producer"
            )
        for exceeded in await served.quotas.exceeded():
            if not exceeded.evicts:
                raise UnavailableError(f"{topic} takes no messages now: {exceeded.reason}")
        return served.log.created

    async def apply_here(self, topic: TopicName, wait_s: float) -> dict[str, str]:
        """Apply what is pending for a topic; return what waits, by sink."""
        served = await self._topics.get(topic, create=False)
        if served.sinks is None:
            raise UnavailableError("this broker applies no batches of sinks")
        return await served.sinks.apply(min(wait_s, WAIT_S_MAX))

    # -- for administrators

    async def show(self, name: str) -> SinkView:
        stored = await self._find(name)
        with translated(name):
            return await self._view(stored)

    async def list(self) -> list[SinkView]:
        """Return the sinks that some query has used."""
        found: list[SinkView] = []
        with translated("sinks"):
            for name in sorted(await self.sinks.records.names()):
                stored = await self.sinks.records.find(name)
                if stored is not None and stored.record.source is not None:
                    found.append(await self._view(stored))
        return found

    async def forget(self, name: str) -> None:
        with translated(name):
            await self.sinks.forget(name)

    async def move(self, name: str, checkpoint: str) -> None:
        with translated(name):
            await self.sinks.move(name, checkpoint)

    async def skip(self, name: str, topic: str) -> SinkView:
        with translated(name):
            await self.sinks.skip(name, TopicName.parse(topic).full)
        return await self.roll_forward(name, 1.0)

    async def abandon_batch(self, name: str) -> SinkView:
        with translated(name):
            await self.sinks.abandon_batch(name)
        return await self.roll_forward(name, 1.0)

    async def _find(self, name: str) -> StoredSink:
        with translated(name):
            stored = await self.sinks.records.find(name)
        if stored is None:
            raise no_sink(name)
        return stored

    async def _view(self, stored: StoredSink, waiting: Mapping[str, str] | None = None) -> SinkView:
        record = stored.record
        source = record.source or Source("", "")
        partitions: list[PartitionView] = []
        for topic, partition in sorted(record.partitions.items()):
            state, reason = "applied", partition.blocked
            if partition.skipped:
                state = "skipped"
            elif partition.blocked:
                state = "blocked"
            elif record.unapplied and partition.batch == record.batch_id:
                pending = await self.sinks.pending.find(topic, record.sink_id)
                if pending is not None and not pending.applied:
                    state, reason = "pending", (waiting or {}).get(topic, "")
            partitions.append(PartitionView(topic, partition.following, state, reason))
        return SinkView(
            stored.name,
            record.sink_id,
            source.query_id,
            source.checkpoint,
            record.state.value,
            record.batch_id,
            record.rows,
            record.once,
            partitions,
            sorted(record.abandoned),
            record.role,
        )


@contextmanager
def translated(name: str) -> Generator[None]:
    """Translate the errors of sinks, ledgers and the metadata store."""
    try:
        yield
    except (SinkRefusedError, StagingLostError) as error:
        raise ConflictError(f"{name}: {error}") from error
    except NoRecordError as error:
        raise NotFoundError(f"{name}: {error}") from error
    except SinkCorruptError as error:
        raise StorageFailedError(f"{name}: {error}") from error
    except (InvalidNameError, MalformedError, SinkError) as error:
        raise PreconditionError(f"{name}: {error}") from error
    except (LedgerError, MetadataError) as error:
        raise UnavailableError(f"{name}: {error}") from error


def _batch(body: BatchBody) -> Batch:
    if not body.query_id or body.batch_id <= NO_BATCH:
        raise PreconditionError("a batch needs the id of its query and a number from 0 on")
    return Batch(
        Source(body.query_id, body.checkpoint),
        body.batch_id,
        _partitions(body),
        _shares(body),
        body.once,
    )


def _shares(body: BatchBody) -> list[ShareRef | None]:
    return [
        None if each is None else ShareRef(each.attempt, each.ledger_id) for each in body.shares
    ]


def _partitions(body: BatchBody) -> dict[str, int]:
    """Return the counts by full name."""
    if not body.topics:
        raise PreconditionError("the request names no topic: name the topics of the batch")
    return {TopicName.parse(topic).full: count for topic, count in body.topics.items()}
