"""One stored entry, as the admin REST shows it: its messages, and the metadata of all of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from daybook.wire.batch import iter_batch
from daybook.wire.errors import WireError

_PREFIX = "x-pulsar-"
_PROPERTY = "x-pulsar-property-"
_PROPERTIES = "x-pulsar-property"  # all of them, as JSON
_BATCH = "x-pulsar-num-batch-message"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of an entry.  `properties` and `key` are its own, also in a batch."""

    data: bytes
    key: str | None
    properties: Mapping[str, str]


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
    def of(cls, headers: Mapping[str, str], body: bytes) -> "StoredEntry":
        metadata = {
            name.removeprefix(_PREFIX): value
            for name, value in headers.items()
            if name.startswith(_PREFIX) and not name.startswith(_PROPERTIES)
        }
        return cls(
            metadata.pop("message-id", ""), tuple(_messages(headers, metadata, body)), metadata
        )


def _messages(
    headers: Mapping[str, str], metadata: Mapping[str, str], body: bytes
) -> Iterator[StoredMessage]:
    count = headers.get(_BATCH, "")
    if count.isdecimal() and metadata.get("is-encrypted") != "true":
        try:
            batch = list(iter_batch(body, int(count)))
        except WireError:
            pass  # It is shown as it is.
        else:
            for single, data in batch:
                yield StoredMessage(data, single.key, dict(single.properties))
            return
    yield StoredMessage(body, metadata.get("partition-key"), _properties(headers))


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
