"""The leader's other task: even out the load of the brokers; the shell of `protocol.balance`.

Each interval the leader reads what the brokers have reported, and decides about one bundle: to
move it, to split it, or nothing.  The owner hands the bundle over as planned
(`ownership.hand_over`).  The last decisions are kept for people, with their reasons, as long as
this broker runs.  With `dry_run` the decisions are only written down.
"""

from collections import Counter, deque
from collections.abc import Sequence
from enum import Enum

import msgspec
import trio

from daybook.broker.errors import BrokerError
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.load_report import read_loads
from daybook.broker.ownership.membership import Member, owners
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.protocol.balance import (
    IDLE,
    Balance,
    BalanceSettings,
    BundleLoad,
    Decision,
    Kind,
)
from daybook.broker.protocol.bundles import BundleName
from daybook.wire.clock import WallClock
from daybook.wire.logging import Log
from daybook.wire.metadata.store import MetadataError, MetadataStore

_KEPT = 200  # decisions


class Outcome(Enum):
    """The end of a decision, in the words of Pulsar's metrics."""

    SUCCESS = "Success"
    SKIP = "Skip"  # a dry run
    FAILURE = "Failure"

    @property
    def reason(self) -> str:
        return "Overloaded" if self is Outcome.SUCCESS else "Unknown"


class DecisionBody(msgspec.Struct, frozen=True, rename="camel"):
    """A decision as JSON, for people and tools."""

    time_ms: int
    decision: str
    bundle: str
    source: str
    target: str
    reason: str
    outcome: str


class Decisions(msgspec.Struct, frozen=True, rename="camel"):
    """The last decisions of one broker, oldest first, and what it thinks now."""

    leads: bool
    dry_run: bool
    now: DecisionBody
    decisions: list[DecisionBody]


class Balancer:
    """Moves and splits bundles while this broker leads."""

    def __init__(
        self,
        store: MetadataStore,
        hand_overs: HandOvers,
        leader: Leader,
        peer_calls: PeerCalls,
        *,
        clock: WallClock,
        interval_s: float,
        settings: BalanceSettings | None = None,
        dry_run: bool = False,
        log: Log,
    ) -> None:
        self._store = store
        self._hand_overs = hand_overs
        self._leader = leader
        self._peer_calls = peer_calls
        self._clock = clock
        self._interval_s = interval_s
        self._dry_run = dry_run
        self._log = log
        self._balance = Balance(settings or BalanceSettings(quiet_s=interval_s))
        self._decisions: deque[DecisionBody] = deque(maxlen=_KEPT)
        self._under_way: DecisionBody | None = None
        self.outcomes = Counter[tuple[Kind, Outcome]]()  # the ends of moves and splits

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval_s)
            try:
                await self._balance_once()
            except (MetadataError, BrokerError) as error:
                self._balance.doubt(trio.current_time())
                self._log.info("no bundle is moved to another broker now", why=str(error))

    async def _balance_once(self) -> None:
        live = await self._leader.live()
        loads = await self._loads(live)
        sessions = [str(member.session) for member in live]
        # Only the leader acts; the others see brokers come and go, and may lead next.
        if not (await self._leader.view()).is_us:
            self._balance.decide(sessions, {}, trio.current_time())
            return
        decision = self._balance.decide(sessions, loads, trio.current_time())
        if decision.kind is Kind.NOTHING:
            return
        self._log.info(
            f"the leader decides to {decision.kind.value} a bundle",
            bundle=decision.bundle,
            source=decision.source,
            target=decision.target,
            reason=decision.reason,
            dry_run=self._dry_run,
        )
        outcome, ended = "not known", Outcome.FAILURE
        self._under_way = self._body(decision, "under way")
        try:
            if self._dry_run:
                outcome, ended = "dry run", Outcome.SKIP
            else:
                await self._carry_out(decision, {member.broker_id: member for member in live})
                outcome, ended = "done", Outcome.SUCCESS
        except (BrokerError, MetadataError) as error:
            outcome = f"failed: {error}"
            self._balance.failed(decision, trio.current_time())
            raise
        finally:
            self._under_way = None
            self._decisions.append(self._body(decision, outcome))
            self.outcomes[decision.kind, ended] += 1

    async def _loads(self, live: Sequence[Member]) -> dict[str, dict[BundleName, BundleLoad]]:
        reported = await read_loads(self._store, [member.broker_id for member in live])
        by_session = {member.session: member.broker_id for member in live}
        found: dict[str, dict[BundleName, BundleLoad]] = {id_: {} for id_ in by_session.values()}
        for owned in await owners(self._store):
            broker_id = by_session.get(owned.session)
            if broker_id is not None:
                found[broker_id][owned.bundle] = reported.get(owned.bundle, IDLE)
        return found

    async def _carry_out(self, decision: Decision, live: dict[str, Member]) -> None:
        source, bundle = live[decision.source], decision.bundle
        if decision.kind is Kind.MOVE and source.session == self._store.session_id:
            await self._hand_overs.move(bundle, live[decision.target])
        elif source.record.http_url is not None:
            path = f"/admin/v2/namespaces/{bundle}"
            record = source.record
            url = self._peer_calls.url_of(record.web_service_url, record.web_service_url_tls)
            assert url is not None
            if decision.kind is Kind.MOVE:
                query = {"destinationBroker": decision.target}
                await self._peer_calls.call(url, "PUT", f"{path}/unload", query=query)
            else:
                query = {"splitAlgorithmName": "topic_count_equally_divide"}
                await self._peer_calls.call(url, "PUT", f"{path}/split", query=query)

    def _body(self, decision: Decision, outcome: str) -> DecisionBody:
        return DecisionBody(
            self._clock.now_ms(),
            decision.kind.value,
            decision.bundle,
            decision.source,
            decision.target,
            decision.reason,
            outcome,
        )

    async def decisions(self) -> Decisions:
        """Return the last decisions, and what would be decided now.  Raise MetadataError."""
        now = self._balance.look(await self._loads(await self._leader.live()))
        leads = (await self._leader.view()).is_us
        body = self._body(now, "not carried out: this is what the loads say at the moment")
        under_way = [] if self._under_way is None else [self._under_way]
        return Decisions(leads, self._dry_run, body, [*self._decisions, *under_way])
