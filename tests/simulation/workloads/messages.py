"""Messages of a simulated run: each names its send, and shows if any part of it has changed."""

from zlib import crc32

from daybook.clients.python.message_id import MessageId
from daybook.clients.python.messages import Message
from tests.history.events import Position

_END = b"|"
_SHORT = 40
_PATTERN = bytes(i * 7 % 251 for i in range(251))


def payload(value: str, size: int) -> bytes:
    return value.encode() + _END + (_PATTERN * (size // len(_PATTERN) + 1))[:size]


def key_of(value: str, more: int = 0) -> str:
    """Return a key for the value, with `more` bytes added."""
    return f"k{crc32(value.encode()) % 7}{'y' * more}"


def short(key: str) -> str:
    """Return a key as the history has it."""
    return key if len(key) <= _SHORT else f"{key[:_SHORT]}+{crc32(key.encode()):08x}"


def properties_of(value: str, more: int = 0) -> dict[str, str]:
    if more:
        return {"of": value, "more": "z" * more}
    return {"of": value} if crc32(value.encode()) % 3 == 0 else {}


def digest(data: bytes, key: str | None, properties: dict[str, str]) -> str:
    return f"{crc32(repr((key, sorted(properties.items()))).encode(), crc32(data)):08x}"


def digest_of(message: Message) -> str:
    return digest(bytes(message.data or b""), message.key, dict(message.properties))


def value_in(data: bytes) -> str:
    return data.partition(_END)[0].decode(errors="replace")


def value_of(message: Message) -> str:
    """Return the value, which a tombstone has in its properties."""
    if not message.data:
        return message.properties.get("of", "")
    return value_in(bytes(message.data))


def position_of(message_id: MessageId) -> Position:
    return message_id.ledger_id, message_id.entry_id, message_id.batch_index
