"""Joins messages that their producer has sent in chunks, because they were too large for an entry.

All chunks of a message have its `uuid`.  They come in order, perhaps with chunks of other messages
in between, and perhaps twice: a producer sends again what had no receipt, and a broker delivers
again what is not acknowledged.

    chunk 0                       begins the message, or begins it anew
    the next chunk                is added; the last one makes the message whole
    a chunk that is there         is a repeat: only its entry is noted, to be acknowledged, too
    a chunk without its earlier   cannot be used: the entry has to come again, behind the others

Memory is bounded in bytes and in messages.  Beyond that the oldest message is dropped.  So is a
message with too many repeats, and one that is not whole after `expire_s`.  The entries of a message
that was dropped have to come again; or they are acknowledged, if the consumer wants that, and then
the message is lost for it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from daybook.clients.python.protocol.acks_in_doubt import EntryKey

_REPEATS_MAX = 1_000  # for the chunks of one message
_TIMES_MAX = 1_000  # entries whose redeliveries are counted


@dataclass(slots=True)
class _Partial:
    count: int
    parts: list[bytes] = field(default_factory=list[bytes])
    size: int = 0
    keys: dict[EntryKey, None] = field(default_factory=dict[EntryKey, None])  # every entry
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Joined:
    """A message that is whole; `earlier` are its entries without the last one."""

    body: bytes
    earlier: tuple[EntryKey, ...]


class Chunks:
    """The incomplete messages of one topic consumer."""

    __slots__ = (
        "_bytes_max",
        "_expire_s",
        "_messages_max",
        "_owed",
        "_partial",
        "_times",
        "again",
        "dropped",
        "size",
    )

    def __init__(self, bytes_max: int, messages_max: int, expire_s: float | None = None) -> None:
        self._bytes_max = bytes_max
        self._messages_max = messages_max
        self._partial: dict[str, _Partial] = {}  # by uuid, the oldest first
        self.size = 0
        self._expire_s = expire_s
        self.again: list[EntryKey] = []  # entries that have to come again
        self._owed: dict[EntryKey, None] = {}  # entries that come again, and have not yet
        self.dropped: list[EntryKey] = []  # entries of messages that were dropped
        self._times: OrderedDict[EntryKey, int] = OrderedDict()  # how often each was given back

    def __len__(self) -> int:
        return len(self._partial)

    @property
    def lacks_some(self) -> bool:
        """True while a message is incomplete, or its chunks have to come again."""
        return bool(self._partial or self._owed)

    @property
    def first(self) -> EntryKey | None:
        """The first entry of an incomplete message, which no later message may acknowledge."""
        firsts = [min(each.keys) for each in self._partial.values()]
        return min((*firsts, *self._owed), default=None)

    def owe(self, key: EntryKey) -> None:
        """Note that an entry was given back, and comes again to this consumer."""
        self._owed[key] = None

    def times(self, key: EntryKey) -> int:
        """Return how often the entry was given back before, and count this time."""
        before = self._times.pop(key, 0)
        self._times[key] = before + 1
        if len(self._times) > _TIMES_MAX:
            self._times.popitem(last=False)
        return before

    @property
    def deadline(self) -> float | None:
        """The time at which the next message expires; None if none does."""
        if self._expire_s is None or not self._partial:
            return None
        return min(each.began for each in self._partial.values()) + self._expire_s

    def expire(self, now: float) -> None:
        """Drop the messages that were not whole in time."""
        if self._expire_s is not None:
            for uuid, each in list(self._partial.items()):
                if each.began + self._expire_s <= now:
                    self._drop(uuid)

    def add(
        self, uuid: str, chunk: int, count: int, key: EntryKey, body: bytes, now: float = 0.0
    ) -> Joined | None:
        """Add a chunk; return the message if it is whole now."""
        self._owed.pop(key, None)
        partial = self._partial.get(uuid)
        if chunk == 0:
            partial = self._begin(uuid, count, partial, now)
        if partial is None or chunk > len(partial.parts) or count != partial.count:
            self.again.append(key)
            return None
        partial.keys[key] = None
        if len(partial.keys) > count + _REPEATS_MAX:
            self._drop(uuid)
            return None
        if chunk < len(partial.parts):
            return None
        partial.parts.append(body)
        partial.size += len(body)
        self.size += len(body)
        if len(partial.parts) == partial.count:
            self._remove(uuid)
            for each in partial.keys if self._times else ():
                self._times.pop(each, None)
            partial.keys.pop(key)
            return Joined(b"".join(partial.parts), tuple(partial.keys))
        while self.size > self._bytes_max or len(self._partial) > self._messages_max:
            self._drop(next(iter(self._partial)))
        return None

    def _drop(self, uuid: str) -> None:
        self.dropped += self._partial[uuid].keys
        self._remove(uuid)

    def _begin(self, uuid: str, count: int, before: _Partial | None, now: float) -> _Partial:
        """Begin a message.  The entries of an earlier attempt stay, to be acknowledged with it."""
        keys: dict[EntryKey, None] = {}
        if before is not None:
            self._remove(uuid)
            keys = before.keys
        made = self._partial[uuid] = _Partial(count, keys=keys, began=now)
        return made

    def _remove(self, uuid: str) -> None:
        self.size -= self._partial.pop(uuid).size

    def take_again(self) -> Sequence[EntryKey]:
        """Return the entries that have to come again, once."""
        again, self.again = self.again, []
        return again

    def take_dropped(self) -> Sequence[EntryKey]:
        """Return the entries of messages that were dropped, once."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def forget(self) -> None:
        """Forget everything: the position was moved."""
        self._partial.clear()
        self.again.clear()
        self._owed.clear()
        self.dropped.clear()
        self.size = 0
