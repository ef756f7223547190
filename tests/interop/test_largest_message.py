"""The largest message, and chunks of 12 MB: official clients and ours, on bookies of each kind.

Daybook's bookies take a message of 5 MiB with its headers, from Pulsar's brokers, too.
"""

import random
from collections.abc import Iterator
from contextlib import closing

import pulsar
import pytest

from daybook.clients.python import blocking
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import PATIENCE_S
from tests.interop.apache import pulsar_broker_here
from tests.interop.pulsar_broker import PulsarBroker

pytestmark = pytest.mark.interop

LARGEST = random.Random(1).randbytes(5 << 20)
CHUNKED = random.Random(2).randbytes(12 << 20)
PATIENCE_MS = int(PATIENCE_S * 1000)
PROPERTIES = {"p" * 100: "v" * 5_000}


@pytest.fixture(scope="module", params=["ours", "theirs"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with StandaloneProcess(brokers=1) as cluster:
        if request.param == "ours":
            yield cluster.service_url
            return
        cluster.local("stop", "broker-1")
        broker = PulsarBroker(
            pulsar_broker_here(), cluster.zookeeper, tmp_path_factory.mktemp("pulsar")
        )
        broker.start()
        yield broker.service_url
        broker.kill()


def test_the_largest_message_and_chunks_of_our_client(url: str) -> None:
    with (
        blocking.connect(url) as client,
        client.subscribe("our-large", "s", initial_position="earliest") as consumer,
    ):
        with client.create_producer("our-large", batching=False) as producer:
            producer.send(LARGEST)
        with client.create_producer("our-large", chunking=True) as producer:
            producer.send(CHUNKED, key="k", properties=PROPERTIES)
        assert consumer.receive(timeout_s=PATIENCE_S).data == LARGEST
        message = consumer.receive(timeout_s=PATIENCE_S)
        assert (message.data, dict(message.properties)) == (CHUNKED, PROPERTIES)


def test_the_largest_message_and_chunks_of_the_official_client(url: str) -> None:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(url, logger=logger)) as client:
        consumer = client.subscribe(
            "their-large", "s", initial_position=pulsar.InitialPosition.Earliest
        )
        # The official client counts the headers, too.
        client.create_producer("their-large", batching_enabled=False).send(LARGEST[1024:])
        chunking = client.create_producer(
            "their-large", chunking_enabled=True, batching_enabled=False
        )
        chunking.send(CHUNKED, partition_key="k", properties=PROPERTIES)
        assert consumer.receive(PATIENCE_MS).data() == LARGEST[1024:]
        message = consumer.receive(PATIENCE_MS)
        assert (message.data(), message.properties()) == (CHUNKED, PROPERTIES)
