"""What can be done to a topic where it is owned, as `operations` sees it."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from daybook.wire.topics import TopicName

_LATEST = (1 << 63) - 1


class Start(msgspec.Struct, frozen=True, rename="camel"):
    """Where a subscription begins or goes: Pulsar's ResetCursorData."""

    ledger_id: int
    entry_id: int
    partition_index: int = -1
    batch_index: int = -1
    is_excluded: bool = False
    properties: dict[str, str] | None = None

    @classmethod
    def earliest(cls) -> "Start":
        return cls(-1, -1)

    @classmethod
    def latest(cls) -> "Start":
        return cls(_LATEST, _LATEST)

    @property
    def is_earliest(self) -> bool:
        return self.ledger_id < 0

    @property
    def is_latest(self) -> bool:
        return self.ledger_id >= _LATEST

    @property
    def symbolic(self) -> bool:
        return self.is_earliest or self.is_latest


class MessageIdData(msgspec.Struct, frozen=True, rename="camel"):
    ledger_id: int
    entry_id: int
    partition_index: int = -1
    batch_index: int = -1


class OwnedTopics(Protocol):
    """`TopicOperations` does this; tests of what is above it have something simpler."""

    async def stored(self, namespace: str) -> list[TopicName]: ...
    async def exists(self, topic: TopicName) -> bool: ...
    async def create(self, topic: TopicName, properties: Mapping[str, str]) -> None: ...
    async def delete(self, topic: TopicName, *, force: bool) -> None: ...
    async def unload(self, topic: TopicName) -> None: ...
    async def stats(self, topic: TopicName) -> dict[str, object]: ...
    async def internal_stats(self, topic: TopicName) -> dict[str, object]: ...
    async def last_message_id(self, topic: TopicName) -> MessageIdData: ...
    async def message_id_at(self, topic: TopicName, publish_time_ms: int) -> MessageIdData: ...
    async def terminate(self, topic: TopicName) -> MessageIdData: ...
    async def subscriptions(self, topic: TopicName) -> list[str]: ...
    async def create_subscription(self, topic: TopicName, name: str, start: Start) -> None: ...
    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool) -> None: ...
    async def skip_all(self, topic: TopicName, name: str) -> None: ...
    async def reset_to(self, topic: TopicName, name: str, start: Start) -> None: ...
    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None: ...
