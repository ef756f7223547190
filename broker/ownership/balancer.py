"""The leader's other task: give all brokers about the same number of bundles.

At most one bundle moves in each interval, and none for an interval after a broker came or went.  So
clients that a failure has just moved are not moved again, and a broker that restarts repeatedly
causes no moves.  The owner hands the bundle over as planned (`ownership.hand_over`).
"""

import trio

from daybook.broker.errors import BrokerError
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.membership import Member, owners
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.protocol.balance import Move, next_move
from daybook.broker.protocol.bundles import BundleName
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore


class Balancer:
    """Moves bundles while this broker leads."""

    def __init__(
        self,
        store: MetadataStore,
        hand_overs: HandOvers,
        leader: Leader,
        peer_calls: PeerCalls,
        *,
        interval_s: float,
        log: Log,
    ) -> None:
        self._store = store
        self._hand_overs = hand_overs
        self._leader = leader
        self._peer_calls = peer_calls
        self._interval_s = interval_s
        self._log = log

    async def run(self) -> None:
        before: list[int] = []  # sessions of the live brokers, one interval ago
        while True:
            await trio.sleep(self._interval_s)
            try:
                live = await self._leader.live()
                sessions = sorted(member.session for member in live)
                if sessions == before and (await self._leader.view()).is_us:
                    await self._move_one(live)
                before = sessions
            except (MetadataError, BrokerError) as error:
                self._log.info("no bundle is moved to another broker now", why=str(error))

    async def _move_one(self, live: list[Member]) -> None:
        by_session = {member.session: member for member in live}
        owned: dict[str, list[BundleName]] = {member.broker_id: [] for member in live}
        for one in await owners(self._store):
            if one.session in by_session:
                owned[by_session[one.session].broker_id].append(one.bundle)
        move = next_move(owned)
        if move is not None:
            by_id = {member.broker_id: member for member in live}
            self._log.info(
                "moving a bundle to a broker with fewer bundles",
                bundle=move.bundle,
                source=move.source,
                target=move.target,
            )
            await self._move(move, by_id[move.source], by_id[move.target])

    async def _move(self, move: Move, source: Member, target: Member) -> None:
        if source.session == self._store.session_id:
            await self._hand_overs.move(move.bundle, target)
        elif source.record.web_service_url is not None:
            path = f"/admin/v2/namespaces/{move.bundle}/unload"
            query = {"destinationBroker": target.broker_id}
            await self._peer_calls.call(source.record.web_service_url, "PUT", path, query=query)
