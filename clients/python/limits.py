"""How much a client holds, and how long it waits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """One record for all of a client; `connect(limits=...)` takes another one."""

    connect_timeout_s: float = 3.0  # until the broker has greeted
    request_timeout_s: float = 10.0  # for one answer; then another broker is asked
    operation_timeout_s: float = 30.0  # for what may take several attempts
    keep_alive_s: float = 5.0  # silence for as long again after a ping ends a connection
    keep_alive_waiting_s: float = 1.5  # the same, while somebody waits for the broker
    backoff_initial_s: float = 0.05
    backoff_max_s: float = 1.0
    redirects_max: int = 20
    frame_bytes_max: int = 32 << 20
    arenas_bytes_max: int = 256 << 20
    partitions_refresh_s: float = 60.0  # how often a topic is asked for new partitions


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    batch_messages_max: int = 2000
    batch_bytes_max: int = 128 << 10
    batch_delay_s: float = 0.001  # while earlier entries wait for their receipt; else no delay
    pending_bytes_max: int = 64 << 20
    send_timeout_s: float | None = 30.0


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    receiver_queue_size: int = 10_000  # messages that the broker may send ahead
    receiver_queue_size_shared: int = 1000  # the same, where others could work on them
    receiver_queue_bytes_max: int = 32 << 20
    ack_group_s: float = 0.1
    ack_group_max: int = 1000
    ack_settle_s: float = 1.0  # how long what was told without a receipt stays in doubt, at least
    acks_in_doubt_max: int = 100_000  # entries
    given_back_max: int = 10_000  # batches that somebody else may finish
    nack_delay_s: float = 1.0
