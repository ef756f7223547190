"""A table view: a topic as a mapping of each key to its latest value, which is kept up to date.

    async with await client.table_view("prices") as view:
        print(view["apples"])
        view.listen(lambda key, value: print(key, "is", value))
        await view.wait_caught_up()

The view reads the compacted topic from its first message on, and then every message that comes.  A
message with an empty value removes its key; messages without a key are ignored.  The values of all
keys are in memory, decoded by the schema, if the view has one.

The view reads with a reader, so the broker keeps nothing for it.  A view that was detached from its
broker for so long that messages behind its place were compacted and trimmed may have missed the
removal of a key, and then keeps that key.
"""

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeAlias

import trio

from daybook.clients.python.errors import BrokerError, ClosedError, CorruptMessageError
from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message, ValueT
from daybook.clients.python.reader import Reader

Listener: TypeAlias = Callable[[str, ValueT | None], None]
"""Called with a key and its new value, or with None if the key was removed."""

_ASK_AGAIN_S = 5.0
_WHOLE_ENTRY = 1 << 31  # behind every message of a batch
_NOTHING = (-1, -1, -1)
_Place: TypeAlias = tuple[int, int, int]  # ledger, entry, index in the batch


class TableView(Mapping[str, ValueT]):
    """One instance per view; `Client.table_view` makes it.

    The mapping changes at each checkpoint, so take `dict(view)` before you iterate with `await`s.
    """

    def __init__(self, reader: Reader[ValueT]) -> None:
        self.topic = reader.topic
        # Entries that could not be read, and values that are not of the schema.
        self.unreadable = 0
        self._reader = reader
        self._values: dict[str, ValueT] = {}
        self._read_to: dict[int, _Place] = {}  # the last message of each partition that is applied
        self._listeners: dict[Listener[ValueT], None] = {}
        self._changed = trio.Event()
        self._failure: Exception | None = None
        self._ended = False  # the topic was terminated, and everything is read

    def __repr__(self) -> str:
        return f"<TableView of {self.topic}, {len(self._values)} keys>"

    # -- the mapping

    def __getitem__(self, key: str) -> ValueT:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def snapshot(self) -> dict[str, ValueT]:
        """Return the table as it is now."""
        return dict(self._values)

    # -- changes

    def listen(self, listener: Listener[ValueT], *, existing: bool = False) -> None:
        """Call a function at each change of a key, in the order of the changes of its partition.

        With `existing`, call it for each key that is there, too, before this returns.  The function
        must not wait.  If it raises an exception, the view ends with that.
        """
        if existing:
            for key, value in self.snapshot().items():
                listener(key, value)
        self._listeners[listener] = None

    def stop_listening(self, listener: Listener[ValueT]) -> None:
        self._listeners.pop(listener, None)

    async def wait_caught_up(self) -> None:
        """Return when the view has everything that was stored before this call.

        Raise the error that has ended the view.
        """
        ends = await self._last_places()
        while not self._has(ends):
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return
            # A compaction may remove the message that is waited for, after a takeover for example.
            with trio.move_on_after(_ASK_AGAIN_S) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                now = await self._last_places()
                ends = {
                    partition: min(end, now.get(partition, end)) for partition, end in ends.items()
                }

    async def _last_places(self) -> dict[int, _Place]:
        try:
            ids = await self._reader.last_message_ids()
        except BrokerError:
            if self._failure is not None:  # It closed the reader, and says more.
                raise self._failure from None
            raise
        return {each.partition: _place(each) for each in ids}

    def _has(self, ends: Mapping[int, _Place]) -> bool:
        return all(
            end[1] < 0 or self._read_to.get(partition, _NOTHING) >= end
            for partition, end in ends.items()
        )

    # -- reading

    async def run(self) -> None:
        """Apply messages as they come, until the view is closed.  The client runs this."""
        try:
            while not self._ended:
                try:
                    messages = await self._reader.receive_batch()
                except CorruptMessageError as error:
                    self._note_unreadable(error.message_id)
                    continue
                self._ended = not messages  # behind the last message of a terminated topic
                for message in messages:
                    self._apply(message)
                self._wake()
        except Exception as error:
            # A listener may have failed, and the application has to hear of that, too.
            self._failure = error
            self._reader.abandon()
            self._wake()

    def _apply(self, message: Message[ValueT]) -> None:
        entry, key = message.entry, message.key
        self._read_to[entry.partition] = entry.ledger_id, entry.entry_id, message.batch_index
        if key is None:
            return
        value: ValueT | None = None
        if message.data:
            try:
                value = message.value
            except ValueError:  # It is not of the schema, so the table does not know the key.
                self.unreadable += 1
        if value is not None:
            self._values[key] = value
        elif self._values.pop(key, None) is None:
            return  # Nobody has seen the key.
        for listener in list(self._listeners):
            listener(key, value)

    def _note_unreadable(self, place: MessageId) -> None:
        self.unreadable += 1
        self._read_to[place.partition] = place.ledger_id, place.entry_id, _WHOLE_ENTRY
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # -- the end

    @property
    def closed(self) -> bool:
        return self._reader.closed

    async def aclose(self) -> None:
        """Stop reading.  The view keeps what it has."""
        if self._failure is None:
            self._failure = ClosedError(f"the table view of {self.topic} was closed")
        await self._reader.aclose()

    def abandon(self) -> None:
        self._reader.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _place(message_id: MessageId) -> _Place:
    return message_id.ledger_id, message_id.entry_id, message_id.batch_index
