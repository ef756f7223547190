"""Brokers report their loads, the leader moves bundles for them, and one broker is drained."""

import pytest
import trio
from trio.testing import MockClock

from daybook.broker.admin.broker_operations import BrokerOperations
from daybook.broker.config import parse
from daybook.broker.errors import NotOwnerError, PreconditionError, UnavailableError
from daybook.broker.limits import ConnectionLimits
from daybook.broker.namespaces import records
from daybook.broker.namespaces.records import BrokerRecord, BundleStats, LoadReport
from daybook.broker.ownership.balancer import Balancer, Outcome
from daybook.broker.ownership.hand_over import HandOvers
from daybook.broker.ownership.load_report import LoadReports, read_loads
from daybook.broker.ownership.membership import members
from daybook.broker.ownership.peer_calls import PeerCalls
from daybook.broker.ownership.peer_network import PeerNetwork
from daybook.broker.protocol.balance import BalanceSettings, Kind
from daybook.broker.protocol.bundles import BundleName
from daybook.broker.protocol.ownership import Answer
from daybook.broker.service.request_turns import ClientTurns
from daybook.wire.logging import silent_log
from daybook.wire.metadata.store import StoreUnavailableError
from daybook.wire.topics import TopicName
from tests.broker.control.brokers import Cluster, ControlPlane, open_cluster
from tests.broker.control.test_server import World, send, simulated

BUNDLES = [
    BundleName("public/default/0x00000000_0x10000000"),
    BundleName("public/default/0x10000000_0x20000000"),
    BundleName("public/default/0x20000000_0x30000000"),
]


class Admin:
    """The parts of one broker that work on loads."""

    def __init__(self, broker: ControlPlane, *, dry_run: bool = False) -> None:
        self.broker = broker
        calls = PeerCalls(PeerNetwork(broker.network))
        self.hand_overs = HandOvers(
            broker.session, broker.ownership, broker.peers, calls, silent_log()
        )
        self.reports = LoadReports(
            broker.session,
            BrokerRecord(broker.identity.service_url, broker.identity.http_url),
            broker.ownership,
            broker.policies,
            broker.topics,
            clock=broker.cluster.clock,
            interval_s=5.0,
            log=silent_log(),
        )
        self.balancer = Balancer(
            broker.session,
            self.hand_overs,
            broker.leader,
            calls,
            clock=broker.cluster.clock,
            interval_s=10.0,
            settings=BalanceSettings(quiet_s=10.0),
            dry_run=dry_run,
            log=silent_log(),
        )
        self.operations = BrokerOperations(
            broker.session,
            broker.ownership,
            self.hand_overs,
            broker.leader,
            self.reports,
            self.balancer,
            broker.directory,
            topics=broker.topics,
            turns=ClientTurns(ConnectionLimits()),
            stop_leading=broker.leader_scope.cancel,
        )


async def report(broker: ControlPlane, loads: dict[BundleName, float]) -> None:
    """Write what a broker would report with these messages a second."""
    path = f"{records.BROKERS}/{broker.identity.broker_id}"
    record = await broker.session.get(path)
    assert record is not None
    stats = {str(each): BundleStats(msg_rate_in=rate, topics=1) for each, rate in loads.items()}
    value = LoadReport(broker.identity.service_url, "http://" + broker.host, last_stats=stats)
    await broker.session.set(path, records.encode(value), record.stat.version)


async def start(cluster: Cluster, *, dry_run: bool = False) -> tuple[Admin, Admin]:
    one = await cluster.start("one", "http://one:8080")
    await trio.sleep(1)  # It leads.
    two = await cluster.start("two", "http://two:8080")
    for bundle in BUNDLES:
        assert await one.ownership.acquire(bundle) is Answer.OURS
    return Admin(one, dry_run=dry_run), Admin(two)


async def test_the_leader_decides_by_what_brokers_report(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start(cluster, dry_run=True)
        await report(one.broker, {BUNDLES[0]: 100, BUNDLES[1]: 5_000, BUNDLES[2]: 4_000})
        cluster.nursery.start_soon(one.balancer.run)
        cluster.nursery.start_soon(two.balancer.run)
        await trio.sleep(35)
        found = await one.operations.decisions()
        assert found.leads
        assert found.dry_run
        (decision,) = found.decisions  # Both brokers rest after it.
        assert (decision.decision, decision.bundle) == (Kind.MOVE.value, BUNDLES[1])
        assert (decision.source, decision.target) == ("one:8080", "two:8080")
        assert decision.outcome == "dry run"
        assert "load" in decision.reason
        assert one.broker.ownership.owned == BUNDLES
        other = await two.operations.decisions()
        assert (other.leads, other.decisions) == (False, [])


@pytest.mark.parametrize(
    ("dry_run", "error", "expected"),
    [
        (True, None, Outcome.SKIP),
        (False, None, Outcome.SUCCESS),
        (False, UnavailableError("the broker is away"), Outcome.FAILURE),
        (False, StoreUnavailableError("the store is away"), Outcome.FAILURE),
    ],
)
async def test_decisions_are_counted_by_their_ends(
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    dry_run: bool,
    error: Exception | None,
    expected: Outcome,
) -> None:
    async with open_cluster() as cluster:
        one, _ = await start(cluster, dry_run=dry_run)

        async def move(*_: object) -> None:
            (now,) = (await one.operations.decisions()).decisions
            assert (now.outcome, now.target) == ("under way", "two:8080")
            if error is not None:
                raise error

        monkeypatch.setattr(one.hand_overs, "move", move)
        await report(one.broker, {BUNDLES[0]: 100, BUNDLES[1]: 5_000, BUNDLES[2]: 4_000})
        cluster.nursery.start_soon(one.balancer.run)
        await trio.sleep(25)
        assert one.balancer.outcomes == {(Kind.MOVE, expected): 1}
        (decision,) = (await one.operations.decisions()).decisions
        assert (decision.outcome == "done") is (expected is Outcome.SUCCESS)


async def test_the_decisions_that_are_kept_are_bounded(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, _ = await start(cluster, dry_run=True)
        settings = BalanceSettings(quiet_s=0, bundle_cool_down_s=0.1, broker_cool_down_s=0.1)
        balancer = Balancer(
            one.broker.session,
            one.hand_overs,
            one.broker.leader,
            PeerCalls(PeerNetwork(one.broker.network)),
            clock=cluster.clock,
            interval_s=1.0,
            settings=settings,
            dry_run=True,
            log=silent_log(),
        )
        cluster.nursery.start_soon(balancer.run)
        await trio.sleep(250)
        assert len((await balancer.decisions()).decisions) == 200


def test_a_broker_reports_what_it_carries() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        async with world.client("one") as client:
            async with (
                await client.create_producer("orders") as producer,
                await client.subscribe("orders", "s"),
            ):
                await producer.send(b"x")
                found = await broker.operations.of_brokers.load_report()
            assert (found.num_topics, found.num_producers, found.num_consumers) == (1, 1, 1)
            name = TopicName.parse("orders")
            bundle = broker.context.policies.known_bundle_of(name)
            assert list(found.last_stats) == [bundle]
            assert found.num_bundles == len(found.bundles) == 1

    simulated(story)


def test_a_broker_tells_what_it_is_busy_with_and_the_sessions_that_it_lost() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        found = broker.operations.of_brokers.activity()
        assert (found.sessions_lost, found.session_lost_ago_s) == (0, None)
        assert (found.topics_loading, found.loads_waiting, found.requests_waiting) == (0, 0, 0)
        async with world.client("one") as client:
            await send(client, "orders", 1)
        world.cluster.metadata.expire("one")
        await trio.sleep(5)  # in virtual time
        found = broker.operations.of_brokers.activity()
        assert found.sessions_lost == 1
        assert found.session_lost_ago_s is not None
        assert 3 < found.session_lost_ago_s <= 5
        (lost,) = (m for m in broker.metrics.collect() if m.name == "daybook_broker_sessions_lost")
        assert [sample.value for sample in lost.samples] == [1]
        told = await broker.operations.explain_topic(TopicName.parse("orders"))
        assert (told.state, told.broker) == ("notLoaded", broker.identity.broker_id)

    simulated(story)


async def test_a_report_is_written_when_it_has_changed(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start(cluster)
        cluster.nursery.start_soon(one.reports.run)
        path = f"{records.BROKERS}/one:8080"
        await trio.sleep(30)
        record = await two.broker.session.get(path)
        assert record is not None
        assert record.stat.version == 1  # once, because nothing has changed since
        assert records.decode(LoadReport, record.value).num_bundles == 3
        await one.broker.ownership.release(BUNDLES[0])
        await trio.sleep(6)
        record = await two.broker.session.get(path)
        assert record is not None
        assert records.decode(LoadReport, record.value).bundles == [str(b) for b in BUNDLES[1:]]
        assert [each.broker_id for each in await members(two.broker.session)] == [
            "one:8080",
            "two:8080",
        ]


async def test_a_broker_that_was_removed_reports_nothing(autojump_clock: MockClock) -> None:
    """Another start of the broker may have its registration by then."""
    async with open_cluster() as cluster:
        one, two = await start(cluster)
        guard = one.broker.ownership.guard
        assert guard is not None
        measured = await one.reports.measure()
        record = await two.broker.session.get(guard.path)
        assert record is not None
        await two.broker.session.delete(guard.path, record.stat.version)
        before = await two.broker.session.get(f"{records.BROKERS}/one:8080")
        with pytest.raises(Exception, match=r"."):
            await one.reports._write(measured)  # pyright: ignore[reportPrivateUsage]
        assert await two.broker.session.get(f"{records.BROKERS}/one:8080") == before


async def test_loads_of_other_projects_are_unknown(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start(cluster)
        path = f"{records.BROKERS}/two:8080"
        record = await two.broker.session.get(path)
        assert record is not None
        await two.broker.session.set(path, b"not JSON", record.stat.version)
        await report(one.broker, {BUNDLES[0]: 100})
        assert list(await read_loads(one.broker.session, ["one:8080", "two:8080", "three"])) == [
            BUNDLES[0]
        ]


async def test_the_rows_of_brokers(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, two = await start(cluster)
        await report(one.broker, {BUNDLES[0]: 1_000})
        for admin in (one, two):
            first, second = await admin.operations.rows()
            assert (first.broker, first.leads, first.bundles) == ("one:8080", True, 3)
            assert first.load == pytest.approx(0.1 + 1 + 0.01 + 2 * 0.1)
            assert (second.broker, second.leads, second.load) == ("two:8080", False, 0)


async def test_a_drain_is_planned_and_begun(autojump_clock: MockClock) -> None:
    async with open_cluster(parse({"cluster": "test"})) as cluster:
        one, two = await start(cluster)
        plan = await one.operations.drain("one:8080", dry_run=True)
        assert plan == dict.fromkeys(BUNDLES, "two:8080")
        assert one.broker.ownership.owned == BUNDLES
        with pytest.raises(NotOwnerError) as error:
            await two.operations.drain("one:8080", dry_run=True)
        assert error.value.http_url == "http://one:8080"
        with pytest.raises(PreconditionError, match="no live broker three"):
            await two.operations.drain("three", dry_run=False)
        handed: list[BundleName] = []

        async def hand_over(bundle: BundleName, to: object) -> None:
            del to
            handed.append(bundle)
            await trio.lowlevel.checkpoint()

        one.hand_overs.hand_over = hand_over  # type: ignore[method-assign]
        await one.operations.drain("one:8080", dry_run=False)
        await trio.sleep(1)
        assert handed == BUNDLES
        assert [each.broker_id for each in await members(two.broker.session)] == ["two:8080"]
        with pytest.raises(PreconditionError, match="no other broker"):
            await two.operations.drain("two:8080", dry_run=False)


async def test_the_receiver_learns_that_it_gets_no_bundle_if_its_answer_is_lost(
    autojump_clock: MockClock,
) -> None:
    """It would let clients wait for the bundle for half a minute."""
    async with open_cluster() as cluster:
        one, two = await start(cluster)
        called: list[str] = []

        async def call(_: str, method: str, path: str, **more: object) -> None:
            assert more["own"], "brokers hand bundles over for themselves, and for no client"
            await trio.lowlevel.checkpoint()
            called.append(f"{method} {path.rpartition('/')[2]}")
            if method == "POST":
                two.broker.ownership.expect(BUNDLES[0])
                raise UnavailableError("the answer is lost")
            two.broker.ownership.expect_no_longer(BUNDLES[0])

        one.hand_overs._peer_calls.call = call  # type: ignore[method-assign, assignment]  # pyright: ignore[reportPrivateUsage]
        to = await one.hand_overs.named("two:8080")
        with pytest.raises(UnavailableError, match="is lost"):
            await one.hand_overs.hand_over(BUNDLES[0], to)
        assert called == ["POST expect", "DELETE expect"]
        assert not two.broker.ownership.expects(BUNDLES[0])
        assert one.broker.ownership.owned == BUNDLES


async def test_a_drain_asks_a_receiver_that_failed_once_and_releases_its_bundles(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, two = await start(cluster)
        asked: list[BundleName] = []

        async def hand_over(bundle: BundleName, to: object) -> None:
            del to
            asked.append(bundle)
            await trio.sleep(5)
            raise UnavailableError("no answer")

        one.hand_overs.hand_over = hand_over  # type: ignore[method-assign]
        began = trio.current_time()
        await one.hand_overs.drain()
        assert asked == BUNDLES[:1]
        assert trio.current_time() - began < 6
        assert one.broker.ownership.owned == []
        assert await two.broker.ownership.acquire(BUNDLES[2]) is Answer.OURS


async def test_a_hand_over_that_the_receiver_did_not_confirm_is_no_success(
    autojump_clock: MockClock,
) -> None:
    async with open_cluster() as cluster:
        one, _ = await start(cluster)
        fails = True

        async def call(_url: str, _method: str, path: str, **_: object) -> None:
            await trio.lowlevel.checkpoint()
            if fails and path.endswith("/take"):
                raise UnavailableError("no answer")

        one.hand_overs._peer_calls.call = call  # type: ignore[method-assign, assignment]  # pyright: ignore[reportPrivateUsage]
        to = await one.hand_overs.named("two:8080")
        with pytest.raises(UnavailableError, match="did not confirm"):
            await one.hand_overs.hand_over(BUNDLES[0], to)
        assert one.broker.ownership.owned == BUNDLES[1:]
        fails = False
        await one.hand_overs.hand_over(BUNDLES[1], to)
        assert one.broker.ownership.owned == BUNDLES[2:]


async def test_a_broker_whose_drain_has_not_begun_serves_its_topics(
    autojump_clock: MockClock,
) -> None:
    """Lookups may still place bundles there."""
    async with open_cluster() as cluster:
        one, _ = await start(cluster)
        session = one.broker.session
        plan = one.hand_overs.plan

        async def plan_and_lose_contact() -> object:
            found = await plan()
            session.suspend()
            return found

        one.hand_overs.plan = plan_and_lose_contact  # type: ignore[method-assign, assignment]
        with pytest.raises(UnavailableError, match="has not begun"):
            await one.operations.drain("one:8080", dry_run=False)
        session.resume()
        await trio.sleep(1)
        assert one.broker.ownership.owned == BUNDLES
        await one.broker.ownership.release(BUNDLES[0])
        assert await one.broker.ownership.acquire(BUNDLES[0]) is Answer.OURS


async def test_a_broker_that_stays_joins_again(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        one, _ = await start(cluster)
        ownership, session = one.broker.ownership, one.broker.session
        session.suspend()
        with trio.move_on_after(0.1):
            await ownership.withdraw()
        cluster.store.expire(one.broker.session_id)
        session.resume()
        await trio.sleep(1)
        assert not ownership.contact
        ownership.stay()
        await trio.sleep(10)
        assert ownership.contact
        assert await ownership.acquire(BUNDLES[0]) is Answer.OURS
