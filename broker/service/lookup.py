"""Which broker serves a topic: the answer to LOOKUP, on any broker.

    owned by somebody            Connect to the owner
    ours, or to be ours          Connect to us: unowned and asked with authority, we take it
    unowned, somebody leads      Redirect to the leader, without authority
    unowned, we decide           we lead, or nobody does: Redirect to whom we choose, with authority

A lookup with authority is never passed on, and one without goes to the leader as the record names
it at that moment: so a chain of redirects is as long as the leader changes, plus one.
"""

from dataclasses import dataclass

import trio

from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import OwnerRecord
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import Member, owner_record
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import Answer
from daybook.wire.metadata.store import MetadataError, MetadataStore, Record
from daybook.wire.topics import TopicName

_ATTEMPTS = 3  # Each time the record came or went between our reading and our writing.


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Where to go: to the owner, or (`redirect`) to a broker that knows more."""

    service_url: str
    http_url: str | None
    redirect: bool
    authoritative: bool
    service_url_tls: str | None = None
    http_url_tls: str | None = None


class Lookups:
    """Answers lookups."""

    def __init__(
        self, store: MetadataStore, ownership: Ownership, leader: Leader, policies: Policies
    ) -> None:
        self._store = store
        self._owners = SharedReads(store)
        self._ownership = ownership
        self._leader = leader
        self._policies = policies

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        """Raises NotFoundError for an unknown namespace, UnavailableError for anything passing."""
        bundle = await self._policies.bundle_of(topic)
        try:
            return await self.lookup_bundle(bundle, authoritative=authoritative)
        except MetadataError as error:
            raise UnavailableError(f"the owner of {topic}: {error}") from error

    async def lookup_bundle(self, bundle: BundleName, *, authoritative: bool) -> LookupResult:
        for _ in range(_ATTEMPTS):
            if self._ownership.owns_bundle(bundle):
                return self._us()
            if not self._ownership.contact:
                raise UnavailableError("the metadata store is out of reach")
            record = await self._owners.get(records.owner_path(bundle))
            if record is not None and record.stat.owner != self._store.session_id:
                return _connect(owner_record(record), bundle)
            # A record that is ours, and we did not know, is found out about by acquiring.
            if record is None and not authoritative:
                elsewhere = await self._elsewhere(bundle)
                if elsewhere is not None:
                    return elsewhere
            match await self._ownership.acquire(bundle):
                case Answer.OURS:
                    return self._us()
                case Answer.OTHERS:
                    continue
                case Answer.UNAVAILABLE:
                    break
        raise UnavailableError(f"the bundle {bundle} has no owner yet")

    async def _elsewhere(self, bundle: BundleName) -> LookupResult | None:
        """Where to send a lookup of an unowned bundle; None if we should take it."""
        leader = await self._leader.view()
        if leader.member is not None:
            return _redirect(leader.member, authoritative=False)
        chosen = await self._leader.place(bundle)
        if chosen is None or chosen.session == self._store.session_id:
            return None
        return _redirect(chosen, authoritative=True)

    def _us(self) -> LookupResult:
        return _to_owner(self._ownership.identity.owner_record)


def _connect(owner: OwnerRecord, bundle: BundleName) -> LookupResult:
    if owner.disabled or not owner.native_url:
        raise UnavailableError(f"the bundle {bundle} is being unloaded")
    return _to_owner(owner)


def _to_owner(owner: OwnerRecord) -> LookupResult:
    return LookupResult(
        owner.native_url,
        owner.http_url,
        redirect=False,
        authoritative=True,
        service_url_tls=owner.native_url_tls,
        http_url_tls=owner.http_url_tls,
    )


def _redirect(member: Member, *, authoritative: bool) -> LookupResult:
    record = member.record
    return LookupResult(
        record.pulsar_service_url,
        record.web_service_url,
        redirect=True,
        authoritative=authoritative,
        service_url_tls=record.pulsar_service_url_tls,
        http_url_tls=record.web_service_url_tls,
    )


class _Read:
    __slots__ = ("done", "error", "known", "record")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.known = False  # False at the end: whoever read it was cancelled
        self.record: Record | None = None
        self.error: MetadataError | None = None


class SharedReads:
    """See the module."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._current: dict[str, _Read] = {}  # under way
        self._next: dict[str, _Read] = {}  # waits for the one that is under way

    async def get(self, path: str) -> Record | None:
        """The record, None if there is none.  Raises MetadataError."""
        while True:
            shared = self._next.get(path)
            if shared is None:
                shared = await self._read(path)
            else:
                await shared.done.wait()
            if shared.error is not None:
                raise shared.error
            if shared.known:
                return shared.record

    async def _read(self, path: str) -> _Read:
        read = self._next[path] = _Read()
        try:
            current = self._current.get(path)
            if current is not None:
                await current.done.wait()
            del self._next[path]  # Whoever asks from now on has to have another one.
            self._current[path] = read
            try:
                read.record = await self._store.get(path)
            except MetadataError as error:
                read.error = error
            read.known = True
        finally:
            for reads in (self._next, self._current):
                if reads.get(path) is read:
                    del reads[path]
            read.done.set()
        return read
