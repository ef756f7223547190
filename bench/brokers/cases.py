"""The cases.  A case says what one turn does on one system.

alone-1kb    1,000 messages of 1 KB a second, each an entry of its own: the time to the receipt,
             and the processor time of the servers for a message
batched-1kb, batched-100b
             as many messages as the client can send, in batches of up to 1 MiB
fan-out      5,000 messages of 1 KB a second to ten subscriptions
fan-in       100 producers with 100 messages of 1 KB a second each, each an entry of its own
python-own, python-pulsar
             as `batched-1kb`, by Daybook's and by Pulsar's Python client
read-java    a backlog of 1 KB that the Java client wrote with its usual batches
read-own-one, read-own-batches, read-pulsar-one, read-pulsar-batches
             the same backlog, by Daybook's and by Pulsar's Python client
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bench import limit
from bench.brokers.lines import DAYBOOK, KAFKA, PULSAR, SYSTEMS
from bench.brokers.loads import JAVA, KAFKA_JAVA, OWN_PYTHON, PULSAR_PYTHON, Load, figure
from bench.brokers.rounds import Run, Turn
from bench.brokers.systems import System

_ALONE_RATE = 1000
_BACKLOG = "backlog"
_USUAL_BATCH, _LARGE_BATCH = 128 << 10, 1 << 20  # bytes
_PULSAR_PROTOCOL = (DAYBOOK, PULSAR)
_FIRST_ROUNDS = 3  # Both kinds of sending, before anything is measured.


@dataclass(frozen=True, slots=True)
class Sending:
    """A case in which clients publish.  `rate` 0 is as fast as the client can."""

    size: int
    batch: str
    rate: int = 0
    producers: int = 1
    subscriptions: int = 0

    def opened(self, topic: str) -> dict[str, object]:
        return {
            "topic": topic,
            "size": self.size,
            "batch": self.batch,
            "producers": self.producers,
            "subscriptions": self.subscriptions,
        }


ALONE = Sending(1024, "none", _ALONE_RATE)
BATCHED = Sending(1024, "large")


def _java(system: System) -> str:
    return KAFKA_JAVA if system.name == KAFKA else JAVA


def _send(load: Load, system: System, rate: int, seconds: float) -> dict[str, str]:
    return load.do("send", on=system.name, rate=rate, seconds=seconds, messages=0)


def sending(run: Run, kind: str, system: System, what: Sending) -> Turn:
    """Publish for the warm-up and then for the measurement, to a topic of this turn."""
    load = run.load(kind, system)
    turn = Turn()
    answer: dict[str, str] = {}
    with load.opened(on=system.name, **what.opened(run.name("sending"))):
        _send(load, system, what.rate, run.sizes.warm_s)

        def work() -> None:
            answer.update(_send(load, system, what.rate, run.sizes.measure_s))

        run.measure(turn, load, system, work)
    turn.messages = int(answer["messages"])
    if what.rate:
        turn.figures = {"p50, ms": figure(answer, "p50_ms"), "p99, ms": figure(answer, "p99_ms")}
    else:
        rate = turn.messages / figure(answer, "seconds")
        turn.figures = {"messages/s": rate, "MB/s": rate * what.size / 1e6}
    return turn


def reading(run: Run, kind: str, system: System, how: str) -> Turn:
    """Read the backlog, which the Java client writes before the first such turn."""
    messages = run.sizes.backlog

    def fill() -> None:
        load = run.load(_java(system), system)
        # Kafka's usual batches of 16 KB would take minutes, with a sync for each of them.
        what = Sending(1024, "large" if system.name == KAFKA else "usual")
        with load.opened(on=system.name, **what.opened(_BACKLOG)):
            # This subscription keeps the messages until the end of the run.
            load.do("read", on=system.name, topic=_BACKLOG, subscription="kept", messages=0)
            load.do("send", on=system.name, rate=0, seconds=0, messages=messages)

    run.fill_once(system, _BACKLOG, fill)
    load = run.load(kind, system)
    turn = Turn(messages=messages)
    answer: dict[str, str] = {}

    def work() -> None:
        answer.update(
            load.do(
                "read",
                on=system.name,
                topic=_BACKLOG,
                subscription=run.name("reading"),
                messages=messages,
                how=how,
            )
        )

    run.measure(turn, load, system, work)
    turn.figures = {"MB/s": figure(answer, "bytes") / figure(answer, "seconds") / 1e6}
    return turn


def warm_up(run: Run) -> None:
    """Let the compilers of all servers and Java clients see both kinds of sending."""
    for system in run.systems.values():
        load = run.load(_java(system), system)
        for _ in range(_FIRST_ROUNDS):
            for what in (ALONE, BATCHED):
                with load.opened(on=system.name, **what.opened(run.name("first"))):
                    _send(load, system, what.rate, run.sizes.first_s / (2 * _FIRST_ROUNDS))


# -- the limits of the machine


def _answered(run: Run) -> Mapping[str, float]:
    p50, p99 = limit.answered_ms(_ALONE_RATE, run.sizes.measure_s)
    return {"p50, ms": p50, "p99, ms": p99}


def _written(run: Run) -> Mapping[str, float]:
    return {"MB/s": limit.writing_mb_s(_LARGE_BATCH, run.sizes.relayed_bytes)}


def _read(run: Run) -> Mapping[str, float]:
    return {"MB/s": limit.reading_mb_s(_USUAL_BATCH, run.sizes.relayed_bytes)}


# -- all of them


def _sent(
    what: Sending, limited: Callable[[Run], Mapping[str, float]] | None = None
) -> Callable[[Run, str], None]:
    def case(run: Run, name: str) -> None:
        run.take_turns(
            name,
            lambda system: sending(run, _java(system), system, what),
            systems=SYSTEMS,
            limit=limited and partial(limited, run),
            rehearse=False,
        )

    return case


def _sent_by(kind: str) -> Callable[[Run, str], None]:
    def case(run: Run, name: str) -> None:
        run.take_turns(
            name,
            lambda system: sending(run, kind, system, BATCHED),
            systems=_PULSAR_PROTOCOL,
            limit=partial(_written, run),
            rehearse=False,
        )

    return case


def _read_by(kind: str | None, how: str) -> Callable[[Run, str], None]:
    """Return the case of one client; None is the Java client of the system."""

    def case(run: Run, name: str) -> None:
        run.take_turns(
            name,
            lambda system: reading(run, kind or _java(system), system, how),
            systems=SYSTEMS if kind is None else _PULSAR_PROTOCOL,
            limit=partial(_read, run),
            rehearse=True,
        )

    return case


CASES: dict[str, Callable[[Run, str], None]] = {
    "alone-1kb": _sent(ALONE, _answered),
    "batched-1kb": _sent(BATCHED, _written),
    "batched-100b": _sent(Sending(100, "large"), _written),
    "fan-out": _sent(Sending(1024, "usual", 5000, subscriptions=10)),
    "fan-in": _sent(Sending(1024, "none", 100 * 100, producers=100)),
    "python-own": _sent_by(OWN_PYTHON),
    "python-pulsar": _sent_by(PULSAR_PYTHON),
    "read-java": _read_by(None, "one"),
    "read-own-one": _read_by(OWN_PYTHON, "one"),
    "read-own-batches": _read_by(OWN_PYTHON, "batches"),
    "read-pulsar-one": _read_by(PULSAR_PYTHON, "one"),
    "read-pulsar-batches": _read_by(PULSAR_PYTHON, "batches"),
}

# The data of cases stay until their systems end: those that write much have systems of their own.
GROUPS: tuple[tuple[str, ...], ...] = (
    ("alone-1kb", "fan-out", "fan-in"),
    ("batched-1kb",),
    ("batched-100b",),
    ("python-own",),
    ("python-pulsar",),
    ("read-java", "read-own-one", "read-own-batches", "read-pulsar-one", "read-pulsar-batches"),
)
