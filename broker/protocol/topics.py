"""The topics of a broker: each is loaded once for all who ask, and let go in one of three ways.

    (absent) --Get--> LOADING --Loaded--> LOADED --Unload--> UNLOADING --Unloaded--> (absent)
       ^                 | LoadFailed, Drop   | Drop             | Drop
       +-----------------+--------------------+------------------+

    Unload     in good order: clients are told, cursors are stored; then it may be loaded again
    Drop       at once, because it is somebody else's now, or its log has failed

A topic whose log was fenced while we believed to own it is not loaded again for a moment, longer
each time: two brokers that both believe so must not fence each other for ever.  A moment without a
fence forgets that.

A *load* is never used twice: what comes of a load that was dropped in the meantime is discarded.
Whoever asks is a number (`asker`), which is answered once.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias, assert_never

_FORGIVE_S = 30.0
_BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class State(Enum):
    LOADING = auto()
    LOADED = auto()
    UNLOADING = auto()


# -- what happens


@dataclass(frozen=True, slots=True)
class Get:
    """Somebody wants a topic; `create` it if there is none."""

    name: str
    asker: int
    create: bool
    now_s: float


@dataclass(frozen=True, slots=True)
class Loaded:
    name: str
    load: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    name: str
    load: int
    fenced: bool = False
    now_s: float = 0.0
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class Unload:
    name: str
    asker: int


@dataclass(frozen=True, slots=True)
class Unloaded:
    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Let go at once.  `fenced`: somebody else has taken its log; `spread` the back-off by this."""

    name: str
    fenced: bool = False
    now_s: float = 0.0
    spread: float = 1.0


Event: TypeAlias = Get | Loaded | LoadFailed | Unload | Unloaded | Drop


# -- what is to be done


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    load: int
    create: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """What this load brings is not wanted any more."""

    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Close:
    """In good order; then tell."""

    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """At once."""

    name: str
    load: int


@dataclass(frozen=True, slots=True)
class Give:
    """Answer with the topic."""

    name: str
    load: int
    asker: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with what the load failed with."""

    name: str
    load: int
    asker: int


@dataclass(frozen=True, slots=True)
class NotNow:
    """Answer that the topic is not to be had at this moment."""

    name: str
    asker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Answer to `Unload`: it is not loaded any more."""

    asker: int


Effect: TypeAlias = Load | Discard | Close | Abandon | Give | Fail | NotNow | Gone


@dataclass(slots=True)
class _Topic:
    state: State
    load: int
    create: bool
    askers: list[int] = field(default_factory=list[int])
    creators: list[int] = field(default_factory=list[int])  # who asked to have it created
    unload_askers: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class _Fenced:
    times: int
    until_s: float


class TopicsProtocol:
    """See the module."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._fenced: dict[str, _Fenced] = {}
        self._loads = 0

    @property
    def names(self) -> list[str]:
        return list(self._topics)

    def state_of(self, name: str) -> State | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.state

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Get():
                return self._get(event)
            case Loaded(name, load):
                return self._loaded(name, load)
            case LoadFailed():
                return self._load_failed(event)
            case Unload(name, asker):
                return self._unload(name, asker)
            case Unloaded(name, load):
                topic = self._topics.get(name)
                if topic is None or topic.load != load:
                    return []
                del self._topics[name]
                return [Gone(asker) for asker in topic.unload_askers]
            case Drop():
                return self._drop(event)
            case _:
                assert_never(event)

    def _get(self, event: Get) -> list[Effect]:
        name, asker = event.name, event.asker
        topic = self._topics.get(name)
        if topic is None:
            fenced = self._fenced.get(name)
            if fenced is not None and event.now_s < fenced.until_s:
                return [
                    NotNow(name, asker, "its log was given up, or taken over by another broker")
                ]
            self._loads += 1
            topic = self._topics[name] = _Topic(State.LOADING, self._loads, event.create, [asker])
            return [Load(name, topic.load, event.create)]
        match topic.state:
            case State.LOADING:
                (topic.creators if event.create else topic.askers).append(asker)
                return []
            case State.LOADED:
                return [Give(name, topic.load, asker)]
            case State.UNLOADING:
                return [NotNow(name, asker, "it is being unloaded")]
            case _:
                assert_never(topic.state)

    def _loaded(self, name: str, load: int) -> list[Effect]:
        topic = self._topics.get(name)
        if topic is None or topic.load != load:
            return [Discard(name, load)]
        askers, topic.askers, topic.creators = [*topic.askers, *topic.creators], [], []
        gives: list[Effect] = [Give(name, load, asker) for asker in askers]
        if topic.unload_askers:
            topic.state = State.UNLOADING
            return [*gives, Close(name, load)]
        topic.state = State.LOADED
        return gives

    def _load_failed(self, event: LoadFailed) -> list[Effect]:
        name, load, fenced = event.name, event.load, event.fenced
        topic = self._topics.get(name)
        if topic is None or topic.load != load:
            return []
        if fenced:
            self._note_fence(name, event.now_s, event.spread)
        if topic.creators and not topic.create and not topic.unload_askers and not fenced:
            # Whoever began it did not want it created; these do.
            self._loads += 1
            failed, topic.askers, topic.creators = topic.askers, topic.creators, []
            topic.load, topic.create = self._loads, True
            fails: list[Effect] = [Fail(name, load, asker) for asker in failed]
            return [*fails, Load(name, topic.load, create=True)]
        del self._topics[name]
        askers = [*topic.askers, *topic.creators]
        return [
            *(Fail(name, load, asker) for asker in askers),
            *(Gone(asker) for asker in topic.unload_askers),
        ]

    def _unload(self, name: str, asker: int) -> list[Effect]:
        topic = self._topics.get(name)
        if topic is None:
            return [Gone(asker)]
        topic.unload_askers.append(asker)
        if topic.state is State.LOADED:
            topic.state = State.UNLOADING
            return [Close(name, topic.load)]
        return []

    def _drop(self, event: Drop) -> list[Effect]:
        name = event.name
        if event.fenced:
            self._note_fence(name, event.now_s, event.spread)
        topic = self._topics.pop(name, None)
        if topic is None:
            return []
        effects: list[Effect] = [
            NotNow(name, asker, "it is not served here any more")
            for asker in [*topic.askers, *topic.creators]
        ]
        if topic.state is not State.LOADING:  # else `Discard`, when it is there
            effects.append(Abandon(name, topic.load))
        return [*effects, *(Gone(asker) for asker in topic.unload_askers)]

    def _note_fence(self, name: str, now_s: float, spread: float) -> None:
        self._fenced = {n: f for n, f in self._fenced.items() if now_s < f.until_s + _FORGIVE_S}
        times = self._fenced[name].times + 1 if name in self._fenced else 1
        backoff_s = _BACKOFF_S[min(times, len(_BACKOFF_S)) - 1]
        self._fenced[name] = _Fenced(times, now_s + backoff_s * spread)
