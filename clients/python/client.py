"""A client of one cluster: answers questions, and opens producers, consumers and readers.

`connect` makes it.  It owns what it has opened: it closes all of it at its end, and adds partitions
to it when topics get more.  A question is repeated, to any broker, until there is an answer or
`operation_timeout_s` is over.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import trio

from daybook.clients.python.arguments import (
    Batching,
    Compression,
    InitialPosition,
    SubscriptionTypeName,
    check_batching,
    check_key_ranges,
    check_name,
    check_properties,
    check_subscription,
    check_timeout,
    compression_type,
    topic_name,
)
from daybook.clients.python.connection_handler import attach_all
from daybook.clients.python.consumer import Consumer, MessageSource, schema_of
from daybook.clients.python.credentials import NOBODY, Credentials
from daybook.clients.python.dead_letters import DeadLetters, Raw, check_dead_letters
from daybook.clients.python.errors import (
    BrokerError,
    ClosedError,
    Remedy,
    TlsError,
    UnavailableError,
)
from daybook.clients.python.fork import tell_of_forks
from daybook.clients.python.interceptors import (
    ConsumerInterceptor,
    ConsumerInterceptors,
    ProducerInterceptor,
    ProducerInterceptors,
    check_interceptors,
)
from daybook.clients.python.limits import ClientLimits, ConsumerLimits, ProducerLimits
from daybook.clients.python.listener import Call, Listener, Listening, check_listener
from daybook.clients.python.lookup import Lookups
from daybook.clients.python.message_id import EARLIEST, LATEST, MessageId
from daybook.clients.python.messages import ValueT
from daybook.clients.python.pipe import Pipe
from daybook.clients.python.pool import ConnectionPool
from daybook.clients.python.producer import Producer
from daybook.clients.python.protocol.letters import RETRIES_MAX, DeadLetterPolicy
from daybook.clients.python.protocol.retry import Backoff
from daybook.clients.python.protocol.routing import Router
from daybook.clients.python.reader import OffsetRange, Reader, TopicLedgers
from daybook.clients.python.schemas.schema import Schema, SchemaVersion, check_schema
from daybook.clients.python.schemas.versions import SchemaVersions
from daybook.clients.python.sources import Sources
from daybook.clients.python.start_position import Start, parse_start
from daybook.clients.python.statistics import ClientStats
from daybook.clients.python.table_view import TableView
from daybook.clients.python.topic_choice import Topics, topic_choice
from daybook.clients.python.topic_consumer import ConsumerSettings, SubscriptionType
from daybook.clients.python.topic_producer import ProducerSettings, SendBudget, TopicProducer
from daybook.clients.python.transformation import Transform
from daybook.wire.clock import WallClock
from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName, check_namespace
from daybook.wire.transport import Network

_PRODUCER = ProducerLimits()
_CONSUMER = ConsumerLimits()


class Client:
    """A client of one cluster; `connect` makes it."""

    def __init__(
        self,
        service_url: str,
        *,
        network: Network,
        clock: WallClock,
        rng: Random,
        limits: ClientLimits,
        nursery: trio.Nursery,
        credentials: Credentials = NOBODY,
    ) -> None:
        self.service_url = service_url
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._nursery = nursery
        self._pool = ConnectionPool(
            service_url,
            network=network,
            limits=limits,
            nursery=nursery,
            first=rng.randrange(1 << 16),  # so that many clients spread over the brokers
            credentials=credentials,
        )
        self._lookups = Lookups(self._pool, limits, rng)
        self._producers: list[Producer[Any]] = []
        self._next_producer_id = 0
        self._sources = Sources(self._pool, self._lookups, limits, rng, nursery)
        tell_of_forks(self)
        nursery.start_soon(self._pool.run)
        nursery.start_soon(self._watch_partitions)

    def __repr__(self) -> str:
        counts = f"producers: {len(self._producers)}, consumers and readers: {len(self._sources)}"
        return f"<Client of {self.service_url}, {counts}{', closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Return True if nothing can be opened any more."""
        return self._pool.closed

    @property
    def trouble(self) -> BrokerError | None:
        """The error of the last attempt to reach a broker; None once one has succeeded."""
        return self._lookups.trouble

    async def first_contact(self, timeout_s: float) -> None:
        """Return when a broker has answered.

        Raise UnavailableError if none does in that time; raise an error that would not change at
        once.
        """
        backoff = Backoff(self._limits.backoff_initial_s, self._limits.backoff_max_s)
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    await self._pool.service()
                except BrokerError as error:
                    # TLS that is refused may succeed later, but not in the time of a first contact.
                    if error.remedy is Remedy.GIVE_UP or isinstance(error, TlsError):
                        raise
                else:
                    return
                await trio.sleep(backoff.next(self._rng.random()))
        raise UnavailableError(
            f"no broker can be reached: {self._pool.reasons()} (tried for {timeout_s:g} s).  Is a"
            " broker running there?  `timeout_s` of connect says how long the first contact may"
            " take."
        )

    # -- questions

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned.

        `create`: create the topic if it does not exist, as the namespace's policies say.
        """
        name = topic_name(topic)
        return await self._lookups.persist(lambda: self._lookups.partitions(name, create=create))

    async def lookup(self, topic: str) -> str:
        """Return the URL of the broker that serves a topic without partitions, or one partition."""
        name = topic_name(topic)
        return (await self._lookups.persist(lambda: self._lookups.find(name)))[0]

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the full names of the topics in a namespace, partitions one by one.

        The list is empty, too, if the namespace does not exist.
        """
        try:
            check_namespace(namespace)
        except MalformedError as error:
            raise ValueError(str(error)) from None
        return await self._lookups.persist(lambda: self._lookups.topics(namespace))

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaVersion:
        """Return the schema that messages of a topic name by this version, or the newest one.

        Raise TopicNotFoundError if the topic has no schema, or no such version.
        """
        name = topic_name(topic).base
        return await self._lookups.persist(lambda: self._lookups.schema(name, version))

    async def last_message_id(self, topic: str) -> MessageId:
        """Return the id of the last message of a topic without partitions, or of one partition.

        The id is (-1, -1) if there is no message.
        """
        async with await self._open_reader(topic, LATEST, None, queue_size=0) as reader:
            return (await reader.last_message_ids())[0]

    async def offsets(self, topic: str) -> OffsetRange:
        """Return the offsets that a topic without partitions, or one partition, holds now.

        Raise ValueError if the topic has partitions, and TopicNotFoundError if it does not exist.
        """
        partitions = await self._existing_partitions(topic)
        if topic_name(topic).partition < 0 and partitions:
            raise ValueError(
                f"{topic} has partitions, and each has its own offsets: name one, such as"
                f" {topic}-partition-0, or ask for `offset_ranges`"
            )
        return (await self._held(topic))[0]

    async def offset_ranges(self, topic: str) -> list[OffsetRange]:
        """Return the offsets that each partition holds, in order.  No message is transferred.

        Raise TopicNotFoundError if the topic does not exist.
        """
        await self._existing_partitions(topic)
        return await self._held(topic)

    async def offsets_of(self, names: Sequence[str]) -> list[OffsetRange]:
        """Return the offsets of topics without partitions, and of single partitions, in order.

        The caller knows that the topics exist, and which have partitions: nobody is asked for that.
        """
        if not names:
            return []
        async with await self._reader_of(names) as reader:
            return await reader.offset_ranges()

    async def ledgers(self, topic: str) -> list[TopicLedgers]:
        """Return where the messages of each partition are stored, in order.

        Raise TopicNotFoundError if the topic does not exist.
        """
        await self._existing_partitions(topic)
        async with await self._open_reader(topic, LATEST, None, queue_size=0) as reader:
            return await reader.ledgers()

    async def ledgers_of(self, names: Sequence[str]) -> list[TopicLedgers]:
        """Return where the messages of topics and of partitions are stored, as `offsets_of` does.

        This asks the brokers for no more than `offsets_of` alone.
        """
        if not names:
            return []
        async with await self._reader_of(names) as reader:
            return await reader.ledgers()

    async def _reader_of(self, names: Sequence[str]) -> Reader[bytes]:
        """Return a reader that receives no message of topics without partitions, or partitions."""
        parsed = [topic_name(name) for name in names]
        return await self._open_reader(names[0], LATEST, None, queue_size=0, topics=parsed)

    async def _existing_partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, or of the topic to which a partition belongs.

        A partition that nobody has used yet is not stored, but its topic is known.
        """
        return await self.partitions(topic_name(topic).base.full, create=False)

    async def _held(self, topic: str) -> list[OffsetRange]:
        async with await self._open_reader(topic, LATEST, None, queue_size=0) as reader:
            return await reader.offset_ranges()

    def stats(self) -> ClientStats:
        """Return the statistics of everything that the client has open."""
        return ClientStats(
            self._pool.open_connections,
            tuple(each.stats() for each in self._producers),
            tuple(each.stats() for each in self._sources),
        )

    # -- producers, consumers, readers

    async def create_producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        compression: Compression = "none",
        batching: Batching = True,
        batch_messages_max: int = _PRODUCER.batch_messages_max,
        batch_bytes_max: int = _PRODUCER.batch_bytes_max,
        batch_delay_s: float = _PRODUCER.batch_delay_s,
        pending_bytes_max: int = _PRODUCER.pending_bytes_max,
        send_timeout_s: float | None = _PRODUCER.send_timeout_s,
        initial_sequence_id: int | None = None,
        initial_subscription: str | None = None,
        chunking: bool = False,
        schema: Schema[ValueT] | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
    ) -> Producer[ValueT]:
        """Return a producer that is attached to its broker, or to the brokers of all partitions.

        `name`: of the producer; two producers of a topic cannot have the same one.  The broker
            chooses a name if it is None.
        `compression`: none, lz4, zlib, zstd or snappy; batches are stored compressed.
        `batching`: False sends each message alone.  "by_key" makes batches of messages with one
            key (or ordering key), so that key_shared consumers get each key in order.
        `batch_messages_max`, `batch_bytes_max`, `batch_delay_s`: a batch is sent when it has so
            many messages or bytes, or after this time if earlier batches have no receipt yet.
        `pending_bytes_max`: how much may have no receipt; then sending waits (`send`), or raises
            QueueFullError (`send_nowait`).
        `send_timeout_s`: after this time without a receipt a message fails; None never gives up.
        `initial_sequence_id`: the sequence id of the first message.  If it is None, the producer
            goes on behind the last id that the broker knows under this name.
        `schema`: how values become messages (`daybook.schemas`); the broker checks that it fits.
        `initial_subscription`: a subscription that is created with the topic, so that its messages
            are kept for it.
        `chunking`: a message that is too large for the broker is sent in several entries, and
            joined by its consumer.  It may be as large as `pending_bytes_max`.
        `interceptors`: see and change the messages, in this order.
        """
        limits = ProducerLimits(
            batch_messages_max, batch_bytes_max, batch_delay_s, pending_bytes_max, send_timeout_s
        )
        packing = compression_type(compression)
        check_name("name", name)
        check_name("initial_subscription", initial_subscription)
        check_batching(batching)
        check_schema(schema)
        check_timeout("send_timeout_s", send_timeout_s)
        name_of_topic = topic_name(topic)
        chain = check_interceptors(interceptors, ProducerInterceptor)
        settings = ProducerSettings(
            name,
            limits,
            packing,
            batching,
            initial_sequence_id,
            initial_subscription,
            chunking,
            None if schema is None else schema.info,
            SendBudget(pending_bytes_max),
        )
        topics = await self._lookups.topics_of(name_of_topic)
        # Made before the producers, which report their batches to it.
        router = Router(len(topics), first=self._rng.randrange(1 << 16))
        open_partitions = partial(self._open_producers, settings, router)
        producer = Producer(
            name_of_topic,
            await open_partitions(topics, 0),
            router,
            settings.budget,
            open_partitions,
            self._producers.remove,
            schema,
            counts=settings.counts,
            interceptors=ProducerInterceptors(chain) if chain else None,
        )
        self._producers.append(producer)
        return producer

    async def _open_producers(
        self, settings: ProducerSettings, router: Router, topics: list[TopicName], first: int
    ) -> list[TopicProducer]:
        producers: list[TopicProducer] = []
        for index, topic in enumerate(topics, first):
            producer = TopicProducer(
                topic,
                lookups=self._lookups,
                limits=self._limits,
                rng=self._rng,
                clock=self._clock,
                producer_id=self._next_producer_id,
                settings=settings,
                on_batch=partial(router.batch_ended, index),
            )
            self._next_producer_id += 1
            producers.append(producer)
        await attach_all(self._nursery, producers)
        return producers

    async def subscribe(
        self,
        topic: Topics,
        subscription: str,
        *,
        type: SubscriptionTypeName = "exclusive",  # noqa: A002  (that is what it is called)
        initial_position: InitialPosition = "latest",
        consumer_name: str | None = None,
        receiver_queue_size: int | None = None,
        ack_receipts: bool = False,
        ack_group_s: float = _CONSUMER.ack_group_s,
        nack_delay_s: float = _CONSUMER.nack_delay_s,
        key_ranges: Sequence[tuple[int, int]] | None = None,
        out_of_order: bool = False,
        properties: dict[str, str] | None = None,
        read_compacted: bool = False,
        discovery_s: float = _CONSUMER.discovery_s,
        nack_delay_max_s: float | None = None,
        ack_timeout_s: float | None = None,
        dead_letter: DeadLetterPolicy | None = None,
        retry: bool = False,
        schema: Schema[ValueT] | None = None,
        expire_incomplete_chunks_s: float | None = _CONSUMER.expire_incomplete_chunks_s,
        ack_incomplete_chunks: bool = _CONSUMER.ack_incomplete_chunks,
        chunked_messages_max: int = _CONSUMER.chunked_messages_max,
        interceptors: Sequence[ConsumerInterceptor] = (),
        listener: Listener[Consumer[ValueT], ValueT] | None = None,
        subscription_properties: dict[str, str] | None = None,
    ) -> Consumer[ValueT]:
        """Return a consumer of a durable subscription, which is created if it does not exist.

        `topic`: the name of a topic; or a list of names; or a pattern, as of `re.compile`, for the
            names of topics in one namespace.  The consumer of a pattern also receives from topics
            that come later, from their first message on.
        `type`: exclusive allows one consumer, failover sends messages to one of several consumers,
            shared to all of them in turn, key_shared those of one key to one of them, in order.
        `initial_position`: where a new subscription starts: earliest or latest.
        `consumer_name`: among consumers of a failover subscription, the names decide who is active.
        `receiver_queue_size`: how many messages the broker may send ahead of demand.
        `ack_receipts`: `ack` returns when the broker has made the acknowledgement durable.
        `ack_group_s`: without receipts, acknowledgements are sent together once in this time.
        `nack_delay_s`: after this time a message comes again that was given to `nack`.
        `key_ranges`: a key_shared consumer gets keys with these hashes only: pairs of first and
            last, from 0 to 65535.  If it is None, the broker spreads keys over the consumers.
        `out_of_order`: a key of a key_shared subscription may move to a new consumer while another
            one still has messages of it.
        `properties`: those of this consumer, shown in the statistics of the topic.
        `read_compacted`: get only the last message of each key from the part of the topic that was
            compacted; for exclusive and failover subscriptions.
        `discovery_s`: how often the consumer of a pattern looks for new topics, of which a broker
            may tell it before.
        `nack_delay_max_s`: the delay of `nack` doubles with each redelivery, up to this time.
        `ack_timeout_s`: a message comes again that is not acknowledged in this time.
        `dead_letter`: when a message is given up, and where it is sent then.
        `schema`: how messages become values (`message.value`; `daybook.schemas`).
        `retry`: `reconsume_later` may be called: the consumer also receives from the retry topic.
        `expire_incomplete_chunks_s`: after this time a message in chunks is dropped whose chunks
            are not all there.  So is the oldest if more than `chunked_messages_max` lack chunks.
        `ack_incomplete_chunks`: acknowledge the chunks of messages that are dropped.  Otherwise
            they are delivered again.
        `interceptors`: see the messages and acknowledgements, and change messages, in this order.
        `listener`: called with the consumer and each message, one after the other, instead of
            `receive`.  It may be an async function.  See `clients.python.listener`.
        `subscription_properties`: stored with the subscription if this call creates it, and shown
            in the statistics of the topic also while it has no consumer.
        """
        try:
            kind = SubscriptionType(type)
        except ValueError:
            raise ValueError(
                f"type must be exclusive, failover, shared or key_shared, not {type!r}"
            ) from None
        if initial_position not in ("earliest", "latest"):
            raise ValueError(
                f"initial_position must be earliest or latest, not {initial_position!r}"
            )
        if read_compacted and kind is SubscriptionType.SHARED:
            raise ValueError("read_compacted is for exclusive and failover subscriptions only")
        check_subscription(subscription)
        check_name("consumer_name", consumer_name)
        check_timeout("nack_delay_max_s", nack_delay_max_s)
        check_timeout("ack_timeout_s", ack_timeout_s)
        check_timeout("expire_incomplete_chunks_s", expire_incomplete_chunks_s)
        if chunked_messages_max < 1:
            raise ValueError(f"chunked_messages_max must be at least 1, not {chunked_messages_max}")
        limits = ConsumerLimits(
            ack_group_s=ack_group_s,
            nack_delay_s=nack_delay_s,
            nack_delay_max_s=nack_delay_max_s,
            ack_timeout_s=ack_timeout_s,
            expire_incomplete_chunks_s=expire_incomplete_chunks_s,
            ack_incomplete_chunks=ack_incomplete_chunks,
            chunked_messages_max=chunked_messages_max,
        )
        chain = check_interceptors(interceptors, ConsumerInterceptor)
        check_listener(listener)
        choice = topic_choice([topic] if isinstance(topic, str) else topic)
        letters: DeadLetters | None = None
        if dead_letter is not None or retry:
            policy = dead_letter or DeadLetterPolicy(RETRIES_MAX)
            counted = kind.shares
            check_dead_letters(policy, choice, counted=counted, retry=retry)
            letters = DeadLetters(
                policy,
                choice.first,
                subscription,
                self._letter_producer,
                schema_of,
                limits.dead_letters_max,
                retry=retry,
            )
            if retry:
                choice = choice.with_topic(topic_name(letters.retry_topic))
        if receiver_queue_size is None:
            receiver_queue_size = (
                limits.receiver_queue_size_shared if kind.shares else limits.receiver_queue_size
            )
        settings = ConsumerSettings(
            subscription,
            kind,
            durable=True,
            start=EARLIEST if initial_position == "earliest" else LATEST,
            consumer_name=consumer_name or f"{self._rng.getrandbits(40):010x}",
            queue_size=receiver_queue_size,
            limits=limits,
            ack_receipts=ack_receipts,
            read_compacted=read_compacted,
            properties=check_properties(properties),
            stored=check_properties(subscription_properties),
            dead_letters=letters,
            retry=retry,
            key_ranges=check_key_ranges(key_ranges, type_name=type, out_of_order=out_of_order),
            out_of_order=out_of_order,
            versions=None if schema is None else SchemaVersions(schema),
            interceptors=ConsumerInterceptors(chain) if chain else None,
        )
        consumer: Consumer[ValueT] = await self._sources.open_consumer(
            choice, settings, discovery_s
        )
        if letters is not None:
            self._nursery.start_soon(letters.run)
        if listener is not None:
            self.start_listener(consumer, partial(listener, consumer))
        return consumer

    async def subscribe_pipe(
        self,
        topic: str,
        subscription: str,
        *,
        initial_position: InitialPosition,
        receiver_queue_size: int,
        record: tuple[str, str],
        must_exist: bool,
    ) -> Consumer[Any]:
        """Return the consumer of a pipe.  The subscription is created with its record, if it may.

        The consumer ends if it meets a subscription with another record later.
        """
        settings = ConsumerSettings(
            subscription,
            SubscriptionType.EXCLUSIVE,
            durable=True,
            start=EARLIEST if initial_position == "earliest" else LATEST,
            consumer_name=f"{self._rng.getrandbits(40):010x}",
            queue_size=receiver_queue_size,
            limits=_CONSUMER,
            ack_receipts=False,
            must_exist=must_exist,
            stored=(record,),
            identity=record[0],
        )
        return await self._sources.open_consumer(
            topic_choice([topic]), settings, _CONSUMER.discovery_s
        )

    def has_open(self, consumer: Consumer[Any] | None) -> bool:
        """Return True for a consumer of this client that was not closed."""
        return consumer in self._sources

    def start_listener(self, consumer: Consumer[Any], call: Call) -> None:
        """Have `call` called with each message of a consumer."""
        self._nursery.start_soon(Listening(consumer, call).run)

    async def _letter_producer(
        self, topic: str, initial_subscription: str | None, schema: Raw | None
    ) -> Producer:
        return await self.create_producer(
            topic,
            batching=False,
            initial_subscription=initial_subscription,
            chunking=True,
            schema=schema,
        )

    async def create_reader(
        self,
        topic: str,
        *,
        start: Start | int | str = "latest",
        name: str | None = None,
        receiver_queue_size: int = _CONSUMER.receiver_queue_size,
        read_compacted: bool = False,
        schema: Schema[ValueT] | None = None,
    ) -> Reader[ValueT]:
        """Return a reader, which reads from any place on, without a subscription.

        `start`: the place of the first message: `earliest`, `latest`, an offset, a message id, or a
            time.  A reader whose offset lies behind the end of the topic waits until the topic has
            grown so far.
        `name`: shown in the statistics of the topic.
        `receiver_queue_size`: how many messages the broker may send ahead of demand.
        `read_compacted`: get only the last message of each key from the part of the topic that was
            compacted.
        """
        return await self._open_reader(
            topic,
            parse_start(start),
            name,
            queue_size=max(1, receiver_queue_size),
            schema=schema,
            read_compacted=read_compacted,
        )

    async def table_view(
        self,
        topic: str,
        *,
        name: str | None = None,
        receiver_queue_size: int = _CONSUMER.receiver_queue_size,
        schema: Schema[ValueT] | None = None,
    ) -> TableView[ValueT]:
        """Return a view of a topic as a mapping of each key to its latest value.

        This returns when everything is read that the topic had before.  All values are in memory.

        `name`: shown in the statistics of the topic.
        `receiver_queue_size`: how many messages the broker may send ahead of demand.
        `schema`: how messages become the values of the table.
        """
        reader = await self.create_reader(
            topic,
            start="earliest",
            name=name,
            receiver_queue_size=receiver_queue_size,
            read_compacted=True,
            schema=schema,
        )
        view = TableView(reader)
        self._nursery.start_soon(view.run)
        try:
            await view.wait_caught_up()
        except BaseException:
            view.abandon()
            raise
        return view

    async def pipe(
        self,
        source: str,
        target: str,
        transform: Transform,
        *,
        name: str,
        at_least_once: bool = False,
        initial_position: InitialPosition = "earliest",
        dead_letter_topic: str | None = None,
    ) -> int:
        """Write what `transform` makes of each message of a topic to another topic.

        Each output is stored once, whatever dies meanwhile.  This takes a target with
        deduplication, whose number of partitions stays; otherwise NotAllowedError is raised.  The
        outputs of a message go to one partition, by the key of that message.  Run until the source
        was terminated, and return the number of its messages.

        `transform`: a function, perhaps async, of a message.  It returns None, bytes, an Output, or
            a list of these.  An exception of it ends the pipe, and its message comes again when the
            pipe is started again.
        `name`: of the pipe.  A pipe of the same name continues where the last one ended.
        `at_least_once`: no conditions; an output may be stored twice after a crash.
        `initial_position`: where the first pipe of this name starts: earliest or latest.
        `dead_letter_topic`: a message for which `transform` raises is sent there, once, and the
            pipe continues.  The topic must have deduplication and no partitions, too.
        """
        pipe = Pipe(
            self,
            source,
            target,
            transform,
            name=name,
            at_least_once=at_least_once,
            initial_position=initial_position,
            dead_letter_topic=dead_letter_topic,
            patience_s=self._limits.operation_timeout_s,
            new_identity=lambda: f"{self._rng.getrandbits(128):032x}",
        )
        return await pipe.run()

    async def _open_reader(
        self,
        topic: str,
        where: Start,
        name: str | None,
        *,
        queue_size: int,
        read_compacted: bool = False,
        schema: Schema[ValueT] | None = None,
        topics: list[TopicName] | None = None,
    ) -> Reader[ValueT]:
        """Open a reader of a topic, or of `topics`, which then are not looked for."""
        check_name("name", name)
        name = name or f"reader-{self._rng.getrandbits(40):010x}"
        settings = ConsumerSettings(
            name,
            SubscriptionType.EXCLUSIVE,
            durable=False,
            start=where,
            consumer_name=name,
            queue_size=queue_size,
            limits=ConsumerLimits(),
            ack_receipts=False,
            versions=None if schema is None else SchemaVersions(schema),
            read_compacted=read_compacted,
        )
        return await self._sources.open_reader(topic_name(topic), settings, topics)

    # -- what is open

    async def _watch_partitions(self) -> None:
        """Add partitions to producers, consumers and readers when their topics get more."""
        while True:
            await trio.sleep(self._limits.partitions_refresh_s)
            everything: list[Producer[Any] | MessageSource[Any]] = [
                *self._producers,
                *self._sources,
            ]
            for each in everything:
                if each.partitions:
                    with suppress(BrokerError):  # The next round tries again.
                        name = topic_name(each.topic)
                        count = await self._lookups.partitions(name, create=False)
                        if count > each.partitions:
                            await each.grow(count)

    def on_forked(self, error: ClosedError) -> None:
        """Refuse everything in a process that was forked, without touching a socket."""
        self._pool.on_forked(error)
        for producer in self._producers:
            producer.on_forked(error)
        for source in self._sources:
            source.on_forked(error)

    async def aclose(self) -> None:
        """Close everything; raise the first failure of a message without `on_result`."""
        failure: Exception | None = None
        everything: list[Producer[Any] | MessageSource[Any]] = [*self._producers, *self._sources]
        for opened in everything:
            try:
                await opened.aclose()
            except Exception as error:  # The others are closed all the same.
                failure = failure or error
        self._pool.close()
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Close everything without waiting for brokers."""
        everything: list[Producer[Any] | MessageSource[Any]] = [*self._producers, *self._sources]
        for opened in everything:
            opened.abandon()
        self._pool.close()
