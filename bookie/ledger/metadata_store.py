"""The records of ledgers in the metadata store: create, read, compare-and-swap, delete."""

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
    Conflict,
    Decide,
    Event,
    Gone,
    Missing,
    NotAllowed,
    NotDone,
    Read,
    Settled,
    Stored,
    Unavailable,
    Unknown,
    UpdateProtocol,
    Write,
    Written,
)
from daybook.bookie.registry.cookies import Life, read_life
from daybook.bookie.registry.ledger_ids import list_ledgers, new_ledger_id, prune_parents
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
    metadata: LedgerMetadata
    version: int


class LedgerMetadataStore:
    def __init__(self, store: MetadataStore, paths: LedgerPaths, rng: Random) -> None:
        self.store = store
        self.paths = paths
        self._rng = rng

    @property
    def reachable(self) -> bool:
        """There is contact with the metadata store; else every request would have to wait."""
        return self.store.session_state is SessionState.CONNECTED

    async def create(
        self, metadata: LedgerMetadata, janitor: trio.Nursery
    ) -> tuple[int, StoredMetadata]:
        """Store the metadata of a new ledger; return its id.

        A creation whose outcome is unknown is looked up: a token tells ours from another's.
        """
        metadata = replace(metadata, creator_token=self._rng.getrandbits(62) + 1)
        value = encode_metadata(metadata)
        while True:
            ledger_id = await new_ledger_id(self.store, self.paths, janitor)
            if await self._create(self.paths.ledger(ledger_id), value, metadata.creator_token):
                return ledger_id, StoredMetadata(metadata, 0)

    async def create_as(self, ledger_id: int, metadata: LedgerMetadata) -> StoredMetadata:
        """As `create`, with an id that the caller gives; LedgerExistsError if there is one."""
        metadata = replace(metadata, creator_token=self._rng.getrandbits(62) + 1)
        value = encode_metadata(metadata)
        if not await self._create(self.paths.ledger(ledger_id), value, metadata.creator_token):
            raise LedgerExistsError(ledger_id)
        return StoredMetadata(metadata, 0)

    async def _create(self, path: str, value: bytes, token: int) -> bool:
        """False if there is a ledger of somebody else with that id."""
        pause_s = _PAUSE_S
        with _remembered_doubt() as doubt:
            while True:
                try:
                    await self.store.create(path, value, make_parents=True)
                except RecordExistsError:
                    return await self._is_ours(path, token)
                except OutcomeUnknownError as error:
                    doubt.append(error)  # Either it is there now, and ours, or it can be created.
                    continue
                except NoRecordError:
                    # Whoever deletes the neighbours removes the parents that we create.
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
        """NoSuchLedgerError only if the store, asked for its newest state, has none."""
        path = self.paths.ledger(ledger_id)
        record = await self.store.get(path, watch)
        if record is None:
            await self.store.sync(path)
            record = await self.store.get(path, watch)
        if record is None:
            raise NoSuchLedgerError(ledger_id)
        metadata = decode_metadata(record.value, record.stat.created_ms)
        return StoredMetadata(metadata, record.stat.version)

    async def lives_of(self, bookies: Iterable[BookieId]) -> list[Life]:
        """For `update`: to be read before the first entry is sent to them."""
        return [await read_life(self.store, self.paths, bookie) for bookie in bookies]

    async def update(
        self, ledger_id: int, stored: StoredMetadata, decide: Decide, lives: Sequence[Life] = ()
    ) -> UpdateResult:
        """Change the metadata as `decide` wants; `stored` is what the caller has read last.

        `lives` are of bookies that the change names for entries that they hold already.  One that
        is born anew asks the metadata of which ledgers it may have lost something, once: NotAllowed
        if one of them may have asked before it was named.
        """
        protocol = UpdateProtocol(decide)
        effect = protocol.start(stored.metadata, stored.version)
        pause_s = _PAUSE_S
        while True:
            match effect:
                case Write(metadata, version):
                    event = await self._write(ledger_id, metadata, version, lives)
                    if event is None:
                        return NotAllowed(stored.metadata, stored.version)
                case Read(patiently):
                    if patiently:
                        await trio.sleep(self._rng.uniform(pause_s / 2, pause_s))
                        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
                    event = await self._read(ledger_id)
                    if isinstance(event, Stored):
                        stored = StoredMetadata(event.metadata, event.version)
                case Settled() | NotAllowed() | NotDone() | Gone():
                    return effect
                case _:
                    assert_never(effect)
            effect = protocol.step(event)

    async def _write(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, lives: Sequence[Life]
    ) -> Event | None:
        """None: one of the lives is over, and no write of ours can be carried out any more."""
        path, value = self.paths.ledger(ledger_id), encode_metadata(metadata)
        try:
            if not lives:
                return Written(await self.store.set(path, value, version))
            if await self.lives_of(BookieId(life.bookie_id) for life in lives) != list(lives):
                return None
            checks = [
                Check(self.paths.cookie(life.bookie_id), life.version)
                for life in lives
                if life.version is not None
            ]
            return Written((await self.store.multi([Set(path, value, version), *checks]))[0])
        except VersionConflictError:
            return Conflict()
        except NoRecordError:
            return Conflict() if lives else Missing()  # Which record, the next read says.
        except OutcomeUnknownError:
            return Unknown()
        except MetadataError:  # The store does not answer, or refuses: nothing was carried out.
            return Unavailable()

    async def _read(self, ledger_id: int) -> Event:
        try:
            stored = await self.read(ledger_id)
        except NoSuchLedgerError:
            return Missing()
        except StoreUnavailableError:
            return Unavailable()
        return Stored(stored.metadata, stored.version)

    async def delete(self, ledger_id: int) -> None:
        """One that is not there is deleted already."""
        with _remembered_doubt() as doubt:
            while True:
                try:
                    await self.store.delete(self.paths.ledger(ledger_id), ANY)
                except OutcomeUnknownError as error:
                    doubt.append(error)
                    continue
                except NoRecordError:
                    return
                await prune_parents(self.store, self.paths, ledger_id)
                return

    def list(self) -> AsyncIterator[int]:
        return list_ledgers(self.store, self.paths)


@contextmanager
def _remembered_doubt() -> Generator[list[OutcomeUnknownError]]:
    """Around tries of one change: that the last of them was not made says nothing of the others."""
    doubt: list[OutcomeUnknownError] = []
    try:
        yield doubt
    except StoreUnavailableError as error:
        if doubt:
            raise OutcomeUnknownError(str(doubt[-1])) from error
        raise
