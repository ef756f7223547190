"""The names of topics that Pulsar's brokers keep for themselves, as in Pulsar 4.2.

Pulsar's brokers believe what these topics hold: policies, and the state of transactions.
"""

from daybook.wire.topics import TopicName

_IN_EACH_NAMESPACE = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_indexes",
        "__transaction_buffer_snapshot_segments",
    }
)
_PREFIXES = (
    "persistent://pulsar/system/transaction_coordinator_assign",
    "persistent://pulsar/system/__transaction_log_",
)
_SUFFIX = "__transaction_pending_ack"


def is_system(name: TopicName) -> bool:
    """Return True for a topic that a Pulsar broker keeps for itself, and for its partitions."""
    base = name.base
    return (
        base.local in _IN_EACH_NAMESPACE
        or base.full.startswith(_PREFIXES)
        or base.local.endswith(_SUFFIX)
    )
