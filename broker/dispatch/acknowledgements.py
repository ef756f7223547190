"""The acknowledgements of one subscription: what they change, and when they are durable.

An acknowledgement counts in memory at once, and is durable within the flush interval of the log.  A
receipt for it is given when it is durable.

A move of the cursor voids all earlier deliveries.  So an acknowledgement of an entry that was not
delivered since the move is ignored.
"""

from collections.abc import Sequence

from daybook.broker.dispatch.consumer import Consumer, OnDurable
from daybook.broker.dispatch.dispatcher import Dispatcher
from daybook.broker.errors import (
    BrokerError,
    NotAllowedError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.protocol.dispatch.interface import Entry
from daybook.broker.protocol.dispatch.places import ConsumerKey, Place
from daybook.broker.topics.stored_topic import StoredTopic
from daybook.broker.topics.topic_log import TopicCursor
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.position import Position
from daybook.wire.messages.consumer import Ack, AckedId
from daybook.wire.proto import pulsar_pb2 as pb

# C++ clients discard an entry with these errors in the ACK, and return one permit for it.
_UNREAD = (
    int(pb.CommandAck.UncompressedSizeCorruption),
    int(pb.CommandAck.DecompressionError),
    int(pb.CommandAck.ChecksumMismatch),
    int(pb.CommandAck.DecryptionError),
)
_NOWHERE: Place = (-1, -1)
_ADMINISTRATOR: ConsumerKey = 0  # stands for no consumer, whose keys begin with 1


class Acknowledgements:
    """The acknowledgements of one subscription.

    They go to the cursor, to the source that the dispatcher reads, and to the rules that count what
    consumers have not acknowledged.
    """

    def __init__(self, topic: StoredTopic, cursor: TopicCursor, dispatcher: Dispatcher) -> None:
        self.acked_ms = 0  # when a consumer acknowledged something last
        self.advanced_ms = 0  # when the mark-delete position moved last
        self._topic = topic
        self._cursor = cursor
        self._dispatcher = dispatcher
        self._marked = cursor.mark_delete
        # The last entry that was delivered since the cursor was moved; None if it never was.
        self._furthest: Place | None = None
        self._unflushed: list[OnDurable] = []
        self._flushing = False

    # -- deliveries

    def note_delivered(self, entries: Sequence[Entry]) -> None:
        if self._furthest is not None:
            self._furthest = max(self._furthest, *(entry.place for entry in entries))

    def void_deliveries(self) -> None:
        """Ignore acknowledgements of everything that was delivered before: the cursor has moved."""
        self._furthest = _NOWHERE

    def _is_void(self, place: Place) -> bool:
        """Return True if the acknowledged delivery was before the latest move.

        This is certain if no consumer was given the entry since the move.  If it was delivered
        again, the two deliveries cannot be told apart; clients of ours are told of the move, and do
        not acknowledge what they received before it.
        """
        furthest = self._furthest
        return furthest is not None and place > furthest

    # -- acknowledgements of consumers

    def add(self, consumer: Consumer, ack: Ack) -> None:
        """Note in memory what the consumer acknowledges.

        Raise a BrokerError if an entry does not exist, or the acknowledgement is not allowed.  If
        an entry does not exist, the other single entries of the acknowledgement count all the same.
        """
        if ack.txn is not None:
            raise NotAllowedError("this broker does not offer transactions")
        last = self._topic.log.last_confirmed
        end = (last.ledger_id, last.entry_id)
        there, missing = ack.ids, [each for each in ack.ids if each[:2] > end]
        if missing:
            there = [each for each in ack.ids if each[:2] <= end]
        self.acked_ms = consumer.acked_ms = self._topic.clock.now_ms()
        if not ack.cumulative:
            self._add_each(consumer, there, unread=_is_unread(consumer, ack))
        elif not missing:
            self._add_cumulative(ack)
        # A position is a new object when it has moved: comparing the numbers would take longer.
        if self._cursor.mark_delete is not self._marked:
            self._marked, self.advanced_ms = self._cursor.mark_delete, self.acked_ms
        if missing:
            raise self._no_entry(missing[0])

    def _no_entry(self, acked: AckedId) -> BrokerError:
        """Return the error for an entry behind the end of the log."""
        entry, last = f"{acked.ledger_id}:{acked.entry_id}", self._topic.log.last_confirmed
        error = (
            f"{self._topic.name} has no entry {entry} to acknowledge: it ends at"
            f" {last.ledger_id}:{last.entry_id}"
        )
        if self._topic.logs.in_contact:
            return PreconditionError(error)
        return UnavailableError(
            f"{error} on this broker, which has no contact with ZooKeeper. Another broker may serve"
            " the topic and have the entry: try again"
        )

    def _add_each(
        self, consumer: Consumer, ids: Sequence[AckedId], *, unread: bool = False
    ) -> None:
        cursor = self._cursor
        places: list[Place] = []
        parts: list[Place] = []
        for each in ids:
            place = (each.ledger_id, each.entry_id)
            if self._is_void(place):
                continue
            if each.ack_set is None or cursor.ack_part(Position(*place), each.ack_set):
                places.append(place)
            else:
                parts.append(place)
        if parts:
            self._note_parts(parts)
        if places:
            self._add_whole(consumer.key, places, unread=unread)
            if unread or self._dispatcher.dispatch.active is None:
                self._dispatcher.wake()  # A shared consumer may have had too much unacknowledged.

    def _add_whole(
        self, consumer: ConsumerKey, places: Sequence[Place], *, unread: bool = False
    ) -> None:
        dispatcher = self._dispatcher
        positions = [Position(*place) for place in places]
        self._cursor.ack(positions)
        dispatcher.source.acked(positions)
        dispatcher.perform_all(dispatcher.dispatch.acked(consumer, places, unread))

    def _note_parts(self, places: Sequence[Place]) -> None:
        """Count what is left of batches of which a part was acknowledged."""
        dispatcher = self._dispatcher
        if dispatcher.dispatch.active is not None:
            return  # Only shared consumers have a limit.
        left: list[tuple[Place, int]] = []
        for place in places:
            pending = self._cursor.pending_of(Position(*place))
            if pending is not None:  # It is None if the entry is acknowledged as a whole already.
                left.append((place, pending.bit_count()))
        dispatcher.perform_all(dispatcher.dispatch.partly_acked(left))
        dispatcher.wake()  # A consumer may have had too much unacknowledged.

    def _add_cumulative(self, ack: Ack) -> None:
        if self._dispatcher.shared:
            kind = "key_shared" if self._dispatcher.keyed else "shared"
            raise NotAllowedError(
                f"messages of a {kind} subscription cannot be acknowledged cumulatively:"
                " acknowledge them one by one"
            )
        if len(ack.ids) != 1:
            raise PreconditionError(
                f"a cumulative acknowledgement must name one entry, not {len(ack.ids)}"
            )
        (last,) = ack.ids
        if self._is_void((last.ledger_id, last.entry_id)):
            return
        position = Position(last.ledger_id, last.entry_id)
        if not last.ack_set:
            self.add_up_to(position)
            return
        # The last entry itself is acknowledged in part, which may be what was left of it.
        self.add_up_to(self._topic.log.previous_position(position))
        if self._cursor.ack_part(position, last.ack_set):
            self.add_up_to(position)

    # -- acknowledgements on behalf of administrators and policies

    def add_up_to(self, position: Position) -> None:
        """Acknowledge everything up to a position."""
        dispatcher = self._dispatcher
        self._cursor.ack_cumulative(position)
        dispatcher.source.acked_up_to(position)
        dispatcher.perform_all(
            dispatcher.dispatch.acked_up_to((position.ledger_id, position.entry_id))
        )

    def add_part(self, position: Position, pending: int) -> None:
        """Acknowledge all messages of an entry but those whose bits are `pending`."""
        place = (position.ledger_id, position.entry_id)
        if self._cursor.ack_part(position, pending):
            self._add_whole(_ADMINISTRATOR, [place])
        else:
            self._note_parts([place])

    # -- durability

    def when_durable(self, call: OnDurable) -> None:
        """Call back when all acknowledgements so far are durable, or with why they may be lost."""
        self._unflushed.append(call)
        if not self._flushing:
            self._flushing = True
            self._topic.start_task(self._flush)

    async def _flush(self) -> None:
        # Acknowledgements that come during a flush are not covered by it: they wait for the next.
        while self._unflushed:
            calls, self._unflushed = self._unflushed, []
            error: BrokerError | None = UnavailableError(
                "the acknowledgement may be lost, because the topic was closed"
            )
            try:
                await self._cursor.flush()
                error = None
            except ManagedLedgerError as failure:
                error = UnavailableError(f"the acknowledgement may be lost: {failure}")
            finally:  # Clients wait for an answer even if the topic ends and cancels this task.
                for call in calls:
                    call(error)
        self._flushing = False

    def fail(self, error: BrokerError) -> None:
        """Call all back that wait for the next flush: there will be none."""
        calls, self._unflushed = self._unflushed, []
        for call in calls:
            call(error)


def _is_unread(consumer: Consumer, ack: Ack) -> bool:
    """Return True if the client discards an entry unread and returns one permit, batch or not.

    The C++ client does that, and so do those of Python and Node, which are built on it.  The broker
    does not know how many permits other clients return, or any client for a batch that it has read
    in part: a client must never get more messages than it has room for.
    """
    return (
        ack.validation_error in _UNREAD
        and all(each.ack_set is None for each in ack.ids)
        and consumer.connection.client_version.startswith("Pulsar-CPP")
    )
