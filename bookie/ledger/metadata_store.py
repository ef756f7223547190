"""Records of ledgers in the metadata store: create, read, compare-and-swap, delete."""

from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias, assert_never

import trio

from daybook.bookie.errors import LedgerExistsError, MalformedMetadataError, NoSuchLedgerError
from daybook.bookie.ledger.metadata import LedgerMetadata, decode_metadata, encode_metadata
from daybook.bookie.ledger.protocol.placement import BookieId
from daybook.bookie.ledger.protocol.update import (
    Decide,
    Effect,
    Gone,
    NotAllowed,
    NotDone,
    Read,
    Settled,
    UpdateProtocol,
    Write,
)
from daybook.bookie.registry.cookies import CookieGeneration, read_cookie_generation
from daybook.bookie.registry.ledger_ids import LedgerIds, list_ledgers, prune_parents
from daybook.bookie.registry.paths import LedgerPaths
from daybook.wire.metadata.store import (
    ANY,
    Check,
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    SessionState,
    Set,
    StoreUnavailableError,
    VersionConflictError,
    Watch,
)

UpdateResult: TypeAlias = Settled | NotAllowed | NotDone | Gone

_PAUSE_S = 0.1
_PAUSE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """Metadata of a ledger, and the version of their record."""

    metadata: LedgerMetadata
    version: int


class LedgerMetadataStore:
    """The records of all ledgers of one cluster."""

    def __init__(self, store: MetadataStore, paths: LedgerPaths, rng: Random) -> None:
        self.store = store
        self.paths = paths
        self._rng = rng
        self._ids = LedgerIds(store, paths)

    @property
    def reachable(self) -> bool:
        """True if the session is connected; otherwise every request would have to wait."""
        return self.store.session_state is SessionState.CONNECTED

    async def create(
        self, metadata: LedgerMetadata, janitor: trio.Nursery
    ) -> tuple[int, StoredMetadata]:
        """Store the metadata of a new ledger; return its id.

        A creation whose outcome is unknown is looked up: a token tells ours from another's.  Tasks
        in `janitor` delete the records that only served to count (`LedgerIds`).
        """
        metadata = replace(metadata, creator_token=self._rng.getrandbits(62) + 1)
        value = encode_metadata(metadata)
        while True:
            ledger_id = await self._ids.new(janitor)
            if await self._create(self.paths.ledger(ledger_id), value, metadata.creator_token):
                return ledger_id, StoredMetadata(metadata, 0)

    async def create_as(self, ledger_id: int, metadata: LedgerMetadata) -> StoredMetadata:
        """Create a ledger with the id that the caller gives.

        Raise LedgerExistsError if there is a ledger with that id.
        """
        metadata = replace(metadata, creator_token=self._rng.getrandbits(62) + 1)
        value = encode_metadata(metadata)
        if not await self._create(self.paths.ledger(ledger_id), value, metadata.creator_token):
            raise LedgerExistsError(ledger_id)
        return StoredMetadata(metadata, 0)

    async def _create(self, path: str, value: bytes, token: int) -> bool:
        """Return False if the record of another ledger has that id."""
        pause_s = _PAUSE_S
        with _remembered_doubt() as doubt:
            while True:
                try:
                    await self.store.create(path, value, make_parents=True)
                except RecordExistsError:
                    return await self._is_ours(path, token)
                except OutcomeUnknownError as error:
                    # The next attempt finds the record, with our token, or creates it.
                    doubt.append(error)
                    continue
                except NoRecordError:
                    # A deletion of a neighbouring ledger may remove the parents just created.
                    await trio.sleep(self._rng.uniform(0, pause_s))
                    pause_s = min(2 * pause_s, _PAUSE_S_MAX)
                    continue
                return True

    async def _is_ours(self, path: str, token: int) -> bool:
        record = await self.store.get(path)
        try:
            return record is not None and decode_metadata(record.value).creator_token == token
        except MalformedMetadataError:
            return False

    async def read(self, ledger_id: int, watch: Watch | None = None) -> StoredMetadata:
        """Return the metadata; raise NoSuchLedgerError if the newest state has none."""
        path = self.paths.ledger(ledger_id)
        record = await self.store.get(path, watch)
        if record is None:
            # The server may lag.  Only its newest state proves that there is no such ledger.
            await self.store.sync(path)
            record = await self.store.get(path, watch)
        if record is None:
            raise NoSuchLedgerError(ledger_id)
        metadata = decode_metadata(record.value, record.stat.created_ms)
        return StoredMetadata(metadata, record.stat.version)

    async def generations_of(self, bookies: Iterable[BookieId]) -> list[CookieGeneration]:
        """Return cookie generations for `update`; read them before the first entry is sent."""
        return [await read_cookie_generation(self.store, self.paths, bookie) for bookie in bookies]

    async def update(
        self,
        ledger_id: int,
        stored: StoredMetadata,
        decide: Decide,
        generations: Sequence[CookieGeneration] = (),
    ) -> UpdateResult:
        """Change the metadata as `decide` wants; `stored` is what the caller read last.

        `generations` belong to bookies that the change adds and that hold entries already.  A
        bookie that starts with empty disks asks once for the ledgers whose metadata name it.  If
        one of the generations has ended, the bookie may have asked before the change named it, and
        would never learn of its lost entries; the result is then NotAllowed.
        """
        protocol = UpdateProtocol(decide)
        effect = protocol.start(stored.metadata, stored.version)
        pause_s = _PAUSE_S
        while True:
            match effect:
                case Write():
                    after = await self._write(ledger_id, protocol, effect, generations)
                    if after is None:
                        return NotAllowed(stored.metadata, stored.version)
                    effect = after
                case Read(patiently):
                    if patiently:
                        await trio.sleep(self._rng.uniform(pause_s / 2, pause_s))
                        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
                    try:
                        stored = await self.read(ledger_id)
                    except NoSuchLedgerError:
                        effect = protocol.missing()
                    except StoreUnavailableError:
                        effect = protocol.unavailable()
                    else:
                        effect = protocol.found(stored.metadata, stored.version)
                case Settled() | NotAllowed() | NotDone() | Gone():
                    return effect
                case _:
                    assert_never(effect)

    async def _write(
        self,
        ledger_id: int,
        protocol: UpdateProtocol,
        write: Write,
        generations: Sequence[CookieGeneration],
    ) -> Effect | None:
        """Write the record, and tell the protocol; return None if a cookie generation has ended.

        In that case, no write of ours can be carried out any more.
        """
        path, value = self.paths.ledger(ledger_id), encode_metadata(write.metadata)
        try:
            if not generations:
                return protocol.written((await self.store.set(path, value, write.version)).version)
            bookies = [BookieId(generation.bookie_id) for generation in generations]
            if await self.generations_of(bookies) != list(generations):
                return None
            # The generations are compared again by the store, in one transaction with the write: a
            # bookie may lose its disks between the comparison above and the write.
            checks = [
                Check(self.paths.cookie(generation.bookie_id), generation.version)
                for generation in generations
                if generation.version is not None
            ]
            versions = await self.store.multi([Set(path, value, write.version), *checks])
            return protocol.written(versions[0])
        except VersionConflictError:
            return protocol.conflicted()
        except NoRecordError:
            # With checks of cookies, only the next read tells which record is missing.
            return protocol.conflicted() if generations else protocol.missing()
        except OutcomeUnknownError:
            return protocol.outcome_unknown()
        except MetadataError:  # The store is away, or refuses: nothing was changed.
            return protocol.unavailable()

    async def delete(self, ledger_id: int) -> None:
        """Delete the record, if there is one."""
        with _remembered_doubt() as doubt:
            while True:
                try:
                    await self.store.delete(self.paths.ledger(ledger_id), ANY)
                except OutcomeUnknownError as error:
                    doubt.append(error)
                    continue
                except NoRecordError:
                    return  # It was deleted already, perhaps by an earlier attempt of ours.
                await prune_parents(self.store, self.paths, ledger_id)
                return

    def list(self) -> AsyncIterator[int]:
        """Return the ids of all ledgers, ascending."""
        return list_ledgers(self.store, self.paths)


@contextmanager
def _remembered_doubt() -> Generator[list[OutcomeUnknownError]]:
    """Raise OutcomeUnknownError at the end if any attempt of one change was in doubt.

    The failure of the last attempt proves nothing about the earlier ones.
    """
    doubt: list[OutcomeUnknownError] = []
    try:
        yield doubt
    except StoreUnavailableError as error:
        if doubt:
            raise OutcomeUnknownError(str(doubt[-1])) from error
        raise
