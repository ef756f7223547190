"""Which broker serves a topic: the answer to LOOKUP, on any broker.

    the bundle has an owner          Connect to the owner
    this broker owns it, or          Connect to this broker.  It acquires an unowned bundle if the
    should own it                    lookup is authoritative or the leader chooses it.
    it is being handed over          Connect to the next owner, where the client waits.  The
                                     owner answers for the topics that it still serves.
    unowned, another broker leads    Redirect to the leader, not authoritative
    unowned, this broker leads,      Redirect to the broker that this one chooses, authoritative
    or no broker does

Clients that come over TLS are never told a URL without it: `LookupResult.urls` refuses instead.

An authoritative lookup is never redirected, and any other lookup goes to the leader that the record
names at that moment.  So a chain of redirects has one hop more than there are changes of leader.
"""

from dataclasses import dataclass

from daybook.broker.errors import UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import OwnerRecord, Successor
from daybook.broker.namespaces.shared_reads import SharedReads
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import Identity, Member, owner_record
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import Answer
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.topics import TopicName

_ATTEMPTS = 3  # each fails only if the record came or went between our read and our write


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Where the client should connect: the owner, or (`redirect`) a broker that knows more."""

    service_url: str | None
    http_url: str | None
    redirect: bool
    authoritative: bool
    service_url_tls: str | None = None
    http_url_tls: str | None = None

    @property
    def url(self) -> str:
        """Return the URL of the broker, for error texts: with TLS if there is no other."""
        return self.service_url or self.service_url_tls or ""

    @property
    def call_url(self) -> str | None:
        """Return the URL of the admin REST for other brokers: with TLS if there is no other."""
        return self.http_url or self.http_url_tls

    def is_at(self, identity: Identity) -> bool:
        """Return True if the result names that broker."""
        return any(url in identity.service_urls for url in (self.service_url, self.service_url_tls))

    def urls(self, *, encrypted: bool) -> "ServiceUrls":
        """Return the URLs for a client.  Raise UnavailableError if it cannot use any of them."""
        if encrypted:
            if not self.service_url_tls:
                raise UnavailableError(
                    f"the broker at {self.url} has no port with TLS, and a lookup over TLS does"
                    " not lead to one without: set tls_port there, or move the topic"
                )
            return ServiceUrls("", self.service_url_tls, "", self.http_url_tls or "")
        if not self.service_url:
            raise UnavailableError(
                f"the broker at {self.url} has only a port with TLS: connect with pulsar+ssl://"
            )
        return ServiceUrls(
            self.service_url,
            self.service_url_tls or "",
            self.http_url or "",
            self.http_url_tls or "",
        )


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """The URLs of a broker that one client is told; "" for each that it is not."""

    service: str
    service_tls: str
    http: str
    http_tls: str


class Lookups:
    """Answers the lookups of one broker."""

    def __init__(
        self, store: MetadataStore, ownership: Ownership, leader: Leader, policies: Policies
    ) -> None:
        self._store = store
        self._owners = SharedReads(store)
        self._ownership = ownership
        self._leader = leader
        self._policies = policies

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        """Find the broker that serves a topic.

        Raise NotFoundError for an unknown namespace, UnavailableError if a retry may succeed.
        """
        bundle = await self._policies.bundle_of(topic)
        if self._ownership.keeps(topic):
            return self._us()
        try:
            return await self.lookup_bundle(bundle, authoritative=authoritative)
        except MetadataError as error:
            raise UnavailableError(f"the owner of {topic} cannot be found now: {error}") from error

    async def lookup_bundle(self, bundle: BundleName, *, authoritative: bool) -> LookupResult:
        for _ in range(_ATTEMPTS):
            # Answered from memory: a busy owner reads no record for its own topics.
            if self._ownership.owns_bundle(bundle) or self._ownership.expects(bundle):
                return self._us()
            successor = self._ownership.successor_of(bundle)
            if successor is not None:
                return _to_owner(successor.owner_record)
            if not self._ownership.contact:
                raise UnavailableError(
                    "this broker has no contact with the metadata store, so it cannot look up"
                    " topics"
                )
            record = await self._owners.get(records.owner_path(bundle))
            if record is not None and record.stat.owner != self._store.session_id:
                return _connect(owner_record(record), bundle)
            # The record may be ours without our knowing it: `acquire` finds that out.
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
        raise UnavailableError(f"the bundle {bundle} has no owner yet: try again")

    async def _elsewhere(self, bundle: BundleName) -> LookupResult | None:
        """Return the redirect for an unowned bundle; None if this broker should own it."""
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
    if isinstance(owner.successor, Successor):
        # It expects the bundle already, and lets the client wait until it has it.
        owner = owner.successor.owner_record
    if owner.disabled or not (owner.native_url or owner.native_url_tls):
        raise UnavailableError(f"the bundle {bundle} is being moved to another broker: try again")
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
