"""Checks of arguments, before anything is sent.

The checks raise ValueError for an unknown name or a value out of range, and TypeError, which names
the argument, for a value of the wrong type.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

from daybook.wire.compression import CompressionType
from daybook.wire.errors import MalformedError
from daybook.wire.topics import TopicName

Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]
Batching: TypeAlias = bool | Literal["by_key"]
SubscriptionTypeName: TypeAlias = Literal["exclusive", "failover", "shared", "key_shared"]
KEY_SLOTS = 1 << 16  # the hashes of keys, by which key_shared subscriptions spread them
InitialPosition: TypeAlias = Literal["earliest", "latest"]


def topic_name(topic: str) -> TopicName:
    """Return the parsed name of a topic."""
    several = isinstance(topic, list | tuple | set)
    advice = "; open one producer or consumer for each topic" if several else ""
    _check_text("topic", topic, advice)
    try:
        return TopicName.parse(topic)
    except MalformedError as error:
        raise ValueError(str(error)) from None


def check_url(argument: str, url: str) -> None:
    """Check that a URL is one text."""
    several = isinstance(url, list | tuple | set)
    advice = "; write the brokers into one text, as host1:port,host2:port behind the scheme"
    _check_text(argument, url, advice if several else "")


def check_name(argument: str, name: str | None) -> None:
    """Check a name that may be None."""
    if name is not None:
        _check_text(argument, name)


def check_timeout(argument: str, seconds: object) -> None:
    """Raise TypeError or ValueError unless it is a number of seconds, or None."""
    if seconds is None:
        return
    if not isinstance(seconds, int | float):
        raise TypeError(f"{argument} must be a number of seconds, not {type(seconds).__name__}")
    if not seconds >= 0:  # nor NaN
        raise ValueError(f"{argument} must not be negative: {seconds}")


def check_subscription(subscription: str) -> None:
    """Check the name of a subscription."""
    _check_text("subscription", subscription)
    if not subscription:
        raise ValueError("subscription is empty: give it a name")


def check_key_ranges(
    ranges: Sequence[tuple[int, int]] | None, *, type_name: str, out_of_order: bool
) -> tuple[tuple[int, int], ...]:
    """Return the hash ranges of a key_shared consumer."""
    if type_name != "key_shared" and (ranges is not None or out_of_order):
        raise ValueError(
            f"key_ranges and out_of_order are for key_shared subscriptions, not for {type_name}"
        )
    if ranges is None:
        return ()
    found = tuple((first, last) for first, last in ranges)
    if not found:
        raise ValueError("key_ranges is empty: name a range, or leave key_ranges out")
    for first, last in found:
        _check_integer("a hash in key_ranges", first)
        _check_integer("a hash in key_ranges", last)
        if not 0 <= first <= last < KEY_SLOTS:
            raise ValueError(
                f"each of the key_ranges must be first and last hash from 0 to {KEY_SLOTS - 1}, not"
                f" {first} and {last}"
            )
    return found


def check_properties(properties: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the items; keys and values must be text."""
    if properties is None:
        return ()
    if not isinstance(properties, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"properties must be a mapping of texts, not {type(properties).__name__}")
    for key, value in properties.items():
        _check_text("a key in properties", key)
        _check_text(f"properties[{key!r}]", value, f": write {str(value)!r}")
    return tuple(properties.items())


def check_message(data: object, key: object, properties: Mapping[str, str] | None) -> None:
    """Raise TypeError for arguments that cannot be a message."""
    if data is not None and not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data must be bytes, or None for a tombstone, not {type(data).__name__}")
    check_key(key)
    if properties is not None:
        check_properties(properties)


def check_ordering_key(key: object) -> None:
    """Raise TypeError unless the ordering key is None or bytes."""
    if key is not None and not isinstance(key, bytes):
        raise TypeError(f"ordering_key must be bytes, not {type(key).__name__}")


def check_batching(batching: object) -> None:
    """Raise ValueError unless messages are batched, batched by key, or sent alone."""
    if not isinstance(batching, bool) and batching != "by_key":
        raise ValueError(f"batching must be True, False or 'by_key', not {batching!r}")


def check_details(event_time_ms: object, sequence_id: object, on_result: object) -> None:
    """Check the optional arguments of a message."""
    _check_number("event_time_ms", event_time_ms, "; write round(when.timestamp() * 1000)")
    _check_number("sequence_id", sequence_id)
    if on_result is not None and not callable(on_result):
        raise TypeError(f"on_result must be a function, not {type(on_result).__name__}")


def check_delay(deliver_at_ms: object, deliver_after_s: object) -> None:
    """Check when a message is to be delivered: at a time, or after a number of seconds."""
    if deliver_at_ms is not None and deliver_after_s is not None:
        raise ValueError("give deliver_at_ms or deliver_after_s, not both")
    _check_number("deliver_at_ms", deliver_at_ms, "; write round(when.timestamp() * 1000)")
    check_timeout("deliver_after_s", deliver_after_s)


def _check_integer(argument: str, value: object) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{argument} must be an integer, not {type(value).__name__}")


def _check_number(argument: str, value: object, advice_for_times: str = "") -> None:
    if value is None:
        return
    if not isinstance(value, int):
        advice = advice_for_times if isinstance(value, datetime) else ""
        raise TypeError(f"{argument} must be an integer, not {type(value).__name__}{advice}")
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{argument} must not be negative, and must be below 2**63: {value}")


def check_key(key: object) -> None:
    """Raise TypeError unless the key is None, text, or bytes."""
    if key is not None and not isinstance(key, str | bytes):
        raise TypeError(f"key must be text or bytes, not {type(key).__name__}: write {str(key)!r}")


def _check_text(argument: str, value: object, advice: str = "") -> None:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be text, not {type(value).__name__}{advice}")


def compression_type(name: str) -> CompressionType:
    """Return the compression of this name."""
    _check_text("compression", name)
    try:
        return CompressionType[name.upper()]
    except KeyError:
        names = ", ".join(each.name.lower() for each in CompressionType)
        raise ValueError(f"compression must be one of {names}, not {name!r}") from None
