"""The distribution of entries: the left has the inputs of a machine, the right its actions.

Entries are numbered: `read 0-3` brings the entries 0 to 3, one message each; `read 5:10` brings
entry 5 with 10 messages, and `read 5~3` entry 5 with key 3.
"""

from collections.abc import Sequence

import pytest

from daybook.broker.protocol.dispatch.exclusive import ExclusiveDispatch
from daybook.broker.protocol.dispatch.failover import FailoverDispatch
from daybook.broker.protocol.dispatch.interface import (
    Activate,
    Deliver,
    Dispatch,
    DispatchLimits,
    Effect,
    Entry,
    Read,
    Replay,
    Rewind,
    Taken,
    Want,
)
from daybook.broker.protocol.dispatch.murmur import murmur3
from daybook.broker.protocol.dispatch.shared import SharedDispatch

LIMITS = DispatchLimits(
    turn_messages_min=2,
    unacked_messages_max=10,
    subscription_unacked_messages_max=16,
    delayed_entries_max=3,
)

EXCLUSIVE = {
    "nothing is read before there are permits": """
        join 1            -> rewind
        want              -> nothing
        permits 1 10      ->
        want              -> read 10
    """,
    "entries go out as far as permits reach; the rest is read again": """
        join 1            -> rewind
        permits 1 3       ->
        read 0-9          -> 1 gets 0 1 2, taken 3
        want              -> nothing
        permits 1 1       ->
        read 3-9          -> 1 gets 3, taken 1
    """,
    "an entry is delivered whole, and may overdraw": """
        join 1            -> rewind
        permits 1 3       ->
        read 0:10 1:10    -> 1 gets 0, taken 1
        permits 1 7       ->
        want              -> nothing
        permits 1 1       ->
        read 1:10         -> 1 gets 1, taken 1
    """,
    "what was read before a rewind is dropped": """
        join 1            -> rewind
        permits 1 10      ->
        begin             ->
        redeliver 1       -> rewind
        brought 0-3       ->
        read 0-3          -> 1 gets 0 1 2 3, taken 4
    """,
    "what was read for somebody who has left is dropped": """
        join 1            -> rewind
        permits 1 10      ->
        begin             ->
        leave 1           ->
        join 2            -> rewind
        permits 2 10      ->
        brought 0-3       ->
        read 0-3          -> 2 gets 0 1 2 3, taken 4
    """,
    "a full connection is not fed": """
        join 1            -> rewind
        permits 1 10      ->
        block 1           ->
        want              -> nothing
        unblock 1         ->
        want              -> read 10
    """,
    "moving the cursor rewinds": """
        join 1            -> rewind
        clear             -> rewind
    """,
}

FAILOVER = {
    "the first one is served at once": """
        join 1            -> rewind, 1 active
        permits 1 5       ->
        read 0-1          -> 1 gets 0 1, taken 2
    """,
    "a better one has to wait a moment": """
        join 2            -> rewind, 2 active
        join 1            -> 1 passive
        tick 0            ->
        tick 999          ->
        tick 1000         -> rewind, 2 passive, 1 active
        tick 5000         ->
    """,
    "one that is not better changes nothing": """
        join 1            -> rewind, 1 active
        join 2            -> 2 passive
        tick 0            ->
        tick 1000         ->
    """,
    "when the active one leaves, the next is served at once": """
        join 1            -> rewind, 1 active
        join 2            -> 2 passive
        permits 2 5       ->
        leave 1           -> rewind, 2 active
        read 0-1          -> 2 gets 0 1, taken 2
    """,
    "the better one may be gone before its time": """
        join 2            -> rewind, 2 active
        join 1            -> 1 passive
        tick 0            ->
        leave 1           ->
        tick 1000         ->
    """,
    "only the active one can rewind": """
        join 1            -> rewind, 1 active
        join 2            -> 2 passive
        redeliver 2       ->
        redeliver 1       -> rewind
    """,
    "a lower number is a better priority": """
        join 1/5          -> rewind, 1 active
        join 2/0          -> 2 passive
        tick 0            ->
        tick 1000         -> rewind, 1 passive, 2 active
    """,
}

SHARED = {
    "entries go round": """
        join 1            -> rewind
        join 2            ->
        permits 1 10      ->
        permits 2 10      ->
        read 0-3          -> 1 gets 0 1, 2 gets 2 3, taken 4
        read 4            -> 1 gets 4, taken 1
        read 5            -> 2 gets 5, taken 1
    """,
    "a chunk that comes back alone goes to the consumer that has the others": """
        join 1            -> rewind
        join 2            ->
        permits 1 9       ->
        read 0#m 1#m.     -> 1 gets 0 1, taken 2
        permits 2 9       ->
        redeliver 1 1     ->
        block 1           ->
        replayed 1        ->
        unblock 1         ->
        replayed 1        -> 1 gets 1*1
        ack 1 0           ->
        redeliver 1 1     ->
        block 1           ->
        replayed 1        -> 2 gets 1*2
    """,
    "a message in chunks that comes back whole may go to another consumer": """
        join 1            -> rewind
        join 2            ->
        permits 1 2       ->
        read 0#m 1#m.     -> 1 gets 0 1, taken 2
        permits 2 9       ->
        redeliver 1 0 1   ->
        replayed 0 1      -> 2 gets 0*1 1*1
    """,
    "whoever has no permits is passed over": """
        join 1            -> rewind
        join 2            ->
        permits 2 3       ->
        read 0-4          -> 2 gets 0 1 2, taken 3
        want              -> nothing
    """,
    "better priorities are served first": """
        join 1/1          -> rewind
        join 2/0          ->
        permits 1 10      ->
        permits 2 2       ->
        read 0-3          -> 2 gets 0 1, 1 gets 2 3, taken 4
    """,
    "what was given back comes again, counted, before anything new": """
        join 1            -> rewind
        permits 1 9       ->
        read 0-2          -> 1 gets 0 1 2, taken 3
        redeliver 1 1     ->
        want              -> replay 1
        replayed 1        -> 1 gets 1*1
        redeliver 1 1     ->
        replayed 1        -> 1 gets 1*2
        want              -> read 4
    """,
    "all that it has, if nothing is named": """
        join 1            -> rewind
        permits 1 9       ->
        read 0-2          -> 1 gets 0 1 2, taken 3
        ack 1 1           ->
        redeliver 1       ->
        want              -> replay 0 2
    """,
    "nobody gives back what somebody else has": """
        join 1            -> rewind
        join 2            ->
        permits 1 9       ->
        read 0-2          -> 1 gets 0 1 2, taken 3
        redeliver 2 1     ->
        permits 2 9       ->
        want              -> read 15
    """,
    "what a lost consumer had goes to others, and is not counted": """
        join 1            -> rewind
        permits 1 9       ->
        read 0-2          -> 1 gets 0 1 2, taken 3
        join 2            ->
        permits 2 9       ->
        ack 1 1           ->
        leave 1           ->
        want              -> replay 0 2
        replayed 0 2      -> 2 gets 0 2
    """,
    "what a replay brings twice is given out once, and waits once": """
        join 1            -> rewind
        join 2            ->
        permits 1 2       ->
        read 0-1          -> 1 gets 0 1, taken 2
        leave 1           ->
        permits 2 1       ->
        replayed 0 1 1    -> 2 gets 0
        permits 2 2       ->
        want              -> replay 1
        replayed 1 1      -> 2 gets 1
        want              -> read 1
    """,
    "what was acknowledged before its replay is not delivered": """
        join 1            -> rewind
        permits 1 9       ->
        read 0-2          -> 1 gets 0 1 2, taken 3
        redeliver 1 0 1   ->
        want              -> replay 0 1
        replayed 1        -> 1 gets 1*1
        want              -> read 5
    """,
    "the last one leaves nothing behind": """
        join 1            -> rewind
        permits 1 9       ->
        read 0-2          -> 1 gets 0 1 2, taken 3
        redeliver 1 0     ->
        begin             ->
        leave 1           ->
        join 2            -> rewind
        permits 2 9       ->
        brought 3         ->
        read 0            -> 2 gets 0, taken 1
    """,
    "too much unacknowledged blocks, until half of it is": """
        join 1            -> rewind
        permits 1 100     ->
        read 0-14         -> 1 gets 0 1 2 3 4 5 6 7 8 9, taken 10
        want              -> nothing
        ack 1 0 1 2 3     ->
        want              -> nothing
        ack 1 4           ->
        want              -> read 90
    """,
    "too much in all blocks everybody": """
        join 1            -> rewind
        join 2            ->
        permits 1 100     ->
        permits 2 100     ->
        read 0:8 1:8 2:8  -> 1 gets 0 1, taken 2
        want              -> nothing
        ack 1 0           ->
        want              -> read 59
    """,
    "too much in all blocks everybody, also if a chunk was the last of it": """
        join 1            -> rewind
        join 2            ->
        permits 1 100     ->
        permits 2 100     ->
        read 0#a          -> 1 gets 0, taken 1
        read 1:8          -> 2 gets 1, taken 1
        read 2:8#a 3 4    -> 1 gets 2, taken 1
        want              -> nothing
    """,
    "an entry for later waits for its time": """
        join 1            -> rewind
        permits 1 9       ->
        read 0@500 1      -> 1 gets 1, taken 2
        due               -> 500
        tick 499          ->
        want              -> read 8
        tick 500          ->
        want              -> replay 0
        replayed 0        -> 1 gets 0
    """,
    "with many for later reading goes on": """
        join 1            -> rewind
        permits 1 9       ->
        read 0@5 1@6 2@7  -> taken 3
        want              -> read 9
        tick 5            ->
        want              -> replay 0
    """,
    "the chunks of a message go to one consumer": """
        join 1            -> rewind
        join 2            ->
        permits 1 9       ->
        permits 2 9       ->
        read 0#a 1 2 3#a  -> 1 gets 0 1 3, 2 gets 2, taken 4
        read 4#a. 5 6 7   -> 1 gets 4 5 6, 2 gets 7, taken 4
    """,
    "a chunk waits for its consumer, and so do those behind it; others go on": """
        join 1            -> rewind
        permits 1 1       ->
        read 0#a          -> 1 gets 0, taken 1
        join 2            ->
        permits 2 9       ->
        read 1#a 2 3#a.   -> 2 gets 2, taken 3
        want              -> read 8
        permits 1 9       ->
        want              -> replay 1 3
        replayed 1 3      -> 1 gets 1 3
    """,
    "a chunk that is read while an earlier one is let go comes behind it": """
        join 1            -> rewind
        join 2            ->
        permits 1 1       ->
        permits 2 9       ->
        read 0#a 1#a      -> 1 gets 0, taken 2
        begin             ->
        permits 1 9       ->
        brought 2#a.      -> taken 1
        want              -> replay 1 2
        replayed 1 2      -> 1 gets 1 2
    """,
    "a chunk that was skipped is not waited for": """
        join 1            -> rewind
        join 2            ->
        permits 1 1       ->
        permits 2 9       ->
        read 0#a 1#a      -> 1 gets 0, taken 2
        permits 1 9       ->
        ack-up-to 1       ->
        read 2#a.         -> 1 gets 2, taken 1
    """,
    "a chunk that was read when its time had come waits for those that were read before": """
        join 1            -> rewind
        permits 1 9       ->
        read 0@5#a        -> taken 1
        begin             ->
        brought 1#a.      -> taken 1
        want              -> read 9
        tick 5            ->
        want              -> replay 0 1
        replayed 0 1      -> 1 gets 0 1
    """,
    "chunks of a lost consumer begin anew": """
        join 1            -> rewind
        join 2            ->
        permits 1 1       ->
        permits 2 9       ->
        read 0#a 1#a      -> 1 gets 0, taken 2
        leave 1           ->
        want              -> replay 0 1
        replayed 0 1      -> 2 gets 0 1
    """,
    "skipping all forgets what is below": """
        join 1            -> rewind
        permits 1 9       ->
        read 0-3          -> 1 gets 0 1 2 3, taken 4
        redeliver 1 0 3   ->
        ack-up-to 2       ->
        want              -> replay 3
    """,
}


class Script:
    """Runs the lines of a scenario against a machine."""

    def __init__(self, machine: Dispatch) -> None:
        self.machine = machine
        self.begun: Want | None = None
        self.groups: dict[int, tuple[str | None, bool]] = {}

    def run(self, text: str) -> None:
        for line in text.strip().splitlines():
            left, _, right = line.partition("->")
            got = self.line(left.split())
            assert got == right.strip(), line

    def line(self, words: list[str]) -> str:
        match words:
            case ["want"]:
                return self.wanted()
            case ["due"]:
                return str(self.machine.deadline_ms)
            case ["begin"]:
                self.begun = self.machine.want()
                assert self.begun is not None
                return ""
            case ["read", *entries]:
                want = self.machine.want()
                assert isinstance(want, Read), want
                return told(self.machine.entries_read(want, self.entries(entries)))
            case ["brought", *entries]:
                assert self.begun is not None
                return told(self.machine.entries_read(self.begun, self.entries(entries)))
            case ["replayed", *entries]:
                want = self.machine.want()
                assert isinstance(want, Replay), want
                return told(self.machine.entries_read(want, self.entries(entries)))
            case _:
                return told(self.effects(words))

    def effects(self, words: list[str]) -> list[Effect]:
        machine = self.machine
        numbers = [int(word) for word in words[1:] if "/" not in word]
        match words[0]:
            case "join":
                key, _, priority = words[1].partition("/")
                return machine.joined(int(key), f"c{key}", int(priority or 0))
            case "leave":
                return machine.left(numbers[0])
            case "permits":
                return machine.permits_granted(*numbers)
            case "block":
                return machine.connection_full(numbers[0])
            case "unblock":
                return machine.connection_writable(numbers[0])
            case "redeliver":
                return machine.redelivery_requested(numbers[0], [(7, n) for n in numbers[1:]])
            case "ack":
                return machine.acked(numbers[0], [(7, n) for n in numbers[1:]])
            case "ack-up-to":
                return machine.acked_up_to((7, numbers[0]))
            case "clear":
                return machine.cursor_moved()
            case "tick":
                return machine.tick(numbers[0])
            case other:
                raise AssertionError(other)

    def entries(self, words: Sequence[str]) -> list[Entry]:
        found: list[Entry] = []
        for word in words:
            if "-" in word:
                first, last = map(int, word.split("-"))
                found += [Entry((7, n), 1, n) for n in range(first, last + 1)]
                continue
            word, _, key = word.partition("~")
            word, _, group = word.partition("#")
            word, _, at = word.partition("@")
            number, _, messages = word.partition(":")
            place = int(number)
            if group:
                self.groups[place] = (group.rstrip("."), group.endswith("."))
            name, ends = self.groups.get(place, (None, False))
            entry = Entry((7, place), int(messages or 1), place, int(at or 0), name, ends)
            entry.key = int(key or 0)
            found.append(entry)
        return found

    def wanted(self) -> str:
        match self.machine.want():
            case None:
                return "nothing"
            case Read(count):
                return f"read {count}"
            case Replay(places):
                return " ".join(["replay", *(str(entry_id) for _, entry_id in places)])


def told(effects: Sequence[Effect]) -> str:
    return ", ".join(map(show, effects))


def show(effect: Effect) -> str:
    match effect:
        case Deliver(consumer, entries, counts):
            shown = [str(entry.token) for entry in entries]
            if counts is not None:
                shown = [f"{s}*{n}" if n else s for s, n in zip(shown, counts, strict=True)]
            return f"{consumer} gets {' '.join(shown)}"
        case Taken(count):
            return f"taken {count}"
        case Rewind():
            return "rewind"
        case Activate(consumer, active):
            return f"{consumer} {'active' if active else 'passive'}"


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_exclusive(name: str) -> None:
    Script(ExclusiveDispatch(LIMITS)).run(EXCLUSIVE[name])


@pytest.mark.parametrize("name", FAILOVER)
def test_failover_of_a_partition(name: str) -> None:
    Script(FailoverDispatch(LIMITS, topic="t-partition-0", partition=0)).run(FAILOVER[name])


@pytest.mark.parametrize("name", SHARED)
def test_shared(name: str) -> None:
    Script(SharedDispatch(LIMITS)).run(SHARED[name])


def test_partitions_are_spread_over_the_consumers() -> None:
    active = []
    for partition in range(4):
        machine = FailoverDispatch(LIMITS, topic=f"t-partition-{partition}", partition=partition)
        for key in (1, 2, 3):
            machine.joined(key, f"c{key}")
        machine.tick(0)
        machine.tick(1000)
        active.append(machine.active)
    assert active == [1, 2, 3, 1]


def test_topics_that_are_no_partitions_are_spread_by_hash() -> None:
    active = set()
    for n in range(20):
        machine = FailoverDispatch(LIMITS, topic=f"persistent://public/default/{n}", partition=-1)
        for key in (1, 2, 3):
            machine.joined(key, f"c{key}")
        machine.tick(0)
        machine.tick(1000)
        active.add(machine.active)
    assert active == {1, 2, 3}


def test_murmur_hashes_as_pulsar_does() -> None:
    assert murmur3(b"key1") == 462881061
    assert murmur3(b"key2") == 1936800180
