"""Ask the brokers, for the driver, which offsets the topics of a query hold.

The driver asks for partitions, offsets and positions of times, and receives no messages, but for
one entry of each partition where a query begins or ends at a time.
"""

# pyright: basic
# (the libraries underneath have no types)

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from daybook.clients.python import blocking
from daybook.clients.python.errors import (
    BrokerError,
    Remedy,
    TopicNotFoundError,
    UnavailableError,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.message_id import Offset
from daybook.clients.python.reader import OffsetRange, TopicLedgers
from daybook.clients.python.schemas.schema import SchemaInfo, SchemaVersion
from daybook.clients.python.tls import TlsOptions
from daybook.clients.python.topic_choice import TopicPattern
from daybook.clients.spark.credential_options import ANONYMOUS, QueryCredentials
from daybook.clients.spark.offsets import (
    Partition,
    PartitionValues,
    Retained,
    check_partitions,
    resolve,
)
from daybook.clients.spark.option_names import in_options
from daybook.clients.spark.options import AtTimes, Bounds
from daybook.clients.spark.selection import Selection
from daybook.clients.spark.typed_schema import TopicSchema, contents
from daybook.wire.batch import num_messages, parse_metadata, split_broker_metadata
from daybook.wire.errors import WireError

FIRST_CONTACT_S = 5.0
# A stream comes back to look up again, and must not hold up its end for long.
STREAM_LIMITS = ClientLimits(operation_timeout_s=10.0)
_RECEIVE_S = 30.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

if TYPE_CHECKING:
    from daybook.clients.pipelines.archive.archived import Archived

_log = logging.getLogger("daybook.spark")


@dataclass(frozen=True, slots=True)
class Held:
    """The answer of the brokers: the offsets of each partition, and the topic that stores it."""

    partitions: Mapping[Partition, Retained] = field(default_factory=dict)
    stored_in: Mapping[Partition, str] = field(default_factory=dict)
    instance: str | None = None  # the id of the cluster, if a broker told it
    missing: Sequence[str] = ()  # the words of brokers about topics that do not exist
    archived: "Archived | None" = None  # the archive whose offsets are among those above

    def check_complete(self) -> None:
        """Raise ValueError if a topic of the query does not exist."""
        if self.missing:
            raise ValueError(self.missing[0])


class TopicOffsets:
    """One instance per query.  Its client is open from the first question until `close`."""

    def __init__(
        self,
        service_url: str,
        selection: Selection,
        limits: ClientLimits,
        tls: TlsOptions | None = None,
        credentials: QueryCredentials = ANONYMOUS,
    ) -> None:
        self._service_url = service_url
        self._selection = selection
        self._limits = limits
        self._tls = tls
        self._credentials = credentials
        self._client: blocking.Client | None = None
        self._told_of_nothing = False
        self._ledgers: dict[str, TopicLedgers] = {}  # that came with offsets, until they are taken

    @property
    def client(self) -> blocking.Client:
        """The client.  Raise UnavailableError if no broker answers the first contact."""
        if self._client is None:
            try:
                self._client = blocking.connect(
                    self._service_url,
                    timeout_s=FIRST_CONTACT_S,
                    limits=self._limits,
                    tls=self._tls,
                    token=self._credentials.token,
                    basic=self._credentials.basic,
                )
            except UnavailableError as error:
                reason = str(error).partition(".  ")[0]
                raise UnavailableError(
                    f"{reason}: check the option service.url={self._service_url!r}, and that a"
                    " broker runs there"
                ) from None
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def held(self) -> Held:
        """Return the offsets of each partition.  No message is transferred and no topic created.

        Raise BrokerError.  A topic that does not exist is left out, and named in `missing`.
        """
        return self._held(self.client.offsets_of)

    def held_with_ledgers(self) -> Held:
        """Return the same, and keep the ledgers for `ledgers`: brokers tell both in one answer."""
        return self._held(self._offsets_with_ledgers)

    def _offsets_with_ledgers(self, names: list[str]) -> list[OffsetRange]:
        found = self.client.ledgers_of(names)
        self._ledgers.update(zip(names, found, strict=True))
        return [each.held for each in found]

    def _held(self, ask: Callable[[list[str]], list[OffsetRange]]) -> Held:
        self._ledgers.clear()
        missing: list[str] = []
        retained: dict[Partition, Retained] = {}
        stored_in: dict[Partition, str] = {}
        instance: str | None = None
        for topic in self._topics():
            try:
                named = self._partitions(topic)
                answers = ask(list(named.values()))
            except TopicNotFoundError as error:
                missing.append(str(error))
                continue
            for (partition, name), answer in zip(named.items(), answers, strict=True):
                retained[partition] = Retained(answer.first, answer.next, answer.created)
                stored_in[partition] = name
                instance = answer.instance or instance
        return Held(retained, stored_in, instance, missing)

    def ledgers(self, topic: str) -> TopicLedgers:
        """Return where the messages of a topic without partitions, or of a partition, are."""
        known = self._ledgers.pop(topic, None)
        if known is not None:
            return known
        (found,) = self.client.ledgers(topic)
        return found

    def schema(self) -> TopicSchema:
        """Return the newest schema of the topics, which all of them share.

        Raise ValueError if they have none, or different ones, and BrokerError.
        """
        found: dict[str, SchemaVersion] = {}
        for topic in self._topics():
            try:
                self.client.partitions(topic, create=False)
            except TopicNotFoundError as error:
                raise ValueError(str(error)) from None
            try:
                found[topic] = self.client.schema(topic)
            except TopicNotFoundError:
                raise ValueError(
                    f"{topic} has no schema: read it with schemaMode=raw, or send its messages with"
                    " a schema"
                ) from None
        if not found:
            raise ValueError("no topic matches, so there is no schema: create one of the topics")
        first, *others = found
        for topic in others:
            if not _same_columns(found[first].info, found[topic].info):
                raise ValueError(
                    f"{first} and {topic} have different schemas: read them one by one, or with"
                    " schemaMode=raw"
                )
        return TopicSchema(found[first].info, {name: each.number for name, each in found.items()})

    def bytes_of_message(self, topic: str, offset: int) -> float:
        """Return the mean size of the messages in the entry that has the offset."""
        with self.client.create_reader(
            topic, start=Offset(offset), receiver_queue_size=1
        ) as reader:
            entries = reader.receive_entries(_RECEIVE_S)
        if not entries:
            return 0.0
        data = entries[0].data
        try:
            _, _, payload = split_broker_metadata(memoryview(data))
            return len(data) / max(1, num_messages(parse_metadata(payload)[0]))
        except WireError:
            return float(len(data))  # The task that reads it says what is wrong.

    def _topics(self) -> list[str]:
        """Return the full names of the topics that the query reads now."""
        pattern = self._selection.pattern
        if pattern is None:
            return list(self._selection.shown)
        parsed = TopicPattern.parse(re.compile(pattern))
        found = parsed.select(self.client.topics(parsed.namespace))
        if not found and not self._told_of_nothing:
            self._told_of_nothing = True
            _log.warning(
                "no topic of %s matches subscribePattern=%r as a whole, so the query reads nothing"
                " now: `daybook topics list` shows the topics",
                parsed.namespace,
                pattern,
            )
        return sorted(topic.full for topic in found)

    def _partitions(self, topic: str) -> dict[Partition, str]:
        """Return the partitions of a topic, each with the topic that stores it."""
        count = self.client.partitions(topic, create=False)
        names = {
            Partition(topic, i): f"{topic}-partition-{i}" if count else topic
            for i in range(count or 1)
        }
        assigned = self._selection.assigned
        if assigned is None:
            return names
        wanted = [Partition(topic, i) for i in assigned[topic]]
        missing = [each.number for each in wanted if each not in names]
        if missing:
            raise ValueError(
                f"assign names the partitions {missing} of {topic}, which has"
                f" {sorted(each.number for each in names)}"
            )
        return {each: names[each] for each in wanted}

    # -- bounds

    def resolve(self, bounds: Bounds, held: Held, option: str) -> dict[Partition, int]:
        """Return the offset of each partition for one side of a query."""
        if not isinstance(bounds, AtTimes):
            return resolve(bounds, held.partitions, option)
        times = bounds.times
        if isinstance(times, int):
            times = dict.fromkeys(held.partitions, times)
        check_partitions(times, held.partitions, bounds.option)
        return self._at_times(times, bounds, held, is_start=option == "startingOffsets")

    def _at_times(
        self, times: PartitionValues, bounds: AtTimes, held: Held, *, is_start: bool
    ) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for partition, time_ms in sorted(times.items()):
            ask = partial(self._offset_at, held.stored_in[partition])
            if held.archived is None:
                offset = ask(time_ms)
            else:
                offset = held.archived.offset_at(partition, time_ms, ask, is_start=is_start)
            if offset is None and not bounds.end_if_none:
                raise ValueError(
                    f"{bounds.option}: {partition} has no message that was published at {time_ms}"
                    f" ({_text_of(time_ms)}) or later; set"
                    " startingOffsetsByTimestampStrategy=latest to begin at its end"
                )
            found[partition] = held.partitions[partition].next if offset is None else offset
        return found

    def _offset_at(self, topic: str, time_ms: int) -> int | None:
        """Return the offset of the first message published at a time or later; None if none is."""
        when = _EPOCH + timedelta(milliseconds=time_ms)
        with self.client.create_reader(topic, start=when, receiver_queue_size=1) as reader:
            if not reader.has_message_available():
                return None
            return reader.receive(timeout_s=_RECEIVE_S).offset


def _same_columns(one: SchemaInfo, other: SchemaInfo) -> bool:
    """Return True if messages of two schemas have the same columns."""
    if one.type != other.type or one.properties != other.properties:
        return False
    return one.data == other.data or contents(one) == contents(other)


def _text_of(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds")


class KnownOffsets:
    """The latest answer of the brokers, which a stream keeps while they cannot be asked.

    A stream waits through an outage of brokers or ZooKeeper of up to `outage_timeout_s`.
    """

    def __init__(
        self, ask: Callable[[], Held], outage_timeout_s: float, now: Callable[[], float]
    ) -> None:
        self.latest: Held | None = None
        self._ask = ask
        self._timeout_s = outage_timeout_s
        self._now = now
        self._away_since: float | None = None

    def ask(self) -> Held:
        """Ask the brokers, and raise the error if they do not answer."""
        self.latest = held = self._ask()
        if self._away_since is not None:
            _log.warning("the brokers answer again")
            self._away_since = None
        return held

    def ask_or_wait(self) -> Held | None:
        """Ask the brokers; return None if the stream has to wait for them.

        Raise UnavailableError when they have been away for too long, and at once any error that
        waiting does not mend.
        """
        began = self._now()
        try:
            return self.ask()
        except BrokerError as error:
            if error.remedy is Remedy.GIVE_UP:
                raise
            if self._away_since is None:
                self._away_since = began
                _log.warning("the stream waits for brokers: %s", in_options(str(error)))
            away_s = self._now() - self._away_since
            if away_s >= self._timeout_s:
                raise UnavailableError(
                    f"the brokers have not answered for {away_s:.0f} s, longer than outageTimeout:"
                    f" {in_options(str(error))}"
                ) from error
            return None
