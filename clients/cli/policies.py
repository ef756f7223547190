"""Policies on the command line: their names, and values that people write.

A time is a number with a unit: 90s, 15m, 2h30m, 7d; `off` or `unlimited` where there may be none.
A size has a unit, too: 512B, 10K, 10M, 10G, 1T.  0 is both.  Any other bare number is refused: in
Pulsar's tools it means megabytes in one place, and bytes in another.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.times import parse_duration

Parse: TypeAlias = Callable[[Sequence[str]], Any]

_BYTES = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NO_LIMIT = ("unlimited", "forever")
_QUOTA_POLICIES = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


def seconds(text: str) -> int:
    """Parse a time.  Raise UserError."""
    found = 0 if text == "0" else parse_duration(text)
    if found is None:
        raise UserError(f"{text!r} is not a time: write numbers and units, as 90s, 2h30m or 7d")
    return found


def size(text: str) -> int:
    """Parse a size in bytes.  Raise UserError."""
    if text == "0":
        return 0
    found = re.fullmatch(r"([0-9]{1,18})(B|[KMGT])B?", text.upper())
    if found is None:
        raise UserError(f"{text!r} is not a size: write a number and a unit, as 512B, 10M or 10G")
    return int(found[1]) * _BYTES[found[2]]


def _one(words: Sequence[str], what: str) -> str:
    if len(words) != 1:
        raise UserError(f"this policy has one value: {what}")
    return words[0]


def _count(words: Sequence[str]) -> int:
    word = _one(words, "a number, or unlimited")
    if word in _NO_LIMIT:
        return 0
    if not word.isdigit():
        raise UserError(f"{word!r} is not a number: write one, or unlimited")
    return int(word)


def _switch(words: Sequence[str]) -> bool:
    word = _one(words, "on or off")
    if word not in ("on", "off"):
        raise UserError(f"{word!r} is neither on nor off")
    return word == "on"


def _ttl(words: Sequence[str]) -> int:
    word = _one(words, "a time, or off")
    return 0 if word == "off" else seconds(word)


def _minutes(words: Sequence[str]) -> int:
    word = _one(words, "a time, or off")
    return 0 if word == "off" else -(-seconds(word) // 60)


def _bytes(words: Sequence[str]) -> int:
    word = _one(words, "a size, or off")
    return 0 if word == "off" else size(word)


def _retention(words: Sequence[str]) -> dict[str, int]:
    if len(words) != 2:
        raise UserError("retention has two values: a time and a size, such as 7d 10G")
    minutes, megabytes = (-1 if word in _NO_LIMIT else None for word in words)
    if minutes is None:
        minutes = -(-seconds(words[0]) // 60)
    if megabytes is None:
        megabytes = -(-size(words[1]) >> 20)
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}


def _quota(limit: str, parse: Callable[[str], int]) -> Parse:
    def parsed(words: Sequence[str]) -> dict[str, object]:
        if len(words) == 1 and words[0] in _NO_LIMIT:
            return {limit: -1, "policy": _QUOTA_POLICIES[0]}  # Without a limit none counts.
        if len(words) != 2 or words[1] not in _QUOTA_POLICIES:
            raise UserError(
                f"a quota has a limit and one of {', '.join(_QUOTA_POLICIES)}, or is unlimited"
            )
        return {limit: parse(words[0]), "policy": words[1]}

    return parsed


def _persistence(words: Sequence[str]) -> dict[str, object]:
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise UserError("persistence has three numbers: ensemble, write quorum and ack quorum")
    ensemble, write, ack = map(int, words)
    return {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": write,
        "bookkeeperAckQuorum": ack,
    }


def _publish_rate(words: Sequence[str]) -> dict[str, int]:
    if len(words) != 2:
        raise UserError("a publish rate has messages and bytes a second, such as 1000 10M")
    messages = -1 if words[0] in _NO_LIMIT else _count(words[:1])
    return {
        "publishThrottlingRateInMsg": messages,
        "publishThrottlingRateInByte": -1 if words[1] in _NO_LIMIT else size(words[1]),
    }


def _dispatch_rate(words: Sequence[str]) -> dict[str, object]:
    relative = list(words[-1:]) == ["relative"]
    amounts = words[:-1] if relative else words
    if not 2 <= len(amounts) <= 3:
        raise UserError("a dispatch rate has messages, bytes and perhaps a period: 1000 10M 1s")
    return {
        "dispatchThrottlingRateInMsg": -1 if amounts[0] in _NO_LIMIT else _count(amounts[:1]),
        "dispatchThrottlingRateInByte": -1 if amounts[1] in _NO_LIMIT else size(amounts[1]),
        "relativeToPublishRate": relative,
        "ratePeriodInSecond": seconds(amounts[2]) if len(amounts) == 3 else 1,
    }


def _subscribe_rate(words: Sequence[str]) -> dict[str, int]:
    if not 1 <= len(words) <= 2:
        raise UserError("a subscribe rate has a number, and perhaps a period, such as 5 30s")
    return {
        "subscribeThrottlingRatePerConsumer": -1 if words[0] in _NO_LIMIT else _count(words[:1]),
        "ratePeriodInSecond": seconds(words[1]) if len(words) == 2 else 30,
    }


def _delayed(words: Sequence[str]) -> dict[str, object]:
    if not 1 <= len(words) <= 2:
        raise UserError("delayed delivery is on or off, and may have a longest delay: on 1h")
    longest = seconds(words[1]) * 1000 if len(words) == 2 else 0
    return {"active": _switch(words[:1]), "maxDeliveryDelayInMillis": longest}


def _topic_creation(words: Sequence[str]) -> dict[str, object]:
    if not 1 <= len(words) <= 2:
        raise UserError("automatic creation is on or off, and may have partitions: on 4")
    found: dict[str, object] = {"allowAutoTopicCreation": _switch(words[:1])}
    if len(words) == 2:
        found |= {"topicType": "partitioned", "defaultNumPartitions": _count(words[1:])}
    return found


def _subscription_creation(words: Sequence[str]) -> dict[str, object]:
    return {"allowAutoSubscriptionCreation": _switch(words)}


def _inactive(words: Sequence[str]) -> dict[str, object]:
    if list(words) == ["off"]:
        return {"deleteWhileInactive": False}
    if not 1 <= len(words) <= 2 or words[1:] not in ([], ["caught-up"], (), ("caught-up",)):
        raise UserError("inactive topics: off, or a time, which caught-up may follow: 1h caught-up")
    mode = "subscriptions_caught_up" if words[1:] else "no_subscriptions"
    return {
        "deleteWhileInactive": True,
        "maxInactiveDurationSeconds": seconds(words[0]),
        "inactiveTopicDeleteMode": f"delete_when_{mode}",
    }


def _types(words: Sequence[str]) -> list[str]:
    return [name for word in words for name in word.split(",")]


def _word(words: Sequence[str]) -> str:
    return _one(words, "a word").upper()


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy: its paths in the admin REST at both levels, "" for none, and its values."""

    namespace: str
    topic: str
    values: str  # for people
    parse: Parse
    kind: str | None = None  # the type of a backlog quota

    def shown(self, path: str) -> str:
        """Return the path that answers with the value."""
        return path if self.kind is None else f"{path}Map"

    def chosen(self, answer: Any) -> Any:  # noqa: ANN401 - JSON
        """Return the value in the answer of `shown`."""
        if self.kind is None:
            return answer
        quotas: dict[str, Any] = answer or {}
        return quotas.get(self.kind)


POLICIES: Mapping[str, NamedPolicy] = {
    "retention": NamedPolicy("retention", "retention", "TIME SIZE", _retention),
    "message-ttl": NamedPolicy("messageTTL", "messageTTL", "TIME|off", _ttl),
    "subscription-expiry": NamedPolicy("subscriptionExpirationTime", "", "TIME|off", _minutes),
    "backlog-size": NamedPolicy(
        "backlogQuota",
        "backlogQuota",
        "SIZE POLICY|unlimited",
        _quota("limitSize", size),
        "destination_storage",
    ),
    "backlog-age": NamedPolicy(
        "backlogQuota",
        "backlogQuota",
        "TIME POLICY|unlimited",
        _quota("limitTime", seconds),
        "message_age",
    ),
    "inactive-topics": NamedPolicy(
        "inactiveTopicPolicies", "inactiveTopicPolicies", "TIME [caught-up]|off", _inactive
    ),
    "deduplication": NamedPolicy("deduplication", "deduplicationEnabled", "on|off", _switch),
    "persistence": NamedPolicy("persistence", "persistence", "ENSEMBLE WRITE ACK", _persistence),
    "max-producers": NamedPolicy("maxProducersPerTopic", "maxProducers", "NUMBER", _count),
    "max-consumers": NamedPolicy("maxConsumersPerTopic", "maxConsumers", "NUMBER", _count),
    "max-consumers-per-subscription": NamedPolicy(
        "maxConsumersPerSubscription", "maxConsumersPerSubscription", "NUMBER", _count
    ),
    "max-subscriptions": NamedPolicy(
        "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", "NUMBER", _count
    ),
    "max-topics": NamedPolicy("maxTopicsPerNamespace", "", "NUMBER", _count),
    "max-unacked-per-consumer": NamedPolicy(
        "maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", "NUMBER", _count
    ),
    "max-unacked-per-subscription": NamedPolicy(
        "maxUnackedMessagesPerSubscription", "maxUnackedMessagesOnSubscription", "NUMBER", _count
    ),
    "max-message-size": NamedPolicy("", "maxMessageSize", "SIZE|off", _bytes),
    "publish-rate": NamedPolicy("publishRate", "publishRate", "MESSAGES SIZE", _publish_rate),
    "dispatch-rate": NamedPolicy(
        "dispatchRate", "dispatchRate", "MESSAGES SIZE [PERIOD] [relative]", _dispatch_rate
    ),
    "subscription-dispatch-rate": NamedPolicy(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "MESSAGES SIZE [PERIOD] [relative]",
        _dispatch_rate,
    ),
    "subscribe-rate": NamedPolicy(
        "subscribeRate", "subscribeRate", "NUMBER [PERIOD]", _subscribe_rate
    ),
    "delayed-delivery": NamedPolicy(
        "delayedDelivery", "delayedDelivery", "on|off [TIME]", _delayed
    ),
    "subscription-types": NamedPolicy(
        "subscriptionTypesEnabled", "subscriptionTypesEnabled", "TYPE,TYPE", _types
    ),
    "auto-topic-creation": NamedPolicy(
        "autoTopicCreation", "", "on|off [PARTITIONS]", _topic_creation
    ),
    "auto-subscription-creation": NamedPolicy(
        "autoSubscriptionCreation", "autoSubscriptionCreation", "on|off", _subscription_creation
    ),
    "compaction-threshold": NamedPolicy(
        "compactionThreshold", "compactionThreshold", "SIZE|off", _bytes
    ),
    "schema-compatibility": NamedPolicy(
        "schemaCompatibilityStrategy", "schemaCompatibilityStrategy", "STRATEGY", _word
    ),
    "schema-validation": NamedPolicy(
        "schemaValidationEnforced", "schemaValidationEnforced", "on|off", _switch
    ),
    "schema-auto-update": NamedPolicy("isAllowAutoUpdateSchema", "", "on|off", _switch),
}


def find(name: str, level: str) -> tuple[NamedPolicy, str]:
    """Return a policy and its path at a level.  Raise UserError if there is none."""
    policy = POLICIES.get(name)
    path = "" if policy is None else getattr(policy, level)
    if policy is None or not path:
        names = ", ".join(sorted(n for n, p in POLICIES.items() if getattr(p, level)))
        raise UserError(f"a {level} has no policy {name!r}; it has {names}")
    return policy, path


def parse(name: str, policy: NamedPolicy, words: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    """Return the value that the words name, in JSON.  Raise UserError."""
    try:
        return policy.parse(list(words))
    except UserError as error:
        raise UserError(f"{error} (write: {name} {policy.values})") from None


def listing(level: str) -> str:
    """Return the policies of a level and their values, for help texts."""
    rows = [f"  {name} {p.values}" for name, p in POLICIES.items() if getattr(p, level)]
    return "\n".join(["\b", *rows])
