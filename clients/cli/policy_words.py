"""Values of policies as people write them: `set` takes the words that `get` shows.

The value comes from a broker, perhaps with more fields than a command can set, or with fewer.  A
value that no words describe is shown as JSON.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from daybook.clients.cli.times import duration_text

_Words: TypeAlias = Callable[[Any], str]
_NO_LIMIT = "unlimited"
_UNITS = ("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("B", 1)


def words(name: str, value: Any) -> str | None:  # noqa: ANN401 - JSON
    """Return the value of a policy in words; None if there is none."""
    if value is None or value == []:
        return None
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        return _WORDS[name](value)
    return json.dumps(value)


def size_text(size: int) -> str:
    """Return a number of bytes with the largest unit that is exact: `10G`."""
    if size < 0:
        raise ValueError("a size is not negative")
    return next(f"{size // by}{unit}" for unit, by in _UNITS if size % by == 0) if size else "0"


def _seconds(value: int) -> str:
    return duration_text(value) if value else "off"


def _minutes(value: int) -> str:
    return duration_text(value * 60) if value else "off"


def _bytes(value: int) -> str:
    return size_text(value) if value else "off"


def _count(value: int) -> str:
    return str(value) if value > 0 else _NO_LIMIT


def _rate_bytes(value: int) -> str:
    return size_text(value) if value > 0 else _NO_LIMIT


def _switch(value: bool) -> str:
    if value not in (True, False):
        raise ValueError("a switch is on or off")
    return "on" if value else "off"


def _retention(value: Mapping[str, int]) -> str:
    minutes, megabytes = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    time = _NO_LIMIT if minutes < 0 else duration_text(minutes * 60)
    return f"{time} {_NO_LIMIT if megabytes < 0 else size_text(megabytes << 20)}"


def _dispatch_rate(value: Mapping[str, Any]) -> str:
    found = [
        _count(value["dispatchThrottlingRateInMsg"]),
        _rate_bytes(value["dispatchThrottlingRateInByte"]),
        duration_text(value["ratePeriodInSecond"]),
    ]
    return " ".join([*found, *["relative"] * bool(value.get("relativeToPublishRate"))])


def _quota(value: Mapping[str, Any], name: str, text: Callable[[int], str]) -> str:
    """Return a limit and what happens at it; without a limit nothing happens."""
    limit = value[name]
    return f"{text(limit)} {value['policy']}" if limit >= 0 else _NO_LIMIT


def _delayed(value: Mapping[str, Any]) -> str:
    longest = value.get("maxDeliveryDelayInMillis", 0)
    if longest % 1000:
        raise ValueError("it is no whole number of seconds")
    return _switch(value["active"]) + (f" {duration_text(longest // 1000)}" if longest else "")


def _inactive(value: Mapping[str, Any]) -> str:
    if not value["deleteWhileInactive"]:
        return "off"
    caught_up = value["inactiveTopicDeleteMode"] == "delete_when_subscriptions_caught_up"
    duration = duration_text(value["maxInactiveDurationSeconds"])
    return f"{duration} caught-up" if caught_up else duration


def _topic_creation(value: Mapping[str, Any]) -> str:
    partitions = value.get("defaultNumPartitions") if value.get("topicType") == "partitioned" else 0
    return _switch(value["allowAutoTopicCreation"]) + (f" {partitions}" if partitions else "")


def _persistence(value: Mapping[str, int]) -> str:
    names = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    return " ".join(str(value[name]) for name in names)


_COUNTS = (
    *("max-producers", "max-consumers", "max-consumers-per-subscription", "max-subscriptions"),
    *("max-topics", "max-unacked-per-consumer", "max-unacked-per-subscription"),
)
_WORDS: Mapping[str, _Words] = {
    **dict.fromkeys(_COUNTS, _count),
    "retention": _retention,
    "message-ttl": _seconds,
    "subscription-expiry": _minutes,
    "backlog-size": lambda value: _quota(value, "limitSize", size_text),
    "backlog-age": lambda value: _quota(value, "limitTime", duration_text),
    "inactive-topics": _inactive,
    "deduplication": _switch,
    "persistence": _persistence,
    "max-message-size": _bytes,
    "publish-rate": lambda value: (
        f"{_count(value['publishThrottlingRateInMsg'])}"
        f" {_rate_bytes(value['publishThrottlingRateInByte'])}"
    ),
    "dispatch-rate": _dispatch_rate,
    "subscription-dispatch-rate": _dispatch_rate,
    "subscribe-rate": lambda value: (
        f"{_count(value['subscribeThrottlingRatePerConsumer'])}"
        f" {duration_text(value['ratePeriodInSecond'])}"
    ),
    "delayed-delivery": _delayed,
    "subscription-types": lambda value: ",".join(value),
    "auto-topic-creation": _topic_creation,
    "auto-subscription-creation": lambda value: _switch(value["allowAutoSubscriptionCreation"]),
    "compaction-threshold": _bytes,
    "schema-compatibility": str,
    "schema-validation": _switch,
    "schema-auto-update": _switch,
}
