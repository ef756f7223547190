"""The entries of a shared subscription that wait for their delivery time, in bounded memory.

    add --> heap       exact; those whose step of time (about a second) has begun
        --> buckets    compact arrays, by time: steps first, and the farther ahead the longer
        --> far part   everything from a time on: only its number and the ranges that it lies in

A bucket is opened when its time begins: its entries are put into shorter buckets, or the heap.  If
the heap has no room for a bucket of one step, that waits until the step is over and all of it is
due.

The index knows `entries_max` entries one by one.  If more come, the latest bucket joins the far
part, and so does every later entry with such a time.  The log has the delivery times of the far
part: shortly before the first one, and when half of the index is free, its ranges are read again.
`far_places` names what to read.  The entries with a time from `again_from_ms` on are those that the
index does not know; `add` takes them, or leaves them to the far part again.

An entry that is acknowledged before its time is forgotten (`forget`, `forget_up_to`).  To look for
one takes a look at all, so single ones are collected first: up to a thousandth of the index is too
much in the number that wait.

An entry may be known twice after the far part was read again, if it was given back meanwhile.
Nothing is lost or sent twice by it, because an entry that a consumer has is not delivered to
another one.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from daybook.broker.protocol.dispatch.places import Place

Due: TypeAlias = tuple[Place, int]  # an entry, and the hash of its key

_DUE_MAX = 1_000  # entries in one step, so that others have their turn
_OPENED_MAX = 10_000  # entries of a bucket that are moved in one step
_HEAP_MIN = 16
_LEVEL_BITS = 6  # the buckets of each level are 64 times as long as those of the level below
_LEVELS = 10  # up to the latest time that a message can name
_REACH_BITS = 10  # and there are at most about 1024 of them
_ENTRY_BITS = 40
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1
_NEVER_MS = 1 << 70
_LOOK_SHARE = (
    1_000  # So many entries are collected, as a share of the index, before they are looked for.
)


class _Bucket:
    """The entries of a span of time, in arrays: 20 bytes each."""

    __slots__ = ("_first", "after_ms", "keys", "places", "start_ms", "step")

    def __init__(self, start_ms: int, *, step: bool) -> None:
        self.start_ms = start_ms
        self.step = step  # it has the shortest span
        self.places = array("Q")  # the number of the ledger, and the entry id
        self.after_ms = array("Q")
        self.keys = array("I")
        self._first: tuple[int, int] | None = None  # the earliest one, if it is known

    def add(self, packed: int, at_ms: int, key: int) -> None:
        after_ms = at_ms - self.start_ms
        self.places.append(packed)
        self.after_ms.append(after_ms)
        self.keys.append(key)
        if self._first is None:
            self._first = (after_ms, packed) if len(self.places) == 1 else None
        elif (after_ms, packed) < self._first:
            self._first = after_ms, packed

    def pop(self) -> tuple[int, int, int]:
        """Remove any entry; return its packed place, its time and its key."""
        packed, after_ms = self.places.pop(), self.after_ms.pop()
        if self._first == (after_ms, packed):
            self._first = None
        return packed, self.start_ms + after_ms, self.keys.pop()

    def keep(self, stays: Callable[[int], bool]) -> int:
        """Remove all entries but those whose packed place stays; return how many went."""
        kept = [index for index, packed in enumerate(self.places) if stays(packed)]
        gone = len(self.places) - len(kept)
        if gone:
            self.places = array("Q", [self.places[index] for index in kept])
            self.after_ms = array("Q", [self.after_ms[index] for index in kept])
            self.keys = array("I", [self.keys[index] for index in kept])
            self._first = None
        return gone

    def __len__(self) -> int:
        return len(self.places)

    def first(self) -> tuple[int, int]:
        """Return the earliest time, and the packed place of that entry."""
        if self._first is None:
            self._first = min(zip(self.after_ms, self.places, strict=True))
        after_ms, packed = self._first
        return self.start_ms + after_ms, packed


class _Far:
    """Entries that are known by their number and ranges only: from `from_ms` on."""

    def __init__(self) -> None:
        self.from_ms = _NEVER_MS
        self.count = 0
        self.ranges: dict[int, tuple[int, int]] = {}  # by ledger id: the first and last entry id

    def note(self, place: Place) -> None:
        ledger_id, entry_id = place
        first, last = self.ranges.get(ledger_id, (entry_id, entry_id))
        self.ranges[ledger_id] = min(first, entry_id), max(last, entry_id)
        self.count += 1

    def forget_up_to(self, place: Place) -> None:
        """Forget what lies there.  The number of the others is known up to the ranges' length."""
        for ledger_id, (first, last) in list(self.ranges.items()):
            if (ledger_id, last) <= place:
                del self.ranges[ledger_id]
            elif (ledger_id, first) <= place:
                self.ranges[ledger_id] = place[1] + 1, last
        self.count = min(self.count, sum(last - first + 1 for first, last in self.ranges.values()))

    def take(self, count: int) -> tuple[Place, ...]:
        """Take the first places away from the ranges."""
        taken: list[Place] = []
        while self.ranges and len(taken) < count:
            ledger_id = min(self.ranges)
            first, last = self.ranges.pop(ledger_id)
            end = min(last, first + count - len(taken) - 1)
            taken += [(ledger_id, entry_id) for entry_id in range(first, end + 1)]
            if end < last:
                self.ranges[ledger_id] = end + 1, last
        return tuple(taken)


class Delayed:
    """One instance per shared subscription."""

    def __init__(self, entries_max: int, *, step_bits: int = 10, lead_ms: int = 60_000) -> None:
        """A step has 2 ** `step_bits` ms; the far part is read `lead_ms` before its time."""
        self._entries_max = entries_max
        self._heap_max = max(_HEAP_MIN, entries_max // 10)
        self._step_bits = step_bits
        self._lead_ms = lead_ms
        self._now_ms = 0
        self._heap: list[tuple[int, Place, int]] = []
        self._buckets: dict[tuple[int, int], _Bucket] = {}  # by start and length in bits
        self._order: list[tuple[int, int, int]] = []  # when each bucket is opened, and its key
        self._in_buckets = 0
        self._ledgers: list[int] = []  # ledger ids by number
        self._numbers: dict[int, int] = {}
        self._far = _Far()
        self._again: _Far | None = None  # the far part that is being read again
        self._asked: tuple[Place, ...] = ()  # the places of it that are being read
        self._gone: set[Place] = set()  # acknowledged, and perhaps in the index

    def __len__(self) -> int:
        again = 0 if self._again is None else self._again.count
        return self.indexed + self._far.count + again

    @property
    def indexed(self) -> int:
        """The number of entries that are known one by one."""
        return len(self._heap) + self._in_buckets

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `due` has something to do."""
        at_ms = self._index_ms
        if self._again is not None:
            if not self.asks and not self._is_soon(self._again.from_ms):
                at_ms = min(at_ms, self._again.from_ms)
        elif self._has_room:
            at_ms = min(at_ms, self._far.from_ms - self._lead_ms)
        elif not self._is_soon(self._far.from_ms):
            at_ms = min(at_ms, self._far.from_ms)
        return at_ms if at_ms < _NEVER_MS - self._lead_ms else None

    @property
    def _index_ms(self) -> int:
        """The time at which the index has something to do."""
        heap_ms = self._heap[0][0] if self._heap else _NEVER_MS
        return min(heap_ms, self._order[0][0] if self._order else _NEVER_MS)

    def _is_soon(self, at_ms: int) -> bool:
        """Return True if the index has entries that come first: it will have room by itself."""
        return self._index_ms <= max(at_ms, self._now_ms) + (1 << self._step_bits)

    @property
    def _has_room(self) -> bool:
        return 2 * self.indexed < self._entries_max

    # -- what waits

    def add(self, at_ms: int, place: Place, key: int = 0, *, pinned: bool = False) -> None:
        """Have the entry wait.  One that is `pinned` never joins the far part."""
        bits = self._bits(at_ms)
        start_ms = at_ms >> bits << bits
        if pinned or (start_ms <= self._now_ms and len(self._heap) < self._heap_max):
            heappush(self._heap, (at_ms, place, key))
            return
        if at_ms < self._far.from_ms and self.indexed >= self._entries_max:
            self._seal(start_ms)
        if at_ms >= self._far.from_ms:
            self._far.note(place)
            return
        bucket = self._buckets.get((start_ms, bits))
        if bucket is None:
            bucket = _Bucket(start_ms, step=bits == self._step_bits)
            self._buckets[start_ms, bits] = bucket
            # A step that has begun already is opened when it is over.
            opened_ms = start_ms if start_ms > self._now_ms else start_ms + (1 << bits)
            heappush(self._order, (opened_ms, start_ms, bits))
        bucket.add(self._pack(place), at_ms, key)
        self._in_buckets += 1

    def _bits(self, at_ms: int) -> int:
        """Return the length of the bucket for this time, as a power of two."""
        ahead_ms, bits = at_ms - self._now_ms, self._step_bits
        for _ in range(_LEVELS - 1):
            if ahead_ms < 1 << (bits + _REACH_BITS):
                break
            bits += _LEVEL_BITS
        return bits

    def _seal(self, start_ms: int) -> None:
        """Make the latest entries the far part: a whole bucket, or those that come from now on."""
        latest = max(self._buckets, default=(start_ms, 0))
        self._far.from_ms = max(latest[0], start_ms)
        if latest[0] <= start_ms:
            return
        bucket = self._buckets.pop(latest)
        self._in_buckets -= len(bucket)
        self._order = [each for each in self._order if each[1:] != latest]
        heapify(self._order)
        for packed in bucket.places:
            self._far.note(self._unpack(packed))

    def _pack(self, place: Place) -> int:
        ledger_id, entry_id = place
        number = self._numbers.get(ledger_id)
        if number is None:
            number = self._numbers[ledger_id] = len(self._ledgers)
            self._ledgers.append(ledger_id)
        return number << _ENTRY_BITS | entry_id

    def _unpack(self, packed: int) -> Place:
        return self._ledgers[packed >> _ENTRY_BITS], packed & _ENTRY_MASK

    def first(self) -> tuple[int, Place | None]:
        """Return the time of the entry that is due next, and its place, if that is known.

        Some entry must wait.
        """
        found: list[tuple[int, Place | None]] = []
        if self._heap:
            found.append(self._heap[0][:2])
        if self._buckets:
            at_ms, packed = self._first_in_buckets()
            found.append((at_ms, self._unpack(packed)))
        for far in (self._far, self._again):
            if far is not None and far.count:
                found.append((far.from_ms, None))
        return min(found, key=lambda each: each[0])

    def _first_in_buckets(self) -> tuple[int, int]:
        """Return the earliest time in the buckets, and the packed place of that entry."""
        first = (_NEVER_MS, 0)
        for start_ms, bits in sorted(self._buckets):
            if start_ms > first[0]:
                break  # All that follow are later.
            first = min(first, self._buckets[start_ms, bits].first())
        return first

    def clear(self) -> None:
        self._heap.clear()
        self._buckets.clear()
        self._order.clear()
        self._in_buckets = 0
        self._ledgers.clear()
        self._numbers.clear()
        self._far, self._again, self._asked = _Far(), None, ()
        self._gone.clear()

    # -- what was acknowledged before its time

    def forget(self, places: Iterable[Place]) -> None:
        """Forget entries that were acknowledged.  They need not be here."""
        self._gone.update(places)
        if not self._gone or len(self._gone) * _LOOK_SHARE < self.indexed:
            return
        gone = self._gone
        packed = {
            self._numbers[ledger_id] << _ENTRY_BITS | entry_id
            for ledger_id, entry_id in gone
            if ledger_id in self._numbers
        }
        self._keep(lambda place: place not in gone, lambda each: each not in packed)
        self._gone = set()

    def forget_up_to(self, place: Place) -> None:
        """Forget all entries up to a place, because they were acknowledged."""
        self._far.forget_up_to(place)
        if not self._far.count:
            self._far = _Far()
        if self._again is not None:
            self._again.forget_up_to(place)
            if not self._again.ranges and not self._asked:
                self._again = None
        last = [  # by the number of the ledger: the last entry id that goes
            _ENTRY_MASK if ledger_id < place[0] else place[1] if ledger_id == place[0] else -1
            for ledger_id in self._ledgers
        ]
        self._keep(
            lambda each: each > place,
            lambda each: each & _ENTRY_MASK > last[each >> _ENTRY_BITS],
        )

    def _keep(self, stays: Callable[[Place], bool], packed_stays: Callable[[int], bool]) -> None:
        heap = [each for each in self._heap if stays(each[1])]
        if len(heap) < len(self._heap):
            self._heap = heap
            heapify(self._heap)
        empty: set[tuple[int, int]] = set()
        for key, bucket in self._buckets.items():
            self._in_buckets -= bucket.keep(packed_stays)
            if not bucket:
                empty.add(key)
        if empty:
            for key in empty:
                del self._buckets[key]
            self._order = [each for each in self._order if each[1:] not in empty]
            heapify(self._order)

    # -- what is due

    def due(self, now_ms: int) -> list[Due]:
        """Remove and return the first entries that are due; the next call returns others."""
        self._now_ms = max(self._now_ms, now_ms)
        found: list[Due] = []
        if self._order and self._order[0][0] <= now_ms:
            found += self._open(now_ms)
        while self._heap and self._heap[0][0] <= now_ms and len(found) < _DUE_MAX:
            _, place, key = heappop(self._heap)
            found.append((place, key))
        far_ms = self._far.from_ms
        near = self._has_room and far_ms - self._lead_ms <= now_ms
        # Chunks may fill the index, and be later than the begin of the far part.
        if self._again is None and (near or (far_ms <= now_ms and not self._is_soon(far_ms))):
            self._again, self._far = self._far, _Far()
        return found

    def _open(self, now_ms: int) -> Iterator[Due]:
        """Move entries of the bucket whose time has begun; yield some that are due."""
        _, start_ms, bits = self._order[0]
        bucket = self._buckets[start_ms, bits]
        end_ms = start_ms + (1 << bits)
        if bucket.step and now_ms < end_ms and len(bucket) > self._heap_max - len(self._heap):
            heappop(self._order)
            heappush(self._order, (end_ms, start_ms, bits))
            return
        found = 0
        for _ in range(min(len(bucket), _OPENED_MAX)):
            packed, at_ms, key = bucket.pop()
            place = self._unpack(packed)
            self._in_buckets -= 1
            if at_ms <= now_ms:
                yield place, key
                found += 1
                if found == _DUE_MAX:
                    break
            else:
                self.add(at_ms, place, key)
        if not bucket:
            # `add` may have put another bucket in front.
            del self._buckets[start_ms, bits]
            self._order = [each for each in self._order if each[1:] != (start_ms, bits)]
            heapify(self._order)

    # -- the far part

    @property
    def asks(self) -> bool:
        """True if a piece of the far part is to be read again now."""
        again = self._again
        if again is None:
            return False
        if self._asked or self.indexed < self._entries_max:
            return True
        # The index is full of what comes first: what is read now would be far again.
        full = self._far.from_ms <= self._index_ms + (1 << self._step_bits)
        return not full or (again.from_ms <= self._now_ms and not self._is_soon(again.from_ms))

    @property
    def again_from_ms(self) -> int:
        """Entries from this time on are those of the part that is being read again."""
        return _NEVER_MS if self._again is None else self._again.from_ms

    def far_places(self, count: int) -> tuple[Place, ...]:
        """Return what to read again next: the same until `far_read`."""
        if self._again is not None and not self._asked:
            self._asked = self._again.take(count)
        return self._asked

    def far_read(self, found: int) -> None:
        """Note that the last `far_places` were read, and how many of the entries wait still."""
        self._asked = ()
        assert self._again is not None
        self._again.count = max(0, self._again.count - found)
        if not self._again.ranges:
            self._again = None  # Those that are missing were acknowledged or trimmed away.
