"""The ephemeral records of bookies that serve now, with their addresses.

A bookie is registered as writable or as read-only for as long as its session lives.  A bookie
without a record is away.  The value of a record is binary protobuf, BookieServiceInfoFormat; it may
be empty if the id is host:port.

Registration may be repeated after a request whose outcome is unknown.  A record that another
session has created under the id is never touched: it ends with that session, or the id is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from google.protobuf.message import DecodeError

from daybook.bookie.errors import BookieIdTakenError, LayoutError, MalformedRecordError
from daybook.bookie.registry.paths import READONLY, LedgerPaths, check_bookie_id, parse_number
from daybook.wire.errors import WireError
from daybook.wire.metadata.store import (
    MetadataStore,
    NoRecordError,
    OutcomeUnknownError,
    RecordExistsError,
    VersionConflictError,
    Watch,
)
from daybook.wire.proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat
from daybook.wire.protobuf import check_readable

RPC_PROTOCOL = "bookie-rpc"
HTTP_PROTOCOL = "http"
HTTPS_PROTOCOL = "https"
TLS_EXTENSION = "tls"  # the data endpoint takes START_TLS
_YIELD_S = 0.1


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """The address of a bookie, and the properties that it publishes."""

    bookie_id: str
    host: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    http_port: int | None = None
    https_port: int | None = None
    tls: bool = False  # the bookie takes START_TLS

    def encode(self) -> bytes:
        info = BookieServiceInfoFormat(properties=dict(self.properties))
        info.endpoints.add(
            id="bookie",
            host=self.host,
            port=self.port,
            protocol=RPC_PROTOCOL,
            extensions=[TLS_EXTENSION] if self.tls else [],
        )
        if self.http_port is not None:
            info.endpoints.add(
                id="httpserver", host=self.host, port=self.http_port, protocol=HTTP_PROTOCOL
            )
        if self.https_port is not None:
            info.endpoints.add(
                id="httpsserver", host=self.host, port=self.https_port, protocol=HTTPS_PROTOCOL
            )
        return info.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, bookie_id: str, value: bytes) -> "BookieInfo":
        """Parse a record.  If it has no data endpoint, or is empty, the id must be host:port."""
        info = BookieServiceInfoFormat()
        try:
            info.ParseFromString(value)
            check_readable(info)
        except (DecodeError, WireError) as error:
            raise MalformedRecordError(f"the registration of {bookie_id}: {error}") from error
        ports = {endpoint.protocol: endpoint.port for endpoint in reversed(info.endpoints)}
        data = next((e for e in info.endpoints if e.protocol == RPC_PROTOCOL), None)
        host, port = parse_address(bookie_id) if data is None else (data.host, data.port)
        return cls(
            bookie_id,
            host,
            port,
            dict(info.properties),
            ports.get(HTTP_PROTOCOL),
            ports.get(HTTPS_PROTOCOL),
            data is not None and TLS_EXTENSION in data.extensions,
        )


def parse_address(bookie_id: str) -> tuple[str, int]:
    """Return host and port; raise MalformedRecordError if the id is not made of them."""
    host, _, port = bookie_id.rpartition(":")
    if not host or parse_number(port) > 65535:
        raise MalformedRecordError(f"{bookie_id!r} is not host:port, so it has no address")
    return host, int(port)


async def register_bookie(
    store: MetadataStore,
    paths: LedgerPaths,
    info: BookieInfo,
    *,
    read_only: bool = False,
    timeout_s: float = 10.0,
) -> None:
    """Register this bookie, writable or read-only, for as long as the session lives.

    The bookie's other record, if there is one, is deleted afterwards: for a moment there are two.
    A record of another session (that of this bookie before a restart) is waited for to end, in
    either place: a writable and a read-only process of the same id would have acknowledged
    different entries.
    """
    path = paths.registration(check_bookie_id(info.bookie_id), read_only=read_only)
    other = paths.registration(info.bookie_id, read_only=not read_only)
    with trio.move_on_after(timeout_s) as scope:
        while not await _announce_alone(store, path, other, info.encode()):
            await trio.lowlevel.checkpoint()
            if not read_only:
                # The read-only process gets ahead, or both could withdraw for each other forever.
                await trio.sleep(_YIELD_S)
    if scope.cancelled_caught:
        await _withdraw(store, path)
        raise BookieIdTakenError(f"another process is registered as bookie {info.bookie_id}")
    await _withdraw(store, other)


async def unregister_bookie(store: MetadataStore, paths: LedgerPaths, bookie_id: str) -> None:
    """Delete the records that this session has created."""
    for read_only in (False, True):
        await _withdraw(store, paths.registration(bookie_id, read_only=read_only))


async def _announce_alone(store: MetadataStore, path: str, other: str, value: bytes) -> bool:
    """Create the record; return False, for another attempt, if another session has one."""
    if not (await _is_free(store, other) and await _announce(store, path, value)):
        return False
    # Two sessions may have looked before either wrote: each looks at the other place once more.
    await store.sync(other)
    record = await store.get(other)
    if record is None or record.stat.owner == store.session_id:
        return True
    await _withdraw(store, path)
    return False


async def _is_free(store: MetadataStore, path: str) -> bool:
    """Return True if no other session has a record there; else wait for a change, return False."""
    changed = trio.Event()
    record = await store.get(path, changed.set)
    if record is None or record.stat.owner == store.session_id:
        return True
    await changed.wait()
    return False


async def _announce(store: MetadataStore, path: str, value: bytes) -> bool:
    """Return True once this session's record is there.

    If another session has the record, wait until it changes and return False.
    """
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


async def bookie_info(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> BookieInfo | None:
    """Return the registration of a bookie, writable or read-only; None while it is away."""
    record = await store.get(paths.registration(bookie_id))
    if record is None:
        record = await store.get(paths.registration(bookie_id, read_only=True))
    return None if record is None else BookieInfo.decode(bookie_id, record.value)
