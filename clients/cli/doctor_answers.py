"""The answers of a cluster to the questions of `daybook doctor`.

A question without an answer is an `Unknown` with the reason, never a missing value: a check must
not take silence for good news.  All fields begin as unknown, so a question that the time limit cuts
off needs no further care.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Stats: TypeAlias = Mapping[str, Any]  # the statistics of one topic, as a broker sends them


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why there is no answer.

    `asked` is False if the server is not to blame: the question never reached it.  `away` is True
    if it is known that no such server runs at the address.
    """

    why: str
    asked: bool = True
    away: bool = False


Answer: TypeAlias = T | Unknown
NO_ZOOKEEPER_REMEDY = (
    "Start ZooKeeper (`daybook local start zookeeper`), or say where it is with --zookeeper or"
    " DAYBOOK_ZOOKEEPER."
)
NOT_ASKED = Unknown("the time was up before the question was answered", asked=False)


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of a broker, what waits for it, and the sessions that it has lost."""

    loading: int = 0  # topics
    waiting: int = 0  # topics that wait until others are loaded
    oldest_wait_s: float = 0.0
    oldest_load_s: float = 0.0  # since the oldest load that does not wait began
    topic: str = ""
    step: str = ""
    requests_waiting: int = 0  # those of clients
    sessions_lost: int = 0
    lost_ago_s: float | None = None


@dataclass(slots=True)
class BrokerAnswers:
    """The answers of one broker, which is named HOST:PORT with its HTTP port."""

    ready: Answer[str] = NOT_ASKED  # empty, or why the broker is not ready
    version: Answer[str] = NOT_ASKED
    loaded: Answer[Mapping[str, Stats]] = NOT_ASKED  # the statistics of its loaded topics
    # The bookies that the broker does not use because they failed, and why.
    quarantine: Answer[Mapping[str, str]] = NOT_ASKED
    # The files of keys and of revoked tokens whose present content it cannot use, and why.
    token_files: Answer[Mapping[str, str]] = NOT_ASKED
    activity: Answer[Activity] = NOT_ASKED
    url: str = ""  # where it was asked

    @property
    def answers(self) -> bool:
        return not isinstance(self.ready, Unknown)


@dataclass(frozen=True, slots=True)
class BookieAnswers:
    """One bookie.  `state` is writable, readonly or away, as registered."""

    bookie: str
    state: str
    order: str | None = None  # the order of an operator, such as read-only or leave
    silent: str = ""  # why the bookie did not answer on its port; empty if it did
    unhealthy: str = ""  # the complaint of its /healthz
    free_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """The announcement of a running Daybook broker in the metadata store."""

    broker: str
    formats: frozenset[str]


@dataclass(frozen=True, slots=True)
class RecoveryAnswers:
    """The state of auto-recovery.  `lost` counts the marked ledgers for each bookie they name.

    Only so many marks are `read`; with more, the counts for bookies are lower bounds.
    """

    paused: bool
    marked: int
    lost: Mapping[str, int]
    workers: int
    alarms: Sequence[str]
    read: int | None = None  # None: all


@dataclass(frozen=True, slots=True)
class Sink:
    """`since_ms` is when the sink got its state, by the clock of the metadata store."""

    name: str
    state: str
    reasons: Sequence[str] = ()
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Namespace:
    """The stored topics of a namespace; its retention in minutes and megabytes, -1: endless."""

    topics: frozenset[str]
    minutes: int
    megabytes: int


@dataclass(slots=True)
class ClusterAnswers:
    """Everything that the checks see."""

    now_ms: int
    stale_days: float
    all_topics: bool = False
    named: Sequence[str] = ()  # the addresses in the admin URL that the user gave
    # What helps, by the reason for which something is unknown.
    remedies: dict[str, str] = field(default_factory=dict[str, str])
    registered: Answer[Sequence[str]] = NOT_ASKED
    brokers: dict[str, BrokerAnswers] = field(default_factory=dict[str, BrokerAnswers])
    quorums: Answer[tuple[int, int] | None] = NOT_ASKED  # write and ack; None: by the bookies
    guards: Answer[Sequence[Guard]] = NOT_ASKED
    store: Answer[str] = NOT_ASKED  # empty, or what is wrong with the metadata store
    bookies: Answer[Sequence[BookieAnswers]] = NOT_ASKED
    recovery: Answer[RecoveryAnswers] = NOT_ASKED
    sinks: Answer[Sequence[Sink]] = NOT_ASKED
    namespaces: Answer[Mapping[str, Answer[Namespace]]] = NOT_ASKED
    # Statistics that were asked topic by topic: they are newer and have the age of backlogs.
    asked: dict[str, Answer[Stats]] = field(default_factory=dict[str, Answer[Stats]])

    @property
    def topics(self) -> dict[str, Stats]:
        """The statistics of all topics that were looked at, by full name."""
        found: dict[str, Stats] = {}
        for broker in self.brokers.values():
            if not isinstance(broker.loaded, Unknown):
                found |= broker.loaded
        return found | {k: v for k, v in self.asked.items() if not isinstance(v, Unknown)}

    @property
    def unseen_loaded(self) -> list[str]:
        """Why the loaded topics of some brokers are not known; empty if all are."""
        if isinstance(self.registered, Unknown):
            return [f"the brokers are not known: {self.registered.why}"]
        silent = [
            f"{name}: {broker.loaded.why}"
            for name, broker in sorted(self.brokers.items())
            if name in self.registered and isinstance(broker.loaded, Unknown)
        ]
        silent += [f"{name} was not asked" for name in self.registered if name not in self.brokers]
        return silent

    @property
    def nothing_known(self) -> bool:
        """True if neither a broker nor the metadata store has answered anything."""
        answered = any(broker.answers for broker in self.brokers.values())
        return not answered and isinstance(self.store, Unknown)


def needs_age(stats: Stats) -> list[str]:
    """Return the subscriptions without consumers that are behind, and do not say since when.

    A broker reads the oldest message only if somebody asks for the statistics of that topic.
    """
    subscriptions: Mapping[str, Stats] = stats.get("subscriptions", {})
    return [
        name
        for name, each in sorted(subscriptions.items())
        if each.get("durable", True)
        and not each.get("consumers")
        and each.get("msgBacklog", 0) > 0
        and not each.get("earliestMsgPublishTimeInBacklog")
    ]
