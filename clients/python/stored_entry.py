"""One stored entry, as the admin REST shows it: its messages, and the metadata of all of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from daybook.wire.batch import iter_batch
from daybook.wire.errors import WireError

_PREFIX = "x-pulsar-"
_PROPERTY = "x-pulsar-property-"
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

    Names of metadata and of properties are in lower case, because HTTP does not keep the case.
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
            if name.startswith(_PREFIX) and not name.startswith(_PROPERTY)
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
    properties = {
        name.removeprefix(_PROPERTY): value
        for name, value in headers.items()
        if name.startswith(_PROPERTY)
    }
    yield StoredMessage(body, metadata.get("partition-key"), properties)
