"""The source of a frame that `load` makes: it is told the filters of each query.

A reader that has `pushFilters` is one that Spark refuses where push-down is disabled, so readers of
other frames do not have it.

The bounds of a frame are taken when it is loaded.  All scans of the frame get them, so all its
queries, and both sides of a join, see the same messages.
"""

# pyright: basic
# (the libraries underneath have no types)

import json
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import Filter, InputPartition
from pyspark.sql.types import StructType

from daybook.clients.spark.checkpoint import StreamOffset, decode_offset, encode_offset
from daybook.clients.spark.filters import Condition, conditions_of, narrow
from daybook.clients.spark.offsets import Partition, Progress
from daybook.clients.spark.options import SourceOptions
from daybook.clients.spark.schema import TYPES
from daybook.clients.spark.selection import Selection
from daybook.clients.spark.short_errors import in_one_sentence
from daybook.clients.spark.source import (
    BatchReader,
    DaybookDataSource,
    asking,
    bounds,
    held_by,
    plan,
)

BOUNDS = "bounds of the frame"  # beside the options, and no name of one


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """Where a frame begins and ends in each partition."""

    begin: Mapping[Partition, Progress]
    until: Mapping[Partition, Progress]

    @classmethod
    def ask(cls, options: SourceOptions) -> "FrameBounds":
        """Ask the brokers.  Raise BrokerError, or ValueError for bounds that are not there."""
        with asking(options) as topics:
            return cls(*bounds(options, topics, held_by(options, topics)))

    def encoded(self) -> str:
        return json.dumps([encode_offset(StreamOffset(each)) for each in (self.begin, self.until)])

    @classmethod
    def decode(cls, text: str) -> "FrameBounds":
        begin, until = (decode_offset(each, None).partitions for each in json.loads(text))
        return cls(begin, until)


class FrameDataSource(DaybookDataSource):
    """The source of one frame.  Spark keeps one instance for all queries of the frame."""

    _by_load = True

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._bounds = FrameBounds.decode(options[BOUNDS])
        super().__init__({name: each for name, each in options.items() if name != BOUNDS})

    @in_one_sentence
    def reader(self, schema: StructType) -> "PushDownReader":
        return PushDownReader(self._options(schema, streaming=False), self._bounds)


class PushDownReader(BatchReader):
    """The reader of one scan of a frame."""

    def __init__(self, options: SourceOptions, frame: FrameBounds) -> None:
        super().__init__(options)
        self._bounds = frame
        self._conditions: tuple[Condition, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        names = {name: name for name in TYPES}
        key_type: str | None = self._options.columns.key_type
        if self._options.typed is not None:
            from daybook.clients.spark.typed_schema import META  # Only typed columns need it.

            names, key_type = dict(META), None
        self._conditions = conditions_of(filters, names, key_type)
        return filters  # Spark tests all of them again.

    @in_one_sentence
    def partitions(self) -> Sequence[InputPartition]:
        options, frame = self._options, self._bounds
        begin, until = narrow(
            frame.begin, frame.until, self._conditions, options.selection.name_shown
        )
        if not until:
            return []
        if options.archive is None:  # An archive belongs to all partitions of its topic.
            options = replace(options, selection=_only(options.selection, begin))
        with asking(options) as topics:
            held = held_by(options, topics)
            return plan(options, begin, until, held, topics.ledgers, self._conditions)


def _only(selection: Selection, partitions: Iterable[Partition]) -> Selection:
    """Return a selection that asks for the topics of these partitions only."""
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, number in sorted(partitions):
        assigned[topic] = (*assigned.get(topic, ()), number)
    return Selection({topic: selection.name_shown(topic) for topic in assigned}, assigned)
