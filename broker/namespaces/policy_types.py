"""The values of policies, as Pulsar's tools write them in JSON.

`check` of a value raises ValueError, with a text for people, if its parts do not fit together.
"""

from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Bytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]
LongLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
SubscriptionType: TypeAlias = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
CompatibilityStrategy: TypeAlias = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
AutoUpdateStrategy: TypeAlias = Literal[
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
]


class Checked(Protocol):
    """A value whose parts have to fit together."""

    def check(self) -> None: ...


class Retention(msgspec.Struct, frozen=True):
    """How long acknowledged data are kept.  -1 means no limit; 0 for both keeps nothing."""

    retentionTimeInMinutes: Limit  # noqa: N815 - Pulsar's keys
    retentionSizeInMB: LongLimit  # noqa: N815

    def check(self) -> None:
        minutes, megabytes = self.retentionTimeInMinutes, self.retentionSizeInMB
        if minutes < -1 or megabytes < -1:
            raise ValueError("retention: -1 means no limit; a smaller value is not valid")
        if (minutes == 0) != (megabytes == 0):
            raise ValueError("retention: time and size must both be 0, or neither")


class Persistence(msgspec.Struct, frozen=True):
    """How many copies of the entries of a topic are kept."""

    bookkeeperEnsemble: Count  # noqa: N815
    bookkeeperWriteQuorum: Count  # noqa: N815
    bookkeeperAckQuorum: Count  # noqa: N815
    managedLedgerMaxMarkDeleteRate: float = 0.0  # noqa: N815

    def check(self) -> None:
        ensemble, write = self.bookkeeperEnsemble, self.bookkeeperWriteQuorum
        if not ensemble >= write >= self.bookkeeperAckQuorum >= 1:
            raise ValueError("persistence: ensemble >= write quorum >= ack quorum >= 1 must hold")


class DelayedDelivery(msgspec.Struct, frozen=True, rename="camel"):
    """If messages may ask to be delivered later, and how much later at most (0: any time).

    The tick is how late Pulsar may be.  This broker is not late by a tick, so it only keeps it.
    """

    tick_time: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] = 1000
    active: bool = True
    max_delivery_delay_in_millis: Bytes = 0


class AutoTopicCreation(msgspec.Struct, frozen=True, rename="camel"):
    """If a client that opens a topic creates it, and with how many partitions."""

    allow_auto_topic_creation: bool = False
    topic_type: Literal["partitioned", "non-partitioned"] | None = None
    default_num_partitions: Count | None = None

    @property
    def partitions(self) -> int:
        """Return the partitions of a new topic; 0 if it is not partitioned."""
        return (self.default_num_partitions or 0) if self.topic_type == "partitioned" else 0

    def check(self) -> None:
        if self.topic_type == "partitioned" and (self.default_num_partitions or 0) < 1:
            raise ValueError("a partitioned topic needs a defaultNumPartitions of 1 or more")
        if self.topic_type != "partitioned" and self.default_num_partitions:
            raise ValueError("defaultNumPartitions is for topicType partitioned only")


class AutoSubscriptionCreation(msgspec.Struct, frozen=True, rename="camel"):
    """If a client that subscribes creates the subscription."""

    allow_auto_subscription_creation: bool = False


class PublishRate(msgspec.Struct, frozen=True, rename="camel"):
    """How much all producers of a topic together may send in a second.  Below 1: no limit."""

    publish_throttling_rate_in_msg: Amount = -1
    publish_throttling_rate_in_byte: Amount = -1


Period: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]


class DispatchRate(msgspec.Struct, frozen=True, rename="camel"):
    """How much consumers may be sent in a period.  Below 1: no limit.

    If it is relative, the producers' rate of the last minute is added.
    """

    dispatch_throttling_rate_in_msg: Amount = -1
    dispatch_throttling_rate_in_byte: Amount = -1
    relative_to_publish_rate: bool = False
    rate_period_in_second: Period = 1


class SubscriptionPolicies(msgspec.Struct, frozen=True, rename="camel"):
    """The policies of a single subscription.  None: those of its topic count."""

    dispatch_rate: DispatchRate | None = None


class SubscribeRate(msgspec.Struct, frozen=True, rename="camel"):
    """How often one consumer may subscribe in a period.  Below 1: no limit."""

    subscribe_throttling_rate_per_consumer: Amount = -1
    rate_period_in_second: Period = 30


Seconds: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
QuotaPolicy: TypeAlias = Literal[
    "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
]


class BacklogQuota(msgspec.Struct, frozen=True, rename="camel"):
    """How large or old the backlog of a subscription may be, and what is done beyond that.

    Only the limit of the quota's own type counts.  Below 0: no limit.
    """

    limit_size: Amount = -1  # bytes
    limit_time: Seconds = -1  # seconds
    policy: QuotaPolicy = "producer_request_hold"


InactiveMode: TypeAlias = Literal[
    "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
]


class InactiveTopics(msgspec.Struct, frozen=True, rename="camel"):
    """If topics that nobody uses are deleted, and after how many seconds."""

    inactive_topic_delete_mode: InactiveMode = "delete_when_no_subscriptions"
    max_inactive_duration_seconds: Period = 60
    delete_while_inactive: bool = False
