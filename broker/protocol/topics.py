"""The topics of a broker: each is loaded once for all that want it, and ends in one of two ways.

    (absent) --get--> LOADING --loaded--> LOADED --unload--> UNLOADING --unloaded--> (absent)
       ^                 | load_failed, drop  | drop             | drop
       +-----------------+--------------------+------------------+

    unload     in order: clients are told, cursors are stored; then the topic may be loaded again
    rest       like `unload`, because nobody uses the topic.  It stays LOADED if somebody came
               before its close began (`kept`).  A caller that comes later waits for the end of the
               close, and then the topic is loaded again
    drop       at once, because another broker owns the topic now, or because its log has failed

If the log of a topic was fenced although this broker believed to own the topic, the topic is not
loaded again for a moment.  The moment is longer each time, because two brokers that both believe to
own a topic must not fence each other forever.  After a while without a fence, it is short again.

The number of a *load* is never used twice.  If a topic is dropped while it is being loaded, the
result of that load is discarded.  A caller that waits is a number (`waiter`) and is answered once.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias, assert_never

_FORGIVE_S = 30.0
_FENCED_MIN = 64
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class TopicState(Enum):
    LOADING = auto()
    LOADED = auto()
    UNLOADING = auto()


# -- effects


@dataclass(frozen=True, slots=True)
class Load:
    """Load the topic, and then call `loaded` or `load_failed`."""

    name: str
    load: int
    create: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the topic that this load has produced: it is no longer wanted."""

    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Close:
    """Close the topic in order, and then call `unloaded`."""

    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Drop the topic at once."""

    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Give:
    """Answer with the topic."""

    name: str
    load: int
    waiter: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with the error of the load."""

    name: str
    load: int
    waiter: int


@dataclass(frozen=True, slots=True)
class NotNow:
    """Answer that the topic is not available at this moment."""

    name: str
    waiter: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Answer to `unload`: the topic is no longer loaded."""

    waiter: int


Effect: TypeAlias = Load | Discard | Close | Abandon | Give | Fail | NotNow | Gone


@dataclass(slots=True)
class _Topic:
    state: TopicState
    load: int
    create: bool
    waiters: list[int] = field(default_factory=list[int])
    # Callers that came during the load, and want the topic created if there is none.
    creators: list[int] = field(default_factory=list[int])
    unload_waiters: list[int] = field(default_factory=list[int])
    resting: bool = False  # UNLOADING because nobody used it: callers wait, and load it again


@dataclass(slots=True)
class _Fenced:
    times: int
    until_s: float


class TopicsProtocol:
    """One instance per broker."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._fenced: dict[str, _Fenced] = {}
        self._fenced_max = _FENCED_MIN  # With so many, those that are long past are forgotten.
        self._loads = 0

    @property
    def names(self) -> list[str]:
        return list(self._topics)

    def state_of(self, name: str) -> TopicState | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.state

    def wants(self, name: str, load: int) -> bool:
        """Return True if the result of this load is still wanted."""
        topic = self._topics.get(name)
        return topic is not None and topic.load == load

    def rests(self, name: str) -> bool:
        """Return True if the topic is closed only because nobody uses it."""
        topic = self._topics.get(name)
        return topic is not None and topic.resting and not topic.unload_waiters

    # -- inputs

    def get(self, name: str, waiter: int, create: bool, now_s: float) -> list[Effect]:
        """Give the topic to a caller.  With `create`, it is created if there is none."""
        topic = self._topics.get(name)
        if topic is None:
            fenced = self._fenced.get(name)
            if fenced is not None and now_s < fenced.until_s:
                return [
                    NotNow(name, waiter, "its log was given up, or taken over by another broker")
                ]
            self._loads += 1
            topic = self._topics[name] = _Topic(TopicState.LOADING, self._loads, create, [waiter])
            return [Load(name, topic.load, create)]
        match topic.state:
            case TopicState.LOADING:
                (topic.creators if create else topic.waiters).append(waiter)
                return []
            case TopicState.LOADED:
                return [Give(name, topic.load, waiter)]
            case TopicState.UNLOADING if topic.resting and not topic.unload_waiters:
                (topic.creators if create else topic.waiters).append(waiter)
                return []
            case TopicState.UNLOADING:
                return [NotNow(name, waiter, "it is being unloaded")]
            case _:
                assert_never(topic.state)

    def loaded(self, name: str, load: int) -> list[Effect]:
        """Note that this load has produced the topic."""
        topic = self._topics.get(name)
        if topic is None or topic.load != load:
            return [Discard(name, load)]
        assert topic.state is TopicState.LOADING
        waiters, topic.waiters, topic.creators = [*topic.waiters, *topic.creators], [], []
        assert waiters, "the caller that began the load waits for it"
        gives: list[Effect] = [Give(name, load, waiter) for waiter in waiters]
        if topic.unload_waiters:
            # An unload came while the topic was loading.  Those that wanted it get it all the same.
            topic.state = TopicState.UNLOADING
            return [*gives, Close(name, load)]
        topic.state = TopicState.LOADED
        return gives

    def load_failed(
        self,
        name: str,
        load: int,
        fenced: bool = False,
        now_s: float = 0.0,
        spread: float = 1.0,
    ) -> list[Effect]:
        """Note that this load has failed; `fenced` and `spread` mean the same as in `drop`."""
        topic = self._topics.get(name)
        if topic is None or topic.load != load:
            return []
        assert topic.state is TopicState.LOADING
        if fenced:
            self._note_fence(name, now_s, spread)
        if topic.creators and not topic.create and not topic.unload_waiters and not fenced:
            # The caller that began the load did not want the topic created, but these callers do.
            self._loads += 1
            failed, topic.waiters, topic.creators = topic.waiters, topic.creators, []
            topic.load, topic.create = self._loads, True
            fails: list[Effect] = [Fail(name, load, waiter) for waiter in failed]
            return [*fails, Load(name, topic.load, create=True)]
        del self._topics[name]
        waiters = [*topic.waiters, *topic.creators]
        return [
            *(Fail(name, load, waiter) for waiter in waiters),
            *(Gone(waiter) for waiter in topic.unload_waiters),
        ]

    def unload(self, name: str, waiter: int) -> list[Effect]:
        """Close the topic in order, and answer the caller when it is no longer loaded."""
        topic = self._topics.get(name)
        if topic is None:
            return [Gone(waiter)]
        topic.unload_waiters.append(waiter)
        if topic.state is TopicState.LOADED:
            topic.state = TopicState.UNLOADING
            return [Close(name, topic.load)]
        # The topic may be closed because it rests.  It has to leave this broker now, so those who
        # wait for it look it up again.
        waiting = [*topic.waiters, *topic.creators] if topic.resting else []
        if waiting:
            topic.waiters, topic.creators = [], []
        return [NotNow(name, each, "it is being unloaded") for each in waiting]

    def rest(self, name: str) -> list[Effect]:
        """Close a topic that nobody uses.  Nothing happens if it is not loaded."""
        topic = self._topics.get(name)
        if topic is None or topic.state is not TopicState.LOADED:
            return []
        topic.state, topic.resting = TopicState.UNLOADING, True
        return [Close(name, topic.load)]

    def kept(self, name: str, load: int) -> list[Effect]:
        """Note that somebody uses a topic that was to rest, and that its close has not begun."""
        topic = self._topics.get(name)
        if topic is None or topic.load != load:
            return []
        assert topic.resting
        topic.resting = False
        if topic.unload_waiters:  # It has to be unloaded all the same.
            return [Close(name, load)]
        topic.state = TopicState.LOADED
        waiters, topic.waiters, topic.creators = [*topic.waiters, *topic.creators], [], []
        return [Give(name, load, waiter) for waiter in waiters]

    def unloaded(self, name: str, load: int) -> list[Effect]:
        """Note that the topic of this load is closed."""
        topic = self._topics.get(name)
        if topic is None or topic.load != load:
            return []
        gone: list[Effect] = [Gone(waiter) for waiter in topic.unload_waiters]
        if topic.waiters or topic.creators:
            # Somebody came while the topic was closed, because nobody had used it.
            assert topic.resting
            assert not gone
            self._loads += 1
            create = not topic.waiters
            waiters = topic.creators if create else topic.waiters
            creators = [] if create else topic.creators
            again = _Topic(TopicState.LOADING, self._loads, create, waiters, creators)
            self._topics[name] = again
            return [Load(name, again.load, create)]
        del self._topics[name]
        return gone

    def drop(
        self, name: str, fenced: bool = False, now_s: float = 0.0, spread: float = 1.0
    ) -> list[Effect]:
        """Drop the topic at once.

        `fenced` tells that another broker has taken its log.  The back-off is multiplied by
        `spread`.
        """
        if fenced:
            self._note_fence(name, now_s, spread)
        topic = self._topics.pop(name, None)
        if topic is None:
            return []
        effects: list[Effect] = [
            NotNow(name, waiter, "it is no longer served here")
            for waiter in [*topic.waiters, *topic.creators]
        ]
        if topic.state is not TopicState.LOADING:  # A topic that is loading is discarded later.
            effects.append(Abandon(name, topic.load))
        return [*effects, *(Gone(waiter) for waiter in topic.unload_waiters)]

    def _note_fence(self, name: str, now_s: float, spread: float) -> None:
        # Looking at all of them each time would cost a step for each pair of topics.
        if len(self._fenced) >= self._fenced_max:
            self._fenced = {n: f for n, f in self._fenced.items() if _counts(f, now_s)}
            self._fenced_max = max(_FENCED_MIN, 2 * len(self._fenced))
        last = self._fenced.get(name)
        times = last.times + 1 if last is not None and _counts(last, now_s) else 1
        backoff_s = _BACKOFF_S[min(times, len(_BACKOFF_S)) - 1]
        self._fenced[name] = _Fenced(times, now_s + backoff_s * spread)


def _counts(fenced: _Fenced, now_s: float) -> bool:
    """Return True unless the fence is long past."""
    return now_s < fenced.until_s + _FORGIVE_S
