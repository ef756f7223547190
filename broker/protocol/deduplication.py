"""Deduplication: which messages of which producers a topic already has.

A producer numbers its messages.  The ids only grow, so one number per producer name tells what the
topic has: the id of the last message whose entry the log has confirmed.  A message counts as *seen*
only then.  Until then its entry is *pending*, and a repeat of it is answered together with it.

An entry covers a range of ids, because a batch has several messages.  Compared with the highest id
that is seen or pending, an entry is

    NEW       all of its ids are above: append it
    REPEAT    none of its ids is above: do not append it
    TORN      some are above and some are not: refuse it, because it is neither
    GAP       it is a chunk, and the chunk before it is not there: refuse it

A message that is cut into chunks is seen when its last chunk is.  Until then the producer's
*progress* says which chunk was the last, so that the chunks before it are repeats.  A chunk belongs
to the same attempt only if its `shape` is the same.  An application that sends a message again may
cut it in other places, and such chunks must not be mixed.  The chunks of an attempt are taken one
behind the other.  A client sends the next chunks before it knows that one was refused, and a
message must not count as seen while a part of it is missing.

A *snapshot* is a number per producer name, as in the properties of Pulsar's cursor `pulsar.dedup`.
The progress of chunks is kept there, too, under names that begin with `CHUNKS`, which no producer
may have.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from typing import NamedTuple

NOTHING = -1  # the id of the last message of a producer that has sent none
ID_MAX = (1 << 63) - 1
GENERATED = "daybook.generated."  # begins the names that a broker chooses
CHUNKS = "daybook.chunks/"
PIPE = "daybook.pipe."  # the beginning of the names of the producers of pipes
KEPT = ("daybook.sink.", PIPE)  # Others go first when there are too many names.
RESERVED = (CHUNKS, "daybook.sink.")  # No client may give its producer such a name.
_CHUNK_BITS = 24
CHUNKS_MAX = 1 << _CHUNK_BITS
_SHAPE_BITS = 63 - _CHUNK_BITS
_CUT_BITS = (
    9  # They say where the message is cut; the other bits of a shape say which message it is.
)


class Verdict(Enum):
    NEW = auto()
    REPEAT = auto()
    TORN = auto()
    GAP = auto()


class Chunk(NamedTuple):
    """One chunk of a message; the first has the number 0."""

    shape: int
    number: int
    completes: bool = False  # It is the last chunk of its message.

    def continues(self, before: "Chunk") -> bool:
        """Return True if both belong to one cutting.

        The last chunk is smaller than the others.  So only the message is compared for it.
        """
        if self.completes:
            return self.shape >> _CUT_BITS == before.shape >> _CUT_BITS
        return self.shape == before.shape


def shape_of(sequence_id: int, uuid: str, chunks: int, message_bytes: int, chunk_bytes: int) -> int:
    """Return a number that is equal for two chunks only if they belong to the same cutting."""
    message = f"{sequence_id} {chunks} {message_bytes} {uuid}"
    return _digest(message, _SHAPE_BITS - _CUT_BITS) << _CUT_BITS | _digest(
        f"{chunk_bytes} {message}", _CUT_BITS
    )


def _digest(text: str, bits: int) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> (64 - bits)


@dataclass(slots=True)
class EntryIds:
    """The producer of an entry's messages, and their sequence ids.

    0 <= first <= last <= ID_MAX must hold.  Nothing changes them; the class is not frozen because
    one is made for each entry.
    """

    producer: str
    first: int
    last: int
    chunk: Chunk | None = None  # None if the entry has whole messages


class _Seen(NamedTuple):
    """The messages that one producer has sent up to some entry."""

    last: int
    progress: Chunk | None

    def after(self, ids: EntryIds) -> "_Seen":
        """Return what is seen behind an entry, which is NEW."""
        assert ids.last > self.last
        if ids.chunk is None or ids.chunk.completes:
            return _Seen(ids.last, None)
        return _Seen(self.last, ids.chunk)

    def judge(self, ids: EntryIds) -> Verdict:
        """Compare an entry with these messages."""
        if ids.last <= self.last:
            return Verdict.REPEAT
        if ids.first <= self.last:
            return Verdict.TORN
        if ids.chunk is None:
            return Verdict.NEW
        return self._judge_chunk(ids.chunk)

    def _judge_chunk(self, chunk: Chunk) -> Verdict:
        progress = self.progress
        expected = 0
        if progress is not None and chunk.continues(progress):
            expected = progress.number + 1
        if chunk.number < expected:
            return Verdict.REPEAT
        return Verdict.NEW if chunk.number == expected else Verdict.GAP


_NEVER = _Seen(NOTHING, None)


class _Producer:
    """The history of one name."""

    __slots__ = ("connected", "idle_since_s", "name", "pending", "pushed", "seen")

    def __init__(self, name: str, now_s: float) -> None:
        self.name = name
        self.seen = _NEVER
        self.pending: deque[_Seen] = deque()  # as it will be once each pending entry is confirmed
        self.pushed = _NEVER  # the last one of these, or `seen`
        self.connected = False
        self.idle_since_s = now_s

    def set_seen(self, seen: _Seen) -> None:
        """Set what is stored, while nothing is pending."""
        assert not self.pending
        self.seen = self.pushed = seen

    def may_go_before(self) -> tuple[int, float]:
        """Return a key that sorts producers by how soon they are forgotten."""
        if self.name.startswith(GENERATED):
            return 0, self.idle_since_s
        return 2 if self.name.startswith(KEPT) else 1, self.idle_since_s


class DeduplicationState:
    """The producers of one topic.

    `names_max` and `names_bytes_max` bound the names that are remembered: a snapshot holds them
    all.  A generated name is forgotten `generated_s` after its producer has left.
    """

    def __init__(self, *, names_max: int, names_bytes_max: int, generated_s: float) -> None:
        self.forgotten = 0  # names that had to go because there were too many
        self._names_bytes_max = names_bytes_max
        self._names_max = names_max
        self._generated_s = generated_s
        self._producers: dict[str, _Producer] = {}
        self._names_bytes = 0
        self._order: deque[_Producer] = deque()  # one for each pending entry of the topic

    def __len__(self) -> int:
        return len(self._producers)

    # -- producers

    def joined(self, name: str, now_s: float) -> None:
        """Note that a producer of this name is connected.  Only then it may append."""
        self._get(name, now_s).connected = True
        if self._is_crowded:
            self.forget(now_s)

    def left(self, name: str, now_s: float) -> None:
        """Note that the producer of this name is no longer connected."""
        producer = self._producers.get(name)
        if producer is not None:
            producer.connected, producer.idle_since_s = False, now_s
            if producer.pushed == _NEVER:
                self._remove(producer)

    def is_pending(self, name: str) -> bool:
        """Return True if an entry of this producer is appended and not confirmed yet."""
        producer = self._producers.get(name)
        return producer is not None and bool(producer.pending)

    def last_seen(self, name: str) -> int:
        """Return the id of the last message that is stored; NOTHING if there is none."""
        producer = self._producers.get(name)
        return NOTHING if producer is None else producer.seen.last

    # -- entries

    def judge(self, ids: EntryIds) -> Verdict:
        """Compare an entry with all that is stored or pending."""
        producer = self._producers.get(ids.producer)
        if producer is None:
            return _NEVER.judge(ids)
        return producer.pushed.judge(ids)

    def appended(self, ids: EntryIds) -> None:
        """Note that an entry, which is NEW, is appended to the log."""
        producer = self._producers[ids.producer]
        producer.pushed = producer.pushed.after(ids)
        producer.pending.append(producer.pushed)
        self._order.append(producer)

    def refused(self) -> None:
        """Note that the log did not take the last entry that was appended."""
        producer = self._order.pop()
        producer.pending.pop()
        producer.pushed = producer.pending[-1] if producer.pending else producer.seen

    def confirmed(self) -> str:
        """Note that the log has confirmed the oldest pending entry; return its producer."""
        producer = self._order.popleft()
        producer.seen = producer.pending.popleft()
        return producer.name

    def replay(self, ids: EntryIds, now_s: float) -> None:
        """Fold in an entry of the log, in the order of the log.  Folding twice changes nothing."""
        producer = self._get(ids.producer, now_s)
        judged = producer.seen.judge(ids)
        if judged is Verdict.NEW or judged is Verdict.TORN:
            producer.set_seen(producer.seen.after(ids))

    # -- forgetting

    def forget(self, now_s: float) -> None:
        """Forget generated names whose time is over, and names that are too many.

        A name that is connected or has pending entries stays.
        """
        idle = [p for p in self._producers.values() if not p.connected and not p.pending]
        for producer in idle:
            over = now_s - producer.idle_since_s >= self._generated_s
            if over and producer.name.startswith(GENERATED):
                self._remove(producer)
        if not self._is_crowded:
            return
        names_goal = self._names_max * 15 // 16  # Sorting once makes room for many names.
        bytes_goal = self._names_bytes_max * 15 // 16
        for producer in sorted(idle, key=_Producer.may_go_before):
            if producer.name in self._producers:
                self._remove(producer)
                self.forgotten += 1
            if len(self._producers) <= names_goal and self._names_bytes <= bytes_goal:
                return

    @property
    def _is_crowded(self) -> bool:
        return len(self._producers) > self._names_max or self._names_bytes > self._names_bytes_max

    def _get(self, name: str, now_s: float) -> _Producer:
        producer = self._producers.get(name)
        if producer is None:
            producer = self._producers[name] = _Producer(name, now_s)
            self._names_bytes += len(name)
        return producer

    def _remove(self, producer: _Producer) -> None:
        del self._producers[producer.name]
        self._names_bytes -= len(producer.name)

    # -- snapshots

    def snapshot(self) -> dict[str, int]:
        """Return what is stored, by name; pending entries are not in it."""
        made: dict[str, int] = {}
        for name, producer in self._producers.items():
            last, progress = producer.seen
            if last != NOTHING:
                made[name] = last
            if progress is not None:
                made[CHUNKS + name] = progress.shape << _CHUNK_BITS | progress.number
        return made

    def restore(self, snapshot: Mapping[str, int], now_s: float) -> None:
        """Take over a snapshot, before any entry is replayed."""
        assert not self._producers
        for name, number in snapshot.items():
            if name.startswith(CHUNKS):
                progress = Chunk(number >> _CHUNK_BITS, number & (CHUNKS_MAX - 1))
                producer = self._get(name.removeprefix(CHUNKS), now_s)
                producer.set_seen(producer.seen._replace(progress=progress))
            else:
                producer = self._get(name, now_s)
                producer.set_seen(producer.seen._replace(last=number))
        self.forget(now_s)
