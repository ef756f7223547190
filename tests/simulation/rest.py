"""Check that an idle broker holds what its live clients need, and nothing else (L7).

at rest          no consumers or producers without a client, no permits that were lost or made up,
                 no pending sends, no requests under way, no cursors without a subscription, no
                 cursor resets that do not end
after the end    the same when all clients are gone; and, when topics are unloaded, no more tasks
                 than the broker had before its first client
"""

from collections import Counter
from collections.abc import Iterator

import trio

from daybook.broker.ownership.membership import _READS_AT_ONCE
from daybook.broker.server import RunningBroker
from daybook.broker.topics.stats import TopicStats, statistics
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topic_subscriptions import is_internal
from tests.simulation.held_back import is_held_back
from tests.simulation.scheduler import HOST

_PRODUCERS = "a producer goes without a word, and its connection stays"
_READERS = "a reader goes without a word, and its connection stays"
_OF_THE_HOST = "daybook.managed_ledger.entry_cache.EntryCache.run"
_OF_TOPICS = (
    "daybook.managed_ledger.",
    "daybook.broker.topics.topic.",
    "daybook.broker.dispatch.acknowledgements.",
    "daybook.broker.dispatch.subscription.",
    "daybook.broker.dispatch.dispatcher.",
)
_OF_CONNECTIONS = (
    "daybook.bookie.ledger.bookie_client.BookieConnection._serve",
    "daybook.bookie.ledger.request_channel.RequestChannel._serve",
    "daybook.broker.service.accept.ClientPort._serve_one",
    "daybook.broker.service.connection.ClientConnection._keep_alive",
    "daybook.broker.ownership.peers.Peers._monitor",
)
_AT_ONCE_MAX = 2  # the limit for any other task; there is one for each kind of request
# The records of a list, of brokers or of bundles, are read together.
_OF_LISTS = {"daybook.broker.ownership.membership._read_all.<locals>.read": _READS_AT_ONCE}


def leaks(name: str, broker: RunningBroker, consumers: dict[str, int], readers: int) -> list[str]:
    """Return what a broker holds beyond `consumers`: by name, with the lengths of their queues.

    Readers are only counted, per topic: their names are not known.
    """
    found: list[str] = []
    for topic in broker.topics.loaded.values():
        about = f"{name} has of {topic.name.full}"
        found += [f"{about} {text}" for text in _of_topic(statistics(topic), consumers, readers)]
        found += [f"{about} {text}" for text in _of_cursors(topic)]
        if topic.log.pending_bytes:
            found.append(f"{about} {topic.log.pending_bytes} bytes that are pending")
    context = broker.context
    for what, turns in (("requests", context.request_turns), ("lookups", context.lookup_turns)):
        if turns.under_way or turns.waiting_bytes:
            found.append(f"{name} has {turns.under_way} {what} under way")
    if len(context.frame_turns):
        found.append(f"{name} has {len(context.frame_turns)} connections that wait for a turn")
    if context.dispatch_memory.slow:
        found.append(f"{name} has {context.dispatch_memory.slow} connections that count as slow")
    return found


def _of_topic(stats: TopicStats, consumers: dict[str, int], readers: int) -> Iterator[str]:
    for publisher in () if is_held_back(_PRODUCERS) else stats.publishers:
        yield f"the producer {publisher.producer_name}, which no client has"
    if stats.waiting_publishers:
        yield f"{stats.waiting_publishers} producers that wait"
    volatile = 0
    for name, subscription in stats.subscriptions.items():
        volatile += not subscription.durable
        for consumer in subscription.consumers:
            queue = consumers.get(consumer.consumer_name)
            if not subscription.durable:
                continue
            if queue is None:
                yield f"the consumer {consumer.consumer_name} of {name}, which no client has"
            elif not 0 < consumer.available_permits <= queue:
                permits = consumer.available_permits
                yield f"{permits} permits for {consumer.consumer_name}, whose queue takes {queue}"
    if volatile > readers and not is_held_back(_READERS):
        yield f"{volatile} readers, and only {readers} are there"


def _of_cursors(topic: Topic) -> Iterator[str]:
    """Check that exactly the durable subscriptions have cursors."""
    by_name, cursors = topic.subscriptions.by_name, topic.log.cursors
    durable = {name for name, each in by_name.items() if each.durable}
    for name in sorted(set(cursors) - durable):
        if not is_internal(name):
            yield f"the cursor {name}, which holds back trimming, and no subscription shows it"
    for name in sorted(durable - set(cursors)):
        yield f"the subscription {name}, which has no cursor"
    for name, subscription in by_name.items():
        if subscription.moving:
            yield f"the subscription {name}, whose move does not end"


def tasks_left(life: str, connections: int) -> list[str]:
    """Return unexpected tasks of a broker without topics and clients.

    `connections`: the number of its connections; some tasks exist once for each.
    """
    found: list[str] = []
    for name, count in sorted(tasks_of(life).items()):
        if name.startswith(_OF_TOPICS) and name != _OF_THE_HOST:
            found.append(f"{life} runs {count} times {name}, and has no topic")
            continue
        most = connections if name in _OF_CONNECTIONS else _OF_LISTS.get(name, 0)
        if count > max(_AT_ONCE_MAX, most):
            found.append(f"{life} runs {count} times {name}")
    return found


def tasks_of(life: str) -> Counter[str]:
    """Count the tasks of a process by the name of their function."""
    found: Counter[str] = Counter()
    root = trio.lowlevel.current_root_task()
    waiting = [] if root is None else [root]
    while waiting:
        task = waiting.pop()
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        if task.context.get(HOST) == life:
            found[task.name] += 1
    return found
