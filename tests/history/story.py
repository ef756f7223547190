"""Histories made by hand, for tests: one second passes with every event."""

from collections.abc import Callable

from tests.history.check import check
from tests.history.events import (
    Ack,
    Acked,
    Attached,
    Copy,
    Deliver,
    Drained,
    Event,
    LedgerVersion,
    ListVersion,
    Ok,
    Position,
    Read,
    ReadEnd,
    Run,
    Send,
    Stamped,
    Subscribe,
)

T = "persistent://public/default/t"
BOOKIES = ("b1", "b2", "b3")


def stamp(events: list[Event], run: Run | None = None) -> list[Stamped]:
    return [Stamped(i * 10**9, "me", each) for i, each in enumerate([run or Run(), *events])]


def at(second: int) -> int:
    return second * 10**9


def sent(seq: int, position: Position | None, producer: str = "p") -> list[Event]:
    """Return a send, with its receipt if there is a position."""
    send = Send(T, producer, seq, f"{producer}/{seq}", f"d{seq}")
    return [send] if position is None else [send, Ok(T, producer, seq, position)]


def subscribed(
    consumer: str = "c", kind: str = "exclusive", start: str = "earliest", since: int = 0
) -> list[Event]:
    return [Subscribe(T, "s", consumer, kind, start), Attached(consumer, at(since))]


def delivered(seq: int, position: Position, consumer: str = "c") -> Event:
    return Deliver(consumer, T, position, f"p/{seq}", f"d{seq}")


def acked(ack: int, *positions: Position, consumer: str = "c") -> list[Event]:
    return [Ack(consumer, ack, T, positions), Acked(consumer, ack)]


def read(*messages: tuple[int, Position], reader: str = "r", producer: str = "p") -> list[Event]:
    """Return a complete read."""
    return [
        *(
            Read(T, reader, position, f"{producer}/{seq}", f"d{seq}", offset)
            for offset, (seq, position) in enumerate(messages)
        ),
        ReadEnd(T, reader),
    ]


def ledger(version: int, state: str = "OPEN", last: int = -1, length: int = 0) -> LedgerVersion:
    return LedgerVersion(1, version, state, last, length, (3, 3, 2), ((0, BOOKIES),))


A, B, C = (1, 0, -1), (1, 1, -1), (1, 2, -1)
D = (2, 0, -1)


def good() -> list[Event]:
    """Return three messages, in order: stored, delivered, acknowledged, read."""
    return [
        ledger(0),
        ListVersion(T, 0, (1,)),
        *subscribed(),
        *sent(0, A),
        *sent(1, B),
        *sent(2, C),
        delivered(0, A),
        delivered(1, B),
        delivered(2, C),
        *acked(0, A),
        *acked(1, B, C),
        Drained(T, "s"),
        *read((0, A), (1, B), (2, C)),
        ledger(1, "IN_RECOVERY"),
        ledger(2, "CLOSED", 2, 30),
        *(
            Copy(1, entry, bookie, "yes", f"d{entry}", 10)
            for entry in range(3)
            for bookie in BOOKIES
        ),
    ]


def rules(events: list[Event], run: Run | None = None) -> list[str]:
    """Return the rules that the history breaks, each once."""
    return sorted({violation.rule for violation in check(stamp(events, run))})


def without(*kinds: type[Event]) -> list[Event]:
    return [event for event in good() if not isinstance(event, kinds)]


def changed(change: Callable[[Event], Event | None]) -> list[Event]:
    return [event for event in map(change, good()) if event is not None]
