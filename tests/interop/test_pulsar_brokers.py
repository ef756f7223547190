"""Topics that move between our brokers and Apache Pulsar's, on the same ZooKeeper and bookies.

One broker serves at a time.  The official Python client produces and consumes at both.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S, http_get
from tests.interop.apache import pulsar_broker_here
from tests.interop.pulsar_broker import PulsarBroker

pytestmark = pytest.mark.interop

NAMESPACE = "public/moves"
TOPIC, ONCE, PARTED = (f"persistent://{NAMESPACE}/{name}" for name in ("plain", "once", "parted"))
BATCHES = f"{TOPIC}-batches"
PARTITIONS = 3
ROUND = 60  # messages for each topic while one broker serves
HOLES, CUMULATIVE, PARTS, UNTOUCHED = "holes", "cumulative", "parts", "untouched"
_MS = int(PATIENCE_S * 1000)
_QUIET_MS = 200  # for messages that nobody wants

# The official package has no types.
Client: TypeAlias = Any
Consumer: TypeAlias = Any


@contextmanager
def connected(url: str) -> Iterator[Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(url, logger=logger)) as client:
        yield client


class Moving:
    """The topics, and what their consumers still have to get, whichever broker serves them."""

    def __init__(self, cluster: StandaloneProcess, theirs: PulsarBroker) -> None:
        self.cluster = cluster
        self.theirs = theirs
        self.sent = 0  # messages of each topic
        self.holes: set[int] = set()  # acknowledged at `HOLES`
        self.parts: set[int] = set()  # ... at `PARTS`, messages of batches
        self.upto = -1  # ... at `CUMULATIVE`: this one, and all before it

    def at_ours(self) -> str:
        self.cluster.local("start", "broker-1")
        return self.cluster.service_url

    def at_theirs(self) -> str:
        self.theirs.start()
        return self.theirs.service_url

    def work(self, url: str, *, resend: bool) -> None:
        """Check what consumers get, produce a round, and acknowledge some of everything."""
        with connected(url) as client:
            self.check_consumers(client)
            numbers = range(self.sent, self.sent + ROUND)
            for topic in (TOPIC, PARTED):
                with closing(client.create_producer(topic, batching_enabled=False)) as producer:
                    for number in numbers:
                        producer.send(b"%d" % number, partition_key=str(number))
            self.send_once(client, numbers, resend=resend)
            self.send_batches(client, numbers)
            self.sent += ROUND
            self.acknowledge(client)
            self.check_logs(client)

    def send_once(self, client: Client, numbers: range, *, resend: bool) -> None:
        """Send under sequence ids, some of them again: the broker before may have stored them."""
        again = range(max(0, numbers.start - 20), numbers.stop) if resend else numbers
        producer = client.create_producer(
            ONCE, producer_name="app", batching_enabled=False, send_timeout_millis=0
        )
        with closing(producer):
            assert producer.last_sequence_id() == numbers.start - 1
            for number in again:
                producer.send(b"%d" % number, sequence_id=number)

    def send_batches(self, client: Client, numbers: range) -> None:
        producer = client.create_producer(
            BATCHES, batching_enabled=True, batching_max_messages=ROUND
        )
        with closing(producer):
            for number in numbers:
                producer.send_async(b"%d" % number, None)
            producer.flush()

    def subscribe(self, client: Client, name: str, topic: str = TOPIC) -> Consumer:
        exclusive = name in (CUMULATIVE, UNTOUCHED)
        kind = pulsar.ConsumerType.Exclusive if exclusive else pulsar.ConsumerType.Shared
        return client.subscribe(
            topic,
            name,
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )

    def acknowledge(self, client: Client) -> None:
        with closing(self.subscribe(client, HOLES)) as consumer:
            for _ in range(ROUND):
                message = consumer.receive(_MS)
                if int(message.data()) % 3:
                    consumer.acknowledge(message)
                    self.holes.add(int(message.data()))
        with closing(self.subscribe(client, PARTS, BATCHES)) as consumer:
            for _ in range(ROUND):
                message = consumer.receive(_MS)
                if int(message.data()) % 4 == 1:
                    consumer.acknowledge(message)
                    self.parts.add(int(message.data()))
        with closing(self.subscribe(client, CUMULATIVE)) as consumer:
            for _ in range(ROUND // 2):
                message = consumer.receive(_MS)
            consumer.acknowledge_cumulative(message)
            self.upto = int(message.data())

    def check_consumers(self, client: Client, *, exactly: bool = True) -> None:
        """Check that each subscription gets what it has not acknowledged, and `exactly` that."""
        wanted = set(range(self.sent))
        for name, topic, acked in (
            (HOLES, TOPIC, self.holes),
            (PARTS, BATCHES, self.parts),
            (CUMULATIVE, TOPIC, set(range(self.upto + 1))),
            (UNTOUCHED, TOPIC, set[int]()),
        ):
            got = self.drained(client, name, topic, wanted - acked)
            assert set(got) == wanted - acked or not exactly, name
            if name in (CUMULATIVE, UNTOUCHED):
                assert got == sorted(got), name

    def drained(self, client: Client, name: str, topic: str, wanted: set[int]) -> list[int]:
        """Return what a new consumer gets: all that is wanted, and a moment more."""
        got: list[int] = []
        with closing(self.subscribe(client, name, topic)) as consumer:
            while not wanted <= set(got):
                got.append(int(consumer.receive(_MS).data()))
            while True:
                try:
                    got.append(int(consumer.receive(_QUIET_MS).data()))
                except pulsar.Timeout:
                    return got

    def check_logs(self, client: Client) -> None:
        """Check that the topics hold each message once, in the order of the sends."""
        for topic in (TOPIC, ONCE, BATCHES):
            assert read_all(client, topic) == list(range(self.sent))
        parts = [read_all(client, f"{PARTED}-partition-{index}") for index in range(PARTITIONS)]
        assert all(part == sorted(part) for part in parts)
        assert sorted(number for part in parts for number in part) == list(range(self.sent))


def read_all(client: Client, topic: str) -> list[int]:
    got: list[int] = []
    with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        while reader.has_message_available():
            got.append(int(reader.read_next(_MS).data()))
    return got


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Moving]:
    with StandaloneProcess(brokers=1) as cluster:
        # The session ends soon after a kill, so that our broker may have its topics.
        theirs = PulsarBroker(
            pulsar_broker_here(),
            cluster.zookeeper,
            tmp_path / "pulsar",
            metadataStoreSessionTimeoutMillis=4_000,
            acknowledgmentAtBatchIndexLevelEnabled="true",
        )
        made = Moving(cluster, theirs)
        with blocking.connect_admin(cluster.admin_url) as admin:
            admin.create_namespace(NAMESPACE)
            admin.set_retention(NAMESPACE, minutes=77, megabytes=88)
            admin.create_topic(PARTED, partitions=PARTITIONS)
            admin.create_topic(ONCE)
            admin.set_deduplication(NAMESPACE, True)
        with connected(cluster.service_url) as client:
            for name, topic in (
                (HOLES, TOPIC),
                (PARTS, BATCHES),
                (CUMULATIVE, TOPIC),
                (UNTOUCHED, TOPIC),
            ):
                made.subscribe(client, name, topic).close()
        yield made
        theirs.kill()


def test_topics_move_to_pulsar_and_back_after_clean_stops(moving: Moving) -> None:
    moving.work(moving.cluster.service_url, resend=False)
    for _ in range(2):
        moving.cluster.local("stop", "broker-1")
        moving.work(moving.at_theirs(), resend=True)
        status, policies = http_get(f"{moving.theirs.admin_url}/admin/v2/namespaces/{NAMESPACE}")
        assert status == 200
        assert '"retentionTimeInMinutes":77' in policies.replace(" ", "")
        moving.theirs.stop()
        moving.work(moving.at_ours(), resend=True)


def test_topics_move_to_pulsar_and_back_after_crashes(moving: Moving) -> None:
    """Nothing is lost or stored twice, and nothing is skipped; acknowledged ones may come again."""
    moving.work(moving.cluster.service_url, resend=False)
    moving.cluster.local("kill", "broker-1")
    with connected(moving.at_theirs()) as client:
        moving.check_logs(client)
        moving.check_consumers(client, exactly=False)
        moving.send_once(client, range(moving.sent, moving.sent + ROUND), resend=True)
        assert read_all(client, ONCE) == list(range(moving.sent + ROUND))
    moving.theirs.kill()
    with connected(moving.at_ours()) as client:
        moving.check_consumers(client, exactly=False)
        assert read_all(client, TOPIC) == list(range(moving.sent))
        moving.send_once(client, range(moving.sent + ROUND, moving.sent + 2 * ROUND), resend=True)
        assert read_all(client, ONCE) == list(range(moving.sent + 2 * ROUND))
