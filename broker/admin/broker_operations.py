"""Operations on brokers: their loads, the decisions of the leader, and draining one of them.

A broker that is drained hands all of its bundles over, takes no new ones, and does not lead any
more.  It answers until it is stopped, and serves topics again only after a new start.
"""

from collections.abc import Callable

import msgspec
import trio

from daybook.bookie.ledger.ensemble import BookieDirectory
from daybook.broker.errors import NotOwnerError, PreconditionError, UnavailableError
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import LoadReport
from daybook.broker.ownership.balancer import Balancer, Decisions
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.leader import Leader
from daybook.broker.ownership.load_report import LoadReports, load_of
from daybook.broker.ownership.membership import members, owners
from daybook.broker.ownership.ownership import Ownership
from daybook.broker.protocol.balance import IDLE
from daybook.broker.security.token_trust import TokenTrust
from daybook.broker.service.request_turns import ClientTurns
from daybook.broker.topics.topics import Topics
from daybook.wire.errors import MalformedError
from daybook.wire.metadata.store import MetadataError, MetadataStore


class BrokerRow(msgspec.Struct, rename="camel"):
    """One broker, as far as it has reported; rates are per second."""

    broker: str
    leads: bool
    bundles: int
    load: float
    topics: int = 0
    producers: int = 0
    consumers: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    reported_ms: int = 0  # 0: never


class BrokerActivity(msgspec.Struct, rename="camel"):
    """The work of this broker at this moment, and what waits for it."""

    topics_loading: int
    loads_waiting: int  # for other loads to end
    oldest_load_wait_s: float
    oldest_load_s: float  # only loads that do not wait count here
    oldest_load_topic: str
    oldest_load_step: str
    requests_under_way: int  # those of clients
    requests_waiting: int
    sessions_lost: int  # since the start
    session_lost_ago_s: float | None


class BrokerOperations:
    """The operations of one broker on all brokers."""

    def __init__(
        self,
        store: MetadataStore,
        ownership: Ownership,
        hand_overs: HandOvers,
        leader: Leader,
        load_reports: LoadReports,
        balancer: Balancer,
        bookies: BookieDirectory,
        *,
        topics: Topics,
        turns: ClientTurns,
        stop_leading: Callable[[], None],
        trust: TokenTrust | None = None,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._hand_overs = hand_overs
        self._leader = leader
        self._load_reports = load_reports
        self._balancer = balancer
        self._bookies = bookies
        self._topics = topics
        self._turns = turns
        self._stop_leading = stop_leading
        self._trust = trust

    def quarantine(self) -> dict[str, str]:
        """Return the registered bookies that this broker does not use now, and why."""
        return {str(bookie): why for bookie, why in self._bookies.quarantined().items()}

    def activity(self) -> BrokerActivity:
        loads = self._topics.loads.counts()
        ago_s = self._ownership.session_lost_ago_s
        return BrokerActivity(
            loads.under_way,
            loads.waiting,
            round(loads.oldest_wait_s, 1),
            round(loads.oldest_s, 1),
            loads.topic,
            loads.step,
            self._turns.under_way,
            self._turns.waiting,
            self._ownership.sessions_lost,
            None if ago_s is None else round(ago_s, 1),
        )

    def token_files(self) -> dict[str, str]:
        """Return the files of keys and of revoked tokens, and why this broker cannot use them now.

        The reason is "" for a file that is in force.
        """
        return {} if self._trust is None else self._trust.problems

    async def rows(self) -> list[BrokerRow]:
        """Return all live brokers with the loads that they have reported."""
        try:
            view = await self._leader.view()
            live = await members(self._store)
            owned = await owners(self._store)
            rows: list[BrokerRow] = []
            for member in live:
                bundles = [each.bundle for each in owned if each.session == member.session]
                leads = view.is_us and member.session == self._store.session_id
                leads = leads or (view.member is not None and view.member.session == member.session)
                report = await self._report(member.broker_id)
                stats = {} if report is None else report.last_stats
                weights = [load_of(s).weight for b, s in stats.items() if b in bundles]
                load = sum(weights) + (len(bundles) - len(weights)) * IDLE.weight
                row = BrokerRow(member.broker_id, leads, len(bundles), round(load, 2))
                if report is not None:
                    row.topics = report.num_topics
                    row.producers, row.consumers = report.num_producers, report.num_consumers
                    row.msg_rate_in, row.msg_rate_out = report.msg_rate_in, report.msg_rate_out
                    row.msg_throughput_in = report.msg_throughput_in
                    row.msg_throughput_out = report.msg_throughput_out
                    row.reported_ms = report.last_update
                rows.append(row)
        except MetadataError as error:
            raise UnavailableError(f"the list of brokers cannot be read now: {error}") from error
        return rows

    async def _report(self, broker_id: str) -> LoadReport | None:
        record = await self._store.get(f"{records.BROKERS}/{broker_id}")
        try:
            return None if record is None else records.decode(LoadReport, record.value)
        except MalformedError:
            return None

    async def load_report(self) -> LoadReport:
        """Return the load of this broker as it is now."""
        return await self._load_reports.measure()

    async def decisions(self) -> Decisions:
        """Return what this broker has decided as the leader, and what it would decide now."""
        try:
            return await self._balancer.decisions()
        except MetadataError as error:
            raise UnavailableError(f"the loads cannot be read now: {error}") from error

    async def drain(self, broker_id: str, *, dry_run: bool) -> dict[str, str]:
        """Begin to hand all bundles of this broker over; return which broker gets which bundle.

        Raise NotOwnerError, which names the broker that is meant, and PreconditionError if no other
        broker can take them.
        """
        if broker_id != self._ownership.identity.broker_id:
            try:
                found = [each for each in await members(self._store) if each.broker_id == broker_id]
            except MetadataError as error:
                raise UnavailableError(f"the brokers cannot be read now: {error}") from error
            if not found or found[0].record.http_url is None:
                raise PreconditionError(f"there is no live broker {broker_id} with an HTTP port")
            raise NotOwnerError(
                f"only {broker_id} can drain itself",
                http_url=found[0].record.web_service_url,
                http_url_tls=found[0].record.web_service_url_tls,
            )
        plan = await self._hand_overs.plan()
        if plan is None:
            raise PreconditionError(
                "there is no other broker that can take the bundles: start one before"
            )
        if not dry_run:
            self._stop_leading()
            # Without this, lookups would place bundles here, whose topics nobody could load.
            if not await self._ownership.withdraw():
                self._ownership.stay()
                raise UnavailableError(
                    f"the drain of {broker_id} has not begun, because the metadata store did not"
                    " answer: try again; until then the broker serves its topics"
                )
            self._ownership.start_task(self._hand_overs.drain)
        await trio.lowlevel.checkpoint()
        return {bundle: member.broker_id for bundle, member in plan}
