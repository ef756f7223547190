"""Errors that nobody expected, in the work for one topic: each costs that topic, and no other.

    with bugs.contained(topic.name, "applying its policies", partial(drop, topic)):
        ...

After such an error the topic in memory may differ from what is stored.  So the topic is dropped,
and a client that asks for it gets it as it is stored.  Work that only looks at a topic leaves
nothing half done: without `drop` the topic stays.

Each error is counted.  It is logged with its traceback, and its repetitions a few times a minute.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from daybook.wire.logging import Log, LogLimiter
from daybook.wire.topics import TopicName

_LINES_MAX = 3  # a minute, for a topic and what the broker was doing


class TopicBugs:
    """One instance per broker."""

    def __init__(self, log: Log) -> None:
        self.found = 0
        self._log = LogLimiter(log, lines_max=_LINES_MAX)

    @contextmanager
    def contained(
        self, name: TopicName, doing: str, drop: Callable[[Exception], None] | None = None
    ) -> Generator[None]:
        """Note an error that ends the block, and drop the topic."""
        try:
            yield
        except Exception as bug:
            self.note(name, doing, bug)
            if drop is not None:
                drop(bug)

    def note(self, name: TopicName, doing: str, bug: Exception) -> None:
        """Count and log an error."""
        self.found += 1
        self._log.error(
            "a topic failed because of a bug: please report it",
            (name.full, doing),
            topic=name.full,
            doing=doing,
            exc_info=bug,
        )
