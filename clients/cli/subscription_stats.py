"""Subscriptions in the statistics of a topic, for topics with partitions and without."""

from collections.abc import Mapping
from typing import Any

from daybook.clients.cli.errors import UserError
from daybook.clients.cli.not_found import hint
from daybook.clients.python.admin import Admin


async def backlog_of(admin: Admin, topic: str, subscription: str) -> int:
    """Return how many messages a subscription has not acknowledged.

    Raise UserError if the topic has no such subscription.
    """
    stats: Mapping[str, Any] = await admin.stats(topic)
    found = stats.get("subscriptions", {}).get(subscription)
    if found is None:
        error = f"{topic} has no subscription {subscription}"
        raise UserError(f"{error}.{hint(f'{error} ')}")
    backlog: int = found.get("msgBacklog", 0)
    return backlog


def subscription_type(found: Mapping[str, Any]) -> str | None:
    """Return the type of a subscription; None if no consumer has given it one yet.

    Brokers write the type that nobody has chosen as the word `None`.
    """
    type_: str | None = found.get("type")
    return None if type_ in (None, "", "None") else type_
