"""The statistics of a topic as one line of a table."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Stats: TypeAlias = Mapping[str, Any]

STATS_COLUMNS = (
    "topic",
    "partitions",
    "producers",
    "subscriptions",
    "consumers",
    "stored bytes",
    "messages/s in",
    "messages/s out",
    "backlog (messages)",
)
DELETION_COLUMNS = (
    "topic",
    "stored bytes",
    "subscriptions",
    "producers and consumers",
    "deleted",
)


def clients_of(found: Stats) -> int:
    """Return the number of producers and consumers."""
    return len(found.get("publishers", [])) + _consumers(found)


def stats_row(topic: str, found: Stats) -> dict[str, object]:
    """Return the line for `topics stats`.  The backlog is that of all subscriptions together."""
    subscriptions: Mapping[str, Stats] = found.get("subscriptions", {})
    exact = all(each.get("backlogExact", True) for each in subscriptions.values())
    backlog = sum(each.get("msgBacklog", 0) for each in subscriptions.values())
    return {
        "topic": topic,
        "partitions": len(found.get("partitions", {})) or None,
        "producers": len(found.get("publishers", [])),
        "subscriptions": len(subscriptions),
        "consumers": _consumers(found),
        "stored bytes": found.get("storageSize"),
        "messages/s in": _rate(found.get("msgRateIn")),
        "messages/s out": _rate(found.get("msgRateOut")),
        "backlog (messages)": str(backlog) if exact else f"~{backlog}",
    }


def deletion_row(topic: str, found: Stats, *, force: bool) -> dict[str, object]:
    """Return the line for a deletion that is only tried out."""
    connected = clients_of(found)
    return {
        "topic": topic,
        "stored bytes": found.get("storageSize"),
        "subscriptions": len(found.get("subscriptions", {})),
        "producers and consumers": connected,
        "deleted": "only with --force" if connected and not force else "would be deleted",
    }


def _consumers(found: Stats) -> int:
    return sum(len(each.get("consumers", [])) for each in found.get("subscriptions", {}).values())


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"
