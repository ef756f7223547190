"""Questions about one topic, asked of each partition if the topic has partitions.

Some requests of the REST are for a topic without partitions only, as in Pulsar.  A user of the
command line should not have to know which.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from daybook.clients.python.admin import Admin
from daybook.clients.python.errors import AdminError
from daybook.wire.topics import TopicName

T = TypeVar("T")
_NOT_ALLOWED = 405


async def ask_each(
    admin: Admin, topic: TopicName, ask: Callable[[str], Awaitable[T]]
) -> dict[str, T]:
    """Return the answer for a topic, or those for its partitions, by their full names."""
    try:
        return {topic.full: await ask(topic.full)}
    except AdminError as error:
        if error.status != _NOT_ALLOWED or "is partitioned" not in str(error):
            raise
    count = await admin.partitions(topic.full)
    names = [topic.partition_name(index).full for index in range(count)]
    return {name: await ask(name) for name in names}
