"""The conclusions from a service port's answer, or silence, about the process behind it."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
import trio
from google.protobuf.message import Message
from structlog.testing import CapturingLogger
from trio.testing import MockClock

from daybook.broker.namespaces.records import BrokerRecord
from daybook.broker.ownership import peers as peers_module
from daybook.broker.ownership.membership import Identity, Member
from daybook.broker.ownership.peer_network import PeerNetwork, address_of
from daybook.broker.ownership.peers import (
    PeerProbe,
    Peers,
    Probed,
    Verdict,
    server_version,
)
from daybook.broker.security.broker_token import BrokerToken
from daybook.wire.arena import ArenaPool
from daybook.wire.connection import FrameConnection
from daybook.wire.logging import silent_log
from daybook.wire.messages.registry import NO_ID, encode
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.transport import Stream
from tests.harness.clocks import FixedClock
from tests.harness.network import SimulatedNetwork

PORT = 6650


def member(incarnation: str | None = "life-1", url: str = f"pulsar://peer:{PORT}") -> Member:
    protocols = {} if incarnation is None else {"daybook": incarnation}
    return Member("peer:8080", 7, BrokerRecord(url, protocols=protocols))


def connected(version: str) -> Message:
    return pb.CommandConnected(server_version=version, protocol_version=21)


REFUSAL = pb.CommandError(request_id=NO_ID, error=pb.ServiceNotReady, message="full")


def says(message: Message) -> Callable[[Stream], None]:
    return lambda stream: void(stream.try_send([encode(message)]))


def void(_: object) -> None:
    """Return nothing; for lambdas."""


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (says(connected(server_version("life-1"))), Verdict.ALIVE),
        (says(connected(server_version("life-2"))), Verdict.DEAD),
        (says(connected("Pulsar Server 4.0 life-2")), Verdict.SILENT),
        (says(connected("")), Verdict.SILENT),
        (says(REFUSAL), Verdict.SILENT),
        (lambda stream: stream.close(), Verdict.SILENT),
        (lambda stream: stream.reset(), Verdict.SILENT),
        (lambda stream: void(stream.try_send([b"HTTP/1.1 400 Bad Request"])), Verdict.SILENT),
        (void, Verdict.SILENT),
    ],
)
async def test_verdicts(
    answer: Callable[[Stream], None], verdict: Verdict, autojump_clock: MockClock
) -> None:
    network = SimulatedNetwork(random.Random(1))
    listener = await network.of("peer").listen("peer", PORT)
    flusher = Flusher()
    peer_probe = PeerProbe(PeerNetwork(network.of("us")), ArenaPool(), flusher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)

        async def accept() -> None:
            answer(await listener.accept())

        nursery.start_soon(accept)
        probed = await peer_probe.probe(member())
        assert probed.verdict is verdict
        assert bool(probed.why) is (verdict is not Verdict.ALIVE)
        nursery.cancel_scope.cancel()


async def test_a_port_that_nobody_listens_on_is_that_of_a_dead_process(
    autojump_clock: MockClock,
) -> None:
    network = SimulatedNetwork(random.Random(1))
    peer_probe = PeerProbe(PeerNetwork(network.of("us")), ArenaPool(), Flusher())
    assert (await peer_probe.probe(member())).verdict is Verdict.DEAD
    # A broker of another kind may listen elsewhere: nothing is concluded about it.
    assert (await peer_probe.probe(member(incarnation=None))).verdict is Verdict.SILENT
    assert (await peer_probe.probe(member(url="nonsense"))).verdict is Verdict.SILENT


async def test_a_host_that_cannot_be_reached_is_silent(autojump_clock: MockClock) -> None:
    network = SimulatedNetwork(random.Random(1))
    network.block("us", "peer")
    peer_probe = PeerProbe(PeerNetwork(network.of("us")), ArenaPool(), Flusher())
    assert (await peer_probe.probe(member())).verdict is Verdict.SILENT


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("pulsar://a:1", ("a", 1)),
        ("pulsar://[::1]:6650", ("::1", 6650)),
        ("http://b.example:8080", ("b.example", 8080)),
        ("pulsar://a", None),
        ("pulsar://a:x", None),
        ("pulsar://[:1", None),
        ("", None),
    ],
)
def test_addresses(url: str, address: tuple[str, int] | None) -> None:
    assert address_of(url) == address


class Connection:
    """A connection on which the peer says nothing."""

    async def receive(self) -> list[bytes]:
        await trio.sleep_forever()
        raise AssertionError

    def close(self) -> None:
        pass


class OnceDead:
    """A probe that finds the peer dead the first time, wrongly, and alive afterwards."""

    def __init__(self) -> None:
        self.count = 0
        self.token = BrokerToken()

    async def connect(self, _: Member) -> Probed:
        await trio.lowlevel.checkpoint()
        self.count += 1
        if self.count == 1:
            return Probed(Verdict.DEAD, "nothing listens")
        return Probed(Verdict.ALIVE, "", cast("FrameConnection", Connection()))


async def test_a_broker_that_joins_again_after_it_was_removed_wrongly_is_monitored(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """It is registered in the same session before this broker reads the registrations."""

    async def members(*_: object) -> list[Member]:
        await trio.lowlevel.checkpoint()
        return [member()]

    async def remove(*_: object) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    monkeypatch.setattr(peers_module, "members", members)
    monkeypatch.setattr(peers_module, "remove", remove)
    probe = OnceDead()
    store = MemoryStore(FixedClock()).session("us")
    identity = cast("Identity", SimpleNamespace(incarnation="us"))
    peers = Peers(store, identity, cast("PeerProbe", probe), silent_log())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peers.run)
        await trio.sleep(10)
        assert probe.count == 2
        assert peers.is_connected(member().broker_id)
        assert not peers.is_dead(member().session)
        nursery.cancel_scope.cancel()


async def test_the_log_tells_why_a_peer_that_may_live_cannot_be_asked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def members(*_: object) -> list[Member]:
        await trio.lowlevel.checkpoint()
        return [member()]

    monkeypatch.setattr(peers_module, "members", members)
    network = SimulatedNetwork(random.Random(1))
    listener = await network.of("peer").listen("peer", PORT)
    flusher, lines = Flusher(), CapturingLogger()
    probe = PeerProbe(PeerNetwork(network.of("us")), ArenaPool(), flusher)
    identity = cast("Identity", SimpleNamespace(incarnation="us"))
    store = MemoryStore(FixedClock()).session("us")
    peers = Peers(store, identity, probe, structlog.wrap_logger(lines, processors=[]))

    async def accept() -> None:
        while True:
            says(REFUSAL)(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        nursery.start_soon(accept)
        nursery.start_soon(peers.run)
        await trio.sleep(50)
        (line,) = lines.calls  # and not one for each attempt
        assert line.method_name == "warning"
        assert line.kwargs["peer"] == "peer:8080"
        assert line.kwargs["why"] == "pulsar://peer:6650 refuses this broker: full"
        nursery.cancel_scope.cancel()
