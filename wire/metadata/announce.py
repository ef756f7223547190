"""The announcement of a process of Daybook: that it is there, and which lists it follows.

    /daybook/processes/<session>   ephemeral JSON: kind, name, and the generation of the protection

The record belongs to the session by which a broker or a bookie is registered, so that whoever
changes the protection can match both: a registered process without an announcement is of an older
release, or not of Daybook.  It is written again for each generation, after which each new record of
this session has the list of that generation, or of a later one.

Its own list proves the identities of the process: ZooKeeper itself puts them there, with all
rights.  The identities of the tree have the rights r and a in it, so that they may see that.
"""

from dataclasses import dataclass

import msgspec
import trio

from daybook.wire.metadata.acl import ALL, OWN, READ, WORLD, Acl, Grant, denial
from daybook.wire.metadata.protection import PROCESSES, Protection
from daybook.wire.metadata.store import (
    ANY,
    AccessDeniedError,
    MetadataError,
    MetadataStore,
    NoRecordError,
    RecordExistsError,
    SessionState,
)

_RETRY_S = 1.0
_INSPECT = "ra"


@dataclass(frozen=True, slots=True)
class Process:
    kind: str  # broker, bookie, autorecovery
    name: str


class _Record(msgspec.Struct):
    kind: str
    name: str
    generation: int


@dataclass(frozen=True, slots=True)
class Announced:
    """An announcement, as another process reads it."""

    session: int
    process: Process
    generation: int
    identities: tuple[str, ...]  # proven; none for a process without an identity


class Announcer:
    """Keeps the announcement of one process true."""

    def __init__(self, store: MetadataStore, process: Process, has_identity: bool) -> None:
        self._store = store
        self._process = process
        self._has_identity = has_identity
        self._changed = trio.Event()

    @property
    def path(self) -> str:
        return announcement_path(self._store.session_id)

    async def announce(self) -> None:
        """Write the record, for the present session and protection.  Raise MetadataError."""
        self._changed = trio.Event()
        known = await self._store.protection(self._changed.set)
        value = msgspec.json.encode(
            _Record(self._process.kind, self._process.name, known.generation)
        )
        path, acl = self.path, self._acl(known)
        try:
            # Parents that are missing get the list of the protection.
            await self._store.create(path, value, ephemeral=True, make_parents=True, acl=acl)
        except RecordExistsError:
            await self._replace(path, value, acl)

    async def _replace(self, path: str, value: bytes, acl: Acl) -> None:
        """Replace the record of this session; others see the one or the other, and never none."""
        try:
            await self._store.set_acl(path, acl)
            await self._store.set(path, value, ANY)
        except AccessDeniedError:
            # The password was exchanged within the session.
            await self._store.delete(path, ANY)
            await self._store.create(path, value, ephemeral=True, acl=acl)

    def _acl(self, known: Protection) -> Acl:
        own = (Grant(OWN, ALL),) if self._has_identity else ()
        others = tuple(Grant(identity, _INSPECT) for identity in known.everybody)
        strangers = Grant(WORLD, READ if own else ALL)
        return (*own, *others, strangers)

    async def run(self) -> None:
        """Announce each change, until cancelled."""
        self._store.add_session_listener(self._heard)
        try:
            while True:
                await self._changed.wait()
                try:
                    await self.announce()
                except MetadataError:
                    self._changed.set()
                    await trio.sleep(_RETRY_S)
        finally:
            self._store.remove_session_listener(self._heard)

    def _heard(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._changed.set()  # perhaps in another session


def announcement_path(session: int) -> str:
    return f"{PROCESSES}/{session & (1 << 64) - 1:016x}"


async def check_rights(store: MetadataStore, announcer: Announcer) -> None:
    """Raise AccessDeniedError if the tree is protected, and no identity of ours has rights."""
    known = await store.protection()
    if not known.closed:
        return
    proven = own_identities(await store.get_acl(announcer.path) or ())
    if not known.known or not set(proven) & set(known.everybody):
        raise AccessDeniedError(denial("/", bool(proven)))


def own_identities(acl: Acl) -> tuple[str, ...]:
    """Return the identities of the process that has announced itself with this list."""
    return tuple(each.identity for each in acl if each.rights == ALL and each.identity != WORLD)


async def announced(store: MetadataStore) -> list[Announced]:
    """Return all announcements; those that cannot be parsed are left out."""
    result: list[Announced] = []
    for name in await store.get_newest_children(PROCESSES) or []:
        record = await store.get(f"{PROCESSES}/{name}")
        if record is None:
            continue
        try:
            said = msgspec.json.decode(record.value, type=_Record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        try:
            acl = await store.get_acl(f"{PROCESSES}/{name}")
        except NoRecordError:
            continue
        result.append(
            Announced(
                record.stat.owner,
                Process(said.kind, said.name),
                said.generation,
                own_identities(acl or ()),
            )
        )
    return result
