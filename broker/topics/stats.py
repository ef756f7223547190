"""The statistics of a topic, with the keys that Pulsar's tools know.

`statistics` returns records, and `topic_stats` the same as plain objects for JSON.  Keys for which
this broker counts nothing are left out.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import cast

import msgspec

from daybook.broker.compaction.state import CompactionStats, compaction_stats
from daybook.broker.dispatch.consumer import ConsumedSubscription, Consumer
from daybook.broker.dispatch.non_persistent import NonPersistentSubscription
from daybook.broker.dispatch.subscription import TYPE_NAMES, Subscription
from daybook.broker.protocol.access import AccessMode
from daybook.broker.protocol.dispatch.key_shared import KeySharedDispatch
from daybook.broker.topics.non_persistent import NonPersistentTopic
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.rates import NOTHING, OutCounters
from daybook.broker.topics.topic import Topic
from daybook.wire.proto import pulsar_pb2 as pb

_RANGES_MAX = 1_000
_DRAINING_MAX = 100  # slots that are listed for one consumer


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    pass


class PublisherStats(_Record, frozen=True):
    access_mode: str
    producer_id: int
    producer_name: str
    address: str
    connected_since: str
    client_version: str
    supports_partial_producer: bool
    average_msg_size: float
    msg_in_counter: int
    bytes_in_counter: int
    metadata: dict[str, str]


class DrainingHash(_Record, frozen=True):
    hash: int  # a slot
    unack_msgs: int  # entries of its waiting keys that the consumer has


class ConsumerStats(_Record, frozen=True):
    consumer_name: str
    address: str
    connected_since: str
    client_version: str
    available_permits: int
    unacked_messages: int
    blocked_consumer_on_unacked_msgs: bool
    msg_out_counter: int
    bytes_out_counter: int
    avg_messages_per_entry: int
    last_acked_timestamp: int
    last_consumed_timestamp: int
    metadata: dict[str, str]
    key_hash_ranges: list[str]  # first and last slot of each range; key_shared only
    key_hash_range_arrays: list[tuple[int, int]]
    draining_hashes_count: int  # slots whose entries wait until this consumer has no more of them
    draining_hashes_unacked_messages: int  # entries
    draining_hashes: list[DrainingHash]  # the first of these slots


class SubscriptionStats(_Record, frozen=True):
    type: str
    durable: bool
    msg_backlog: int  # messages; an estimate unless `backlog_exact` (see `dispatch.backlog`)
    backlog_exact: bool
    backlog_entries: int
    backlog_size: int  # bytes; an estimate unless `backlog_size_exact`
    backlog_size_exact: bool
    # The publish time of the first message that is not acknowledged; 0 if there is none, or it was
    # not read.
    earliest_msg_publish_time_in_backlog: int
    msg_rate_out: float
    msg_throughput_out: float
    msg_rate_redeliver: float
    msg_rate_expired: float  # entries, as for Pulsar
    total_msg_expired: int
    last_expire_timestamp: int
    msg_out_counter: int
    bytes_out_counter: int
    unacked_messages: int
    blocked_subscription_on_unacked_msgs: bool
    msg_delayed: int
    msg_backlog_no_delayed: int
    key_shared_mode: str | None  # AUTO_SPLIT or STICKY; None for other types
    allow_out_of_order_delivery: bool
    msg_waiting_for_consumer: (
        int  # entries of key_shared that were read and wait for their consumer
    )
    look_ahead_full: bool  # so many wait that nothing new is read
    active_consumer_name: str
    last_acked_timestamp: int
    last_consumed_timestamp: int
    last_mark_delete_advanced_timestamp: int
    # When somebody moved the subscription (seek, reset), also with an earlier owner; 0: never.
    last_moved_timestamp: int
    non_contiguous_deleted_messages_ranges: int  # counting stops above `_RANGES_MAX`
    replicated: bool
    consumers: list[ConsumerStats]
    subscription_properties: dict[str, str]


class TopicStats(_Record, frozen=True):
    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    msg_in_counter: int
    bytes_in_counter: int
    msg_out_counter: int
    bytes_out_counter: int
    average_msg_size: float
    storage_size: int
    offloaded_storage_size: int
    # The publish time of the first message that some subscription has not acknowledged, or 0.
    earliest_msg_publish_time_in_backlogs: int
    non_contiguous_deleted_messages_ranges: int
    replication: dict[str, object]
    backlog_size: int  # bytes, for the subscription that is farthest behind
    backlog_quota_limit_size: int  # -1: none
    backlog_quota_limit_time: int  # seconds, -1: none
    oldest_backlog_message_age_seconds: int  # at the last look, -1 if nobody looked
    publishers: list[PublisherStats]
    msg_chunk_published: bool
    waiting_publishers: int
    subscriptions: dict[str, SubscriptionStats]
    deduplication_status: str
    compaction: CompactionStats
    topic_epoch: int | None
    waiting_for: str  # the reason why nothing is stored; empty if all is well
    ledger_list_bytes: int  # the size of the list of ledgers in the metadata store
    ledger_list_bytes_max: int
    ledger_list_alarm: bool  # True from half of `ledger_list_bytes_max` on
    ledger_list_full: str  # the reason if the topic takes no messages because of its list


def topic_stats(topic: Topic, owner: str) -> dict[str, object]:
    """Return the statistics as plain objects, with the broker that owns the topic."""
    found: dict[str, object] = msgspec.to_builtins(statistics(topic))
    found["ownerBroker"] = owner
    return found


def internal_stats(topic: Topic) -> dict[str, object]:
    """Return the ledgers, cursors and pending appends as plain objects."""
    return {**topic.internal_stats(), "compactedLedger": topic.compaction.ledger_stats()}


def statistics(topic: Topic) -> TopicStats:
    rates = topic.rates.current
    subscriptions = {
        name: _subscription(s, rates.out.get(name, NOTHING))
        for name, s in sorted(topic.subscriptions.by_name.items())
    }
    outs = list(subscriptions.values())
    age_s = topic.quotas.oldest_age_s
    return TopicStats(
        msg_rate_in=rates.messages,
        msg_throughput_in=rates.bytes,
        msg_rate_out=sum(s.msg_rate_out for s in outs),
        msg_throughput_out=sum(s.msg_throughput_out for s in outs),
        msg_in_counter=topic.messages,
        bytes_in_counter=topic.bytes,
        msg_out_counter=sum(s.msg_out_counter for s in outs),
        bytes_out_counter=sum(s.bytes_out_counter for s in outs),
        average_msg_size=_mean(topic.bytes, topic.messages),
        storage_size=topic.log.size_bytes,
        offloaded_storage_size=0,
        earliest_msg_publish_time_in_backlogs=min(
            (
                s.earliest_msg_publish_time_in_backlog
                for s in outs
                if s.durable and s.earliest_msg_publish_time_in_backlog
            ),
            default=0,
        ),
        non_contiguous_deleted_messages_ranges=sum(
            s.non_contiguous_deleted_messages_ranges for s in outs
        ),
        replication={},
        backlog_size=max((s.backlog_size for s in outs if s.durable), default=0),
        backlog_quota_limit_size=topic.policies.size_quota.limit_size,
        backlog_quota_limit_time=topic.policies.age_quota.limit_time,
        oldest_backlog_message_age_seconds=-1 if age_s is None else int(age_s),
        publishers=[_publisher(p) for p in topic.producers.by_name.values()],
        msg_chunk_published=topic.chunks > 0,
        waiting_publishers=topic.producers.waiting,
        subscriptions=subscriptions,
        deduplication_status="Disabled" if topic.deduplication is None else "Enabled",
        compaction=compaction_stats(topic.compaction),
        topic_epoch=topic.producers.epoch,
        waiting_for=topic.log.waiting_for,
        ledger_list_bytes=topic.log.room.bytes,
        ledger_list_bytes_max=topic.log.room.bytes_max,
        ledger_list_alarm=topic.log.room.alarming,
        ledger_list_full=topic.log.full,
    )


def non_persistent_stats(topic: NonPersistentTopic, owner: str) -> dict[str, object]:
    """Return the statistics of a topic that stores nothing, with what was dropped."""
    found: dict[str, object] = msgspec.to_builtins(non_persistent_statistics(topic))
    rates = topic.rates.current.out
    dropped = {name: rates.get(name, NOTHING).redelivered for name in topic.subscriptions.by_name}
    found["msgDropRate"] = sum(dropped.values())
    subscriptions = cast("dict[str, dict[str, object]]", found["subscriptions"])
    for name, one in subscriptions.items():
        one["msgRateRedeliver"] = 0.0
        one["msgDropRate"] = dropped[name]
        one["msgDropCounter"] = topic.subscriptions.by_name[name].dropped
    found["ownerBroker"] = owner
    return found


def non_persistent_statistics(topic: NonPersistentTopic) -> TopicStats:
    rates = topic.rates.current
    subscriptions = {
        name: _subscription(s, rates.out.get(name, NOTHING))
        for name, s in sorted(topic.subscriptions.by_name.items())
    }
    outs = list(subscriptions.values())
    return TopicStats(
        msg_rate_in=rates.messages,
        msg_throughput_in=rates.bytes,
        msg_rate_out=sum(s.msg_rate_out for s in outs),
        msg_throughput_out=sum(s.msg_throughput_out for s in outs),
        msg_in_counter=topic.messages,
        bytes_in_counter=topic.bytes,
        msg_out_counter=sum(s.msg_out_counter for s in outs),
        bytes_out_counter=sum(s.bytes_out_counter for s in outs),
        average_msg_size=_mean(topic.bytes, topic.messages),
        storage_size=0,
        offloaded_storage_size=0,
        earliest_msg_publish_time_in_backlogs=0,
        non_contiguous_deleted_messages_ranges=0,
        replication={},
        backlog_size=0,
        backlog_quota_limit_size=-1,
        backlog_quota_limit_time=-1,
        oldest_backlog_message_age_seconds=-1,
        publishers=[_publisher(p) for p in topic.producers.by_name.values()],
        msg_chunk_published=topic.chunks > 0,
        waiting_publishers=topic.producers.waiting,
        subscriptions=subscriptions,
        deduplication_status="Disabled",
        compaction=CompactionStats(0, 0, 0, 0),
        topic_epoch=topic.producers.epoch,
        waiting_for="",
        ledger_list_bytes=0,
        ledger_list_bytes_max=0,
        ledger_list_alarm=False,
        ledger_list_full="",
    )


def _publisher(producer: Producer) -> PublisherStats:
    connection = producer.connection
    return PublisherStats(
        access_mode=_ACCESS_MODES[producer.access_mode],
        producer_id=producer.producer_id,
        producer_name=producer.name,
        address=f"/{connection.peer}",
        connected_since=_iso(connection.connected_ms),
        client_version=connection.client_version,
        supports_partial_producer=False,
        average_msg_size=_mean(producer.bytes, producer.messages),
        msg_in_counter=producer.messages,
        bytes_in_counter=producer.bytes,
        metadata=producer.metadata,
    )


def _subscription(
    subscription: Subscription | NonPersistentSubscription, rates: OutCounters
) -> SubscriptionStats:
    consumers = list(subscription.consumers.values())
    active = subscription.dispatch.active
    keyed = _keyed(subscription)
    draining = {} if keyed is None else keyed.draining()
    backlog = subscription.backlog
    name = "" if active is None else subscription.consumers[active].name
    stored = subscription if isinstance(subscription, Subscription) else None
    return SubscriptionStats(
        type="None" if subscription.type is None else TYPE_NAMES[subscription.type],
        durable=subscription.durable,
        msg_backlog=backlog.messages,
        backlog_exact=backlog.exact,
        backlog_entries=backlog.entries,
        backlog_size=backlog.bytes,
        backlog_size_exact=backlog.bytes_exact,
        earliest_msg_publish_time_in_backlog=backlog.oldest_ms or 0,
        msg_rate_out=rates.messages,
        msg_throughput_out=rates.bytes,
        msg_rate_redeliver=rates.redelivered,
        msg_rate_expired=rates.expired,
        total_msg_expired=0 if stored is None else stored.expired,
        last_expire_timestamp=0 if stored is None else stored.expired_ms,
        msg_out_counter=subscription.messages,
        bytes_out_counter=subscription.bytes,
        unacked_messages=sum(_unacked(consumers)),
        blocked_subscription_on_unacked_msgs=stored is not None
        and (stored.dispatch.blocked or stored.dispatcher.stopped_by_broker),
        msg_delayed=subscription.dispatch.delayed,
        msg_backlog_no_delayed=max(0, backlog.messages - subscription.dispatch.delayed),
        key_shared_mode=None if keyed is None else keyed.policy.mode,
        allow_out_of_order_delivery=keyed is not None and keyed.policy.out_of_order,
        msg_waiting_for_consumer=0 if keyed is None else keyed.waiting,
        look_ahead_full=keyed is not None and keyed.look_ahead_full,
        active_consumer_name=name,
        last_acked_timestamp=subscription.acked_ms,
        last_consumed_timestamp=max((c.consumed_ms for c in consumers), default=0),
        last_mark_delete_advanced_timestamp=0 if stored is None else stored.advanced_ms,
        last_moved_timestamp=0 if stored is None else stored.moved or 0,
        non_contiguous_deleted_messages_ranges=(
            0 if stored is None else stored.cursor.range_count(_RANGES_MAX)
        ),
        replicated=False,
        consumers=[_consumer(c, draining.get(c.key, {})) for c in consumers],
        subscription_properties=dict(subscription.properties),
    )


def _keyed(subscription: ConsumedSubscription) -> KeySharedDispatch | None:
    dispatch = subscription.dispatch
    return dispatch if isinstance(dispatch, KeySharedDispatch) else None


def _unacked(consumers: Iterable[Consumer]) -> Iterable[int]:
    return (c.subscription.dispatch.unacked_of(c.key) for c in consumers)


def _consumer(consumer: Consumer, draining: Mapping[int, int]) -> ConsumerStats:
    connection, dispatch = consumer.connection, consumer.subscription.dispatch
    keyed = _keyed(consumer.subscription)
    ranges = [] if keyed is None else keyed.ranges_of(consumer.key)
    return ConsumerStats(
        consumer_name=consumer.name,
        address=f"/{connection.peer}",
        connected_since=_iso(connection.connected_ms),
        client_version=connection.client_version,
        available_permits=dispatch.permits_of(consumer.key),
        unacked_messages=dispatch.unacked_of(consumer.key),
        blocked_consumer_on_unacked_msgs=dispatch.is_blocked(consumer.key),
        msg_out_counter=consumer.messages,
        bytes_out_counter=consumer.bytes,
        avg_messages_per_entry=round(_mean(consumer.messages, consumer.entries)),
        last_acked_timestamp=consumer.acked_ms,
        last_consumed_timestamp=consumer.consumed_ms,
        metadata=consumer.metadata,
        key_hash_ranges=[f"[{first}, {last}]" for first, last in ranges],
        key_hash_range_arrays=ranges,
        draining_hashes_count=len(draining),
        draining_hashes_unacked_messages=sum(draining.values()),
        draining_hashes=[DrainingHash(*each) for each in sorted(draining.items())[:_DRAINING_MAX]],
    )


def consumer_stats_response(
    consumer: Consumer, request_id: int, now_ms: int
) -> pb.CommandConsumerStatsResponse:
    """Return the answer to CONSUMER_STATS.  Rates are means since the client connected."""
    subscription, connection = consumer.subscription, consumer.connection
    seconds = max(1.0, (now_ms - connection.connected_ms) / 1000)
    dispatch = subscription.dispatch
    return pb.CommandConsumerStatsResponse(
        request_id=request_id,
        msgRateOut=consumer.messages / seconds,
        msgThroughputOut=consumer.bytes / seconds,
        msgRateRedeliver=consumer.redelivered / seconds,
        consumerName=consumer.name,
        availablePermits=max(0, dispatch.permits_of(consumer.key)),
        unackedMessages=dispatch.unacked_of(consumer.key),
        blockedConsumerOnUnackedMsgs=dispatch.is_blocked(consumer.key),
        address=f"/{connection.peer}",
        connectedSince=_iso(connection.connected_ms),
        type=TYPE_NAMES[subscription.type or 0],
        msgBacklog=subscription.backlog.messages,
    )


def _mean(total: int, count: int) -> float:
    return total / count if count else 0.0


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()


_ACCESS_MODES: dict[int, str] = {
    AccessMode.SHARED.value: "Shared",
    AccessMode.EXCLUSIVE.value: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE.value: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING.value: "ExclusiveWithFencing",
}
