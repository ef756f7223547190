"""Compares the backlog of each subscription with a full count of its entries, at the end of a run.

The work is done and nobody consumes, but subscriptions are not emptied yet.  A backlog that says
that it is exact must be the count, in messages, entries and bytes.
"""

from collections.abc import Sequence
from typing import cast

from daybook.bookie.errors import LedgerError
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.errors import BrokerError
from daybook.broker.topics.topic import Topic
from daybook.managed_ledger.errors import ManagedLedgerError
from daybook.managed_ledger.log import ManagedLedger
from daybook.managed_ledger.protocol.holes import pending_messages
from daybook.wire.batch import count_messages
from tests.simulation.cluster import Cluster

_READ_BYTES = 1 << 20


async def wrong_backlogs(cluster: Cluster, brokers: Sequence[str]) -> list[str]:
    """Return a sentence for each backlog that is not what it says."""
    found: list[str] = []
    for name in brokers:
        broker = cluster.broker(name)
        for topic in [] if broker is None else list(broker.topics.loaded.values()):
            for subscription in list(topic.subscriptions.by_name.values()):
                try:
                    found += await _compare(topic, subscription)
                except (BrokerError, LedgerError, ManagedLedgerError):
                    continue  # The topic has moved, or an entry is lost, which others notice.
    return found


async def _compare(topic: Topic, subscription: Subscription) -> list[str]:
    await subscription.read_backlog()
    end, state = topic.log.last_confirmed, _state(subscription)
    said = subscription.backlog
    truth = await _full_count(topic, subscription)
    if (topic.log.last_confirmed, _state(subscription)) != (end, state):
        return []  # A late acknowledgement came during the count.
    told = said.messages, said.entries, said.bytes
    if not (said.exact and said.bytes_exact) or told == truth:
        return []
    return [
        f"backlog: {subscription.name} of {topic.name} says {told} messages, entries and bytes;"
        f" a full count gives {truth}"
    ]


def _state(subscription: Subscription) -> tuple[object, ...]:
    cursor = subscription.cursor
    return cursor.mark_delete, cursor.acked_above, cursor.partly_acked, cursor.holes


async def _full_count(topic: Topic, subscription: Subscription) -> tuple[int, int, int]:
    log, cursor = cast("ManagedLedger", topic.log), subscription.cursor
    messages = entries = size = 0
    at = log.next_position(log.before_first)
    while at <= log.last_confirmed:
        for entry in await log.read(at, max_entries=1_000, max_bytes=_READ_BYTES):
            if not cursor.is_acked(entry.position):
                pending = cursor.pending_of(entry.position)
                messages += pending_messages(pending, count_messages(entry.data))
                entries += 1
                size += len(entry.data)
            at = log.next_position(entry.position)
    return messages, entries, size
