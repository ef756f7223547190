"""Which broker serves a topic: the answer to LOOKUP, on any broker.

    owned by somebody            Connect to the owner
    ours, or to be ours          Connect to us: unowned and asked with authority, we take it
    unowned, somebody leads      Redirect to the leader, without authority
    unowned, we decide           we lead, or nobody does: Redirect to whom we choose, with authority

A lookup with authority is never passed on, and one without goes to the leader as the record names
it at that moment: so a chain of redirects is as long as the leader changes, plus one.
"""

from dataclasses import dataclass

from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import OwnerRecord
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import Member, owner_record
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership_events import Answer
from daybook.broker.service.shared_reads import SharedReads
from daybook.wire.metadata.store import MetadataError, MetadataStore
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
