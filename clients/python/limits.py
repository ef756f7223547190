"""How much a client holds, and how long it waits."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of a client, for `connect(limits=...)`."""

    connect_timeout_s: float = 3.0  # until the broker has answered the greeting
    # For one answer; after that another broker is asked.  The time begins anew, up to
    # `operation_timeout_s`, when the broker answers an earlier request late: it works them off.
    request_timeout_s: float = 10.0
    operation_timeout_s: float = 30.0  # for an operation that may take several attempts
    keep_alive_s: float = 5.0  # silence for as long again after a ping ends a connection
    keep_alive_waiting_s: float = 1.5  # the same, while a request or a send waits for the broker
    backoff_initial_s: float = 0.05
    backoff_max_s: float = 1.0
    redirects_max: int = 20
    frame_bytes_max: int = 32 << 20
    arenas_bytes_max: int = 256 << 20
    partitions_refresh_s: float = 60.0  # how often a topic is asked for new partitions


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """Defaults of the options of `Client.create_producer`."""

    batch_messages_max: int = 2000
    batch_bytes_max: int = 128 << 10
    batch_delay_s: float = 0.001  # while earlier entries wait for their receipt; else no delay
    pending_bytes_max: int = 64 << 20
    send_timeout_s: float | None = 30.0


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Limits of a consumer; some are options of `Client.subscribe`."""

    receiver_queue_size: int = 10_000  # messages that the broker may send ahead
    receiver_queue_size_shared: int = (
        1000  # the same, on a shared or key_shared one: other consumers could process them
    )
    receiver_queue_bytes_max: int = 32 << 20
    ack_group_s: float = 0.1
    ack_group_max: int = 1000
    ack_settle_s: float = 1.0  # between two receipts for acks that were sent without one
    acks_in_doubt_max: int = 100_000  # entries
    given_back_max: int = 10_000  # batches given back, which another consumer may finish
    nack_delay_s: float = 1.0
    nack_delay_max_s: float | None = None  # with a value, the delay doubles up to it
    ack_timeout_s: float | None = None  # an entry that is not acknowledged in it comes again
    dead_letters_max: int = 1000  # rejected messages that wait for their dead letters
    chunked_bytes_max: int = 128 << 20  # messages in chunks that are not whole yet
    chunked_messages_max: int = 100
    expire_incomplete_chunks_s: float | None = None  # so long a message may lack chunks
    ack_incomplete_chunks: bool = False  # instead of having dropped ones delivered again
    discovery_s: float = 60.0  # how often a pattern is compared with the topics that exist
