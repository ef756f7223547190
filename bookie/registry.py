"""Where ledgers and bookies are found in the metadata store: BookKeeper's layout, as it is.

    <root>                        /ledgers unless told otherwise
      LAYOUT                      which layout this is
      INSTANCEID                  the id of the cluster, in the cookie of each bookie
      available/<bookie id>       ephemeral: a bookie that can be written to
      available/readonly/<id>     ephemeral: a bookie that serves reads only
      cookies/<bookie id>         a bookie that belongs to the cluster, here or away
      idgen/ID-<n>, idgen-long    where ledger ids come from
      00/0001/L2345               the metadata of ledger 12345: ids below 2**31 - 1
      000/0000/0021/4748/L3647    those above
      underreplication            ledgers that lack copies, for whoever restores them

Values: `BookieInfo` is binary protobuf (BookieServiceInfoFormat), a `Cookie` is a line with its
version and protobuf in text form.  What a ledger's record holds: `bookie.ledger.metadata`.

Everything here may run on several hosts at once, and again after a request whose outcome is
unknown: nothing is created twice and nothing of others is overwritten.
"""

import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import trio
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from bookie.errors import BookieIdTakenError, LayoutError, MalformedRecordError
from wire.errors import WireError
from wire.metadata.store import (
    ANY,
    MetadataError,
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    VersionConflictError,
    Watch,
)
from wire.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat, CookieFormat
from wire.protobuf import check_readable

SHORT_ID_MAX = (1 << 31) - 2
LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
COOKIE_VERSION = 5
READONLY = "readonly"
RPC_PROTOCOL = "bookie-rpc"
HTTP_PROTOCOL = "http"

_BOOKIE_ID = re.compile(r"[A-Za-z0-9:_.\-]+")
_DIGITS_MAX = 10
_ID_ATTEMPTS = 5
_LONG_GENERATIONS_KEPT = 3


def check_bookie_id(bookie_id: str) -> str:
    """Return the id; one that others could not store or parse is a MalformedRecordError."""
    if not _BOOKIE_ID.fullmatch(bookie_id) or bookie_id == READONLY:
        raise MalformedRecordError(f"{bookie_id!r} cannot be the id of a bookie")
    return bookie_id


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """The paths below one root."""

    root: str = "/ledgers"

    @property
    def layout(self) -> str:
        return f"{self.root}/LAYOUT"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def available(self) -> str:
        return f"{self.root}/available"

    @property
    def readonly(self) -> str:
        return f"{self.root}/available/{READONLY}"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    @property
    def idgen(self) -> str:
        return f"{self.root}/idgen"

    @property
    def idgen_long(self) -> str:
        return f"{self.root}/idgen-long"

    @property
    def underreplication(self) -> str:
        return f"{self.root}/underreplication"

    def ledger(self, ledger_id: int) -> str:
        assert 0 <= ledger_id < 1 << 63
        if ledger_id <= SHORT_ID_MAX:
            digits = f"{ledger_id:010d}"
            parts = [digits[:2], digits[2:6], "L" + digits[6:]]
        else:
            digits = f"{ledger_id:019d}"
            parts = [digits[:3], digits[3:7], digits[7:11], digits[11:15], "L" + digits[15:]]
        return "/".join([self.root, *parts])

    def registration(self, bookie_id: str, *, read_only: bool = False) -> str:
        return f"{self.readonly if read_only else self.available}/{bookie_id}"

    def cookie(self, bookie_id: str) -> str:
        return f"{self.cookies}/{bookie_id}"


# -- the cluster


async def ensure_layout(store: MetadataStore, paths: LedgerPaths, rng: Random) -> str:
    """Create what a cluster needs, or find it; return the instance id.

    Any number of hosts may do so at once: they agree on one instance id.
    """
    for path in (paths.root, paths.available, paths.readonly, paths.cookies, paths.idgen):
        await _ensure(store, path, b"")
    instance_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    await _ensure(store, paths.instance_id, instance_id.encode())
    await _ensure(store, paths.layout, LAYOUT)
    await check_layout(store, paths)
    return await read_instance_id(store, paths)


async def check_layout(store: MetadataStore, paths: LedgerPaths) -> None:
    """Raise LayoutError unless the root holds ledgers in the layout that we know."""
    record = await store.get(paths.layout)
    if record is None:
        raise LayoutError(f"{paths.layout} is missing: no bookie has ever started here")
    if record.value.strip() != LAYOUT:
        found = record.value.decode(errors="replace")
        raise LayoutError(f"{paths.layout} names another layout: {found!r}")


async def read_instance_id(store: MetadataStore, paths: LedgerPaths) -> str:
    record = await store.get(paths.instance_id)
    if record is None:
        raise LayoutError(f"{paths.instance_id} is missing")
    try:
        return record.value.decode()
    except UnicodeDecodeError as error:
        raise MalformedRecordError(f"{paths.instance_id} is no text: {error}") from error


async def _ensure(store: MetadataStore, path: str, value: bytes) -> None:
    """Have a record there; one that is there already stays as it is."""
    while await store.get(path) is None:
        try:
            await store.create(path, value, make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            continue  # Look again: it is there, or it is not.
        return


# -- bookies


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """How a bookie can be reached, and what it says of itself."""

    bookie_id: str
    host: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    http_port: int | None = None

    def encode(self) -> bytes:
        info = BookieServiceInfoFormat(properties=dict(self.properties))
        info.endpoints.add(id="bookie", host=self.host, port=self.port, protocol=RPC_PROTOCOL)
        if self.http_port is not None:
            info.endpoints.add(
                id="httpserver", host=self.host, port=self.http_port, protocol=HTTP_PROTOCOL
            )
        return info.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, bookie_id: str, value: bytes) -> "BookieInfo":
        """An empty value, or one without a data endpoint, means that the id is host:port."""
        info = BookieServiceInfoFormat()
        try:
            info.ParseFromString(value)
            check_readable(info)
        except (DecodeError, WireError) as error:
            raise MalformedRecordError(f"the registration of {bookie_id}: {error}") from error
        http_port = next((e.port for e in info.endpoints if e.protocol == HTTP_PROTOCOL), None)
        for endpoint in info.endpoints:
            if endpoint.protocol == RPC_PROTOCOL:
                return cls(
                    bookie_id, endpoint.host, endpoint.port, dict(info.properties), http_port
                )
        host, port = parse_address(bookie_id)
        return cls(bookie_id, host, port, dict(info.properties), http_port)


def parse_address(bookie_id: str) -> tuple[str, int]:
    """Host and port, if the id is made of them."""
    host, _, port = bookie_id.rpartition(":")
    if not host or _number(port) > 65535:
        raise MalformedRecordError(f"{bookie_id!r} does not say where the bookie is")
    return host, int(port)


def _number(text: str) -> int:
    """The number that is written there; one that none can be if it is no number."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if plain else 1 << 62


async def register_bookie(
    store: MetadataStore,
    paths: LedgerPaths,
    info: BookieInfo,
    *,
    read_only: bool = False,
    timeout_s: float = 10.0,
) -> None:
    """Announce this bookie, writable or read-only, for as long as the session lives.

    The other announcement, if there is one, is withdrawn afterwards: for a moment there are two.
    A record of another session (of our own process before a restart) is waited out.
    """
    path = paths.registration(check_bookie_id(info.bookie_id), read_only=read_only)
    with trio.move_on_after(timeout_s) as scope:
        while not await _announce(store, path, info.encode()):
            await trio.lowlevel.checkpoint()
    if scope.cancelled_caught:
        raise BookieIdTakenError(f"another process is registered as bookie {info.bookie_id}")
    await _withdraw(store, paths.registration(info.bookie_id, read_only=not read_only))


async def unregister_bookie(store: MetadataStore, paths: LedgerPaths, bookie_id: str) -> None:
    """Withdraw what this session has announced."""
    for read_only in (False, True):
        await _withdraw(store, paths.registration(bookie_id, read_only=read_only))


async def _announce(store: MetadataStore, path: str, value: bytes) -> bool:
    """True once our record is there; waits for that of another session to go, then False."""
    changed = trio.Event()
    record = await store.get(path, changed.set)
    if record is None:
        try:
            await store.create(path, value, ephemeral=True, make_parents=True)
        except (RecordExistsError, OutcomeUnknownError):
            return False
        return True
    if record.stat.owner != store.session_id:
        await changed.wait()
        return False
    if record.value == value:
        return True
    try:
        await store.set(path, value, record.stat.version)
    except (NoRecordError, VersionConflictError, OutcomeUnknownError):
        return False
    return True


async def _withdraw(store: MetadataStore, path: str) -> None:
    while True:
        record = await store.get(path)
        if record is None or record.stat.owner != store.session_id:
            return
        try:
            await store.delete(path, record.stat.version)
        except (NoRecordError, VersionConflictError, OutcomeUnknownError):
            continue
        return


async def writable_bookies(
    store: MetadataStore, paths: LedgerPaths, watch: Watch | None = None
) -> list[str]:
    names = await store.get_children(paths.available, watch)
    if names is None:
        raise LayoutError(f"{paths.available} is missing: no bookie has ever started here")
    return [name for name in names if name != READONLY]


async def readonly_bookies(
    store: MetadataStore, paths: LedgerPaths, watch: Watch | None = None
) -> list[str]:
    return await store.get_children(paths.readonly, watch) or []


async def known_bookies(store: MetadataStore, paths: LedgerPaths) -> list[str]:
    """All bookies that belong to the cluster (they have a cookie), serving or away."""
    return await store.get_children(paths.cookies) or []


async def bookie_info(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> BookieInfo | None:
    """What a bookie has announced, as a writable or a read-only one; None while it is away."""
    record = await store.get(paths.registration(bookie_id))
    if record is None:
        record = await store.get(paths.registration(bookie_id, read_only=True))
    return None if record is None else BookieInfo.decode(bookie_id, record.value)


# -- cookies


@dataclass(frozen=True, slots=True)
class Cookie:
    """Whose directories these are: in the metadata store, and as a file in each directory."""

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
        """A cookie of version 3 (plain lines), 4 or 5."""
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
    if _number(count) != len(directories):
        raise MalformedRecordError(f"a list of directories that is none: {text[:200]!r}")
    return tuple(directories)


@dataclass(frozen=True, slots=True)
class StoredCookie:
    cookie: Cookie
    version: int
    created_txid: int  # when the bookie was born, in the order of all writes of the cluster
    modified_txid: int  # when it was last written: the same, or when it was reborn (`renew_cookie`)


async def read_cookie(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> StoredCookie | None:
    """None only if the store says that there is none."""
    path = paths.cookie(bookie_id)
    record = await store.get(path)
    if record is None:
        await store.sync(path)
        record = await store.get(path)
    if record is None:
        return None
    stat, cookie = record.stat, Cookie.decode(record.value)
    return StoredCookie(cookie, stat.version, stat.created_txid, stat.modified_txid)


async def create_cookie(store: MetadataStore, paths: LedgerPaths, cookie: Cookie) -> None:
    """Store the cookie of a new bookie.  RecordExistsError if the id has another one."""
    path = paths.cookie(check_bookie_id(cookie.bookie_id))
    while True:
        try:
            await store.create(path, cookie.encode(), make_parents=True)
        except RecordExistsError:
            record = await store.get(path)
            if record is not None and record.value == cookie.encode():
                return  # Ours, by a request whose outcome we did not hear of.
            raise
        except OutcomeUnknownError:
            continue
        return


async def update_cookie(
    store: MetadataStore, paths: LedgerPaths, cookie: Cookie, version: int
) -> int:
    """Replace that version; return the new one.  VersionConflictError if it is no longer it."""
    path = paths.cookie(cookie.bookie_id)
    try:
        return await store.set(path, cookie.encode(), version)
    except (OutcomeUnknownError, VersionConflictError):
        record = await store.get(path)
        if record is not None and record.value == cookie.encode():
            return record.stat.version
        raise


async def renew_cookie(store: MetadataStore, paths: LedgerPaths, cookie: Cookie) -> int:
    """Write it again as it is; return the transaction id of that, or of a later write.

    RegistryError if it is not there as it was.
    """
    path = paths.cookie(cookie.bookie_id)
    found = await read_cookie(store, paths, cookie.bookie_id)
    if found is None or found.cookie.encode() != cookie.encode():
        raise MalformedRecordError(f"{path} is not the cookie of this bookie any more")
    with suppress(OutcomeUnknownError):  # then the next read says what became of it
        await store.set(path, cookie.encode(), found.version)
    await store.sync(path)
    renewed = await read_cookie(store, paths, cookie.bookie_id)
    if renewed is None or renewed.version == found.version:
        raise MalformedRecordError(f"{path} could not be written again")
    return renewed.modified_txid


async def delete_cookie(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str, version: int
) -> None:
    """Forget a bookie.  It must hold nothing that is needed; the caller has made sure."""
    try:
        await store.delete(paths.cookie(bookie_id), version)
    except NoRecordError:
        return


# -- ledgers


async def new_ledger_id(store: MetadataStore, paths: LedgerPaths, janitor: trio.Nursery) -> int:
    """An id that no ledger has had.  Ids may be skipped.  `janitor` tidies up behind us."""
    if await store.get(paths.idgen_long) is None:
        number = await _count(store, f"{paths.idgen}/ID-", janitor)
        if 0 <= number <= SHORT_ID_MAX:
            return number
    return await _new_long_id(store, paths, janitor)


async def _new_long_id(store: MetadataStore, paths: LedgerPaths, janitor: trio.Nursery) -> int:
    """Generation in the upper half, a counter below; a counter that is used up starts the next."""
    while True:
        names = await store.get_children(paths.idgen_long) or []
        generations = sorted(int(n[4:]) for n in names if re.fullmatch(r"HOB-\d{10}", n))
        generation = generations[-1] if generations else 1
        prefix = f"{paths.idgen_long}/HOB-{generation:010d}/ID-"
        number = await _count(store, prefix, janitor)
        if 0 <= number <= SHORT_ID_MAX:
            return generation << 32 | number
        await _ensure(store, f"{paths.idgen_long}/HOB-{generation + 1:010d}", b"")
        for old in generations[: 1 - _LONG_GENERATIONS_KEPT]:
            janitor.start_soon(_tidy, store, f"{paths.idgen_long}/HOB-{old:010d}")


async def _count(store: MetadataStore, prefix: str, janitor: trio.Nursery) -> int:
    """The store numbers the records that are created there; numbers wrap to negative ones."""
    for attempt in range(_ID_ATTEMPTS):
        try:
            path = await store.create(
                prefix, b"", ephemeral=True, sequential=True, make_parents=True
            )
        except OutcomeUnknownError:
            if attempt + 1 == _ID_ATTEMPTS:
                raise
            continue  # That number is lost, and its record goes with the session.
        janitor.start_soon(_tidy, store, path)
        return int(path[len(prefix) :])
    raise AssertionError("the loop above returns or raises")


async def _tidy(store: MetadataStore, path: str) -> None:
    try:
        await store.delete(path, ANY)
    except MetadataError:
        return  # The record of a number goes with the session in any case.


async def prune_parents(store: MetadataStore, paths: LedgerPaths, ledger_id: int) -> None:
    """After a ledger was deleted: remove the directories above that are empty now."""
    path = paths.ledger(ledger_id)
    while (path := path.rpartition("/")[0]) != paths.root:
        try:
            await store.delete(path, ANY)
        except NoRecordError:
            continue
        except MetadataError:
            return  # Not empty, or not now: an empty directory does no harm.


async def list_ledgers(store: MetadataStore, paths: LedgerPaths) -> AsyncIterator[int]:
    """The ids of all ledgers, ascending.

    Ledgers that are created or deleted meanwhile may be among them, or not.  A read that fails
    raises; a listing that came to its end missed nothing that was there all the time.
    """
    top = await store.get_children(paths.root)
    if top is None:
        raise LayoutError(f"{paths.root} is missing")
    for first_digits, depth in ((2, 1), (3, 3)):
        for name in top:
            if len(name) == first_digits and name.isdecimal():
                async for ledger_id in _list_below(store, f"{paths.root}/{name}", name, depth):
                    yield ledger_id


async def _list_below(
    store: MetadataStore, path: str, digits: str, depth: int
) -> AsyncIterator[int]:
    names = await store.get_children(path) or []  # None: emptied, and pruned, meanwhile
    for name in names:
        if depth == 0 and re.fullmatch(r"L\d{4}", name):
            yield int(digits + name[1:])
        elif depth and re.fullmatch(r"\d{4}", name):
            async for ledger_id in _list_below(store, f"{path}/{name}", digits + name, depth - 1):
                yield ledger_id
