"""What happens in a run, as data: drawn first, carried out second.

So it can be printed, shrunk, and written down as a scenario.

    Plan     the seed of everything that is drawn on the way, the shape of the cluster,
    work     what clients and administrators do,
    faults   what goes wrong, when (`acts`)
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
    partitions: int = 0  # 0: it has none


# -- work


@dataclass(frozen=True, slots=True)
class Produce:
    """Messages to a topic, one every `pace_s` on average, in bursts."""

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
    reopen: float = 0.0  # how often, after a burst
    wait: bool = False  # for each receipt, before the next message
    named: bool = False  # each producer of it has the same name, and goes on with its sequence ids
    give_up: float = 0.0  # how often an open is cancelled, before it is answered or after
    key_bytes: int = 0  # beside what a key has anyhow
    property_bytes: int = 0  # likewise
    delay_s: float = 0.0  # a shared subscription delivers so much later, at most


@dataclass(frozen=True, slots=True)
class Consume:
    """A consumer of a subscription, and what it does with messages."""

    name: str
    host: str
    topic: str
    subscription: str
    type: str = "exclusive"
    start: str = "earliest"
    receipts: bool = True
    cumulative: float = 0.0  # how often an acknowledgement is of everything up to a message
    linger_s: float = 0.05  # before a message is acknowledged, on average
    nack: float = 0.0  # of each message
    forget: float = 0.0  # of each message: neither acknowledged nor refused
    leave: float = 0.0  # after each batch: close, and come back
    abandon: float = 0.0  # the same without a goodbye
    seek: float = 0.0
    unsubscribe: float = 0.0
    queue: int = 100
    give_up: float = 0.0  # how often an open is cancelled
    flush: float = 0.0  # of each acknowledgement without a receipt: wait until it is durable
    receivers: int = 1  # tasks that receive; one of them stops when the storm is over


@dataclass(frozen=True, slots=True)
class Follow:
    """A reader from the earliest message, an offset, or a time, to whatever comes."""

    name: str
    host: str
    topic: str
    start: str = "earliest"  # offset, time: drawn
    again: float = 0.0  # after each batch: leave, and start another one
    give_up: float = 0.0  # how often an open is cancelled


@dataclass(frozen=True, slots=True)
class Spoil:
    """Entries that nobody can read: encrypted, or damaged before they were sent."""

    name: str
    host: str
    topic: str
    how: str  # encrypted, damaged
    entries: int = 3
    batch: int = 1  # messages in each
    pace_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Administer:
    """One act of an administrator, told by a client's host; see `workloads.administer`."""

    name: str
    host: str
    act: str
    topic: str
    at_s: float
    subscription: str = ""
    http: bool = False  # by REST, where there is a way


@dataclass(frozen=True, slots=True)
class WriteLedgers:
    """Ledgers without a broker, one after the other."""

    name: str
    host: str
    quorums: tuple[int, int, int]
    manner: str = "plain"  # advanced: the writer gives the ids; deferred: synced when it forces
    ledgers: int = 1
    entries: int = 20
    burst: int = 5
    pace_s: float = 0.1
    payload_bytes: int = 20
    flush: float = 0.3  # after a burst
    abandon: float = 0.3  # left open in the end, instead of closed


@dataclass(frozen=True, slots=True)
class WatchLedgers:
    """The ledgers of others: follow them while they grow, or take them over and read them."""

    name: str
    host: str
    how: str  # follow, recover
    pace_s: float = 1.0


LedgerWork: TypeAlias = WriteLedgers | WatchLedgers
Work: TypeAlias = Produce | Consume | Follow | Spoil | Administer | LedgerWork


# -- faults


@dataclass(frozen=True, slots=True)
class Mishap:
    """A fault of a plan."""

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
    storm_s: float = 20.0  # then everything is healed
    power_cycle: bool = True  # all bookies lose their power before the audit


def describe(plan: Plan) -> list[str]:
    """The plan for people, a line for each part; what is as usual is left out."""
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
