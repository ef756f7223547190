"""Operations on bundles: listing, moving, splitting.  Each is carried out by the bundle's owner.

A bundle that is unloaded is handed over to the named broker.  Without a name, the owner chooses the
broker with the fewest bundles; if that is the owner itself, it releases the bundle, and serves it
again when a client asks.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
import trio

from daybook.broker.errors import (
    BrokerError,
    InvalidNameError,
    NotFoundError,
    NotOwnerError,
    PreconditionError,
    UnavailableError,
)
from daybook.broker.namespaces import records
from daybook.broker.namespaces.policies import Policies
from daybook.broker.namespaces.records import OwnerRecord
from daybook.broker.ownership.hand_over import HandOvers, HoldBody, PassOnBody, TicketBody
from daybook.broker.ownership.membership import members, owner_record, owners_in
from daybook.broker.ownership.owner_records import Ticket
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.protocol.balance import BrokerLoad, place
from daybook.broker.protocol.bundles import (
    BundleName,
    Bundles,
    bundle_name,
    contains,
    median,
    middle,
    namespace_of,
    parts_of,
)
from daybook.broker.protocol.ownership import Answer
from daybook.broker.topics.topics import Topics
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import MetadataError, MetadataStore
from daybook.wire.topics import TopicName

ALGORITHMS = (
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
)


_LOAD_S = 2.0  # then the owner closes the next topics, although these are not all loaded


class BundleRow(msgspec.Struct, rename="camel"):
    """One bundle of a namespace; brokers are named by their ids, and by "" if there is none."""

    bundle: str  # its range
    broker: str = ""
    moving_to: str = ""  # Its owner hands it over to that broker.
    moving_since_ms: int | None = None  # by the clock of the metadata store


class BundleOperations:
    """The operations of one broker on bundles."""

    def __init__(
        self,
        store: MetadataStore,
        policies: Policies,
        ownership: Ownership,
        topics: Topics,
        hand_overs: HandOvers,
        peer_calls: PeerCalls,
        *,
        bundles_max: int,
    ) -> None:
        self._store = store
        self._policies = policies
        self._ownership = ownership
        self._topics = topics
        self._hand_overs = hand_overs
        self._peer_calls = peer_calls
        self._bundles_max = bundles_max

    async def bundles(self, namespace: str) -> Bundles:
        return await self._policies.bundles(namespace)

    async def rows(self, namespace: str) -> list[BundleRow]:
        """Return all bundles of the namespace with their owners.

        A broker that is drained is no member any more, and still owns the bundles that it has not
        handed over yet.
        """
        ranges = (await self._policies.bundles(namespace)).ranges()
        try:
            owned = {each.bundle: each for each in await owners_in(self._store, namespace)}
            ids = {each.session: each.broker_id for each in await members(self._store)}
        except MetadataError as error:
            raise UnavailableError(
                f"the owners of the bundles of {namespace} cannot be read now: {error}"
            ) from error
        rows: list[BundleRow] = []
        for range_ in ranges:
            found = owned.get(bundle_name(namespace, range_))
            row = BundleRow(range_)
            if found is not None:
                row.broker = ids.get(found.session) or _host(found.record)
                if found.record.successor is not msgspec.UNSET:
                    row.moving_to = _host(found.record.successor.owner_record)
                    row.moving_since_ms = found.modified_ms
            rows.append(row)
        return rows

    # -- moving

    async def unload_namespace(
        self, namespace: str, *, destination: str = "", hand_over: bool = True
    ) -> None:
        """Release all bundles of the namespace, on the brokers that own them.

        A bundle that is split meanwhile is released in its parts.  Raise PreconditionError if the
        destination is no live broker.  The first bundle finds that, so none has moved.
        """
        waiting = deque((await self._policies.bundles(namespace)).ranges())
        while waiting:
            range_ = waiting.popleft()
            try:
                await self._unload_anywhere(
                    namespace, range_, destination=destination, hand_over=hand_over
                )
            except NotFoundError:
                parts = (await self._policies.bundles(namespace)).parts_of(range_)
                if len(parts) < 2:  # The bundle was not split: the namespace is gone.
                    raise
                waiting.extendleft(reversed(parts))

    async def _unload_anywhere(
        self, namespace: str, range_: str, *, destination: str, hand_over: bool
    ) -> None:
        try:
            await self.unload(namespace, range_, destination=destination, hand_over=hand_over)
        except NotOwnerError as error:
            url = self._peer_calls.url_of(error.http_url, error.http_url_tls)
            if url is None:
                raise
            path = f"/admin/v2/namespaces/{namespace}/{range_}/unload"
            query = {"destinationBroker": destination} if destination else {}
            await self._peer_calls.call(url, "PUT", path, query=query)

    async def unload(
        self, namespace: str, range_: str, *, destination: str = "", hand_over: bool = True
    ) -> None:
        """Close the topics of the bundle, and give it to another broker.

        Nothing happens if no broker owns the bundle.  Raise NotOwnerError, which names the owner.
        """
        bundle = await self._checked(namespace, range_)
        if destination == self._ownership.identity.broker_id:
            if self._ownership.owns_bundle(bundle):
                return
        elif destination:
            await self._hand_overs.named(destination)  # The error comes before the redirect.
        if not await self._is_ours(bundle):
            return
        if destination:
            await self._hand_overs.hand_over(bundle, await self._hand_overs.named(destination))
            return
        if not (hand_over and await self._hand_over_to_emptiest(bundle)):
            await self._ownership.release(bundle)

    async def _hand_over_to_emptiest(self, bundle: BundleName) -> bool:
        """Move the bundle to the broker with the fewest others; False if it is this broker."""
        own_id = self._ownership.identity.broker_id
        others = {member.broker_id: member for member in await self._hand_overs.candidates()}
        counts = await self._hand_overs.counts()
        counts[own_id] -= 1
        loads = [BrokerLoad(each, counts[each]) for each in (own_id, *others)]
        chosen = place(bundle, loads)
        if chosen is None or chosen == own_id:
            return False
        try:
            await self._hand_overs.hand_over(bundle, others[chosen])
        except BrokerError:
            return False  # It is released instead, if it is still ours.
        return True

    async def _checked(self, namespace: str, range_: str) -> BundleName:
        if range_ not in (await self._policies.bundles(namespace)).ranges():
            raise NotFoundError(f"there is no bundle {range_} in {namespace}")
        return bundle_name(namespace, range_)

    async def _is_ours(self, bundle: BundleName) -> bool:
        """Return False if no broker owns the bundle.  Raise NotOwnerError if another one does."""
        try:
            record = await self._store.get(records.owner_path(bundle))
        except MetadataError as error:
            raise UnavailableError(
                f"the owner of the bundle {bundle} cannot be read now: {error}"
            ) from error
        if record is None:
            return False
        if record.stat.owner != self._store.session_id:
            owner = owner_record(record)
            raise NotOwnerError(
                f"another broker owns the bundle {bundle}",
                http_url=owner.http_url,
                http_url_tls=owner.http_url_tls,
            )
        return True

    # -- the other side of a hand-over

    async def expect(self, bundle: BundleName) -> None:
        """Let the clients of the bundle wait here, because its owner hands it over.

        They come without a lookup, so this broker has to know already which topics the bundle has.
        """
        await self._policies.bundles(namespace_of(bundle))
        self._ownership.expect(bundle)

    async def expect_no_longer(self, bundle: BundleName) -> None:
        await trio.lowlevel.checkpoint()
        self._ownership.expect_no_longer(bundle)

    async def hold(self, bundle: BundleName, body: HoldBody) -> None:
        """Learn which topics the owner of an expected bundle still serves."""
        ticket = Ticket(body.guard, body.created_txid)
        await self._ownership.hold(bundle, ticket, body.hashes)

    async def pass_on(self, bundle: BundleName, body: PassOnBody) -> None:
        """Serve topics that the owner of an expected bundle has closed.

        Return when those in use are loaded, or cannot be loaded, so that the owner closes no more
        of them than this broker can take.
        """
        names = [_topic_of(bundle, name) for name in body.topics]
        used = [_topic_of(bundle, name) for name in body.used]
        ticket = Ticket(body.guard, body.created_txid)
        await self._ownership.pass_on(bundle, ticket, [name.bundle_hash for name in names])
        with trio.move_on_after(_LOAD_S):
            async with trio.open_nursery() as nursery:
                for name in used:
                    nursery.start_soon(self._load, name)

    async def _load(self, name: TopicName) -> None:
        with suppress(BrokerError):  # Its clients come and try again.
            await self._topics.get(name, create=False)

    async def take(self, bundle: BundleName, ticket: TicketBody) -> None:
        """Own the bundle in place of the broker that has sent the ticket."""
        await self._ownership.take(bundle, Ticket(ticket.guard, ticket.created_txid))

    # -- splitting

    async def split(
        self,
        namespace: str,
        range_: str,
        *,
        algorithm: str = "",
        positions: Sequence[int] = (),
        unload: bool = False,
    ) -> list[BundleName]:
        """Split a bundle, and return its parts.  Its topics are served all the time.

        With `unload`, the parts are moved to the brokers with the fewest bundles afterwards.
        """
        bundle = await self._checked(namespace, range_)
        ours = await self._is_ours(bundle)
        if not ours and await self._ownership.acquire(bundle) is not Answer.OURS:
            raise UnavailableError(f"the bundle {bundle} has no owner yet: try again")
        points = self._points(bundle, range_, algorithm or ALGORITHMS[0], positions)
        bundles = await self._policies.bundles(namespace)
        if bundles.count + len(points) > self._bundles_max:
            raise PreconditionError(
                f"{namespace} has {bundles.count} bundles, and may have {self._bundles_max}"
                " (namespace_bundles_max)"
            )
        try:
            bundles.split(range_, points)
        except ValueError as error:
            raise PreconditionError(str(error)) from None
        await self._ownership.split(bundle, points)
        parts = [bundle_name(namespace, part) for part in parts_of(range_, points)]
        if unload:
            for part in parts:
                await self.unload(namespace, part.rpartition("/")[2])
        return parts

    def _points(
        self, bundle: BundleName, range_: str, algorithm: str, positions: Sequence[int]
    ) -> list[int]:
        match algorithm:
            case "range_equally_divide":
                points = middle(range_)
            case "topic_count_equally_divide":
                points = median(range_, (hash_ for _, hash_ in self._topics.with_hashes(bundle)))
            case "specified_positions_divide":
                points = sorted(set(positions))
                if not points:
                    raise PreconditionError(f"{algorithm} needs the positions as a JSON list")
            case _:
                raise PreconditionError(
                    f"there is no splitAlgorithmName {algorithm}: use one of"
                    f" {', '.join(ALGORITHMS)}"
                )
        if not points:
            raise PreconditionError(
                f"the bundle {bundle} cannot be split by {algorithm}: it has too few topics, or its"
                " range is too narrow"
            )
        return points


def _host(owner: OwnerRecord) -> str:
    """Return the host and the HTTP port of a broker, which are its id."""
    return urlsplit(owner.http_url or owner.http_url_tls or owner.native_url or "").netloc


def _topic_of(bundle: BundleName, text: str) -> TopicName:
    """Return a topic of the bundle.  Raise InvalidNameError if the name is none of those."""
    try:
        name = TopicName.parse(text)
    except MalformedError as error:
        raise InvalidNameError(str(error)) from None
    if not contains(bundle, name.namespace, name.bundle_hash):
        raise InvalidNameError(f"{name} does not belong to the bundle {bundle}")
    return name
