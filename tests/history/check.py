"""All rules over one history."""

from collections.abc import Sequence

from tests.history.checkers import (
    compaction,
    cursors,
    duplicates,
    entries,
    keys,
    ledgers,
    lost_write,
    order,
    orphans,
    retention,
    serving,
    silent,
    stalled,
    termination,
)
from tests.history.events import Stamped
from tests.history.record import Record, Violation

_CHECKS = (
    lost_write.check,
    order.check,
    duplicates.check,
    cursors.check,
    keys.check,
    stalled.check,
    retention.check,
    termination.check,
    ledgers.check,
    orphans.check,
    serving.check,
    silent.check,
    entries.check,
    compaction.check,
)


def check(events: Sequence[Stamped]) -> list[Violation]:
    """Return the violations of the history.  Raise HistoryError if it is no history of a run."""
    record = Record(events)
    return [violation for each in _CHECKS for violation in each(record)]
