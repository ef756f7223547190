"""Tells the audit what brokers append to topics for sinks, what is confirmed, and what they count.

The methods of `TopicSinks` are wrapped for the length of a `with` block; they do what they did.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from daybook.broker.sinks import topic_sinks
from daybook.broker.sinks.topic_sinks import TopicSinks
from daybook.managed_ledger.position import Position
from daybook.wire.fields import U32
from tests.simulation.sinks.audit import SinkAudit

_STORE_ENTRIES = 3  # The progress is stored that often, so that a small batch has several.


@contextmanager
def watched(audit: SinkAudit) -> Generator[None]:
    append, done, know = TopicSinks._append_one, TopicSinks._done, TopicSinks._know
    before = topic_sinks.STORE_ENTRIES
    sink_ids: dict[int, str] = {}  # by the identity of what an owner knows of a sink
    kept: list[object] = []  # Identities are not used twice.

    def append_one(
        self: TopicSinks, sink_id: str, known: Any, sequence: int, staged: memoryview
    ) -> None:
        sink_ids[id(known)] = sink_id
        kept.append(known)
        audit.appended(self._topic().name.full, sink_id, sequence, text_of(staged))
        append(self, sink_id, known, sequence, staged)

    def is_done(
        self: TopicSinks,
        known: Any,
        before: int | None,
        sequence: int,
        position: Position | None,
        error: Exception | None,
    ) -> None:
        if position is not None:
            audit.confirmed(self._topic().name.full, sink_ids[id(known)], sequence, position)
        done(self, known, before, sequence, position, error)

    async def knows(self: TopicSinks, sink_id: str, pending: Any) -> Any:
        fresh = sink_id not in self._known
        known = await know(self, sink_id, pending)
        if fresh and known is not None:
            audit.counted(self._topic().name.full, sink_id, known.sequence)
        return known

    topic_sinks.STORE_ENTRIES = _STORE_ENTRIES
    for name, method in (("_append_one", append_one), ("_done", is_done), ("_know", knows)):
        setattr(TopicSinks, name, method)
    try:
        yield
    finally:
        topic_sinks.STORE_ENTRIES = before
        for name, method in (("_append_one", append), ("_done", done), ("_know", know)):
            setattr(TopicSinks, name, method)


def text_of(staged: memoryview) -> str:
    """Return the body of a staged entry."""
    return bytes(staged[U32.size + U32.unpack_from(staged)[0] :]).decode()
