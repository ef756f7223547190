"""The index of delayed entries: all come, none early, in bounded memory, whatever its size."""

import random
import time
from array import array
from typing import Any

import pytest

from daybook.broker.protocol.dispatch.blockers import Cause
from daybook.broker.protocol.dispatch.delayed import Delayed, _Bucket
from daybook.broker.protocol.dispatch.interface import (
    Deliver,
    DispatchLimits,
    Entry,
    Read,
    Replay,
    Taken,
)
from daybook.broker.protocol.dispatch.places import Place
from daybook.broker.protocol.dispatch.shared import SharedDispatch

STEP_MS = 1 << 10
_WAIT_MS = 1 << 30


class Log:
    """A log of delayed entries, and an index that reads it again."""

    def __init__(self, entries_max: int, *, lead_ms: int = 5_000) -> None:
        self.index = Delayed(entries_max, lead_ms=lead_ms)
        self.times: dict[Place, int] = {}
        self.came: dict[Place, int] = {}
        self.read_again = 0
        self.most = 0
        self.now_ms = 0

    def append(self, at_ms: int) -> None:
        place = 5 + len(self.times) // 1_000, len(self.times) % 1_000
        self.times[place] = at_ms
        self.index.add(at_ms, place, place[1])
        self.most = max(self.most, self.index.indexed)

    def play(self, until_ms: int) -> None:
        """Do everything that is due until that time, as a dispatcher does."""
        index = self.index
        while True:
            while index.asks:
                places = index.far_places(500)
                self.read_again += len(places)
                assert self.read_again <= 200 * len(self.times)
                from_ms = index.again_from_ms
                found = [p for p in places if self.times[p] >= from_ms and p not in self.came]
                index.far_read(len(found))
                for place in found:
                    index.add(self.times[place], place, place[1])
                self.most = max(self.most, index.indexed)
            deadline_ms = index.deadline_ms
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            for place, key in index.due(self.now_ms):
                assert key == place[1]
                self.came.setdefault(place, self.now_ms)
        self.now_ms = until_ms


@pytest.mark.parametrize("entries_max", [100, 1_000, 100_000])
@pytest.mark.parametrize("span_ms", [3_000, 600_000, 1 << 36])
def test_each_entry_comes_once_and_not_before_its_time(entries_max: int, span_ms: int) -> None:
    rng = random.Random(f"{entries_max} {span_ms}")
    count = 1_000
    log = Log(entries_max)
    log.play(1_700_000_000_000)
    begin_ms = log.now_ms
    for _ in range(count):
        log.append(begin_ms + 1 + rng.randrange(span_ms))
    assert len(log.index) == count
    log.play(begin_ms + span_ms + _WAIT_MS)
    assert log.came.keys() == log.times.keys()
    assert len(log.index) == 0
    late = [log.came[place] - at_ms for place, at_ms in log.times.items()]
    assert min(late) >= 0
    assert max(late) <= 3 * STEP_MS
    assert log.most <= entries_max + max(16, entries_max // 10)
    if entries_max == 100_000:
        assert (max(late), log.read_again) == (0, 0)


def test_many_with_one_time_come_in_pieces() -> None:
    log = Log(1_000)
    log.play(1_700_000_000_000)
    for _ in range(8_000):
        log.append(log.now_ms + 60_000)
    log.play(log.now_ms + 62_000)
    assert len(log.came) == 8_000
    assert log.most <= 1_100
    assert log.read_again <= 12 * 8_000


def test_a_later_entry_comes_late_at_the_earliest_when_its_clock_goes_back() -> None:
    index = Delayed(100)
    index.due(1_000_000)
    index.add(1_000_500, (5, 0))
    assert index.due(999_000) == []
    assert index.due(1_000_500) == [((5, 0), 0)]


def test_a_million_entries_need_little_memory() -> None:
    """20 bytes each; growing arrays have some room to spare."""
    index = Delayed(1_000_000)
    index.due(1_700_000_000_000)
    rng = random.Random(4)
    for n in range(20_000):
        index.add(1_700_000_060_000 + rng.randrange(1 << 27), (7, n))
    size = sum(
        each.places.buffer_info()[1] * each.places.itemsize
        + each.after_ms.buffer_info()[1] * each.after_ms.itemsize
        + each.keys.buffer_info()[1] * each.keys.itemsize
        for each in index._buckets.values()
    )
    assert size == 20 * 20_000
    assert len(index._buckets) < 2_000


@pytest.mark.parametrize("seed", range(5))
def test_what_was_acknowledged_before_its_time_is_forgotten(seed: int) -> None:
    rng, now_ms = random.Random(seed), 1_700_000_000_000
    index, waits = Delayed(100_000), dict[Place, int]()
    index.due(now_ms)
    for number in range(900):
        place = 5 + number // 300, number
        waits[place] = now_ms + 1 + rng.randrange(1 << rng.choice([8, 14, 24, 34]))
        index.add(waits[place], place)
    gone = [place for place in waits if rng.random() < 0.3]
    index.forget([*gone, (99, 1)])
    index.forget(gone)
    for place in gone:
        del waits[place]
    assert len(index) == len(waits)
    up_to = 6, 450
    index.forget_up_to(up_to)
    waits = {place: at_ms for place, at_ms in waits.items() if place > up_to}
    assert len(index) == len(waits) > 0
    came = []
    while (now := index.deadline_ms) is not None:
        assert index.first()[0] == min(waits[place] for place in waits if place not in came)
        came += [place for place, _ in index.due(now)]
    assert sorted(came) == sorted(waits)


def test_what_was_acknowledged_is_looked_for_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find one takes a look at all."""
    index, looks = Delayed(100_000), list[int]()
    for number in range(5_000):
        index.add(1_700_000_060_000, (7, number))
    keep = Delayed._keep

    def noted(self: Delayed, *stays: Any) -> None:
        looks.append(len(self))
        keep(self, *stays)

    monkeypatch.setattr(Delayed, "_keep", noted)
    for number in range(50):
        index.forget([(7, number)])
    assert len(looks) == 10
    assert len(index) == 4_950


def test_the_far_part_forgets_what_was_acknowledged() -> None:
    log = Log(100)
    log.play(1_700_000_000_000)
    for _ in range(3_000):
        log.append(log.now_ms + 1_000_000)
    log.index.forget_up_to((7, 499))
    assert len(log.index) == 500
    for place in [place for place in log.times if place <= (7, 499)]:
        del log.times[place]
    log.play(log.now_ms + _WAIT_MS)
    assert log.came.keys() == log.times.keys()
    log.append(log.now_ms + 1_000_000)
    log.index.forget_up_to((99, 0))
    assert (len(log.index), log.index.deadline_ms) == (0, None)


def test_skipped_messages_do_not_count_as_delayed() -> None:
    dispatch = SharedDispatch(DispatchLimits())
    dispatch.joined(1)
    dispatch.permits_granted(1, 10)
    want = dispatch.want()
    assert isinstance(want, Read)
    dispatch.entries_read(want, [entry(n, 10_000) for n in range(20)])
    assert dispatch.delayed == 20
    dispatch.acked(1, [(5, n) for n in range(10)])
    assert dispatch.delayed == 10
    dispatch.acked_up_to((5, 30))
    assert dispatch.delayed == 0


LIMITS = DispatchLimits(delayed_entries_max=4, read_entries_max=3, delayed_lead_ms=0)


def entry(n: int, at_ms: int = 0, now_ms: int = 0) -> Entry:
    return Entry((5, n), 1, None, at_ms if at_ms > now_ms else 0, due_ms=at_ms)


def test_what_is_new_is_read_while_the_far_part_is_read_again() -> None:
    """Once, with 100,000 messages that waited, one without a delay waited behind them."""
    dispatch = SharedDispatch(LIMITS)
    dispatch.joined(1)
    dispatch.permits_granted(1, 100)
    dispatch.tick(1)
    times = {n: 100_000 * (1 + n) for n in range(12)}
    want = dispatch.want()
    assert isinstance(want, Read)
    assert dispatch.entries_read(want, [entry(n, at) for n, at in times.items()]) == [Taken(12)]
    assert dispatch.delayed == 12
    for now_ms in (100_000, 200_000, 300_000):  # Half of the index is free.
        dispatch.tick(now_ms)
        want = dispatch.want()
        assert isinstance(want, Replay)
        (given,) = dispatch.entries_read(want, [entry(want.places[0][1])])
        assert isinstance(given, Deliver)
    dispatch.tick(400_000)
    dispatch.tick(500_000)
    kinds: list[str] = []
    for _ in range(40):
        want = dispatch.want()
        match want:
            case Replay(places, delayed=True):
                kinds.append("far")
                found = [entry(n, times[n], 500_000) for _, n in places]
                assert dispatch.entries_read(want, found) == []
            case Replay(places):
                kinds.append("due")
                dispatch.entries_read(want, [entry(n) for _, n in places])
            case Read(waits=False):
                kinds.append("new")
                assert dispatch.entries_read(want, []) == [Taken(0)]
            case _:
                break
    assert "new far" in " ".join(kinds)
    assert kinds.count("far") == 3
    assert isinstance(dispatch.want(), Read)
    (blocker,) = dispatch.explain()
    assert blocker.cause is Cause.DELAYED


def test_what_a_consumer_has_is_not_delayed_again() -> None:
    dispatch = SharedDispatch(LIMITS)
    dispatch.joined(1)
    dispatch.permits_granted(1, 100)
    dispatch.tick(1)
    want = dispatch.want()
    assert want is not None
    entries = [entry(n, 100_000) for n in range(9)]
    entries[7].deliver_at_ms = 0  # The policy was off for a moment.
    dispatch.entries_read(want, entries)
    assert dispatch.unacked_of(1) == 1
    got: list[Place] = []
    for now_ms in range(99_000, 103_000, 100):
        dispatch.tick(now_ms)
        while want := dispatch.want():
            found: list[Entry] = []
            if isinstance(want, Replay):
                found = [entry(n, 100_000, now_ms) for _, n in want.places]
            elif want.waits:
                break
            for effect in dispatch.entries_read(want, found):
                got += [e.place for e in effect.entries] if isinstance(effect, Deliver) else []
    assert sorted(got) == [(5, n) for n in range(9) if n != 7]
    assert dispatch.delayed == 0


def test_the_index_does_a_bounded_part_of_its_work_in_one_step() -> None:
    index = Delayed(1_000_000)
    index.due(1_700_000_000_000)
    for n in range(20_000):
        index.add(1_700_100_000_000 + n, (7, n))
    began = time.perf_counter()
    steps, slowest, came = 0, 0.0, 0
    while (deadline_ms := index.deadline_ms) is not None:
        before = time.perf_counter()
        came += len(index.due(deadline_ms))
        slowest = max(slowest, time.perf_counter() - before)
        steps += 1
    assert came == 20_000
    assert slowest < max(0.5, (time.perf_counter() - began) / 2)


@pytest.mark.parametrize("seed", range(10))
def test_the_next_one_is_named_at_any_time(seed: int) -> None:
    rng, now_ms = random.Random(seed), 1_700_000_000_000
    index, waits = Delayed(100_000), dict[Place, int]()
    index.due(now_ms)
    for number in range(600):
        at_ms = now_ms + 1 + rng.randrange(1 << rng.choice([8, 14, 24, 34]))
        waits[7, number] = at_ms
        index.add(at_ms, (7, number))
        if rng.random() < 0.2:
            now_ms += rng.randrange(1 << rng.choice([4, 12, 20]))
            for place, _ in index.due(now_ms):
                del waits[place]
        if waits and rng.random() < 0.3:
            next_ms, first = index.first()
            assert first is not None
            assert next_ms == waits[first] == min(waits.values())


def test_delayed_entries_come_while_so_many_chunks_are_held_that_nothing_new_is_read() -> None:
    """Once, the far part was read no further then: the turn was that of what is new."""
    limits = DispatchLimits(
        read_entries_max=1,
        held_entries_max=1,
        delayed_entries_max=1,
        delayed_step_bits=0,
        delayed_lead_ms=0,
    )
    machine = SharedDispatch(limits)
    machine.tick(100)
    machine.joined(1)
    machine.joined(2)
    machine.permits_granted(1, 1)
    came: list[int] = []

    def read(entry: Entry) -> None:
        want = machine.want()
        assert isinstance(want, Read)
        machine.entries_read(want, [entry])

    read(Entry((7, 0), 1, None, group="m"))  # The first consumer has no permits any more.
    machine.permits_granted(2, 50)
    for number in range(1, 7):
        at_ms = 200 + number
        read(Entry((7, number), 1, None, deliver_at_ms=at_ms, due_ms=at_ms))
    read(Entry((7, 9), 1, None, group="m"))  # So its next chunk is held.
    for now_ms in range(200, 260):
        machine.tick(now_ms)
        while (want := machine.want()) is not None:
            assert isinstance(want, Replay)
            due = {place: 200 + place[1] for place in want.places}
            for effect in machine.entries_read(
                want,
                [
                    Entry(place, 1, None, deliver_at_ms=ms if ms > now_ms else 0, due_ms=ms)
                    for place, ms in due.items()
                ],
            ):
                assert isinstance(effect, Deliver)
                came += [entry.place[1] for entry in effect.entries]
    assert sorted(came) == [1, 2, 3, 4, 5, 6]
    assert machine.delayed == 0


def test_a_bucket_knows_its_first_entry_also_when_some_have_left() -> None:
    rng, bucket, waits = random.Random(3), _Bucket(1_000, step=False), list[tuple[int, int]]()
    for number in range(500):
        if waits and rng.random() < 0.4:
            packed, at_ms, key = bucket.pop()
            assert key == packed
            waits.remove((at_ms, packed))
        else:
            at_ms = 1_000 + rng.randrange(200)
            bucket.add(number, at_ms, number)
            waits.append((at_ms, number))
        if waits and rng.random() < 0.5:
            assert bucket.first()[0] == min(waits)[0]
            assert bucket.first() in waits


def test_naming_the_next_one_looks_at_few_buckets_and_at_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million entries took a tenth of a second for each question."""
    index, looked = Delayed(1_000_000), list[int]()
    index.due(1_700_000_000_000)
    for number in range(2_000):
        index.add(1_700_000_100_000 + 1_000 * number, (7, number))
    first = _Bucket.first

    def noted(bucket: _Bucket) -> tuple[int, int]:
        looked.append(len(bucket))
        return first(bucket)

    monkeypatch.setattr(_Bucket, "first", noted)
    assert index.first() == (1_700_000_100_000, (7, 0))
    assert len(index._buckets) > 900
    assert len(looked) <= 3
    for bucket in index._buckets.values():
        bucket.after_ms = array("Q")  # It is not read again.
    assert index.first() == (1_700_000_100_000, (7, 0))


def test_chunks_are_never_in_the_far_part() -> None:
    """A chunk may wait for the time of another one, which its own metadata do not have."""
    index = Delayed(4)
    index.due(1_700_000_000_000)
    for n in range(40):
        index.add(1_700_000_060_000 + n * 5_000, (7, n), pinned=True)
    assert index.indexed == 40
    assert not index.asks


def test_times_that_no_calendar_has_need_few_buckets() -> None:
    index = Delayed(100_000)
    index.due(1_700_000_000_000)
    rng = random.Random(7)
    for n in range(20_000):
        index.add(rng.randrange(1_700_000_000_000, 1 << 63), (7, n))
    assert index.indexed == 20_000
    assert len(index._buckets) < 10 * 1_100


def test_the_far_part_comes_in_time_although_later_chunks_fill_the_index() -> None:
    log = Log(4)
    log.play(1_700_000_000_000)
    for n in range(4):
        log.index.add(log.now_ms + 3_600_000, (9, n), n, pinned=True)
    for n in range(6):
        log.append(log.now_ms + 60_000 + n)
    log.play(log.now_ms + 65_000)
    assert len(log.came) == 6


def test_chunks_are_not_delayed_again_with_the_far_part() -> None:
    dispatch = SharedDispatch(LIMITS)
    dispatch.joined(1)
    dispatch.permits_granted(1, 100)
    dispatch.tick(1)
    want = dispatch.want()
    assert want is not None
    entries = [entry(n, 100_000 if n < 4 else 900_000) for n in range(9)]
    entries[6].group = "m"
    assert dispatch.entries_read(want, entries) == [Taken(9)]
    dispatch.tick(100_000)
    want = dispatch.want()
    assert isinstance(want, Replay)
    dispatch.entries_read(want, [entry(n) for _, n in want.places])
    assert dispatch.delayed == 5
    read: list[int] = []
    for now_ms in range(200_000, 902_000, 10_000):
        dispatch.tick(min(now_ms, 899_999))
        want = dispatch.want()
        if isinstance(want, Replay) and want.delayed:
            read += [n for _, n in want.places]
            dispatch.entries_read(want, [entries[n] for _, n in want.places])
        elif want is not None:
            assert dispatch.entries_read(want, []) == [Taken(0)]
        assert dispatch.delayed == 5
    assert 6 in read
    assert [place for _, place, _ in dispatch._delayed._heap].count((5, 6)) == 1
