"""The cookies of the bookies that belong to the cluster, running or not.

A cookie names the bookie that owns a set of directories.  It is stored in the metadata store and as
a file in each directory (`server.cookie_validation` compares them): a line with its version, then
CookieFormat as protobuf text.  Versions 3 and 4 can be read.

Every write here may be repeated after one whose outcome is unknown.  A cookie is changed only by
compare-and-swap on its version, and the cookie of another bookie is never overwritten.

An acknowledgement of a bookie is valid for one `CookieGeneration`.  A bookie that may have lost
records first rewrites its cookie (`renew_cookie`), then finds out which ledgers they may belong to
(`server.data_integrity`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from daybook.bookie.errors import MalformedRecordError
from daybook.bookie.registry.paths import LedgerPaths, check_bookie_id, parse_number
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import (
    ANY,
    Create,
    Delete,
    MetadataStore,
    NoRecordError,
    Operation,
    OutcomeUnknownError,
    Record,
    RecordExistsError,
    VersionConflictError,
)
from daybook.wire.proto.bookkeeper_metadata_pb2 import CookieFormat
from daybook.wire.protobuf import check_readable

COOKIE_VERSION = 5


@dataclass(frozen=True, slots=True)
class Cookie:
    """The owner of a set of directories, in the metadata store and as a file in each of them."""

    bookie_id: str
    journal_directories: Sequence[str]
    ledger_directories: Sequence[str]
    instance_id: str
    index_directories: Sequence[str] = ()

    def encode(self) -> bytes:
        cookie = CookieFormat(
            bookieHost=self.bookie_id,
            journalDir=",".join(self.journal_directories),
            ledgerDirs=_join_directories(self.ledger_directories),
            instanceId=self.instance_id,
        )
        if self.index_directories:
            cookie.indexDirs = _join_directories(self.index_directories)
        return f"{COOKIE_VERSION}\n{text_format.MessageToString(cookie)}".encode()

    @classmethod
    def decode(cls, value: bytes) -> "Cookie":
        """Parse a cookie of version 3 (plain lines), 4 or 5."""
        try:
            version, _, body = value.decode().partition("\n")
            if version == "3":
                bookie_id, journal, ledgers = (body.splitlines() + [""] * 3)[:3]
                return cls(bookie_id, tuple(journal.split(",")), _split_directories(ledgers), "")
            if version not in ("4", "5"):
                raise MalformedRecordError(f"a cookie of version {version[:20]!r}")
            cookie = CookieFormat()
            text_format.Parse(body, cookie)
            check_readable(cookie)
        except (ValueError, text_format.ParseError, DecodeError, WireError) as error:
            raise MalformedRecordError(f"a cookie that does not parse: {error}") from error
        return cls(
            cookie.bookieHost,
            tuple(cookie.journalDir.split(",")),
            _split_directories(cookie.ledgerDirs),
            cookie.instanceId,
            _split_directories(cookie.indexDirs) if cookie.HasField("indexDirs") else (),
        )


def _join_directories(directories: Sequence[str]) -> str:
    return "\t".join([str(len(directories)), *directories])


def _split_directories(text: str) -> tuple[str, ...]:
    count, *directories = text.split("\t")
    if parse_number(count) != len(directories):
        raise MalformedRecordError(f"a list of directories with a wrong count: {text[:200]!r}")
    return tuple(directories)


@dataclass(frozen=True, slots=True)
class StoredCookie:
    cookie: Cookie
    version: int
    created_txid: int  # the creation, in the order of all writes of the cluster
    modified_txid: int  # the last write: the creation, or a `renew_cookie`


@dataclass(frozen=True, slots=True)
class CookieGeneration:
    """One cookie generation: the bookie may have lost what it acknowledged in another one.

    Without a cookie (`version` is None) the generations of a bookie cannot be told apart.  A cookie
    that was deleted and created again counts its versions from 0; `created_txid` differs then.
    """

    bookie_id: str
    created_txid: int | None
    version: int | None


async def read_cookie_generation(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> CookieGeneration:
    """Return the current cookie generation or an earlier one.

    An absent cookie is read a second time after a `sync`.
    """
    record = await _newest(store, paths.cookie(bookie_id))
    if record is None:
        return CookieGeneration(bookie_id, None, None)
    return CookieGeneration(bookie_id, record.stat.created_txid, record.stat.version)


async def _newest(store: MetadataStore, path: str) -> Record | None:
    """Return the record; None only if the newest state of the store has no such record."""
    record = await store.get(path)
    if record is None:
        await store.sync(path)
        record = await store.get(path)
    return record


async def read_cookie(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> StoredCookie | None:
    """Return the cookie; None only if the newest state of the store has none."""
    record = await _newest(store, paths.cookie(bookie_id))
    if record is None:
        return None
    stat, cookie = record.stat, Cookie.decode(record.value)
    return StoredCookie(cookie, stat.version, stat.created_txid, stat.modified_txid)


async def known_bookies(store: MetadataStore, paths: LedgerPaths) -> list[str]:
    """Return the ids of all bookies that have a cookie, running or not."""
    return await store.get_children(paths.cookies) or []


async def create_cookie(store: MetadataStore, paths: LedgerPaths, cookie: Cookie) -> None:
    """Store the cookie of a new bookie; raise RecordExistsError if the id has another cookie.

    The start count of an earlier bookie of that id is deleted in the same transaction, because the
    new bookie has none of its data.
    """
    path = paths.cookie(check_bookie_id(cookie.bookie_id))
    starts = paths.starts(cookie.bookie_id)
    while True:
        try:
            if await store.get(starts) is None:
                await store.create(path, cookie.encode(), make_parents=True)
            else:
                await _ensure(store, paths.cookies)
                await store.multi([Create(path, cookie.encode()), Delete(starts, ANY)])
        except NoRecordError:
            continue  # The start count was deleted meanwhile.
        except RecordExistsError:
            record = await store.get(path)
            if record is not None and record.value == cookie.encode():
                return  # An earlier attempt, whose outcome is unknown, has created it.
            raise
        except OutcomeUnknownError:
            continue
        return


async def update_cookie(
    store: MetadataStore, paths: LedgerPaths, cookie: Cookie, version: int
) -> int:
    """Replace that version and return the new one; raise VersionConflictError if it has changed."""
    path = paths.cookie(cookie.bookie_id)
    try:
        return (await store.set(path, cookie.encode(), version)).version
    except (OutcomeUnknownError, VersionConflictError):
        # An earlier attempt, whose outcome is unknown, may have written this value.
        record = await store.get(path)
        if record is not None and record.value == cookie.encode():
            return record.stat.version
        raise


async def renew_cookie(store: MetadataStore, paths: LedgerPaths, cookie: Cookie) -> int:
    """Rewrite the cookie unchanged; return the transaction id of that write or of a later one.

    Raise RegistryError if the stored cookie is not `cookie`.
    """
    path = paths.cookie(cookie.bookie_id)
    found = await read_cookie(store, paths, cookie.bookie_id)
    if found is None or found.cookie.encode() != cookie.encode():
        raise MalformedRecordError(f"{path} is no longer the cookie of this bookie")
    with suppress(OutcomeUnknownError):  # The read below shows whether it was written.
        await store.set(path, cookie.encode(), found.version)
    await store.sync(path)
    renewed = await read_cookie(store, paths, cookie.bookie_id)
    if renewed is None or renewed.version == found.version:
        raise MalformedRecordError(f"{path} could not be rewritten")
    return renewed.modified_txid


async def _ensure(store: MetadataStore, path: str) -> None:
    if await store.get(path) is None:
        with suppress(RecordExistsError):
            await store.create(path, b"", make_parents=True)


async def delete_cookie(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str, version: int
) -> None:
    """Delete the cookie and the start count of a bookie.

    The caller has made sure that the bookie holds nothing that is needed.
    """
    cookie, starts = paths.cookie(bookie_id), paths.starts(bookie_id)
    while await store.get(cookie) is not None:
        counted = await store.get(starts) is not None
        operations: list[Operation] = [Delete(cookie, version)]
        with suppress(NoRecordError):  # One of the two was deleted meanwhile: look again.
            await store.multi([*operations, Delete(starts, ANY)] if counted else operations)
            return
