"""A broker's decisions about its bundles: the left has the inputs, the right the effects."""

import pytest

from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import (
    Answered,
    CloseTopics,
    CreateRecord,
    DeleteRecord,
    DropTopics,
    Effect,
    GiveRecord,
    Join,
    OwnershipProtocol,
    ReadGuard,
    ReadRecord,
    RecordOwner,
    Released,
    SplitRecord,
    TakeRecord,
)
from daybook.wire.metadata.store import SessionState

JOIN = """
        connected           -> join
        joined              ->
"""

SCENARIOS = {
    "a bundle is ours when its record is": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        read a ours         ->
        acquire a           -> a is ours
    """,
    "nothing is acquired before the guard stands": """
        acquire a           -> a is unavailable
        connected           -> join
        acquire a           -> a is unavailable
        joined              ->
        acquire a           -> create a
    """,
    "two who ask share one request": JOIN
    + """
        acquire a           -> create a
        acquire a           ->
        created a           -> a is ours, read a
    """,
    "a record that exists is somebody else's only when it was read": JOIN
    + """
        acquire a           -> create a
        create a in doubt   -> read a
        read a others       -> a is others
        acquire a           -> create a
    """,
    "a lost answer is no refusal": JOIN
    + """
        acquire a           -> create a
        create a in doubt   -> read a
        read a ours         -> a is ours
    """,
    "a lost answer is no success either": JOIN
    + """
        acquire a           -> create a
        create a in doubt   -> read a
        read a nobody       -> create a
        create a in doubt   -> read a
        read a ours         -> a is ours
    """,
    "a request that was certainly not made is over": JOIN
    + """
        acquire a           -> create a
        create a failed     -> a is unavailable
        acquire a           -> create a
    """,
    "while suspended, what is owned is kept and nothing is taken": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        suspended           ->
        read a failed       ->
        acquire a           -> a is ours
        acquire b           -> b is unavailable
        release a           -> a is not released
        connected           -> read guard
        acquire b           -> b is unavailable
        guard stands        -> read a
        acquire b           -> create b
    """,
    "an answer that is lost in the suspension is asked for after it": JOIN
    + """
        acquire a           -> create a
        suspended           ->
        create a in doubt   -> a is unavailable
        acquire a           -> a is unavailable
        connected           -> read guard
        guard stands        -> read a
        acquire a           ->
        read a ours         -> a is ours
    """,
    "a lost session takes everything with it": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        acquire b           -> create b
        lost                -> drop a, b is unavailable
        acquire a           -> a is unavailable
        connected           -> join
        joined              ->
        acquire a           -> create a
    """,
    "answers of a lost session mean nothing": JOIN
    + """
        acquire a           -> create a
        lost                -> a is unavailable
        connected           -> join
        created a           ->
        joined              ->
        created a           ->
        acquire a           -> create a
    """,
    "who was removed by a peer drops everything and joins again": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        guard gone          -> drop a, join
        joined              ->
        acquire a           -> create a
    """,
    "who was removed while suspended finds out": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        suspended           ->
        connected           -> read guard
        guard gone          -> drop a, join
    """,
    "a record that somebody deleted is ours no more": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        touched a           -> read a
        read a nobody       -> drop a
    """,
    "an old answer about a record does not count": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        touched a           -> read a
        old read a nobody   ->
        read a ours         ->
    """,
    "hand-over closes the topics before the record goes": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        release a           -> close a
        acquire a           -> a is unavailable
        release a           ->
        topics of a closed  -> delete a
        deleted a           -> a is released
        acquire a           -> create a
    """,
    "a hand-over gives the record when the topics are closed": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        hand over a         -> close a
        topics of a closed  -> give a
        acquire a           -> a is unavailable
        deleted a           -> a is released
    """,
    "a record that the successor did not take is deleted": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        hand over a         -> close a
        topics of a closed  -> give a
        delete a in doubt   -> read a
        read a ours         -> delete a
        deleted a           -> a is released
    """,
    "a record that the successor took in silence is not deleted": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        hand over a         -> close a
        topics of a closed  -> give a
        delete a in doubt   -> read a
        read a others       -> a is released
    """,
    "what is taken is ours when the request says so": JOIN
    + """
        take a              -> take a
        acquire a           ->
        created a           -> a is ours, read a
        take a              -> a is ours
    """,
    "a taking in doubt is read": JOIN
    + """
        take a              -> take a
        create a in doubt   -> read a
        read a others       -> a is others
        take a              -> take a
        create a in doubt   -> read a
        read a ours         -> a is ours
    """,
    "the parts of a split bundle are ours, and are watched": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        split a             -> split a
        acquire a           -> a is ours
        release a           -> a is not released
        split a done b c    -> b is ours, read b, c is ours, read c, a is released
        acquire b           -> b is ours
        acquire a           -> create a
    """,
    "a bundle whose split failed stays ours, and is watched again": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        split a             -> split a
        split a failed      -> read a, a is not released
        read a ours         ->
        acquire a           -> a is ours
    """,
    "a split whose answer was lost shows in the record": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        split a             -> split a
        split a failed      -> read a, a is not released
        read a nobody       -> drop a
    """,
    "a split ends with the session": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        split a             -> split a
        lost                -> drop a, a is not released
        split a done b c    ->
    """,
    "only an owner that is in contact splits": JOIN
    + """
        split a             -> a is not released
        acquire a           -> create a
        created a           -> a is ours, read a
        suspended           ->
        split a             -> a is not released
    """,
    "a part that a lookup has found stays ours": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        split a             -> split a
        acquire b           -> create b
        create b in doubt   -> read b
        read b ours         -> b is ours
        split a done b c    -> c is ours, read c, a is released
    """,
    "a deletion in doubt is read again, and repeated": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        release a           -> close a
        topics of a closed  -> delete a
        delete a in doubt   -> read a
        read a ours         -> delete a
        delete a in doubt   -> read a
        read a others       -> a is released
    """,
    "hand-over waits for the store": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        release a           -> close a
        suspended           ->
        topics of a closed  ->
        connected           -> read guard
        guard stands        -> read a
        read a ours         -> delete a
        deleted a           -> a is released
    """,
    "what is being handed over is dropped with the session": JOIN
    + """
        acquire a           -> create a
        created a           -> a is ours, read a
        release a           -> close a
        lost                -> drop a, a is released
        topics of a closed  ->
    """,
    "to release what is not owned is done at once": JOIN
    + """
        release a           -> a is released
    """,
    "a guard that was written too late does not count": """
        connected           -> join
        lost                ->
        connected           -> join
        old joined          ->
        acquire a           -> a is unavailable
        joined              ->
        acquire a           -> create a
    """,
    "a session that is suspended before the guard stands": """
        connected           -> join
        suspended           ->
        joined              ->
        acquire a           -> a is unavailable
        connected           -> read guard
        guard stands        ->
        acquire a           -> create a
    """,
}


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_scenario(table: str) -> None:
    played = Played()
    assert [(line, played.step(line)) for line, _ in rows(table)] == rows(table)


@pytest.mark.parametrize("table", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_restored_machine_goes_on_alike(table: str) -> None:
    played = Played()
    for line, effects in rows(table):
        other = OwnershipProtocol()
        other.restore(played.protocol.snapshot())
        assert other.canonical() == played.protocol.canonical()
        played.protocol = other
        assert played.step(line) == effects


def test_topics_are_loaded_only_in_contact() -> None:
    played = Played()
    for line in ["connected", "joined", "acquire a", "created a"]:
        played.step(line)
    a = BundleName("a")
    assert played.protocol.may_load(a)
    played.step("suspended")
    assert played.protocol.owns(a)
    assert not played.protocol.may_load(a)
    played.step("connected")
    assert not played.protocol.may_load(a)
    played.step("guard stands")
    assert played.protocol.may_load(a)


class Played:
    """A machine, and its last requests, which the answers refer to."""

    def __init__(self) -> None:
        self.protocol = OwnershipProtocol()
        self.asks: dict[str, int] = {}
        self.older: dict[str, int] = {}
        self.term = 0

    def step(self, line: str) -> str:
        effects = self.effects(line)
        for effect in effects:
            match effect:
                case CreateRecord(b, ask) | ReadRecord(b, ask) | DeleteRecord(b, ask):
                    self.older[b], self.asks[b] = self.asks.get(b, -1), ask
                case GiveRecord(b, ask) | TakeRecord(b, ask) | SplitRecord(b, ask):
                    self.older[b], self.asks[b] = self.asks.get(b, -1), ask
                case CloseTopics(b, ask):
                    self.older[b], self.asks[b] = self.asks.get(b, -1), ask
                case Join(term):
                    self.term = term
                case _:
                    pass
        return ", ".join(map(show, effects))

    def effects(self, line: str) -> list[Effect]:
        protocol, words = self.protocol, line.split()
        if words == ["old", "joined"]:
            return protocol.joined(self.term - 1)
        if words[0] == "old":
            bundle = words[2]
            return protocol.record_read(
                BundleName(bundle), self.older[bundle], RecordOwner[words[3].upper()]
            )
        match words:
            case ["connected" | "suspended" | "lost" as state]:
                return protocol.session_changed(SessionState[state.upper()])
            case ["joined"]:
                return protocol.joined(self.term)
            case ["guard", seen]:
                return protocol.guard_seen(self.term, seen == "stands")
            case ["acquire", b]:
                return protocol.acquire(BundleName(b))
            case ["release", b]:
                return protocol.release(BundleName(b))
            case ["hand", "over", b]:
                return protocol.hand_over(BundleName(b))
            case ["take", b]:
                return protocol.take(BundleName(b))
            case ["split", b]:
                return protocol.split(BundleName(b))
            case ["split", b, "done", one, two]:
                parts = [BundleName(one), BundleName(two)]
                return protocol.split_done(BundleName(b), self.asks[b], parts)
            case ["split", b, "failed"]:
                return protocol.split_failed(BundleName(b), self.asks[b])
            case ["touched", b]:
                return protocol.record_touched(BundleName(b))
            case ["topics", "of", b, "closed"]:
                return protocol.topics_closed(BundleName(b), self.asks[b])
            case ["created", b]:
                return protocol.created(BundleName(b), self.asks[b])
            case ["create", b, "in", "doubt"]:
                return protocol.create_in_doubt(BundleName(b), self.asks[b])
            case ["create", b, "failed"]:
                return protocol.create_failed(BundleName(b), self.asks[b])
            case ["read", b, "failed"]:
                return protocol.read_failed(BundleName(b), self.asks[b])
            case ["read", b, owner]:
                return protocol.record_read(BundleName(b), self.asks[b], RecordOwner[owner.upper()])
            case ["deleted", b]:
                return protocol.deleted(BundleName(b), self.asks[b])
            case ["delete", b, "in", "doubt"]:
                return protocol.delete_in_doubt(BundleName(b), self.asks[b])
            case _:
                raise AssertionError(line)


def show(effect: Effect) -> str:
    match effect:
        case Join():
            return "join"
        case ReadGuard():
            return "read guard"
        case CreateRecord(b):
            return f"create {b}"
        case ReadRecord(b):
            return f"read {b}"
        case DeleteRecord(b):
            return f"delete {b}"
        case GiveRecord(b):
            return f"give {b}"
        case TakeRecord(b):
            return f"take {b}"
        case SplitRecord(b):
            return f"split {b}"
        case CloseTopics(b):
            return f"close {b}"
        case DropTopics(b):
            return f"drop {b}"
        case Answered(b, answer):
            return f"{b} is {answer.name.lower()}"
        case Released(b, done):
            return f"{b} is released" if done else f"{b} is not released"


def rows(table: str) -> list[tuple[str, str]]:
    lines = [line.partition("->") for line in table.strip().splitlines() if line.strip()]
    return [(left.strip(), right.strip()) for left, _, right in lines]
