"""The watchers of one client hear of every change, in any order of events."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daybook.broker.protocol import topic_watchers
from daybook.broker.protocol.topic_watchers import (
    Confirm,
    Follow,
    Refuse,
    Succeed,
    TopicList,
    TopicWatchersProtocol,
    Unfollow,
    Update,
    topics_hash,
)
from daybook.wire.proto import pulsar_pb2 as pb

A, B = "persistent://public/default/a", "persistent://public/default/b"


def listing(*names: str) -> TopicList:
    return TopicList(frozenset(names))


def opened(machine: TopicWatchersProtocol, *names: str, hash_known: str = "") -> Succeed:
    (follow,) = machine.open(1, 10, hash_known)
    assert isinstance(follow, Follow)
    (success,) = machine.listed(1, follow.attempt, listing(*names))
    assert isinstance(success, Succeed)
    return success


def test_the_hash_is_that_of_pulsar() -> None:
    assert topics_hash([B, A]) == "c7559e98"
    assert topics_hash([]) == "00000000"


def test_a_watcher_is_told_the_list_and_then_what_changes() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    assert opened(machine, A) == Succeed(10, 1, [A], topics_hash([A]))
    assert machine.next_update() is None
    machine.listed(1, 1, listing(B))
    assert machine.next_update() == Update(1, [B], [A], topics_hash([B]))
    assert not machine.stale


def test_a_client_that_knows_the_list_is_not_told_it_again() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    assert opened(machine, A, hash_known=topics_hash([A])).topics == []
    machine.listed(1, 1, listing(A, B))
    assert machine.next_update() == Update(1, [B], [], topics_hash([A, B]))


def test_changes_that_are_undone_before_they_are_told_are_not_told() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    opened(machine, A)
    machine.listed(1, 1, listing(A, B))
    machine.listed(1, 1, listing(A))
    assert machine.next_update() is None


def test_watchers_take_turns() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    for watcher in (1, 2):
        machine.open(watcher, 0, "")
        machine.listed(watcher, watcher, listing())
        machine.listed(watcher, watcher, listing(A))
    told = [machine.next_update(), machine.next_update()]
    assert [update and update.watcher_id for update in told] == [1, 2]


def test_what_is_too_much_for_one_frame_is_told_in_parts() -> None:
    names = [f"persistent://public/default/{'x' * 900}{number}" for number in range(1_000)]
    machine = TopicWatchersProtocol(watchers_max=9)
    success = opened(machine, *names)
    assert 0 < len(success.topics) < 500
    known = set(success.topics)
    assert success.hash == topics_hash(known)
    while (update := machine.next_update()) is not None:
        assert sum(map(len, update.new)) <= topic_watchers.PART_BYTES_MAX
        known |= set(update.new)
        assert update.hash == topics_hash(known)
    assert known == set(names)
    machine.listed(1, 1, listing())
    parts = 0
    while (update := machine.next_update()) is not None:
        known -= set(update.deleted)
        parts += 1
    assert not known
    assert parts > 2


def test_a_second_opening_of_an_open_watcher_is_answered_with_the_list() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    opened(machine, A)
    machine.listed(1, 1, listing(A, B))
    assert machine.open(1, 11, "") == [Succeed(11, 1, [A, B], topics_hash([A, B]))]
    assert not machine.stale


def test_a_second_opening_while_the_first_is_under_way_is_refused() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    machine.open(1, 10, "")
    (refused,) = machine.open(1, 11, "")
    assert isinstance(refused, Refuse)
    assert (refused.request_id, refused.code) == (11, pb.ServiceNotReady)


def test_a_connection_has_only_so_many_watchers() -> None:
    machine = TopicWatchersProtocol(watchers_max=2)
    machine.open(1, 0, "")
    machine.open(2, 0, "")
    (refused,) = machine.open(3, 12, "")
    assert isinstance(refused, Refuse)
    assert (refused.request_id, refused.code) == (12, pb.NotAllowedError)
    machine.close(1, 13)
    assert isinstance(machine.open(3, 14, "")[0], Follow)


def test_a_watcher_that_is_closed_is_told_nothing_more() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    opened(machine, A)
    machine.listed(1, 1, listing(B))
    assert machine.close(1, 20) == [Unfollow(1, 1), Confirm(20)]
    assert machine.next_update() is None
    assert machine.listed(1, 1, listing(A, B)) == []


def test_an_opening_that_is_closed_is_answered() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    machine.open(1, 10, "")
    unfollow, refused, confirmed = machine.close(1, 11)
    assert isinstance(refused, Refuse)
    assert (unfollow, refused.request_id, confirmed) == (Unfollow(1, 1), 10, Confirm(11))


def test_the_list_of_an_earlier_attempt_does_not_open_the_watcher() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    machine.open(1, 10, "")
    machine.close(1, 11)
    machine.open(1, 12, "")
    assert machine.listed(1, 1, listing(A)) == []
    assert machine.open_failed(1, 1, pb.ServiceNotReady, "late") == []
    assert machine.listed(1, 2, listing(B)) == [Succeed(12, 1, [B], topics_hash([B]))]


def test_a_refused_opening_leaves_nothing() -> None:
    machine = TopicWatchersProtocol(watchers_max=9)
    machine.open(1, 10, "")
    assert machine.open_failed(1, 1, 6, "away") == [Refuse(10, 6, "away")]
    assert not len(machine)


NAMES = [f"persistent://public/default/{'n' * 60_000}{number}" for number in range(12)]
SETS = st.frozensets(st.integers(0, len(NAMES) - 1))


class Watching(RuleBasedStateMachine):
    """A client's view of its watchers, from nothing but what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = TopicWatchersProtocol(watchers_max=3)
        self.store: frozenset[str] = frozenset()
        self.opening: dict[int, int] = {}  # the attempt, by watcher
        self.open: dict[int, int] = {}
        self.known: dict[int, set[str]] = {}
        self.requests = 0

    def perform(self, effects: list[topic_watchers.Effect]) -> None:
        for effect in effects:
            match effect:
                case Follow(watcher, attempt):
                    self.opening[watcher] = attempt
                case Unfollow(watcher, attempt):
                    gone = self.opening.pop(watcher, None) or self.open.pop(watcher)
                    assert gone == attempt
                case Succeed(_, watcher, topics, hash_):
                    if watcher in self.opening:
                        self.open[watcher] = self.opening.pop(watcher)
                    if topics or hash_ != topics_hash(self.known.get(watcher, ())):
                        self.known[watcher] = set(topics)
                    self.check_hash(watcher, hash_)
                case _:
                    pass

    def check_hash(self, watcher: int, hash_: str) -> None:
        assert topics_hash(self.known.setdefault(watcher, set())) == hash_

    @rule(watcher=st.integers(1, 4), names_hash=st.booleans())
    def opens(self, watcher: int, names_hash: bool) -> None:
        self.requests += 1
        if watcher not in self.open:
            known = topics_hash(self.known.get(watcher, ())) if names_hash else ""
            self.perform(self.machine.open(watcher, self.requests, known))

    @precondition(lambda self: self.opening)
    @rule(data=st.data())
    def is_listed(self, data: st.DataObject) -> None:
        watcher = data.draw(st.sampled_from(sorted(self.opening)))
        self.perform(self.machine.listed(watcher, self.opening[watcher], TopicList(self.store)))

    @rule(present=SETS)
    def changes(self, present: frozenset[int]) -> None:
        self.store = frozenset(NAMES[index] for index in present)
        latest = TopicList(self.store)
        for watcher, attempt in self.open.items():
            self.perform(self.machine.listed(watcher, attempt, latest))

    @rule()
    def takes_one(self) -> None:
        update = self.machine.next_update()
        if update is not None:
            known = self.known[update.watcher_id]
            assert set(update.deleted) <= known
            assert not known & set(update.new)
            assert update.new or update.deleted
            self.known[update.watcher_id] = (known - set(update.deleted)) | set(update.new)
            self.check_hash(update.watcher_id, update.hash)

    @rule(watcher=st.integers(1, 4))
    def closes(self, watcher: int) -> None:
        self.perform(self.machine.close(watcher, 0))
        assert watcher not in self.open

    @invariant()
    def everything_is_told_in_the_end(self) -> None:
        if not self.machine.stale:
            assert all(self.known[watcher] == self.store for watcher in self.open)

    def teardown(self) -> None:
        while self.machine.stale:
            self.takes_one()
        self.everything_is_told_in_the_end()


TestWatching = Watching.TestCase
TestWatching.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
