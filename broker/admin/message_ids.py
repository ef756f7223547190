"""Message ids in the bodies of the admin REST, in Pulsar's JSON."""

import msgspec

_LATEST = (1 << 63) - 1  # Pulsar's ledger id for the end of a topic


class Start(msgspec.Struct, frozen=True, rename="camel"):
    """Where a subscription starts or is moved to: Pulsar's ResetCursorData."""

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
