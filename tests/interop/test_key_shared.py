"""Key_shared subscriptions with Pulsar's own clients: order by key, also through losses."""

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
import trio

from daybook.broker.protocol.dispatch.murmur import murmur3
from daybook.clients.testing.standalone import StandaloneProcess
from tests.harness.processes import end, start
from tests.harness.standalone import order as order_parts
from tests.harness.standalone import owner_of, pids, wait_running
from tests.interop.apache import go_client, pulsar_client_here
from tests.interop.letters import SOURCE
from tests.interop.lines import lines_of

pytestmark = pytest.mark.interop

MESSAGES, KEYS = 200, 10
JAVA = SOURCE.with_name("KeyShared.java")
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneProcess]:
    with StandaloneProcess(bookies=1, brokers=2) as running:
        yield running


@pytest.fixture
def client(cluster: StandaloneProcess) -> Iterator[pulsar.Client]:
    found = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    yield found
    found.close()


class Order:
    """Checks that the messages of each key come in order.

    A message that a lost consumer has not acknowledged comes again to another one, in order.  After
    the loss of a broker it may come again to the same one, `times` times.
    """

    def __init__(self, times: int = 0) -> None:
        self._times: dict[tuple[str, str], int] = defaultdict(lambda: times)
        self.consumers: dict[str, set[str]] = defaultdict(set)  # by key
        self._last: dict[tuple[str, str], int] = {}
        self._first: dict[str, int] = defaultdict(lambda: -1)

    def came(self, consumer: str, key: str, number: int) -> None:
        self.consumers[key].add(consumer)
        where = consumer, key
        if number <= self._last.get(where, -1):
            assert self._times[where] > 0, (consumer, key, number, self._last[where])
            self._times[where] -= 1
        self._last[where] = number
        assert number <= self._first[key] + KEYS, (consumer, key, number)
        self._first[key] = max(self._first[key], number)


def check_lines(lines: list[str], times: int = 0) -> Order:
    order = Order(times)
    for line in lines:
        consumer, key, number = line.split()
        order.came(consumer, key, int(number))
    assert len({line.split()[2] for line in lines}) == MESSAGES
    return order


def check_sticky(order: Order) -> None:
    for key, consumers in order.consumers.items():
        slot = murmur3(key.encode()) % 65536
        assert consumers == {"c0" if slot <= 32767 else "c1"}


@pytest.mark.parametrize("mode", ["auto", "sticky"])
def test_javas_client_gets_each_key_in_order(
    cluster: StandaloneProcess, tmp_path: Path, mode: str
) -> None:
    where = cluster.service_url, f"java-keys-{mode}", mode
    process = start(
        pulsar_client_here().command(tmp_path, str(JAVA), *where), tmp_path / "java.txt"
    )
    try:
        lines = lines_of(process)
    finally:
        end(process)
    if mode == "sticky":
        assert lines.pop(0) == "ConsumerAssignException"
    order = check_lines(lines)
    if mode == "sticky":
        check_sticky(order)


@pytest.mark.parametrize("mode", ["auto", "sticky"])
def test_gos_client_gets_each_key_in_order(
    cluster: StandaloneProcess, tmp_path: Path, mode: str
) -> None:
    go = go_client()
    if go is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    command = [str(go), "key-shared", cluster.service_url, f"go-keys-{mode}", mode]
    process = start(command, tmp_path / "go.txt")
    try:
        lines = lines_of(process)
    finally:
        end(process)
    if mode == "sticky":
        assert "ConsumerAssignError" in lines.pop(0)
    order = check_lines(lines)
    if mode == "sticky":
        check_sticky(order)


def send(client: pulsar.Client, topic: str, numbers: range) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased
    )
    for number in numbers:
        producer.send_async(
            b"%d" % number,
            None,
            partition_key=f"key-{number}",
            ordering_key=f"order-{number % KEYS}",
        )
    producer.flush()
    producer.close()


def subscribe(
    client: pulsar.Client, topic: str, name: str, ranges: list[tuple[int, int]] | None = None
) -> pulsar.Consumer:
    policy = None
    if ranges is not None:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, ranges)
    return client.subscribe(
        topic,
        "keys",
        consumer_name=name,
        consumer_type=pulsar.ConsumerType.KeyShared,
        initial_position=EARLIEST,
        key_shared_policy=policy,
    )


def receive(order: Order, name: str, consumer: pulsar.Consumer, *, ack: bool = True) -> int | None:
    try:
        message = consumer.receive(timeout_millis=50)
    except pulsar.Timeout:
        return None
    number = int(message.data())
    order.came(name, f"order-{number % KEYS}", number)
    if ack:
        consumer.acknowledge(message)
    return number


def test_pythons_client_gets_each_key_in_order_when_a_consumer_is_lost(
    cluster: StandaloneProcess, client: pulsar.Client
) -> None:
    topic, order, done = "python-keys", Order(), set[int | None]()
    other = pulsar.Client(
        cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    one, two = subscribe(client, topic, "c0"), subscribe(other, topic, "c1")
    send(client, topic, range(MESSAGES))
    for _ in range(30):
        done.add(receive(order, "c0", one))
        receive(order, "c1", two, ack=False)
    three = subscribe(client, topic, "c2")
    other.shutdown()
    while len(done - {None}) < MESSAGES:
        done |= {receive(order, "c0", one), receive(order, "c2", three)}


def test_pythons_client_gets_the_keys_of_its_ranges(client: pulsar.Client) -> None:
    topic, order, done = "python-sticky", Order(), set[int | None]()
    one = subscribe(client, topic, "c0", [(0, 32767)])
    send(client, topic, range(MESSAGES))
    while receive(order, "c0", one) is not None or not order.consumers:
        pass
    with pytest.raises(pulsar.ConsumerAssignError):
        subscribe(client, topic, "c2", [(32767, 65535)])
    two = subscribe(client, topic, "c1", [(32768, 65535)])
    while len(order.consumers) < KEYS or receive(order, "c1", two) is not None:
        done.add(receive(order, "c1", two))
    check_sticky(order)


async def kill_owner(cluster: StandaloneProcess, topic: str) -> str:
    owner = await owner_of(cluster, topic)
    os.kill((await pids(cluster))[owner], signal.SIGKILL)
    return owner


async def revive(cluster: StandaloneProcess, broker: str) -> None:
    await order_parts(cluster, "start", broker)
    await wait_running(cluster)


def test_keys_are_in_order_when_the_broker_is_killed(
    cluster: StandaloneProcess, client: pulsar.Client
) -> None:
    topic, order, done = "python-killed", Order(times=1), set[int | None]()
    one, two = subscribe(client, topic, "c0"), subscribe(client, topic, "c1")
    send(client, topic, range(MESSAGES))
    for _ in range(30):
        done |= {receive(order, "c0", one), receive(order, "c1", two)}
    # A message whose acknowledgement was not durable comes again.
    owner = trio.run(kill_owner, cluster, topic)
    while len(done - {None}) < MESSAGES:
        done |= {receive(order, "c0", one), receive(order, "c1", two)}
    trio.run(revive, cluster, owner)


def keys_while_the_broker_is_killed(
    cluster: StandaloneProcess, topic: str, command: list[str], log: Path
) -> None:
    process = start(command, log)
    try:
        before = lines_of(process, "now")
        owner = trio.run(kill_owner, cluster, topic)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        after = lines_of(process)
    finally:
        end(process)
    assert len({line.split()[2] for line in before}) < MESSAGES
    check_lines(before + after, times=1)
    trio.run(revive, cluster, owner)


def test_javas_client_gets_each_key_in_order_when_the_broker_is_killed(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    topic = "java-killed"
    words = str(JAVA), cluster.service_url, topic, "killed"
    command = pulsar_client_here().command(tmp_path, *words)
    keys_while_the_broker_is_killed(cluster, topic, command, tmp_path / "java.txt")


def test_gos_client_gets_each_key_in_order_when_the_broker_is_killed(
    cluster: StandaloneProcess, tmp_path: Path
) -> None:
    go = go_client()
    if go is None:
        pytest.skip("the Go client was not built: `sh tests/interop/fetch_go.sh` says why")
    topic = "go-killed"
    command = [str(go), "key-shared", cluster.service_url, topic, "killed"]
    keys_while_the_broker_is_killed(cluster, topic, command, tmp_path / "go.txt")
