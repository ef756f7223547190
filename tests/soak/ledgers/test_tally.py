"""Tests of the tally of a round of ledgers."""

from pathlib import Path

from tests.history.events import Event, Stamped
from tests.history.ledger_events import Append, Confirmed, LedgerEnd
from tests.history.recorder import FileSink
from tests.soak.ledgers.tally import Tally


def test_a_tally_counts_what_files_say_while_they_grow(tmp_path: Path) -> None:
    tally, path = Tally(tmp_path), tmp_path / "writer-1.0.1.jsonl"
    events: list[Event] = [
        Append(1, "w", 0, "d", 3),
        Append(1, "w", 1, "d", 3),
        Confirmed(1, "w", 1),
        LedgerEnd(1, "w", 1, 6, "close"),
    ]
    with FileSink(path) as sink:
        for at_ns, event in enumerate(events):
            sink.put(Stamped(at_ns, "writer-1.0.1", event))
            if at_ns == 1:
                tally.look()
                assert tally.counts["append"] == 2
    with path.open("ab") as file:
        file.write(b'{"at_ns":9,"by":"writer-1.0.1","kind":"app')  # killed while writing the line
    tally.look()
    assert tally.counts["entries confirmed"] == 2
    assert tally.counts["ends by close"] == 1
