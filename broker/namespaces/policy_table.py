"""The policies that this broker enforces: one table for records, REST, checks and inheritance.

A policy has a value at up to three levels.  The value of the topic counts, else that of its
namespace, else the setting of the broker.  `EffectivePolicies` has the values that count.  A row of
the table says where Pulsar's records keep the value, and what is done with one that is not valid:

INHERIT     the level below counts; nothing can be lost by that
REFUSE      the topic is not loaded, because any other value could lose or repeat messages
NOTHING     a value that deletes nothing counts

A loaded topic keeps what was in force while one of its policies is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, cast, get_args

import msgspec

from daybook.broker.config import BrokerConfig
from daybook.broker.errors import PreconditionError, UnavailableError
from daybook.broker.namespaces.policy_types import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    AutoUpdateStrategy,
    BacklogQuota,
    Bytes,
    CompatibilityStrategy,
    Count,
    DelayedDelivery,
    DispatchRate,
    InactiveTopics,
    Persistence,
    PublishRate,
    Retention,
    SubscribeRate,
    SubscriptionPolicies,
    SubscriptionType,
)
from daybook.broker.protocol.schemas.compatibility import AUTO_UPDATE

Fields = dict[str, object]  # a JSON object, unknown keys included
ALL_TYPES = frozenset[str](get_args(SubscriptionType))


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """The policies in force for a topic.  0 means no limit, unless a comment says otherwise."""

    retention: Retention
    persistence: Persistence | None  # None: by the settings of the broker
    deduplication: bool
    max_producers: int
    max_consumers: int
    max_consumers_per_subscription: int
    max_subscriptions: int
    max_unacked_per_consumer: int
    max_unacked_per_subscription: int
    max_message_bytes: int
    max_topics: int  # the limit of the namespace
    subscription_types: frozenset[str]
    delayed_delivery: DelayedDelivery
    auto_topic_creation: AutoTopicCreation
    auto_subscription_creation: AutoSubscriptionCreation
    publish_rate: PublishRate
    dispatch_rate: DispatchRate  # all subscriptions together
    subscription_dispatch_rate: DispatchRate  # each subscription without an own one
    of_subscriptions: Mapping[str, SubscriptionPolicies]  # by name, only those that have own ones
    subscribe_rate: SubscribeRate
    message_ttl_s: int
    subscription_expiry_minutes: int
    size_quota: BacklogQuota  # by `limit_size`
    age_quota: BacklogQuota  # by `limit_time`
    inactive_topics: InactiveTopics
    compaction_threshold: int  # bytes; 0: no compaction by itself
    schema_compatibility: str  # a CompatibilityStrategy, also if it was set in its older form
    schema_auto_update: str | None  # an AutoUpdateStrategy, the older form of the same policy
    schema_auto_update_allowed: bool
    schema_validation_enforced: bool


def check_together(policies: EffectivePolicies) -> None:
    """Raise PreconditionError if retention would drop what a backlog quota lets stay.

    That is Pulsar's rule: a quota has to be smaller than what is kept of acknowledged messages.
    """
    megabytes = policies.retention.retentionSizeInMB
    minutes = policies.retention.retentionTimeInMinutes
    if megabytes <= 0 or minutes <= 0:
        return
    if policies.size_quota.limit_size >= megabytes << 20:
        raise PreconditionError(
            f"the backlog quota must be smaller than the retention, which is {megabytes} MB"
        )
    if policies.age_quota.limit_time >= minutes * 60:
        raise PreconditionError(
            f"the backlog quota must be shorter than the retention, which is {minutes} minutes"
        )


class OnInvalid(Enum):
    INHERIT = auto()
    REFUSE = auto()
    NOTHING = auto()


class Slot:
    """Where a record keeps the value of a policy: under a key of its own."""

    def __init__(self, key: str) -> None:
        self.key = key

    def get(self, fields: Mapping[str, object], cluster: str) -> object:
        """Return the value in JSON; None if the record has none."""
        del cluster
        return fields.get(self.key)

    def put(self, fields: Fields, value: object, cluster: str) -> None:
        """Store the value; None removes it."""
        del cluster
        fields.pop(self.key, None)
        if value is not None:
            fields[self.key] = value


class InMap(Slot):
    """The value is one part of a map, whose other parts are left alone.

    The name of the part is that of the cluster if no other one is given.
    """

    def __init__(self, key: str, part: str = "") -> None:
        super().__init__(key)
        self._part = part

    def get(self, fields: Mapping[str, object], cluster: str) -> object:
        values = fields.get(self.key)
        if not isinstance(values, dict):
            return values
        return cast("Fields", values).get(self._part or cluster)

    def put(self, fields: Fields, value: object, cluster: str) -> None:
        found = fields.get(self.key)
        values: Fields = dict(cast("Fields", found)) if isinstance(found, dict) else {}
        values.pop(self._part or cluster, None)
        if value is not None:
            values[self._part or cluster] = value
        fields[self.key] = values


class OfSubscription(Slot):
    """The value is a policy of one subscription, in the map of all of them."""

    def __init__(self, subscription: str, part: str) -> None:
        super().__init__("subscriptionPolicies")
        self._subscription = subscription
        self._part = part

    def get(self, fields: Mapping[str, object], cluster: str) -> object:
        del cluster
        return self._policies(self._all(fields)).get(self._part)

    def put(self, fields: Fields, value: object, cluster: str) -> None:
        del cluster
        found = self._all(fields)
        policies = self._policies(found)
        policies.pop(self._part, None)
        found.pop(self._subscription, None)
        if value is not None:
            policies[self._part] = value
        if policies:
            found[self._subscription] = policies
        fields.pop(self.key, None)
        if found:
            fields[self.key] = found

    def _all(self, fields: Mapping[str, object]) -> Fields:
        found = fields.get(self.key)
        return dict(cast("Fields", found)) if isinstance(found, dict) else {}

    def _policies(self, of_all: Mapping[str, object]) -> Fields:
        found = of_all.get(self._subscription)
        return dict(cast("Fields", found)) if isinstance(found, dict) else {}


class DelayedKeys(Slot):
    """A topic keeps the parts of its delayed delivery under three keys."""

    PARTS = (
        ("tickTime", "delayedDeliveryTickTimeMillis"),
        ("active", "delayedDeliveryEnabled"),
        ("maxDeliveryDelayInMillis", "delayedDeliveryMaxDelayInMillis"),
    )

    def get(self, fields: Mapping[str, object], cluster: str) -> object:
        del cluster
        found = {part: fields[key] for part, key in self.PARTS if fields.get(key) is not None}
        return found or None

    def put(self, fields: Fields, value: object, cluster: str) -> None:
        del cluster
        for part, key in self.PARTS:
            fields.pop(key, None)
            if value is not None:
                fields[key] = cast("Fields", value)[part]


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """One row of the table: `name` is the field of `EffectivePolicies`, `kind` its type in JSON."""

    name: str
    kind: Any  # a type that msgspec converts to
    namespace: Slot | None = None
    topic: Slot | None = None
    unset: tuple[object, ...] = ()  # values that mean the same as none
    on_invalid: OnInvalid = OnInvalid.INHERIT
    nothing: object = None  # for NOTHING
    from_json: Callable[[Any], Any] | None = None  # to the type in `EffectivePolicies`
    stored_if_removed: bool = False  # then the record of a namespace keeps the broker's default

    def __str__(self) -> str:
        slot = self.namespace or self.topic
        assert slot is not None
        return slot.key

    def parse(self, value: object) -> object:
        """Return the value as the type of the policy.  Raise PreconditionError."""
        try:
            parsed: object = msgspec.convert(value, self.kind)
            check = getattr(parsed, "check", None)
            if check is not None:
                check()
        except (msgspec.ValidationError, ValueError) as error:
            raise PreconditionError(f"the policy {self} is not valid: {error}") from None
        return parsed

    def to_json(self, value: object) -> object:
        """Return a value as records keep it.  Raise PreconditionError if it is not valid."""
        built: object = msgspec.to_builtins(self.parse(value))
        return sorted(cast("list[str]", built)) if isinstance(built, list) else built

    def shown(self, policies: EffectivePolicies) -> object:
        """Return what is in force, in JSON."""
        value: object = getattr(policies, self.name)
        return None if value is None else self.to_json(value)

    def says_nothing(self, value: object) -> bool:
        return value is None or any(
            value == each and type(value) is type(each) for each in self.unset
        )


_LIMIT = (-1,)
_INVALID_REFUSED = OnInvalid.REFUSE


def _limit(name: str, namespace: str | None, topic: str | None) -> Policy:
    return Policy(name, Count, _slot(namespace), _slot(topic), _LIMIT)


def _slot(key: str | None) -> Slot | None:
    return None if key is None else Slot(key)


RETENTION = Policy(
    "retention",
    Retention,
    Slot("retention_policies"),
    Slot("retentionPolicies"),
    on_invalid=_INVALID_REFUSED,
    stored_if_removed=True,
)
PERSISTENCE = Policy(
    "persistence",
    Persistence,
    Slot("persistence"),
    Slot("persistence"),
    on_invalid=_INVALID_REFUSED,
)
DEDUPLICATION = Policy(
    "deduplication",
    bool,
    Slot("deduplicationEnabled"),
    Slot("deduplicationEnabled"),
    on_invalid=_INVALID_REFUSED,
)
MAX_PRODUCERS = _limit("max_producers", "max_producers_per_topic", "maxProducerPerTopic")
MAX_CONSUMERS = _limit("max_consumers", "max_consumers_per_topic", "maxConsumerPerTopic")
MAX_CONSUMERS_PER_SUBSCRIPTION = _limit(
    "max_consumers_per_subscription",
    "max_consumers_per_subscription",
    "maxConsumersPerSubscription",
)
MAX_SUBSCRIPTIONS = _limit(
    "max_subscriptions", "max_subscriptions_per_topic", "maxSubscriptionsPerTopic"
)
MAX_UNACKED_PER_CONSUMER = _limit(
    "max_unacked_per_consumer",
    "max_unacked_messages_per_consumer",
    "maxUnackedMessagesOnConsumer",
)
MAX_UNACKED_PER_SUBSCRIPTION = _limit(
    "max_unacked_per_subscription",
    "max_unacked_messages_per_subscription",
    "maxUnackedMessagesOnSubscription",
)
MAX_MESSAGE_BYTES = _limit("max_message_bytes", None, "maxMessageSize")
MAX_TOPICS = _limit("max_topics", "max_topics_per_namespace", None)
SUBSCRIPTION_TYPES = Policy(
    "subscription_types",
    set[SubscriptionType],
    Slot("subscription_types_enabled"),
    Slot("subscriptionTypesEnabled"),
    ([],),
    from_json=frozenset,
)
DELAYED_DELIVERY = Policy(
    "delayed_delivery",
    DelayedDelivery,
    Slot("delayed_delivery_policies"),
    DelayedKeys("delayedDelivery"),
)
AUTO_TOPIC_CREATION = Policy(
    "auto_topic_creation", AutoTopicCreation, Slot("autoTopicCreationOverride")
)
AUTO_SUBSCRIPTION_CREATION = Policy(
    "auto_subscription_creation",
    AutoSubscriptionCreation,
    Slot("autoSubscriptionCreationOverride"),
    Slot("autoSubscriptionCreationOverride"),
)
PUBLISH_RATE = Policy(
    "publish_rate", PublishRate, InMap("publishMaxMessageRate"), Slot("publishRate")
)
DISPATCH_RATE = Policy(
    "dispatch_rate", DispatchRate, InMap("topicDispatchRate"), Slot("dispatchRate")
)
SUBSCRIPTION_DISPATCH_RATE = Policy(
    "subscription_dispatch_rate",
    DispatchRate,
    InMap("subscriptionDispatchRate"),
    Slot("subscriptionDispatchRate"),
)
OF_SUBSCRIPTIONS = Policy(
    "of_subscriptions", dict[str, SubscriptionPolicies], topic=Slot("subscriptionPolicies")
)
SUBSCRIBE_RATE = Policy(
    "subscribe_rate", SubscribeRate, InMap("clusterSubscribeRate"), Slot("subscribeRate")
)
_NOTHING = OnInvalid.NOTHING
_NO_QUOTA = BacklogQuota()
_SIZE, _AGE = "destination_storage", "message_age"
MESSAGE_TTL = Policy(
    "message_ttl_s",
    Count,
    Slot("message_ttl_in_seconds"),
    Slot("messageTTLInSeconds"),
    _LIMIT,
    _NOTHING,
    0,
)
SUBSCRIPTION_EXPIRY = Policy(
    "subscription_expiry_minutes",
    Count,
    Slot("subscription_expiration_time_minutes"),
    None,
    _LIMIT,
    _NOTHING,
    0,
)
SIZE_QUOTA = Policy(
    "size_quota",
    BacklogQuota,
    InMap("backlog_quota_map", _SIZE),
    InMap("backLogQuotaMap", _SIZE),
    on_invalid=_NOTHING,
    nothing=_NO_QUOTA,
)
AGE_QUOTA = Policy(
    "age_quota",
    BacklogQuota,
    InMap("backlog_quota_map", _AGE),
    InMap("backLogQuotaMap", _AGE),
    on_invalid=_NOTHING,
    nothing=_NO_QUOTA,
)


def dispatch_rate_of(subscription: str) -> Policy:
    """Return the dispatch rate of a single subscription, as a policy of its topic."""
    slot = OfSubscription(subscription, "dispatchRate")
    return Policy("subscription_dispatch_rate", DispatchRate, topic=slot)


QUOTAS: Mapping[str, Policy] = {_SIZE: SIZE_QUOTA, _AGE: AGE_QUOTA}
INACTIVE_TOPICS = Policy(
    "inactive_topics",
    InactiveTopics,
    Slot("inactive_topic_policies"),
    Slot("inactiveTopicPolicies"),
    on_invalid=_NOTHING,
    nothing=InactiveTopics(),
)
COMPACTION_THRESHOLD = Policy(
    "compaction_threshold",
    Bytes,
    Slot("compaction_threshold"),
    Slot("compactionThreshold"),
    _LIMIT,
    OnInvalid.NOTHING,
    0,
)
SCHEMA_COMPATIBILITY = Policy(
    "schema_compatibility",
    CompatibilityStrategy,
    Slot("schema_compatibility_strategy"),
    Slot("schemaCompatibilityStrategy"),
    ("UNDEFINED", ""),
    OnInvalid.NOTHING,
    "ALWAYS_INCOMPATIBLE",  # The schemas that are there stay in use.
)
SCHEMA_AUTO_UPDATE = Policy(
    "schema_auto_update",
    AutoUpdateStrategy,
    Slot("schema_auto_update_compatibility_strategy"),
    on_invalid=OnInvalid.NOTHING,
    nothing="AutoUpdateDisabled",
)
SCHEMA_AUTO_UPDATE_ALLOWED = Policy(
    "schema_auto_update_allowed",
    bool,
    Slot("is_allow_auto_update_schema"),
    on_invalid=OnInvalid.NOTHING,
    nothing=False,
)
SCHEMA_VALIDATION_ENFORCED = Policy(
    "schema_validation_enforced",
    bool,
    Slot("schema_validation_enforced"),
    Slot("schemaValidationEnforced"),
    on_invalid=OnInvalid.NOTHING,
    nothing=True,
)

TABLE: tuple[Policy, ...] = (
    RETENTION,
    PERSISTENCE,
    DEDUPLICATION,
    MAX_PRODUCERS,
    MAX_CONSUMERS,
    MAX_CONSUMERS_PER_SUBSCRIPTION,
    MAX_SUBSCRIPTIONS,
    MAX_UNACKED_PER_CONSUMER,
    MAX_UNACKED_PER_SUBSCRIPTION,
    MAX_MESSAGE_BYTES,
    MAX_TOPICS,
    SUBSCRIPTION_TYPES,
    DELAYED_DELIVERY,
    AUTO_TOPIC_CREATION,
    AUTO_SUBSCRIPTION_CREATION,
    PUBLISH_RATE,
    DISPATCH_RATE,
    SUBSCRIPTION_DISPATCH_RATE,
    OF_SUBSCRIPTIONS,
    SUBSCRIBE_RATE,
    MESSAGE_TTL,
    SUBSCRIPTION_EXPIRY,
    SIZE_QUOTA,
    AGE_QUOTA,
    INACTIVE_TOPICS,
    COMPACTION_THRESHOLD,
    SCHEMA_COMPATIBILITY,
    SCHEMA_AUTO_UPDATE,
    SCHEMA_AUTO_UPDATE_ALLOWED,
    SCHEMA_VALIDATION_ENFORCED,
)


TOGETHER = (RETENTION, SIZE_QUOTA, AGE_QUOTA)  # `check_together` looks at them


def defaults(config: BrokerConfig) -> EffectivePolicies:
    """Return the policies of a broker's settings."""
    partitions = config.auto_create_partitions
    return EffectivePolicies(
        retention=Retention(config.default_retention_minutes, config.default_retention_mb),
        persistence=None,
        deduplication=config.deduplication,
        max_producers=config.max_producers_per_topic,
        max_consumers=config.max_consumers_per_topic,
        max_consumers_per_subscription=config.max_consumers_per_subscription,
        max_subscriptions=config.max_subscriptions_per_topic,
        max_unacked_per_consumer=config.max_unacked_messages_per_consumer,
        max_unacked_per_subscription=config.max_unacked_messages_per_subscription,
        max_message_bytes=0,
        max_topics=config.max_topics_per_namespace,
        subscription_types=ALL_TYPES,
        delayed_delivery=DelayedDelivery(),
        auto_topic_creation=AutoTopicCreation(
            config.auto_create_topics,
            "partitioned" if partitions else "non-partitioned",
            partitions or None,
        ),
        auto_subscription_creation=AutoSubscriptionCreation(config.auto_create_subscriptions),
        publish_rate=PublishRate(
            config.publish_messages_per_s or -1, config.publish_bytes_per_s or -1
        ),
        dispatch_rate=_dispatch_rate(config.dispatch_messages_per_s, config.dispatch_bytes_per_s),
        subscription_dispatch_rate=_dispatch_rate(
            config.subscription_dispatch_messages_per_s,
            config.subscription_dispatch_bytes_per_s,
        ),
        of_subscriptions={},
        subscribe_rate=SubscribeRate(
            config.subscribes_per_consumer or -1, config.subscribes_period_s
        ),
        message_ttl_s=config.message_ttl_s,
        subscription_expiry_minutes=config.subscription_expiry_minutes,
        size_quota=BacklogQuota(
            limit_size=config.backlog_quota_bytes, policy=config.backlog_quota_policy
        ),
        age_quota=BacklogQuota(
            limit_time=config.backlog_quota_age_s, policy=config.backlog_quota_policy
        ),
        inactive_topics=InactiveTopics(
            config.inactive_topic_mode, config.inactive_topic_s, config.delete_inactive_topics
        ),
        compaction_threshold=config.compaction_threshold_bytes,
        schema_compatibility=config.schema_compatibility_strategy,
        schema_auto_update=None,
        schema_auto_update_allowed=config.schema_auto_update_allowed,
        schema_validation_enforced=config.schema_validation_enforced,
    )


def _dispatch_rate(messages: int, size: int) -> DispatchRate:
    return DispatchRate(messages or -1, size or -1)


class Layer:
    """One record: the values that it sets, and the reasons why others of it are not valid."""

    def __init__(self, fields: Fields, cluster: str, *, of_topic: bool) -> None:
        self.fields = fields
        self.values: dict[str, object] = {}
        self.refused: dict[str, str] = {}  # by policy: why the topic must not be loaded
        self.ignored: dict[str, str] = {}  # by policy: why another value counts
        self._below: EffectivePolicies | None = None  # those that `_effective` is for
        self._effective: EffectivePolicies | None = None
        for policy in TABLE:
            slot = policy.topic if of_topic else policy.namespace
            if slot is None:
                continue
            value = slot.get(fields, cluster)
            if policy.says_nothing(value):
                continue
            try:
                parsed = policy.parse(value)
            except PreconditionError as error:
                self._invalid(policy, str(error))
            else:
                self.values[policy.name] = policy.from_json(parsed) if policy.from_json else parsed
        older = self.values.get("schema_auto_update")
        if older is not None:  # It counts unless the namespace has the newer form.
            self.values.setdefault("schema_compatibility", AUTO_UPDATE[str(older)])

    def _invalid(self, policy: Policy, why: str) -> None:
        match policy.on_invalid:
            case OnInvalid.REFUSE:
                self.refused[str(policy)] = why
            case OnInvalid.NOTHING:
                self.ignored[str(policy)] = why
                self.values[policy.name] = policy.nothing
            case OnInvalid.INHERIT:
                self.ignored[str(policy)] = why

    def over(self, below: EffectivePolicies) -> EffectivePolicies:
        """Return the policies in force, if those in `below` count without this record.

        Raise UnavailableError if a value is not valid and cannot be replaced.  The result is the
        same object for as long as nothing has changed.
        """
        for why in self.refused.values():
            raise UnavailableError(f"{why}: correct it, or remove it")
        if not self.values:
            return below
        if self._effective is None or self._below is not below:
            self._below = below
            self._effective = replace(below, **cast("dict[str, Any]", self.values))
        return self._effective
