"""Whole brokers with TLS on simulated seams: clients find their topics, and never leave TLS."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
import trio

from daybook.broker.config import BrokerConfig
from daybook.broker.server import RunningBroker, run_broker
from daybook.broker.tls import open_tls
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import (
    BrokerError,
    NotAllowedError,
    NotReadyError,
    TlsError,
    UnavailableError,
)
from daybook.clients.python.limits import ClientLimits
from daybook.clients.python.tls import TlsOptions
from daybook.wire.logging import silent_log
from daybook.wire.topics import TopicName
from tests.harness.certificates import Authority
from tests.simulation.cluster import Cluster
from tests.simulation.scheduler import HOST, Scheduler, run

PORT, TLS_PORT = 6650, 6651


class World:
    """Bookies, and the brokers that a test starts; all certificates have one authority."""

    def __init__(self, cluster: Cluster, nursery: trio.Nursery, directory: Path) -> None:
        self.cluster = cluster
        self.authority = Authority(directory)
        self.trusting = TlsOptions(trusted=self.authority.trusted)
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    async def broker(
        self,
        name: str,
        *,
        plain: bool = False,
        tls: bool = True,
        demands: bool = False,
        trusts: bool = True,
        super_users: Sequence[str] = (),
    ) -> RunningBroker:
        """Start a broker; with super users, certificates prove roles, and roles need rights."""
        issued = self.authority.issue(name, hosts=(name,))
        config = BrokerConfig(
            name=name,
            host=name,
            port=PORT if plain else -1,
            tls_port=TLS_PORT if tls else -1,
            tls_certificate=str(issued.certificate),
            tls_key=str(issued.key),
            tls_trusted=str(self.authority.trusted) if trusts else "",
            tls_client_certificates="required" if demands else "off",
            authentication=("tls",) if super_users else (),
            authorization=bool(super_users),
            super_users=tuple(super_users),
        )

        async def live(*, task_status: trio.TaskStatus[RunningBroker]) -> None:
            HOST.set(name)
            clock = self.cluster.clock
            with self._scopes.setdefault(name, trio.CancelScope()):
                async with self.cluster.metadata.open(name) as session:
                    await run_broker(
                        config,
                        store=session,
                        network=self.cluster.network.of(name),
                        clock=clock,
                        rng=Random(self.cluster.rng.random()),
                        tls=open_tls(config, clock, silent_log()),
                        task_status=task_status,
                    )

        running: RunningBroker = await self._nursery.start(live)
        return running

    def certified(self, name: str) -> TlsOptions:
        issued = self.authority.issue(name, hosts=())
        return TlsOptions(self.authority.trusted, issued.certificate, issued.key)

    @asynccontextmanager
    async def client(
        self, url: str, tls: TlsOptions | None = None, *, patience_s: float = 60.0
    ) -> AsyncGenerator[Client]:
        async with connect(
            url,
            tls=tls,
            limits=ClientLimits(operation_timeout_s=patience_s),
            network=self.cluster.network.of("client"),
            clock=self.cluster.clock,
            rng=Random(1),
        ) as client:
            yield client


def simulated(story: Callable[[World], Awaitable[None]]) -> None:
    async def main(directory: Path, scheduler: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            cluster = Cluster(scheduler, 1, nursery)
            for index in range(3):
                await cluster.start(f"bookie-{index + 1}")
            await story(World(cluster, nursery, directory))
            cluster.end()
            nursery.cancel_scope.cancel()

    with TemporaryDirectory() as directory:
        run(partial(main, Path(directory)), seed=1)


async def _exchange(client: Client, topic: str) -> None:
    """Send messages that do not fit into one record, and receive them."""
    bodies = [b"%d" % index + bytes(index * 3000) for index in range(20)]
    async with (
        await client.create_producer(topic) as producer,
        await client.subscribe(topic, "s", initial_position="earliest") as consumer,
    ):
        for body in bodies:
            await producer.send(body)
        for body in bodies:
            message = await consumer.receive()
            assert message.data == body
            await consumer.ack(message)


def test_brokers_with_tls_alone_serve_and_see_each_other() -> None:
    async def story(world: World) -> None:
        one, two = await world.broker("one"), await world.broker("two")
        assert (one.port, one.tls_port) == (None, TLS_PORT)
        # The brokers have no port without TLS, so they reach each other with TLS or not at all.
        while not (one.peers.is_connected(two.identity.broker_id)):  # noqa: ASYNC110
            await trio.sleep(0.1)
        async with world.client("pulsar+ssl://one:6651,two:6651", world.trusting) as client:
            for index in range(8):
                await _exchange(client, f"topic-{index}")
                url = await client.lookup(f"topic-{index}")
                assert url in ("pulsar+ssl://one:6651", "pulsar+ssl://two:6651")
        assert one.clients.bugs == two.clients.bugs == 0

    simulated(story)


def test_a_broker_may_have_both_ports() -> None:
    async def story(world: World) -> None:
        await world.broker("one", plain=True)
        async with world.client("pulsar://one:6650") as client:
            await _exchange(client, "t")
            assert await client.lookup("t") == "pulsar://one:6650"
        async with world.client("pulsar+ssl://one:6651", world.trusting) as client:
            await _exchange(client, "t2")
            assert await client.lookup("t2") == "pulsar+ssl://one:6651"

    simulated(story)


def test_a_client_with_tls_is_not_sent_to_a_broker_without_it() -> None:
    async def story(world: World) -> None:
        await world.broker("plain", plain=True, tls=False)
        async with world.client("pulsar://plain:6650") as client:
            await _exchange(client, "t")
        await world.broker("secure")
        async with world.client(
            "pulsar+ssl://secure:6651", world.trusting, patience_s=3.0
        ) as client:
            with pytest.raises(NotReadyError, match="pulsar://plain:6650 has no port with TLS"):
                await client.lookup("t")

    simulated(story)


def test_a_client_is_told_what_is_wrong_with_tls() -> None:
    async def story(world: World) -> None:
        await world.broker("one", plain=True)
        with pytest.raises(TlsError, match="is signed by nobody whom this client trusts"):
            async with world.client("pulsar+ssl://one:6651", TlsOptions()):
                pass
        with pytest.raises(TlsError, match="does not speak TLS: connect to its TLS port"):
            async with world.client("pulsar+ssl://one:6650", world.trusting):
                pass
        with pytest.raises(NotAllowedError, match=r"begin the service URL with pulsar\+ssl://"):
            async with world.client("pulsar://one:6651"):
                pass
        with pytest.raises(ValueError, match="is without TLS: begin it with pulsar"):
            async with world.client("pulsar://one:6650", world.trusting):
                pass
        with pytest.raises(TlsError, match=r"none\.pem cannot be read"):
            async with world.client("pulsar+ssl://one:6651", TlsOptions(trusted="none.pem")):
                pass

    simulated(story)


def test_a_broker_that_demands_certificates_of_clients() -> None:
    async def story(world: World) -> None:
        one = await world.broker("one", demands=True)
        await world.broker("two", demands=True)
        while not one.peers.registered:  # noqa: ASYNC110
            await trio.sleep(0.1)
        async with world.client("pulsar+ssl://one:6651", world.certified("alice")) as client:
            await _exchange(client, "t")
        with pytest.raises(UnavailableError, match="demands a certificate of the client"):
            async with world.client("pulsar+ssl://one:6651", world.trusting):
                pass

    simulated(story)


def test_a_certificate_proves_a_role_to_a_broker_and_brokers_to_each_other() -> None:
    async def story(world: World) -> None:
        super_users = ["admin", "one", "two"]
        one = await world.broker("one", demands=True, super_users=super_users)
        two = await world.broker("two", demands=True, super_users=super_users)
        while not one.peers.is_connected(two.identity.broker_id):  # noqa: ASYNC110
            await trio.sleep(0.1)
        url = "pulsar+ssl://one:6651,two:6651"
        async with world.client(url, world.certified("admin")) as client:
            await _exchange(client, "t")
        async with world.client(url, world.certified("alice")) as client:
            with pytest.raises(BrokerError, match="'alice'"):
                await client.create_producer("t")

    simulated(story)


def test_a_moved_topic_is_followed_with_tls() -> None:
    async def story(world: World) -> None:
        one = await world.broker("one")
        async with world.client("pulsar+ssl://one:6651,two:6651", world.trusting) as client:
            producer = await client.create_producer("t")
            await producer.send(b"before")
            two = await world.broker("two")
            while not two.peers.is_connected(one.identity.broker_id):  # noqa: ASYNC110
                await trio.sleep(0.1)
            await one.stop()
            await producer.send(b"after")
            assert await client.lookup("t") == "pulsar+ssl://two:6651"
            assert two.ownership.owns(TopicName.parse("t"))

    simulated(story)


def ports_called(world: World, name: str) -> set[int]:
    """Return the ports of other hosts to which a broker has connected."""
    return {port for source, _, port in world.cluster.network.connected if source == name}


@pytest.mark.parametrize("trusts", [True, False])
def test_brokers_call_each_other_with_tls_if_they_know_whom_to_trust(*, trusts: bool) -> None:
    async def story(world: World) -> None:
        one = await world.broker("one", plain=True, trusts=trusts)
        two = await world.broker("two", plain=True, trusts=trusts)
        for broker, other in ((one, two), (two, one)):
            while not broker.peers.is_connected(other.identity.broker_id):  # noqa: ASYNC110
                await trio.sleep(0.1)
        called = ports_called(world, "one") | ports_called(world, "two")
        assert called & {PORT, TLS_PORT} == ({TLS_PORT} if trusts else {PORT})

    simulated(story)


def test_a_broker_that_prefers_tls_still_reaches_one_without_it() -> None:
    async def story(world: World) -> None:
        one = await world.broker("one", plain=True)
        two = await world.broker("two", plain=True, tls=False)
        for broker, other in ((one, two), (two, one)):
            while not broker.peers.is_connected(other.identity.broker_id):  # noqa: ASYNC110
                await trio.sleep(0.1)
        assert ports_called(world, "two") & {PORT, TLS_PORT} == {TLS_PORT}

    simulated(story)
