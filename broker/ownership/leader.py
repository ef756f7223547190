"""The leader, and the placement of unowned bundles; the shell of `protocol.balance`.

The broker that holds the ephemeral leader record leads.  There is a leader only so that one broker
at a time spreads the bundles; nothing breaks if two brokers, or none, think that they lead.  A
broker that decides about a lookup reads the record again (`LeaderView`), so a lookup is redirected
at most once for each change of leader.
"""

from dataclasses import dataclass

import trio

from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import LeaderRecord
from daybook.broker.ownership.membership import Identity, Member, members, owners
from daybook.broker.ownership.peers import Peers
from daybook.broker.protocol.balance import BrokerLoad, place
from daybook.broker.protocol.bundles import BundleName
from daybook.wire.errors import MalformedError
from daybook.wire.logging import Log
from daybook.wire.metadata.store import (
    MetadataError,
    MetadataStore,
    RecordExistsError,
    SessionState,
)

_RETRY_S = 0.2
_COUNTS_AGE_S = 2.0


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The leader, as the record named it when it was read."""

    member: Member | None  # None: this broker leads, or no live broker does
    is_us: bool


class Leader:
    """Takes part in the election; knows the leader, and where a bundle should be placed."""

    def __init__(self, store: MetadataStore, identity: Identity, peers: Peers, log: Log) -> None:
        self._log = log
        self._store = store
        self._identity = identity
        self._peers = peers
        self._look = trio.Event()
        self._counts: dict[str, int] = {}  # bundles by broker, including those placed since
        self._placed: dict[BundleName, int] = {}  # sessions they were placed on, since the count
        self._counted_at: float | None = None

    # -- the election

    async def run(self) -> None:
        """Lead if no broker does, for as long as this runs."""
        self._store.add_session_listener(self._session_changed)
        try:
            while True:
                # Renewed before the read: a change during the read is not missed.
                self._look = trio.Event()
                try:
                    await self._try_to_lead()
                except MetadataError:
                    await trio.sleep(_RETRY_S)
                    if self._store.session_state is SessionState.CONNECTED:
                        continue
                await self._look.wait()
        finally:
            self._store.remove_session_listener(self._session_changed)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._look.set()

    async def _try_to_lead(self) -> None:
        while await self._store.get(records.LEADER, self._look.set) is None:
            identity = self._identity
            record = LeaderRecord(identity.broker_id, identity.call_url or identity.url)
            try:
                await self._store.create(
                    records.LEADER, records.encode(record), ephemeral=True, make_parents=True
                )
                self._log.info("this broker leads: it places and balances bundles")
            except RecordExistsError:
                continue

    async def view(self) -> LeaderView:
        """Read the leader record again.  Raise MetadataError."""
        record = await self._store.get(records.LEADER)
        if record is None:
            return LeaderView(None, is_us=False)
        if record.stat.owner == self._store.session_id:
            return LeaderView(None, is_us=True)
        try:
            leader = records.decode(LeaderRecord, record.value)
        except MalformedError:
            return LeaderView(None, is_us=False)
        # The record may outlive the leader's registration: name only a broker that is there.
        for member in await self.live():
            if member.broker_id == leader.broker_id and member.session == record.stat.owner:
                return LeaderView(member, is_us=False)
        return LeaderView(None, is_us=False)

    # -- placement

    async def live(self) -> list[Member]:
        """Return the registered brokers, without those that this broker knows to be dead."""
        return [m for m in await members(self._store) if not self._peers.is_dead(m.session)]

    async def place(self, bundle: BundleName) -> Member | None:
        """Return the broker that should own the bundle.  Raise MetadataError."""
        live = await self.live()
        counts = await self._bundle_counts()
        for member in live:
            if self._placed.get(bundle) == member.session:
                return member  # A repeated question gets the same answer until the bundle is owned.
        by_id = {member.broker_id: member for member in live}
        loads = [BrokerLoad(broker_id, counts.get(broker_id, 0)) for broker_id in by_id]
        chosen = place(bundle, loads)
        if chosen is None:
            return None
        counts[chosen] = counts.get(chosen, 0) + 1  # so that the next bundle goes to another broker
        self._placed[bundle] = by_id[chosen].session
        return by_id[chosen]

    async def _bundle_counts(self) -> dict[str, int]:
        now = trio.current_time()
        if self._counted_at is None or now - self._counted_at > _COUNTS_AGE_S:
            sessions = {m.session: m.broker_id for m in await members(self._store)}
            counts: dict[str, int] = {}
            for owned in await owners(self._store):
                broker_id = sessions.get(owned.session)
                if broker_id is not None:
                    counts[broker_id] = counts.get(broker_id, 0) + 1
            self._counts, self._counted_at = counts, now
            self._placed.clear()
        return self._counts
