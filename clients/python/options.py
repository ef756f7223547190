"""The options of producers, consumers, readers and table views, for the clients without trio.

The signatures in `clients.python.client` say what the options mean, and what their defaults are.
The other clients pass options on as they are given, so a default stands in one place.
"""

from collections.abc import Sequence
from typing import TypedDict

from daybook.clients.python.arguments import (
    Batching,
    Compression,
    InitialPosition,
    SubscriptionTypeName,
)
from daybook.clients.python.interceptors import ConsumerInterceptor, ProducerInterceptor
from daybook.clients.python.protocol.letters import DeadLetterPolicy
from daybook.clients.python.start_position import Start


class ProducerOptions(TypedDict, total=False):
    """Options of `Client.create_producer`, where they are explained."""

    name: str | None
    compression: Compression
    batching: Batching
    batch_messages_max: int
    batch_bytes_max: int
    batch_delay_s: float
    pending_bytes_max: int
    send_timeout_s: float | None
    initial_sequence_id: int | None
    initial_subscription: str | None
    chunking: bool
    interceptors: Sequence[ProducerInterceptor]


class ConsumerOptions(TypedDict, total=False):
    """Options of `Client.subscribe`, where they are explained."""

    type: SubscriptionTypeName
    initial_position: InitialPosition
    consumer_name: str | None
    receiver_queue_size: int | None
    ack_receipts: bool
    ack_group_s: float
    nack_delay_s: float
    key_ranges: Sequence[tuple[int, int]] | None
    out_of_order: bool
    properties: dict[str, str] | None
    read_compacted: bool
    discovery_s: float
    nack_delay_max_s: float | None
    ack_timeout_s: float | None
    dead_letter: DeadLetterPolicy | None
    retry: bool
    expire_incomplete_chunks_s: float | None
    ack_incomplete_chunks: bool
    chunked_messages_max: int
    interceptors: Sequence[ConsumerInterceptor]
    subscription_properties: dict[str, str] | None


class ReaderOptions(TypedDict, total=False):
    """Options of `Client.create_reader`, where they are explained."""

    start: Start | int | str
    name: str | None
    receiver_queue_size: int
    read_compacted: bool


class TableViewOptions(TypedDict, total=False):
    """Options of `Client.table_view`, where they are explained."""

    name: str | None
    receiver_queue_size: int
