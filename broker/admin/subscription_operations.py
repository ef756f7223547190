"""The operations on subscriptions that go beyond creating, deleting and moving them.

Also here: single messages of a topic, for people who look at it, and what is stored of a topic.
`Operations` finds the owner of a topic; here is what the owner does.

Operations that acknowledge messages for good take `dry_run`: they then say what they would do, and
do nothing.  On a partitioned topic they work on each partition, and give the sum.

All operations raise only `BrokerError`s.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import cast

import msgspec
import trio

from daybook.broker.admin.answer_memory import AnswerMemory
from daybook.broker.admin.entries import content_of
from daybook.broker.admin.handling import Content
from daybook.broker.admin.message_ids import Start
from daybook.broker.admin.operations import Operations
from daybook.broker.admin.topic_owners import RestCall
from daybook.broker.dispatch.clearing import (
    Cleared,
    Plan,
    carry_out,
    plan_expire,
    plan_skip,
    plan_through,
)
from daybook.broker.dispatch.explain import Explanation, explain
from daybook.broker.dispatch.subscription import Subscription
from daybook.broker.errors import (
    BrokerError,
    NotFoundError,
    PreconditionError,
    SubscriptionNotFoundError,
)
from daybook.broker.topics.topic import Topic
from daybook.broker.topics.topic_log import translated
from daybook.managed_ledger.position import Position
from daybook.wire.topics import TopicName, url_encode

MESSAGE_BYTES_MAX = 5 << 20  # the default of the setting max_message_size
_DRY_RUN = {"dryRun": "true"}
_READ_ENTRIES = 1_000
_READ_BYTES = 4 << 20


class BacklogAnalysis(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to analyzeBacklog.  There are no filters here, so all messages are accepted."""

    entries: int
    messages: int
    marker_messages: int
    filter_accepted_entries: int
    filter_rejected_entries: int
    filter_rescheduled_entries: int
    filter_accepted_messages: int
    filter_rejected_messages: int
    filter_rescheduled_messages: int
    aborted: bool
    first_message_id: str | None
    last_message_id: str | None
    bytes: int
    exact: bool
    oldest_publish_time: int | None


class SubscriptionOperations:
    """One instance per broker."""

    def __init__(self, operations: Operations, answer_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """`answer_bytes_max` bounds an entry that is shown, when it is decompressed."""
        self._operations = operations
        self.answers = AnswerMemory(answer_bytes_max)

    # -- looking at a subscription

    async def explain(self, topic: TopicName, name: str, *, authoritative: bool) -> Explanation:
        """Return why the subscription delivers nothing at the moment."""

        async def local(topic: TopicName) -> Explanation:
            served, subscription = await self._subscription(topic, name)
            await served.read_backlogs()
            return explain(subscription, served.clock.now_ms(), trio.current_time())

        found = await self._operations.owners.run_here(topic, local, authoritative=authoritative)
        return cast("Explanation", found)

    async def analyze_backlog(
        self, topic: TopicName, name: str, *, authoritative: bool
    ) -> BacklogAnalysis:
        async def local(topic: TopicName) -> BacklogAnalysis:
            served, subscription = await self._subscription(topic, name)
            await subscription.read_backlog()
            size, log = subscription.backlog, served.log
            first = log.next_position(subscription.cursor.mark_delete)
            return BacklogAnalysis(
                entries=size.entries,
                messages=size.messages,
                marker_messages=0,
                filter_accepted_entries=size.entries,
                filter_rejected_entries=0,
                filter_rescheduled_entries=0,
                filter_accepted_messages=size.messages,
                filter_rejected_messages=0,
                filter_rescheduled_messages=0,
                aborted=False,
                first_message_id=str(first) if size.entries else None,
                last_message_id=str(log.last_confirmed) if size.entries else None,
                bytes=size.bytes,
                exact=size.exact and size.bytes_exact,
                oldest_publish_time=size.oldest_ms,
            )

        found = await self._operations.owners.run_here(topic, local, authoritative=authoritative)
        return cast("BacklogAnalysis", found)

    async def properties(
        self, topic: TopicName, name: str, *, authoritative: bool
    ) -> dict[str, str]:
        async def local(topic: TopicName) -> dict[str, str]:
            return (await self._subscription(topic, name))[1].properties

        call = RestCall("GET", f"{_path(name)}/properties")
        found = await self._operations.owners.run_on_all(
            topic, local, call, authoritative=authoritative
        )
        return cast("dict[str, str]", found[0])

    async def set_properties(
        self, topic: TopicName, name: str, properties: Mapping[str, str], *, authoritative: bool
    ) -> None:
        async def local(topic: TopicName) -> None:
            await (await self._subscription(topic, name))[1].set_properties(properties)

        call = RestCall("PUT", f"{_path(name)}/properties", body=properties)
        await self._operations.owners.run_on_all(topic, local, call, authoritative=authoritative)

    # -- acknowledging on behalf of an administrator

    async def skip(
        self, topic: TopicName, name: str, messages: int, *, dry_run: bool, authoritative: bool
    ) -> Cleared:
        """Acknowledge the next messages of the subscription; of each partition, if it has any."""
        return await self._clear(
            topic,
            name,
            lambda subscription: plan_skip(subscription, messages),
            f"{_path(name)}/skip/{messages}",
            dry_run=dry_run,
            authoritative=authoritative,
        )

    async def skip_all(
        self, topic: TopicName, name: str, *, dry_run: bool, authoritative: bool
    ) -> Cleared:
        return await self._clear(
            topic,
            name,
            lambda subscription: plan_through(subscription, subscription.topic.log.last_confirmed),
            f"{_path(name)}/skip_all",
            dry_run=dry_run,
            authoritative=authoritative,
        )

    async def clear(self, topic: TopicName, name: str, *, authoritative: bool) -> None:
        """Acknowledge everything up to now."""
        await self._operations.skip_all(topic, name, authoritative=authoritative)

    async def expire(
        self, topic: TopicName, name: str, seconds: int, *, dry_run: bool, authoritative: bool
    ) -> Cleared:
        """Acknowledge what was stored more than `seconds` ago."""
        _check_seconds(seconds)

        async def plan(subscription: Subscription) -> Plan:
            now_ms = subscription.topic.clock.now_ms()
            return await plan_expire(subscription, now_ms - 1000 * seconds)

        path = f"{_path(name)}/expireMessages/{seconds}"
        return await self._clear(
            topic, name, plan, path, dry_run=dry_run, authoritative=authoritative
        )

    async def expire_all(self, topic: TopicName, seconds: int, *, authoritative: bool) -> None:
        """Acknowledge what was stored more than `seconds` ago, for all subscriptions."""
        _check_seconds(seconds)

        async def local(topic: TopicName) -> None:
            served = await self._operations.owned.get(topic)
            for subscription in list(served.subscriptions.by_name.values()):
                if subscription.durable:
                    before_ms = served.clock.now_ms() - 1000 * seconds
                    await carry_out(subscription, await plan_expire(subscription, before_ms))

        call = RestCall("POST", f"/all_subscription/expireMessages/{seconds}")
        await self._operations.owners.run_on_all(topic, local, call, authoritative=authoritative)

    async def expire_to(
        self, topic: TopicName, name: str, start: Start, *, dry_run: bool, authoritative: bool
    ) -> Cleared:
        """Acknowledge everything up to a message, and that one unless it `is_excluded`."""

        async def plan(subscription: Subscription) -> Plan:
            log = subscription.topic.log
            if start.is_latest:
                return await plan_through(subscription, log.last_confirmed)
            if start.is_earliest:
                return Plan()
            through = Position(start.ledger_id, start.entry_id)
            if start.is_excluded:
                through = log.previous_position(through)
            return await plan_through(subscription, through)

        async def local(topic: TopicName) -> Cleared:
            return await self._clear_here(topic, name, plan, dry_run=dry_run)

        found = await self._operations.owners.run_here(topic, local, authoritative=authoritative)
        return cast("Cleared", found)

    async def _clear(
        self,
        topic: TopicName,
        name: str,
        plan: Callable[[Subscription], Awaitable[Plan]],
        path: str,
        *,
        dry_run: bool,
        authoritative: bool,
    ) -> Cleared:
        async def local(topic: TopicName) -> Cleared:
            return await self._clear_here(topic, name, plan, dry_run=dry_run)

        call = RestCall("POST", path, _DRY_RUN if dry_run else {})
        found = await self._operations.owners.run_on_all(
            topic, local, call, authoritative=authoritative
        )
        # Another broker answers with JSON, and with nothing if it was no dry run.
        parts = [msgspec.convert(msgspec.to_builtins(each), Cleared) for each in found if each]
        return Cleared(
            sum(each.messages for each in parts),
            sum(each.entries for each in parts),
            sum(each.bytes for each in parts),
            parts[0].through if len(parts) == 1 else None,
        )

    async def _clear_here(
        self,
        topic: TopicName,
        name: str,
        plan: Callable[[Subscription], Awaitable[Plan]],
        *,
        dry_run: bool,
    ) -> Cleared:
        _, subscription = await self._subscription(topic, name)
        return await carry_out(subscription, await plan(subscription), dry_run=dry_run)

    # -- single messages

    async def peek(
        self, topic: TopicName, name: str, number: int, *, authoritative: bool
    ) -> Content:
        """Return the entry with that number, from 1, among those that are not acknowledged."""
        if number < 1:
            raise PreconditionError(f"messages are numbered from 1, and this is {number}")

        async def local(topic: TopicName) -> Content:
            served, subscription = await self._subscription(topic, name)
            log, cursor, left = served.log, subscription.cursor, number
            at = cursor.read_start
            while at <= log.last_confirmed:
                with translated(served.name):
                    found = await log.read(at, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES)
                for entry in found:
                    if not cursor.is_acked(entry.position):
                        left -= 1
                        if not left:
                            pending = cursor.pending_of(entry.position)
                            most = self.answers.answer_bytes_max
                            return content_of(entry.position, entry.data, most, pending)
                at = log.next_position(found[-1].position)
            raise NotFoundError(f"the subscription {name} has fewer than {number} messages")

        return await self._shown(topic, local, authoritative=authoritative)

    async def examine(
        self, topic: TopicName, *, earliest: bool, number: int, authoritative: bool
    ) -> Content:
        """Return the entry with that number, from 1, from either end of the topic."""
        number = max(1, number)

        async def local(topic: TopicName) -> Content:
            served = await self._operations.owned.get(topic)
            log = served.log
            total = log.entries_between(log.before_first, log.last_confirmed)
            if number > total:
                raise NotFoundError(f"{topic} has {total} entries, and none with number {number}")
            skipped = number - 1 if earliest else total - number
            return await self._entry(served, log.position_after(log.before_first, skipped + 1))

        return await self._shown(topic, local, authoritative=authoritative)

    async def entry(
        self, topic: TopicName, ledger_id: int, entry_id: int, *, authoritative: bool
    ) -> Content:
        async def local(topic: TopicName) -> Content:
            served = await self._operations.owned.get(topic)
            return await self._entry(served, Position(ledger_id, entry_id))

        return await self._shown(topic, local, authoritative=authoritative)

    async def _shown(
        self,
        topic: TopicName,
        local: Callable[[TopicName], Awaitable[Content]],
        *,
        authoritative: bool,
    ) -> Content:
        """Return an entry, whose memory is held until it is sent."""

        async def holding(topic: TopicName) -> Content:
            held = await self.answers.hold()
            try:
                content = await local(topic)
            except BaseException:
                held.release()
                raise
            held.shrink(len(content.data))
            return replace(content, on_done=held.release)

        found = await self._operations.owners.run_here(topic, holding, authoritative=authoritative)
        return cast("Content", found)

    async def _entry(self, topic: Topic, position: Position) -> Content:
        log = topic.log
        if log.before_first < position <= log.last_confirmed:
            with translated(topic.name):
                found = await log.read(position, max_entries=1, max_bytes=1)
            if found and found[0].position == position:
                return content_of(position, found[0].data, self.answers.answer_bytes_max)
        raise NotFoundError(f"{topic.name} has no entry {position}")

    # -- what is stored of a topic

    async def internal_info(self, topic: TopicName, *, authoritative: bool) -> object:
        async def local(topic: TopicName) -> object:
            served = await self._operations.owned.get(topic)
            return served.logs.internal_info(served.log)

        return await self._operations.owners.run_here(topic, local, authoritative=authoritative)

    async def offline_backlog(self, topic: TopicName, *, authoritative: bool) -> object:
        """Return Pulsar's PersistentOfflineTopicStats, of the topic as it is now."""

        async def local(topic: TopicName) -> object:
            served = await self._operations.owned.get(topic)
            await served.read_backlogs()
            log, subscriptions = served.log, served.subscriptions.by_name
            sizes = {name: each.backlog for name, each in subscriptions.items()}
            return {
                "storageSize": log.size_bytes,
                "totalMessages": log.entries_between(log.before_first, log.last_confirmed),
                "messageBacklog": sum(size.messages for size in sizes.values()),
                "brokerName": "",
                "topicName": served.name.full,
                "dataLedgerDetails": [],
                "cursorDetails": {
                    name: {"cursorBacklog": size.messages, "cursorLedgerId": -1}
                    for name, size in sorted(sizes.items())
                },
                "statGeneratedAt": served.clock.now_ms(),
            }

        return await self._operations.owners.run_here(topic, local, authoritative=authoritative)

    async def backlog_size(self, topic: TopicName, start: Start, *, authoritative: bool) -> int:
        """Return the bytes from a message on to the end of the topic."""

        async def local(topic: TopicName) -> int:
            served = await self._operations.owned.get(topic)
            log = served.log
            if start.is_earliest:
                return log.size_bytes
            at = served.position_of_id(Position(start.ledger_id, start.entry_id))
            begin = None if at > log.last_confirmed else await served.entry_start(at)
            return 0 if begin is None else log.bytes_after(begin)

        found = await self._operations.owners.run_here(topic, local, authoritative=authoritative)
        return cast("int", found)

    async def truncate(self, topic: TopicName, *, authoritative: bool) -> None:
        """Acknowledge everything for all subscriptions, and drop what is stored."""

        async def local(topic: TopicName) -> None:
            served = await self._operations.owned.get(topic)
            for subscription in list(served.subscriptions.by_name.values()):
                await subscription.skip_all()
            with translated(served.name):
                await served.release_stored()
                await served.logs.truncate(served.log)

        call = RestCall("DELETE", "/truncate")
        await self._operations.owners.run_on_all(topic, local, call, authoritative=authoritative)

    async def trim(self, topic: TopicName, *, authoritative: bool) -> None:
        """Drop what neither subscriptions nor retention need, now."""

        async def local(topic: TopicName) -> None:
            served = await self._operations.owned.get(topic)
            with translated(served.name):
                await served.log.trim()

        call = RestCall("POST", "/trim")
        await self._operations.owners.run_on_all(topic, local, call, authoritative=authoritative)

    # -- all topics of a namespace, or of a bundle

    async def clear_namespace(
        self, namespace: str, bundle: str | None = None, subscription: str | None = None
    ) -> None:
        """Acknowledge everything, for one subscription of each topic or for all."""
        for topic in await self._topics(namespace, bundle):
            with suppress(NotFoundError):  # It was deleted meanwhile.
                names = await self._operations.subscriptions(topic)
                for name in names if subscription is None else [subscription]:
                    with suppress(SubscriptionNotFoundError):
                        await self._operations.skip_all(topic, name)

    async def unsubscribe_namespace(
        self, namespace: str, subscription: str, bundle: str | None = None
    ) -> None:
        """Delete the subscription of each topic, unless it has consumers."""
        errors: list[BrokerError] = []
        for topic in await self._topics(namespace, bundle):
            try:
                await self._operations.delete_subscription(topic, subscription)
            except NotFoundError:
                continue
            except BrokerError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _topics(self, namespace: str, bundle: str | None) -> list[TopicName]:
        operations = self._operations
        names = [TopicName.parse(name) for name in await operations.topics(namespace)]
        if bundle is None:
            return names
        if bundle not in (await operations.policies.bundles(namespace)).ranges():
            raise NotFoundError(f"there is no bundle {bundle} in {namespace}")
        wanted = f"{namespace}/{bundle}"
        return [name for name in names if await operations.policies.bundle_of(name) == wanted]

    async def _subscription(self, topic: TopicName, name: str) -> tuple[Topic, Subscription]:
        return await self._operations.owned.subscription(topic, name)


def _path(name: str) -> str:
    return f"/subscription/{url_encode(name)}"


def _check_seconds(seconds: int) -> None:
    if seconds < 1:
        raise PreconditionError(f"the age must be at least a second, and this is {seconds}")
