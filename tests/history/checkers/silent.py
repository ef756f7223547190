"""One bad bookie delays no send beyond its time-out, as long as two have to answer (L3).

delayed    all was well but for one bookie, and a send waited for its outcome: longer than a message
           is on its way, if the ledger has more copies than acknowledgements; else longer than
           the time-out of a silent bookie, if the cluster has a bookie to replace it

If the log was opened while the send waited, the limit is longer by the time after which a reader
asks for the next copy.  The new owner reads the last entries of the log, and it may not have spoken
to the silent bookie before.  A rollover is no excuse: the old ledger takes entries until then.

A bookie that refused entries for want of room (`Overloaded`) is not well either.  Its writers do
without it for ten seconds.  If it is another bookie than the one with the fault, two are not well.
"""

from collections.abc import Iterator, Sequence

from tests.history.events import LedgerVersion, ListVersion, Stamped
from tests.history.record import Record, Violation

_ACKS_MIN = 2


def check(record: Record) -> Iterator[Violation]:
    quorums = {
        stamped.event.ledger: stamped.event.quorums
        for stamped in record.events
        if isinstance(stamped.event, LedgerVersion)
    }
    opened_ns = _openings(record.events)
    for sending, position in record.oks():
        ensemble, write, ack = quorums.get(position[0], (0, 0, 0))
        if write == ack and 0 < record.run.bookies <= ensemble:
            continue  # Each bookie has to answer, and no other one can take its place.
        limit_s = record.run.in_flight_s if write > ack else record.run.silent_s
        if sending.began_ns <= opened_ns.get(position[0], -1) <= sending.ended_ns:
            limit_s += record.run.slow_read_s
        took_s = (sending.ended_ns - sending.began_ns) / 1e9
        if ack < _ACKS_MIN or took_s <= limit_s:
            continue
        if record.faults.is_one_bookie(sending.began_ns, sending.ended_ns):
            text = f"it took {took_s:.3f} s, and only one bookie was not well"
            yield Violation("delayed", sending.topic, sending.value, text)


def _openings(events: Sequence[Stamped]) -> dict[int, int]:
    """Return the ledgers with which logs were opened again, and the times when lists named them.

    An opening closes every earlier ledger of the list first.  A rollover puts the next ledger on
    the list while the present one is open.
    """
    found: dict[int, int] = {}
    closed: set[int] = set()
    listed: dict[str, tuple[int, ...]] = {}
    for stamped in events:
        match stamped.event:
            case LedgerVersion(ledger, state="CLOSED"):
                closed.add(ledger)
            case ListVersion(topic, _, ledgers):
                before = listed.get(topic, ())
                if before and closed.issuperset(before):
                    found |= {each: stamped.at_ns for each in ledgers if each not in before}
                listed[topic] = ledgers
            case _:
                pass
    return found
