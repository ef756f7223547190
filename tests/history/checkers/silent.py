"""One bad bookie delays no send beyond its time-out, as long as two have to answer (L3).

delayed    all was well but for one bookie, and a send waited for its outcome: longer than a message
           is on its way, if the ledger has more copies than acknowledgements; else longer than
           the time-out of a silent bookie
"""

from collections.abc import Iterator

from tests.history.events import LedgerVersion
from tests.history.record import Record, Violation

_ACKS_MIN = 2


def check(record: Record) -> Iterator[Violation]:
    quorums = {
        stamped.event.ledger: stamped.event.quorums
        for stamped in record.events
        if isinstance(stamped.event, LedgerVersion)
    }
    for sending, position in record.oks():
        _, write, ack = quorums.get(position[0], (0, 0, 0))
        limit_s = record.run.in_flight_s if write > ack else record.run.silent_s
        took_s = (sending.ended_ns - sending.began_ns) / 1e9
        if ack < _ACKS_MIN or took_s <= limit_s:
            continue
        if record.faults.is_one_bookie(sending.began_ns, sending.ended_ns):
            text = f"it took {took_s:.3f} s, and only one bookie was not well"
            yield Violation("delayed", sending.topic, sending.value, text)
