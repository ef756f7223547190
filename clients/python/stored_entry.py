"""One stored entry, as the admin REST shows it: its messages, and the metadata of all of them."""

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from daybook.clients.python.message_id import MessageId
from daybook.wire.batch import iter_batch
from daybook.wire.errors import WireError

_PLACE = re.compile(r"(\d{1,19}):(\d{1,19})")
_PREFIX = "x-pulsar-"
_PROPERTY = "x-pulsar-property-"
_PROPERTIES = "x-pulsar-property"  # all of them, as JSON
_BATCH = "x-pulsar-num-batch-message"
_INDEX = "x-pulsar-broker-entry-metadata-index"
_PENDING = "x-daybook-pending"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of an entry.  `properties` and `key` are its own, also in a batch.

    `offset` is None if no broker numbered the entry.  `acknowledged` is said only by `peek`, of
    messages of a batch of which others are not acknowledged.
    """

    data: bytes
    key: str | None
    properties: Mapping[str, str]
    message_id: MessageId | None = None
    offset: int | None = None
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """`message_id` is "ledger:entry".  `metadata` has what the broker tells, by its names.

    Names of metadata are in lower case, because HTTP does not keep the case.
    The data of an encrypted entry stay encrypted, and it counts as one message.
    """

    message_id: str
    messages: tuple[StoredMessage, ...]
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, headers: Mapping[str, str], body: bytes, partition: int = -1) -> "StoredEntry":
        metadata = {
            name.removeprefix(_PREFIX): value
            for name, value in headers.items()
            if name.startswith(_PREFIX) and not name.startswith(_PROPERTIES)
        }
        place, last = metadata.pop("message-id", ""), headers.get(_INDEX, "")
        found = _PLACE.fullmatch(place)
        entry = MessageId(int(found[1]), int(found[2]), -1, partition) if found else None
        pending = _pending(headers.get(_PENDING))
        messages = tuple(
            replace(
                message,
                message_id=_with_index(entry, index),
                offset=int(last) - behind if last.isdecimal() else None,
                acknowledged=pending is not None and index >= 0 and not pending >> index & 1,
            )
            for index, behind, message in _messages(headers, metadata, body)
        )
        return cls(place, messages, metadata)


def _with_index(entry: MessageId | None, index: int) -> MessageId | None:
    if entry is None:
        return None
    return MessageId(entry.ledger_id, entry.entry_id, index, entry.partition)


def _pending(header: str | None) -> int | None:
    """Return the bits of the messages that are not acknowledged; None for all of them."""
    with suppress(ValueError):
        return None if header is None else int.from_bytes(b64decode(header), "little")
    return None


def _messages(
    headers: Mapping[str, str], metadata: Mapping[str, str], body: bytes
) -> Iterator[tuple[int, int, StoredMessage]]:
    """Yield messages, each with its index in the batch, and how many messages are behind it."""
    count = headers.get(_BATCH, "")
    if count.isdecimal() and metadata.get("is-encrypted") != "true":
        try:
            batch = list(iter_batch(body, int(count)))
        except WireError:
            pass  # It is shown as it is.
        else:
            for index, (single, data) in enumerate(batch):
                message = StoredMessage(data, single.key, dict(single.properties))
                yield index, len(batch) - 1 - index, message
            return
    behind = max(1, int(count)) - 1 if count.isdecimal() else 0
    yield -1, behind, StoredMessage(body, metadata.get("partition-key"), _properties(headers))


def _properties(headers: Mapping[str, str]) -> dict[str, str]:
    with suppress(ValueError, RecursionError):
        found: object = json.loads(headers.get(_PROPERTIES, ""))
        if isinstance(found, dict):
            texts = cast("dict[object, object]", found)
            return {str(name): str(value) for name, value in texts.items()}
    # Older brokers send one header for each property.
    return {
        name.removeprefix(_PROPERTY): value
        for name, value in headers.items()
        if name.startswith(_PROPERTY)
    }
