"""Refusals keep to one pace for all connections and ports of a role or an address."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import structlog
import trio
from starlette.applications import Starlette
from structlog.testing import CapturingLogger
from trio.testing import MockClock

from daybook.broker.access_metrics import held_metrics
from daybook.broker.admin import topics
from daybook.broker.admin.access import Access
from daybook.broker.admin.held_refusals import HeldRefusals
from daybook.broker.errors import AuthorizationError, UnavailableError
from daybook.broker.protocol import refusal_paces
from daybook.broker.protocol.refusal_paces import HELD_MAX_S
from daybook.broker.security.identity import Caller, Identity
from daybook.broker.service.request_counts import RequestCounts
from daybook.broker.service.shared_pace import SharedPace
from daybook.wire.http import GIVING_WAY
from daybook.wire.logging import silent_log
from daybook.wire.proto import pulsar_pb2 as pb
from tests.broker.security.test_rights import LOCKED, Stubs, access, bearer, store_policies
from tests.broker.security.test_sessions import SETTINGS, connected, greet, token
from tests.broker.test_refusals import refused
from tests.harness.broker import Client, Cluster, open_broker

BURST, PER_S = 40, 100
NO = AuthorizationError("no")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("ROLE", "ADDRESS"):
        monkeypatch.setattr(refusal_paces, f"{kind}_BURST", BURST)
        monkeypatch.setattr(refusal_paces, f"{kind}_PER_S", PER_S)


def made(*, super_users: tuple[str, ...] = ("root",)) -> SharedPace:
    return SharedPace(super_users, RequestCounts(), silent_log())


def caller(role: str, original: str = "", method: str = "token") -> Caller:
    return Caller(Identity(role, method), original)


async def held(pace: SharedPace, who: Caller | None, peer: str = "10.0.0.1:1") -> bool:
    """Return True if a flood from there is delayed."""
    return [pace.delay_s(NO, who, peer, "http") for _ in range(BURST + 1)][-1] > 0


async def test_the_culprit_is_the_role_and_without_one_the_address(mock_clock: MockClock) -> None:
    pace = made()
    assert await held(pace, caller("alice"))
    assert pace.delay_s(NO, caller("alice"), "10.9.9.9:1", "service") > 0, "another port or address"
    assert pace.delay_s(NO, caller("bob"), "10.0.0.1:1", "http") == 0
    assert await held(pace, None)
    assert pace.delay_s(NO, None, "10.0.0.1:2", "service") > 0
    assert pace.delay_s(NO, None, "10.0.0.2:2", "service") == 0


async def test_the_addresses_of_a_network_of_ipv6_are_one(mock_clock: MockClock) -> None:
    pace = made()
    assert await held(pace, None, "2001:db8:0:1::1:80")
    assert pace.delay_s(NO, None, "[2001:db8:0:1:ffff::2]:80", "service") > 0
    assert pace.delay_s(NO, None, "[2001:db8:0:2::1]:80", "service") == 0


async def test_an_anonymous_role_stands_for_many_addresses(mock_clock: MockClock) -> None:
    pace = made()
    assert await held(pace, caller("anybody", method="anonymous"))
    assert pace.delay_s(NO, caller("anybody", method="anonymous"), "10.0.0.2:1", "http") == 0
    assert pace.delay_s(NO, None, "10.0.0.1:1", "http") > 0


async def test_a_proxy_is_a_culprit_for_whom_it_asks(mock_clock: MockClock) -> None:
    pace = made()
    assert await held(pace, caller("proxy", "alice"))
    assert pace.delay_s(NO, caller("alice"), "x:1", "http") > 0
    assert pace.delay_s(NO, caller("proxy", "bob"), "x:1", "http") == 0
    assert await held(pace, caller("root", "carol")), "a broker asks for carol"


async def test_super_users_and_the_faults_of_others_have_no_pace(mock_clock: MockClock) -> None:
    pace = made()
    assert not await held(pace, caller("root"))
    away = UnavailableError("try again")
    assert not any(pace.delay_s(away, None, "x:1", "http") for _ in range(2 * BURST))
    assert pace.delay_s(NO, None, "x:1", "http") == 0, "they have been counted"


async def test_delayed_refusals_are_counted_and_said_once_a_minute(mock_clock: MockClock) -> None:
    lines, counts = CapturingLogger(), RequestCounts()
    pace = SharedPace((), counts, structlog.wrap_logger(lines, processors=[]))
    for _ in range(BURST + 5):
        pace.delay_s(NO, caller("alice"), "x:1", "http")
    assert [line.kwargs["role"] for line in lines.calls] == ["alice"]
    (family,) = held_metrics("c", counts)
    (sample,) = family.samples
    assert (sample.name, sample.value) == ("daybook_broker_refusals_held_total", 5)
    assert sample.labels == {"cluster": "c", "port": "http", "by": "role"}


# -- on the port for clients


def ask_for_many(clients: list[Client], each: int) -> None:
    for place, client in enumerate(clients):
        for number in range(each):
            topic = f"persistent://public/missing/{place}-{number}"
            client.tell(pb.CommandGetSchema(topic=topic, request_id=number))


async def test_many_connections_of_a_role_share_its_pace(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        clients = [await connected(cluster, token("alice")) for _ in range(10)]
        other = await connected(cluster, token("bob"))
        ask_for_many(clients, 50)
        await trio.sleep(0.001)
        assert sum(map(refused, clients)) == BURST
        await trio.sleep(2)
        assert abs(sum(map(refused, clients)) - BURST - 2 * PER_S) <= 2
        began = trio.current_time()
        await other.ask(pb.CommandGetSchema(topic="missing"), pb.CommandGetSchemaResponse)
        # A request of the same role that is not refused waits for nothing.
        free = await connected(cluster, token("alice"))
        await free.ask(pb.CommandLookupTopic(topic="t"), pb.CommandLookupTopicResponse)
        assert isinstance(await free.producer(), pb.CommandProducerSuccess)
        assert trio.current_time() - began < 0.01
        # One that is refused waits for a moment.
        await free.ask(pb.CommandGetSchema(topic="missing"), pb.CommandGetSchemaResponse)
        assert 0 < trio.current_time() - began < HELD_MAX_S


async def test_without_roles_many_connections_of_an_address_share_its_pace(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as cluster:
        clients = await of_one_address(cluster, 5)
        ask_for_many(clients, 50)
        other = await cluster.client()
        await trio.sleep(0.001)
        assert sum(map(refused, clients)) == BURST
        await other.ask(pb.CommandGetSchema(topic="missing"), pb.CommandGetSchemaResponse)
        await trio.sleep(1)
        assert abs(sum(map(refused, clients)) - BURST - PER_S) <= 2


async def of_one_address(cluster: Cluster, count: int, *, connect: bool = True) -> list[Client]:
    cluster.clients_share_address = True
    clients = [await cluster.client(connect=connect) for _ in range(count)]
    cluster.clients_share_address = False
    return clients


async def test_wrong_credentials_of_an_address_are_refused_at_its_pace(
    autojump_clock: MockClock,
) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        clients = await of_one_address(cluster, BURST + 60, connect=False)
        for client in clients:
            greet(client, b"guessed")
        await trio.sleep(0.001)
        assert sum(len(client.bodies(pb.CommandError)) for client in clients) == BURST
        counts = cluster.broker.context.request_counts
        assert counts.refused.total() == len(clients), "each attempt is on record at once"
        (good,) = await of_one_address(cluster, 1, connect=False)
        began = trio.current_time()
        greet(good, token())
        await good.wait(pb.CommandConnected)
        assert trio.current_time() - began < 0.01, "right credentials wait for nothing"
        await trio.sleep(1)
        assert sum(len(client.bodies(pb.CommandError)) for client in clients) == len(clients)


async def test_a_client_that_is_held_may_do_nothing_else(autojump_clock: MockClock) -> None:
    async with open_broker(settings=SETTINGS) as cluster:
        clients = await of_one_address(cluster, BURST + 60, connect=False)
        for client in clients:
            greet(client, b"guessed")
        await trio.sleep(0.001)
        held = next(client for client in clients if not client.bodies(pb.CommandError))
        held.tell(pb.CommandLookupTopic(topic="t", request_id=1))
        await held.wait_closed()
        assert not cluster.broker.lookups.asked


# -- over HTTP

MISSING = "/admin/v2/persistent/public/default/t/stats"


class Web:
    """Sends requests to the application from addresses of the test's choice."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self.giving_way = 0

    @contextmanager
    def _gives_way(self) -> Generator[None]:
        self.giving_way += 1
        yield
        self.giving_way -= 1

    async def ask(self, host: str, path: str = MISSING, **headers: str) -> int:
        statuses: list[int] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": (host, 1),
            "state": {GIVING_WAY: self._gives_way},
        }
        await self._app(scope, receive, send)
        return statuses[0]

    async def flood(self, count: int, host: str, **headers: str) -> list[float]:
        """Return when each of many requests, which are sent at once, is answered."""
        began, times = trio.current_time(), list[float]()

        async def one() -> None:
            assert await self.ask(host, **headers) in (401, 403, 404)
            times.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(one)
        return times


@asynccontextmanager
async def web(pace: SharedPace) -> AsyncGenerator[Web]:
    admits: Access
    admits, store = access({**LOCKED, "anonymous_role": ""})
    await store_policies(store)
    endpoints = Stubs(object(), 1 << 10, silent_log(), admits, HeldRefusals(pace))
    yield Web(Starlette(routes=topics.routes(endpoints)))


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer guessed"}])
async def test_wrong_credentials_over_http_are_refused_at_the_pace_of_the_address(
    autojump_clock: MockClock, headers: dict[str, str]
) -> None:
    async with web(made()) as site:
        times = await site.flood(BURST + 50, "10.0.0.1", **headers)
        assert [each for each in times if each < 0.001] == [0.0] * BURST
        assert max(times) == pytest.approx(0.5)
        assert not site.giving_way
        began = trio.current_time()
        assert await site.ask("10.0.0.2", **headers) == 401
        assert await site.ask("10.0.0.1", **bearer("root")) == 204
        assert trio.current_time() == began


async def test_a_role_is_refused_at_one_pace_over_http_and_on_the_port_for_clients(
    autojump_clock: MockClock,
) -> None:
    pace = made()
    async with web(pace) as site:
        assert await held(pace, caller("stranger"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(site.flood, 1, "10.0.0.9")
            times = await site.flood(50, "10.0.0.1", **bearer("stranger"))
        assert min(times) > 0
        assert max(times) == pytest.approx(0.51)


async def test_a_request_that_is_held_gives_way(autojump_clock: MockClock) -> None:
    async with web(made()) as site, trio.open_nursery() as nursery:
        nursery.start_soon(site.flood, BURST + 50, "10.0.0.1")
        await trio.sleep(0.1)
        assert 30 < site.giving_way < 50
