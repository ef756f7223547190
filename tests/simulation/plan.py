"""The plan of a run, as data: it is drawn first and carried out second.

So a plan can be printed, shrunk, and written down as a scenario.

    Plan     the seed of everything that is drawn on the way, the shape of the cluster,
    work     the actions of clients and administrators,
    faults   the faults, and when they strike (`acts`)
"""

from dataclasses import dataclass, field, fields
from typing import TypeAlias

from tests.simulation.acts import Act, At, On
from tests.simulation.settings import Limits, Settings


@dataclass(frozen=True, slots=True)
class Shape:
    """The hosts.  Names: bookie-1.., broker-1.., client-1.."""

    bookies: int = 3
    brokers: int = 2
    clients: int = 1
    settings: Settings = field(default_factory=Settings)

    def bookie_names(self) -> list[str]:
        return [f"bookie-{i + 1}" for i in range(self.bookies)]

    def broker_names(self) -> list[str]:
        return [f"broker-{i + 1}" for i in range(self.brokers)]

    def client_names(self) -> list[str]:
        return [f"client-{i + 1}" for i in range(self.clients)]


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    partitions: int = 0  # 0: the topic is not partitioned


# -- work


@dataclass(frozen=True, slots=True)
class Produce:
    """Send messages to a topic, one every `pace_s` on average, in bursts."""

    name: str
    host: str
    topic: str
    messages: int
    pace_s: float = 0.05
    burst: int = 5
    batching: bool = True
    payload_bytes: int = 20
    compression: str = "none"
    send_timeout_s: float | None = None
    reopen: float = 0.0  # probability, after a burst
    wait: bool = False  # for each receipt, before the next message
    named: bool = False  # all its producers have the same name and continue its sequence ids
    give_up: float = 0.0  # share of opens that are cancelled, before the answer or after it
    key_bytes: int = 0  # added to each key
    property_bytes: int = 0  # added to the properties
    tombstones: float = 0.0  # share of messages
    delay_s: float = 0.0  # a shared subscription delivers the message so much later, at most


@dataclass(frozen=True, slots=True)
class Consume:
    """Consume from a subscription, and acknowledge, refuse or forget the messages."""

    name: str
    host: str
    topic: str
    subscription: str
    type: str = "exclusive"
    start: str = "earliest"
    receipts: bool = True
    cumulative: float = 0.0  # share of acknowledgements that cover all messages up to one
    linger_s: float = 0.05  # mean time before a message is acknowledged
    nack: float = 0.0  # share of messages
    forget: float = 0.0  # share of messages: neither acknowledged nor refused
    leave: float = 0.0  # probability after each batch: close and reopen
    abandon: float = 0.0  # the same without closing
    seek: float = 0.0
    unsubscribe: float = 0.0
    queue: int = 100
    give_up: float = 0.0  # share of opens that are cancelled
    # Share of acknowledgements without a receipt after which the client waits until they are
    # durable.
    flush: float = 0.0
    receivers: int = 1  # tasks that receive; one of them stops when the storm is over
    away_s: float = 0.0  # the longest time between leaving and coming back


@dataclass(frozen=True, slots=True)
class Follow:
    """Read and tail the topic from the earliest message, an offset or a time."""

    name: str
    host: str
    topic: str
    start: str = "earliest"  # earliest; offset and time are drawn
    again: float = 0.0  # probability after each batch: leave, and start another reader
    give_up: float = 0.0  # share of opens that are cancelled


@dataclass(frozen=True, slots=True)
class Latest:
    """Read the latest message of each key, from the earliest on; keep a table view; or consume."""

    name: str
    host: str
    topic: str
    view: bool = False
    again: float = 0.0  # probability after each batch, or half second: leave, and start another
    subscription: str = ""  # The consumer of it reads the latest messages and acknowledges them.


@dataclass(frozen=True, slots=True)
class Spoil:
    """Send entries that nobody can read: encrypted, or damaged before they were sent."""

    name: str
    host: str
    topic: str
    how: str  # encrypted, damaged
    entries: int = 3
    batch: int = 1  # messages in each entry
    pace_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Administer:
    """One action of an administrator, from a client's host; see `workloads.administer`."""

    name: str
    host: str
    act: str
    topic: str
    at_s: float
    subscription: str = ""
    http: bool = False  # use REST where it has the operation


@dataclass(frozen=True, slots=True)
class Restrict:
    """Set a policy of a topic for a while; see `workloads.restrict`."""

    name: str
    host: str
    topic: str
    how: str  # one of `restrict.POLICIES`, or expire
    limit: int  # seconds, bytes, or messages or subscribes a second
    at_s: float
    for_s: float = 1000.0  # at most until the storm is over
    subscription: str = ""  # for `expire`


@dataclass(frozen=True, slots=True)
class Carry:
    """Bring messages through a feature, on topics of its own; see `workloads.routes`."""

    name: str
    host: str
    how: str  # one of `routes.HOWS`
    messages: int = 10
    pace_s: float = 0.1
    payload_bytes: int = 20
    again: float = 0.0  # probability after each message, or batch: leave, and start again
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ManyTopics:
    """Use many topics that only this client knows, in rounds; see `workloads.many_topics`."""

    name: str
    host: str
    topics: int = 40
    wave: int = 0  # so many at a time; 0: all at once
    rounds: int = 3
    messages: int = 2  # to each topic, in each round
    pace_s: float = 1.0  # between the rounds
    payload_bytes: int = 20
    keep: bool = True  # producers stay open between the rounds
    moved: float = 0.0  # share of topics with a subscription that each round moves on
    unused: float = 0.0  # share of topics that are left alone after the first round


@dataclass(frozen=True, slots=True)
class WriteLedgers:
    """Write ledgers without a broker, one after the other."""

    name: str
    host: str
    quorums: tuple[int, int, int]
    # Advanced: the caller gives the ids; deferred: a force makes entries durable.
    manner: str = "plain"
    ledgers: int = 1
    entries: int = 20
    burst: int = 5
    pace_s: float = 0.1
    payload_bytes: int = 20
    flush: float = 0.3  # probability after a burst
    abandon: float = 0.3  # share of ledgers that are left open in the end


@dataclass(frozen=True, slots=True)
class WatchLedgers:
    """Tail the ledgers of other clients while they grow, or take them over and read them."""

    name: str
    host: str
    how: str  # follow, recover
    pace_s: float = 1.0


LedgerWork: TypeAlias = WriteLedgers | WatchLedgers
TopicWork: TypeAlias = Produce | Consume | Follow | Latest | Spoil | Administer | Restrict
Work: TypeAlias = TopicWork | Carry | ManyTopics | LedgerWork


# -- faults


@dataclass(frozen=True, slots=True)
class Mishap:
    """One fault of a plan."""

    name: str
    when: At | On
    act: Act


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int | str
    shape: Shape
    topics: tuple[Topic, ...]
    work: tuple[Work, ...]
    faults: tuple[Mishap, ...]
    storm_s: float = 20.0  # everything is healed after this time
    power_cycle: bool = True  # all bookies lose their power before the audit


def describe(plan: Plan) -> list[str]:
    """Format the plan for people, one line per part; defaults are left out."""
    lines = [f"seed {plan.seed}, faults for {plan.storm_s:g} s", f"shape   {_facts(plan.shape)}"]
    lines += [f"topic   {topic.name}, partitions: {topic.partitions}" for topic in plan.topics]
    lines += [f"work    {describe_part(work)}" for work in plan.work]
    for fault in plan.faults:
        match fault.when:
            case At(seconds):
                when = f"at {seconds:.3f} s"
            case On(moment, nth, after_s):
                when = f"on {moment} number {nth}" + (f" + {after_s:.3f} s" if after_s else "")
        lines.append(f"fault   {fault.name} {when}: {describe_part(fault.act)}")
    return lines


def describe_part(part: Work | Act) -> str:
    return f"{type(part).__name__} {_facts(part)}"


def _facts(part: Work | Act | Shape | Settings | Limits) -> str:
    shown: list[str] = []
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, Settings | Limits):
            shown.append(_facts(value))
        elif value != each.default:
            text = f"{value:.3f}" if isinstance(value, float) else value
            shown.append(f"{each.name}={text}")
    return " ".join(shown)
