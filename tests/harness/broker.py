"""A broker's data plane over logs in memory, and clients that speak raw frames to it."""

import gc
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import trio

from daybook.broker.config import BrokerConfig, parse
from daybook.broker.context import BrokerContext
from daybook.broker.dispatch.consumer import Consumer
from daybook.broker.errors import NotFoundError
from daybook.broker.limits import ConnectionLimits, TopicLimits
from daybook.broker.namespaces.policies import NamespacePolicies, Policies
from daybook.broker.namespaces.policy_table import EffectivePolicies, defaults
from daybook.broker.namespaces.topic_lists import TopicLists
from daybook.broker.protocol.bundles import BundleName, Bundles
from daybook.broker.schemas.admission import SchemaAdmission
from daybook.broker.schemas.registry import SchemaRegistry
from daybook.broker.security.audit import Audit
from daybook.broker.security.authorization import Authorization
from daybook.broker.security.configured import authentication_of
from daybook.broker.service.accept import Prove, no_limits
from daybook.broker.service.connection import ClientConnection
from daybook.broker.service.handlers import Handlers, serve_client
from daybook.broker.service.lookup import LookupResult, Lookups
from daybook.broker.service.request_turns import ClientTurns
from daybook.broker.topics.producer import Producer
from daybook.broker.topics.revocation import Revocation
from daybook.broker.topics.topics import Topics
from daybook.wire.arena import ArenaPool
from daybook.wire.batch import encode_batch, encode_payload
from daybook.wire.connection import FrameConnection
from daybook.wire.errors import ConnectionLostError, WireError
from daybook.wire.logging import silent_log
from daybook.wire.messages.bookie import FRAME_BYTES_MAX
from daybook.wire.messages.client import SendReceipt, encode_send
from daybook.wire.messages.consumer import Delivery, encode_ack
from daybook.wire.messages.registry import AnyCommand, Command, decode_frame, encode
from daybook.wire.metadata.memory import MemoryStore
from daybook.wire.outbox import Flusher
from daybook.wire.proto import pulsar_pb2 as pb
from daybook.wire.topics import TopicName
from tests.harness.clocks import EPOCH_MS, VirtualClock
from tests.harness.fake_log import FakeLog, FakeLogs
from tests.harness.network import SimulatedNetwork
from tests.harness.schemas import FakeSchemaLedgers

HOST, PORT = "broker", 6650
TOPIC = "persistent://public/default/t"


def connection_of(opened: Producer | Consumer) -> ClientConnection:
    """Return the broker's end of the connection on which a producer or a consumer was opened."""
    connections = [each for each in gc.get_objects() if isinstance(each, ClientConnection)]
    (found,) = [each for each in connections if each._client is opened.connection]
    return found


class FakePolicies(Policies):
    def __init__(self, config: BrokerConfig) -> None:
        self.partition_counts: dict[str, int] = {}
        self.deduplication = False  # the policy of the namespace
        self.topic_deduplication: dict[str, bool] = {}
        self.of_namespace: dict[str, Any] = {}  # other policies of the namespace
        self.defaults = defaults(config)
        self._listeners = []
        self._changed: set[str] = set()
        self._change = trio.Event()
        self._store = MemoryStore(VirtualClock()).session("broker")

    async def namespace(self, namespace: str) -> NamespacePolicies:
        await trio.lowlevel.checkpoint()
        if namespace != "public/default":
            raise NotFoundError(f"no namespace {namespace}")
        return NamespacePolicies(Bundles.equal(1), deleted=False)

    async def effective_in(self, namespace: str) -> EffectivePolicies:
        await self.namespace(namespace)
        said = {"deduplication": self.deduplication, **self.of_namespace}
        return replace(self.defaults, **said)

    async def effective(self, topic: TopicName) -> EffectivePolicies:
        found = await self.effective_in(topic.namespace)
        said = self.topic_deduplication.get(topic.full, found.deduplication)
        return replace(found, deduplication=said)

    async def partitions(self, topic: TopicName) -> int:
        await trio.lowlevel.checkpoint()
        return self.partition_counts.get(topic.full, 0)

    async def list_partitioned(self, namespace: str, domain: str = "persistent") -> list[TopicName]:
        names = map(TopicName.parse, self.partition_counts)
        return [name for name in names if name.domain == domain]

    def known_bundle_of(self, topic: TopicName) -> BundleName | None:
        return BundleName(f"{topic.namespace}/0x00000000_0xffffffff")


class FakeOwnership:
    def __init__(self) -> None:
        self.ours = True
        self.contact = True

    def owns(self, topic: TopicName) -> bool:
        return self.ours

    def may_load(self, topic: TopicName) -> bool:
        return self.ours and self.contact


class FakeLookups(Lookups):
    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.result = LookupResult("pulsar://there:6650", None, redirect=False, authoritative=True)

    async def lookup(self, topic: TopicName, *, authoritative: bool = False) -> LookupResult:
        await trio.lowlevel.checkpoint()
        self.asked.append((topic.full, authoritative))
        return self.result


class Broker:
    """One broker.

    A test that does not check `errors`, the internal ones, must leave it empty, and the count of
    bugs of topics at 0.
    """

    def __init__(
        self,
        *,
        settings: dict[str, object] | None = None,
        topic_limits: TopicLimits | None = None,
        connection_limits: ConnectionLimits | None = None,
    ) -> None:
        self.config = parse({"keep_alive_s": 30.0, **(settings or {})})
        self.clock = VirtualClock()
        self.logs = FakeLogs(self.clock)
        self.store = MemoryStore(self.clock)
        self.policies = FakePolicies(self.config)
        self.ownership = FakeOwnership()
        self.lookups = FakeLookups()
        self.network = SimulatedNetwork(random.Random(1), delay_s=(0.0001, 0.0001))
        self.flusher, self.arenas = Flusher(), ArenaPool()
        self.errors: list[BaseException] = []
        self.topics = Topics(
            self.logs,
            cast("Any", self.policies),
            clock=self.clock,
            rng=random.Random(2),
            log=silent_log(),
            name_prefix="test-1",
            # Most tests do not want their topic to go away while they look at it.
            idle_unload_s=float(str((settings or {}).get("topic_idle_unload_s", 0))),
            limits=topic_limits,
        )
        self.topics.attach(owns=self.ownership.owns, may_load=self.ownership.may_load)
        self.session = self.store.session("broker")
        self.schema_ledgers = FakeSchemaLedgers(self.session)
        self.schemas = SchemaRegistry(
            self.session,
            self.schema_ledgers,
            self.clock,
            versions_max=self.config.schema_versions_max,
            schema_bytes_max=self.config.schema_bytes_max,
        )
        self.authorization = Authorization(self.session, self.policies, self.config)
        self.revocation = Revocation(self.topics, self.authorization, silent_log())
        self.audit = Audit(self.config.audit_file, self.clock, silent_log())
        self.stored_bytes_max = FRAME_BYTES_MAX
        self.context = BrokerContext(
            config=self.config,
            clock=self.clock,
            arenas=self.arenas,
            flusher=self.flusher,
            topics=self.topics,
            lookups=self.lookups,
            policies=self.policies,
            topic_lists=TopicLists(self.store.session("broker"), silent_log()),
            schemas=SchemaAdmission(self.schemas),
            ledgers_url="zk://zookeeper:2181/ledgers",
            server_version="daybook/test",
            own_urls=("pulsar://broker:6650",),
            log=silent_log(),
            stored_bytes_max=lambda: self.stored_bytes_max,
            limits=connection_limits or ConnectionLimits(),
            turns=ClientTurns(connection_limits or ConnectionLimits()),
            authorization=self.authorization,
            audit=self.audit,
            authentication=authentication_of(
                self.config, clock=self.clock, rng=random.Random(3), log=silent_log()
            ),
        )
        self.serving = 0
        self.prove: Callable[[str], Prove] = lambda _peer: no_limits

    def log(self, topic: str = TOPIC) -> FakeLog:
        return self.logs.by_name[TopicName.parse(topic)]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listener = await self.network.of(HOST).listen(HOST, PORT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flusher.run)
            nursery.start_soon(self.context.run)
            nursery.start_soon(self.revocation.run)
            nursery.start_soon(self.audit.run)
            await nursery.start(self.topics.run)
            await nursery.start(self.schemas.run)
            task_status.started()
            while True:
                nursery.start_soon(self._serve, await listener.accept())

    async def _serve(self, stream: Any) -> None:
        self.serving += 1
        try:
            await serve_client(stream, self.context, self.prove(stream.peer))
        except (ConnectionLostError, WireError):
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            self.serving -= 1
            stream.close()


class Client:
    """A client that sends what the test says, and remembers what it receives."""

    def __init__(self, frames: FrameConnection, name: str) -> None:
        self.frames = frames
        self.name = name
        self.got: list[AnyCommand] = []
        self.reading = True
        self._more = trio.Event()
        self._requests = 100

    async def run(self) -> None:
        while self.reading and (batch := await self.frames.receive()):
            for frame in batch:
                command = decode_frame(frame)
                if isinstance(command, Delivery):
                    command.payload = memoryview(bytes(command.payload))
                self.got.append(command)
            more, self._more = self._more, trio.Event()
            more.set()
        self._more.set()

    def tell(self, message: Any) -> None:
        self.frames.send([encode(message)])

    def bodies(self, kind: type[Any]) -> list[Any]:
        found = []
        for each in self.got:
            body = each.body if isinstance(each, Command) else each
            if isinstance(body, kind):
                found.append(body)
        return found

    async def wait(self, kind: type[Any], count: int = 1) -> list[Any]:
        """Return the first `count` commands of that kind, and forget them."""
        with trio.move_on_after(60):
            while len(self.bodies(kind)) < count:
                if self.frames.closed:
                    break
                await self._more.wait()
        found = self.bodies(kind)[:count]
        assert len(found) == count, (kind.__name__, [type(x).__name__ for x in self.got])
        for body in found:
            for index, each in enumerate(self.got):
                if (each.body if isinstance(each, Command) else each) is body:
                    del self.got[index]
                    break
        return found

    async def wait_more(self) -> None:
        """Return when a command has come, or the connection has ended."""
        with trio.fail_after(60):
            await self._more.wait()

    async def settle(self, seconds: float = 0.05) -> None:
        await trio.sleep(seconds)

    async def wait_closed(self) -> None:
        with trio.fail_after(120):
            while not self.frames.closed:
                await self._more.wait()

    async def connect(
        self, version: str = "test", protocol: int = 19, *, metadata: bool = False
    ) -> pb.CommandConnected:
        self.tell(
            pb.CommandConnect(
                client_version=version,
                protocol_version=protocol,
                feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=metadata),
            )
        )
        connected: pb.CommandConnected
        (connected,) = await self.wait(pb.CommandConnected)
        return connected

    def request_id(self) -> int:
        self._requests += 1
        return self._requests

    async def ask(self, message: Any, answer: type[Any]) -> Any:
        """Return the answer, or the error that came instead."""
        message.request_id = self.request_id()
        self.tell(message)
        with trio.fail_after(60):
            while True:
                for kind in (answer, pb.CommandError):
                    for body in self.bodies(kind):
                        if body.request_id == message.request_id:
                            self.got = [
                                e
                                for e in self.got
                                if not (isinstance(e, Command) and e.body is body)
                            ]
                            return body
                assert not self.frames.closed, self.frames.close_reason
                await self._more.wait()

    async def producer(self, producer_id: int = 1, topic: str = TOPIC, **options: Any) -> Any:
        request = pb.CommandProducer(topic=topic, producer_id=producer_id, **options)
        return await self.ask(request, pb.CommandProducerSuccess)

    async def subscribe(
        self,
        consumer_id: int = 1,
        *,
        topic: str = TOPIC,
        name: str = "sub",
        kind: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive,
        permits: int = 0,
        **options: Any,
    ) -> Any:
        request = pb.CommandSubscribe(
            topic=topic, subscription=name, consumer_id=consumer_id, **options
        )
        request.subType = kind
        answer = await self.ask(request, pb.CommandSuccess)
        if permits and isinstance(answer, pb.CommandSuccess):
            self.flow(permits, consumer_id)
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.tell(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    def send(self, sequence_id: int, data: bytes = b"x", producer_id: int = 1, **meta: Any) -> None:
        self.send_payload(sequence_id, payload_of(sequence_id, data, **meta), producer_id)

    def send_batch(self, sequence_id: int, count: int, producer_id: int = 1) -> None:
        self.send_payload(sequence_id, batch_of(sequence_id, count), producer_id, count)

    def send_payload(
        self, sequence_id: int, payload: bytes, producer_id: int = 1, count: int = 1
    ) -> None:
        head = encode_send(producer_id, sequence_id, len(payload), num_messages=count)
        self.frames.send([head, payload])

    async def receipts(self, count: int) -> list[tuple[int, int, int]]:
        found = await self.wait(SendReceipt, count)
        return [(r.sequence_id, r.ledger_id, r.entry_id) for r in found]

    async def deliveries(self, count: int) -> list[Delivery]:
        found = await self.wait(Delivery, count)
        return list(found)

    async def entry_ids(self, count: int) -> list[int]:
        return [d.entry_id for d in await self.deliveries(count)]

    def ack(self, *entry_ids: int, consumer_id: int = 1, **options: Any) -> None:
        ids = [(5, entry_id, None) for entry_id in entry_ids]
        self.frames.send([encode_ack(consumer_id, ids, **options)])


def payload_of(sequence_id: int, data: bytes = b"x", **meta: Any) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=sequence_id,
        publish_time=meta.pop("publish_time", EPOCH_MS + sequence_id),
        **meta,
    )
    return encode_payload(metadata, data)


def batch_of(sequence_id: int, count: int) -> bytes:
    singles = [(pb.SingleMessageMetadata(payload_size=1), b"%d" % (n % 10)) for n in range(count)]
    return payload_of(sequence_id, encode_batch(singles), num_messages_in_batch=count)


def handlers_of(opened: Producer | Consumer) -> Handlers:
    """Return the handlers of the connection on which a producer or a consumer was opened."""
    handlers = connection_of(opened)._on_closing.__self__  # type: ignore[attr-defined]
    assert isinstance(handlers, Handlers)
    return handlers


class Cluster:
    """One broker and its clients."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self.broker = broker
        self._nursery = nursery
        self._clients = 0
        self.clients_share_address = False

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task until the test ends."""
        self._nursery.start_soon(task)

    async def client(self, *, connect: bool = True, **options: Any) -> Client:
        self._clients += 1
        host = "client" if self.clients_share_address else f"client-{self._clients}"
        stream = await self.broker.network.of(host).connect(HOST, PORT)
        frames = FrameConnection(
            stream,
            arenas=self.broker.arenas,
            flusher=self.broker.flusher,
            frame_bytes_max=1 << 24,
        )
        client = Client(frames, host)
        self._nursery.start_soon(client.run)
        if connect:
            await client.connect(**options)
        return client


@asynccontextmanager
async def open_broker(**options: Any) -> AsyncGenerator[Cluster]:
    broker = Broker(**options)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield Cluster(broker, nursery)
        nursery.cancel_scope.cancel()
    assert not broker.errors, broker.errors
    assert not broker.topics.bugs.found, "a topic failed because of a bug"
