"""Which bookies serve now, and where they can be reached: ephemeral records.

A bookie is announced as one that can be written to or as one that serves reads only, for as long as
its session lives; away is who has announced nothing.  The value of a record is binary protobuf,
BookieServiceInfoFormat; an empty one is as good if the id is host:port.

Announcing may be repeated after a request whose outcome is unknown.  What another session has
announced under the id is never touched: it goes with that session, or the id is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from google.protobuf.message import DecodeError

from daybook.bookie.errors import BookieIdTakenError, LayoutError, MalformedRecordError
from daybook.bookie.registry.numbers import number_in
from daybook.bookie.registry.paths import READONLY, LedgerPaths, check_bookie_id
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
_YIELD_S = 0.1


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
    if not host or number_in(port) > 65535:
        raise MalformedRecordError(f"{bookie_id!r} does not say where the bookie is")
    return host, int(port)


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
    A record of another session (of our own process before a restart) is waited out, in either
    place: one process as a writable bookie and another one as a read-only one of the same name
    would have acknowledged different things.
    """
    path = paths.registration(check_bookie_id(info.bookie_id), read_only=read_only)
    other = paths.registration(info.bookie_id, read_only=not read_only)
    with trio.move_on_after(timeout_s) as scope:
        while not await _announce_alone(store, path, other, info.encode()):
            await trio.lowlevel.checkpoint()
            if not read_only:
                await trio.sleep(_YIELD_S)  # else both might go on like that
    if scope.cancelled_caught:
        await _withdraw(store, path)
        raise BookieIdTakenError(f"another process is registered as bookie {info.bookie_id}")
    await _withdraw(store, other)


async def unregister_bookie(store: MetadataStore, paths: LedgerPaths, bookie_id: str) -> None:
    """Withdraw what this session has announced."""
    for read_only in (False, True):
        await _withdraw(store, paths.registration(bookie_id, read_only=read_only))


async def _announce_alone(store: MetadataStore, path: str, other: str, value: bytes) -> bool:
    """False if another session has a record, in either place; it is time to look again then."""
    if not (await _is_free(store, other) and await _announce(store, path, value)):
        return False
    await store.sync(other)
    record = await store.get(other)
    if record is None or record.stat.owner == store.session_id:
        return True
    await _withdraw(store, path)  # Both have looked before either wrote.
    return False


async def _is_free(store: MetadataStore, path: str) -> bool:
    """True if no other session has a record there; waits for that to go, then False."""
    changed = trio.Event()
    record = await store.get(path, changed.set)
    if record is None or record.stat.owner == store.session_id:
        return True
    await changed.wait()
    return False


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


async def bookie_info(
    store: MetadataStore, paths: LedgerPaths, bookie_id: str
) -> BookieInfo | None:
    """What a bookie has announced, as a writable or a read-only one; None while it is away."""
    record = await store.get(paths.registration(bookie_id))
    if record is None:
        record = await store.get(paths.registration(bookie_id, read_only=True))
    return None if record is None else BookieInfo.decode(bookie_id, record.value)
