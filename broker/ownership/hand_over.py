"""Planned hand-overs: which broker gets a bundle next, and the calls between both brokers.

    the owner                                     the next owner
    expect(bundle)  ----------------------------> clients of the bundle wait here from now on
    hold(bundle, hashes)  ----------------------> may load all but these topics of the bundle
    closes a few topics, sends clients there
    pass_on(bundle, topics)  -------------------> loads these topics; and so on for all of them
    take(bundle, ticket)  ----------------------> replaces the ownership record by its own
    is no longer the owner                        loads other topics for the clients that wait

A bundle with few topics needs no groups: the owner closes all of them before `take`.

All calls go to the admin REST of the next owner.  A broker without a port for HTTP, or one of
another project, gets no bundle in this way.

A broker that stops hands all of its bundles over.  Each goes to the broker that has the fewest
bundles at that moment; what cannot be handed over is released.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
import trio

from daybook.broker.errors import BrokerError, PreconditionError, UnavailableError
from daybook.broker.namespaces.records import Successor
from daybook.broker.ownership.leaving import Receiver
from daybook.broker.ownership.membership import Member, members, owners
from daybook.broker.ownership.owner_records import Ticket
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peers import Peers
from daybook.broker.protocol.balance import BrokerLoad, place
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.to_the_end import to_the_end
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore

_HELD_MAX = 50_000
_PATH = "/admin/v2/daybook/bundles"


def _nothing() -> None:
    pass


class TicketBody(msgspec.Struct, frozen=True, rename="camel"):
    """A ticket as JSON."""

    guard: str
    created_txid: int


class HoldBody(msgspec.Struct, frozen=True, rename="camel"):
    """The topics that the owner still serves, by hash."""

    guard: str
    created_txid: int
    hashes: list[int]


class PassOnBody(msgspec.Struct, frozen=True, rename="camel"):
    """Topics that the owner has closed, and those in use among them."""

    guard: str
    created_txid: int
    topics: list[str]
    used: list[str]


class HandOvers:
    """The hand-overs of one broker to others."""

    def __init__(
        self,
        store: MetadataStore,
        ownership: Ownership,
        peers: Peers,
        peer_calls: PeerCalls,
        log: Log,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._peers = peers
        self._peer_calls = peer_calls
        self._log = log

    async def candidates(self) -> list[Member]:
        """Return the other live brokers that can take a bundle."""
        try:
            found = await members(self._store)
        except MetadataError as error:
            raise UnavailableError(f"the list of brokers cannot be read now: {error}") from error
        return [
            member
            for member in found
            if member.session != self._store.session_id
            and member.record.http_url is not None
            and member.record.incarnation is not None
            and not self._peers.is_dead(member.session)
        ]

    async def named(self, broker_id: str) -> Member:
        """Return the broker with this id.  Raise PreconditionError if it can take no bundle."""
        found = await self.candidates()
        for member in found:
            if member.broker_id == broker_id:
                return member
        others = ", ".join(member.broker_id for member in found) or "there is no other broker"
        raise PreconditionError(
            f"no bundle can be moved to {broker_id}: name another live broker by its host and HTTP"
            f" port ({others})"
        )

    async def counts(self) -> Counter[str]:
        """Return how many bundles each broker owns."""
        try:
            sessions = {member.session: member.broker_id for member in await members(self._store)}
            owned = await owners(self._store)
        except MetadataError as error:
            raise UnavailableError(f"the owners cannot be read now: {error}") from error
        return Counter(sessions[each.session] for each in owned if each.session in sessions)

    async def hand_over(self, bundle: BundleName, to: Member) -> None:
        """Move a bundle of ours to another broker.

        Raise UnavailableError if it stays, or if the other broker did not confirm that it has it.

        A hand-over that has begun is carried out even if its caller stops waiting.
        """
        ended = UnavailableError(f"the broker ended while {bundle} was handed over")
        act = partial(self._hand_over, bundle, to)
        await to_the_end(self._ownership.start_task, act, over=_nothing, ended=ended)()

    async def _hand_over(self, bundle: BundleName, to: Member) -> None:
        record = to.record
        url = self._peer_calls.url_of(record.web_service_url, record.web_service_url_tls)
        assert url is not None
        began = trio.current_time()
        successor = Successor.from_broker(to.record)
        try:
            # An answer that is lost may be that of a broker that expects the bundle.
            await self._peer_calls.call(url, "POST", f"{_PATH}/{bundle}/expect", own=True)
            receiver = Receiver(
                partial(self._hold, bundle, url),
                partial(self._pass_on, bundle, url),
                partial(self._give, bundle, url),
            )
            given = await self._ownership.hand_over(bundle, successor, receiver)
        except BaseException:
            with trio.move_on_after(1, shield=True):
                await self._keep(bundle, url)
            raise
        if not given:
            raise UnavailableError(
                f"this broker has released {bundle}, and {to.broker_id} did not confirm that it"
                " took it: any broker may own it now; look it up"
            )
        self._log.info(
            "a bundle was handed over",
            bundle=bundle,
            to=to.broker_id,
            ms=round((trio.current_time() - began) * 1000),
        )

    async def move(self, bundle: BundleName, to: Member) -> None:
        """Hand a bundle of ours over, or release it if that broker takes none."""
        if to.session in {member.session for member in await self.candidates()}:
            await self.hand_over(bundle, to)
        else:
            await self._ownership.release(bundle)

    async def _hold(
        self, bundle: BundleName, url: str, ticket: Ticket, hashes: Sequence[int]
    ) -> None:
        if len(hashes) > _HELD_MAX:  # The body of one request has no room for more.
            raise UnavailableError(f"the bundle has {len(hashes)} topics: split it")
        body = HoldBody(ticket.guard, ticket.created_txid, list(hashes))
        await self._peer_calls.call(url, "POST", f"{_PATH}/{bundle}/hold", body=body, own=True)

    async def _pass_on(
        self,
        bundle: BundleName,
        url: str,
        ticket: Ticket,
        closed: Sequence[str],
        used: Sequence[str],
    ) -> None:
        body = PassOnBody(ticket.guard, ticket.created_txid, list(closed), list(used))
        await self._peer_calls.call(url, "POST", f"{_PATH}/{bundle}/pass-on", body=body, own=True)

    async def _give(self, bundle: BundleName, url: str, ticket: Ticket) -> None:
        body = TicketBody(ticket.guard, ticket.created_txid)
        await self._peer_calls.call(url, "POST", f"{_PATH}/{bundle}/take", body=body, own=True)

    async def _keep(self, bundle: BundleName, url: str) -> None:
        """Tell the other broker that this one keeps the bundle."""
        with suppress(BrokerError):  # After an error it expects the bundle for some seconds more.
            await self._peer_calls.call(url, "DELETE", f"{_PATH}/{bundle}/expect", own=True)

    async def plan(self) -> list[tuple[BundleName, Member]] | None:
        """Return which broker should get which bundle of ours; None if there is no other broker.

        Raise UnavailableError.
        """
        others = {member.broker_id: member for member in await self.candidates()}
        counts = await self.counts()
        if not others:
            return None
        found: list[tuple[BundleName, Member]] = []
        for bundle in self._ownership.owned:
            chosen = place(bundle, [BrokerLoad(each, counts[each]) for each in others])
            assert chosen is not None
            counts[chosen] += 1
            found.append((bundle, others[chosen]))
        return found

    async def drain(self) -> None:
        """Hand all bundles over, one after the other, and release those that cannot be moved.

        Each has the whole bandwidth of both brokers, and many topics of it are under way anyway.
        """
        try:
            plan = await self.plan()
        except BrokerError as error:
            self._log.warning("no bundle can be handed over", why=str(error))
            return
        failed: set[str] = set()  # Each broker that does not answer costs the time of one call.
        for bundle, member in plan or ():
            try:
                if member.broker_id in failed:
                    raise UnavailableError(f"{member.broker_id} did not take another bundle")
                await self.hand_over(bundle, member)
            except BrokerError as error:
                failed.add(member.broker_id)
                self._log.warning(
                    "a bundle could not be handed over; any broker may own it soon",
                    bundle=bundle,
                    to=member.broker_id,
                    why=str(error),
                )
                with suppress(BrokerError):  # A broker that ends loses it with its session.
                    await self._ownership.release(bundle)
