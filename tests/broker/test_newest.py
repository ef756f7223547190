"""The newest entries are read once, and given again to those whom they fit."""

from typing import cast

from daybook.broker.dispatch.newest import READ_BYTES_MIN, Newest
from daybook.broker.topics.topic_log import TopicLog
from daybook.managed_ledger.position import Position
from daybook.managed_ledger.reading import LogEntry


class Log:
    """Stands in for a log that has these entries in memory."""

    def __init__(self, sizes: list[int]) -> None:
        self.entries = [
            LogEntry(Position(1, n), memoryview(bytes(size))) for n, size in enumerate(sizes)
        ]
        self.counted = 0

    def read_now(self, start: Position, *, max_entries: int, max_bytes: int) -> list[LogEntry]:
        del max_bytes
        found = [each for each in self.entries if each.position >= start][:max_entries]
        self.counted += len(found)
        return found

    def count_read(self, entries: int) -> None:
        self.counted += entries


def newest_of(log: Log) -> Newest:
    return Newest(cast("TopicLog", log))


def test_a_small_read_is_given_once_more_and_counts_as_a_read() -> None:
    log = Log([10, 10, 10])
    newest = newest_of(log)
    assert newest.small(Position(1, 0), 10) == ()
    raw = newest.read(Position(1, 0), max_entries=10, max_bytes=1000)
    assert newest.small(Position(1, 0), 3) is raw
    assert log.counted == 6


def test_it_is_not_given_to_those_whom_it_does_not_fit() -> None:
    newest = newest_of(Log([10, 10, 10]))
    newest.read(Position(1, 0), max_entries=10, max_bytes=1000)
    assert newest.small(Position(1, 0), 2) == ()
    assert newest.small(Position(1, 1), 10) == ()
    large = newest_of(Log([READ_BYTES_MIN, 1]))
    large.read(Position(1, 0), max_entries=10, max_bytes=1 << 20)
    assert large.small(Position(1, 0), 10) == ()
