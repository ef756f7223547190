"""The ledgers of schemas: each version is the only entry of a ledger of its own.

A ledger is closed before a record names it.  Each ledger names its topic in its metadata, which is
compared before the ledger is read or deleted: with another root, its id may be that of another
topic's ledger.
"""

from collections.abc import Awaitable, Callable

import trio

from daybook.bookie.errors import (
    EntryTooLargeError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from daybook.bookie.ledger.client import LedgerClient, LedgerWriter, Quorums
from daybook.broker.errors import (
    BrokerError,
    InvalidSchemaError,
    StorageFailedError,
    UnavailableError,
)
from daybook.broker.limits import SchemaLimits
from daybook.broker.schemas.records import StoredVersion, custom_metadata, other_owner, schema_id
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError
from daybook.wire.topics import TopicName


class SchemaLedgers:
    """`quorums` returns those of a topic, and `tree` the tree of logs of this broker."""

    def __init__(
        self,
        client: LedgerClient,
        quorums: Callable[[TopicName], Awaitable[Quorums]],
        tree: Callable[[], str | None],
        limits: SchemaLimits,
        log: Log,
    ) -> None:
        self._client = client
        self._quorums = quorums
        self._tree = tree
        self._limits = limits
        self._log = log

    def path(self, ledger_id: int) -> str:
        """Return the path of the record of a ledger."""
        return self._client.context.metadata_store.paths.ledger(ledger_id)

    async def write(self, topic: TopicName, entry: bytes) -> int:
        """Store an entry in a new ledger, and return its id.

        Raise UnavailableError, or InvalidSchemaError if bookies take no entry of that size.
        """
        quorums = await self._quorums(topic)
        custom = custom_metadata(schema_id(topic), self._tree())
        error: BrokerError = UnavailableError(
            f"the schema of {topic} was not stored within {self._limits.write_s:g} s: the bookies"
            " do not confirm it; try again"
        )
        writer: LedgerWriter | None = None
        with trio.move_on_after(self._limits.write_s):
            try:
                writer = await self._client.create(quorums, custom=custom)
                await writer.wait_confirmed(writer.append([entry]))
                await writer.close()
                return writer.ledger_id
            except EntryTooLargeError as refused:
                error = InvalidSchemaError(f"the schema cannot be stored: {refused}")
            except NotEnoughBookiesError as refused:
                error = UnavailableError(
                    f"the schema of {topic} cannot be stored now: {refused}; start more bookies, or"
                    " lower the quorums"
                )
            except (LedgerError, MetadataError) as refused:
                error = UnavailableError(f"the schema of {topic} cannot be stored now: {refused}")
        if writer is not None:
            writer.abandon()
            await self.delete(topic, writer.ledger_id)
        raise error

    async def read(self, topic: TopicName, stored: StoredVersion) -> bytes:
        """Return the entry of a version.  Raise StorageFailedError, UnavailableError."""
        ledger_id, entry_id = stored.ledger_id, stored.entry_id
        what = f"version {stored.version} of the schema of {topic}"
        with trio.move_on_after(self._limits.read_s):
            try:
                metadata = await self._client.stored_metadata(ledger_id)
                owner = other_owner(metadata.metadata.custom, schema_id(topic))
                if owner is not None:
                    raise StorageFailedError(
                        f"{what}: ledger {ledger_id} belongs to {owner}; compare `ledgers_root` of"
                        " all brokers"
                    )
                reader = await self._client.open_stored(ledger_id, metadata, recover=True)
                (entry,) = await reader.read(entry_id, entry_id, max_bytes=1)
                return bytes(entry.payload)
            except (NoSuchLedgerError, NoSuchEntryError) as error:
                raise StorageFailedError(
                    f"{what} is lost: {error}. `daybook schemas delete --force` removes all"
                    " versions"
                ) from error
            except (LedgerError, MetadataError) as error:
                raise UnavailableError(f"{what} cannot be read now: {error}") from error
        raise UnavailableError(f"{what} was not read within {self._limits.read_s:g} s: try again")

    async def delete(self, topic: TopicName, ledger_id: int) -> None:
        """Delete a ledger that no record names.  One that cannot be deleted now is an orphan."""
        try:
            metadata = (await self._client.stored_metadata(ledger_id)).metadata
            if other_owner(metadata.custom, schema_id(topic)) is not None:
                self._log.warning(
                    "the ledger of a schema is kept, because it names another owner",
                    topic=topic.full,
                    ledger=ledger_id,
                )
                return
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass  # It was deleted together with the record that named it.
        except (LedgerError, MetadataError) as error:
            self._log.info(
                "the ledger of a schema could not be deleted; it is an orphan",
                topic=topic.full,
                ledger=ledger_id,
                why=str(error),
            )
