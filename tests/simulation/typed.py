"""Typed producers through takeovers, in a simulated cluster.

Clients add versions of one schema through the partitions of its topic, which both brokers serve,
and send messages with them, while brokers and bookies are killed and sessions expire.  The oracle
knows each version that a broker has confirmed: it is never lost, and never becomes another schema.
Every message that is read decodes to the value that was sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import trio

from daybook import schemas
from daybook.broker.schemas.records import decode_locator, locator_path
from daybook.clients.python.client import Client
from daybook.clients.python.connect import connect
from daybook.clients.python.errors import BrokerError, IncompatibleSchemaError, Remedy
from daybook.wire.topics import TopicName
from tests.simulation.cluster import Cluster, start_cluster
from tests.simulation.scheduler import HOST, Scheduler, run

TOPIC = "typed"
PARTITIONS = 6  # served by both brokers, which add versions of the same schema
CLIENTS = 4
FIELDS = "abcdef"
ROUNDS = 8


@dataclass
class Oracle:
    """The versions that brokers have confirmed, and what was sent with them."""

    versions: dict[int, bytes] = field(default_factory=dict[int, bytes])
    sent: dict[int, dict[str, int]] = field(default_factory=dict[int, dict[str, int]])
    acknowledged: dict[str, set[int]] = field(default_factory=dict[str, set[int]])  # by topic
    refused: int = 0
    read: int = 0

    def confirmed(self, version: int, fields: bytes) -> None:
        """Note a version that a broker has confirmed; all confirmations have to agree."""
        known = self.versions.setdefault(version, fields)
        assert known == fields, f"version {version} was {known!r}, and is {fields!r}"


@dataclass(frozen=True, slots=True)
class Result:
    trace: str
    steps: int
    versions: int
    messages: int
    refused: int


def run_typed(seed: int) -> Result:
    """Run it once.  Raise AssertionError if a version was lost or changed."""

    async def main(scheduler: Scheduler) -> Result:
        oracle = Oracle()
        async with trio.open_nursery() as nursery:
            cluster = await start_cluster(scheduler, seed, nursery)
            await _create_topic(cluster)
            await _story(cluster, Random(seed), oracle)
            cluster.end()
            nursery.cancel_scope.cancel()
        return Result(
            scheduler.trace.hexdigest()[:16],
            scheduler.policy.steps,
            len(oracle.versions),
            oracle.read,
            oracle.refused,
        )

    return run(main, seed=seed)


async def _create_topic(cluster: Cluster) -> None:
    broker = cluster.broker("broker-1")
    assert broker is not None
    create = partial(broker.operations.create_partitioned, TopicName.parse(TOPIC), PARTITIONS)
    await cluster.call("broker-1", create)


async def _story(cluster: Cluster, rng: Random, oracle: Oracle) -> None:
    numbers = iter(range(1 << 30))
    async with trio.open_nursery() as nursery:
        ended: list[trio.Event] = []
        for index in range(CLIENTS):
            ended.append(trio.Event())
            own = Random(rng.random())
            nursery.start_soon(_work, cluster, f"client-{index}", own, oracle, numbers, ended[-1])
        down: set[str] = set()
        nursery.start_soon(_trouble, cluster, Random(rng.random()), down)
        for each in ended:
            await each.wait()
        nursery.cancel_scope.cancel()
    for name in sorted(down):
        await cluster.start(name)
    await _audit(cluster, oracle)


async def _trouble(cluster: Cluster, rng: Random, down: set[str]) -> None:
    """Kill brokers and bookies, one at a time, and let sessions expire.  `down` is not running."""
    while True:
        await trio.sleep(rng.uniform(0.3, 2.0))
        victim = rng.choice(["broker-1", "broker-2", "bookie-1", "bookie-2", "bookie-3", "session"])
        if victim == "session":
            cluster.metadata.expire(rng.choice(["broker-1", "broker-2"]))
            continue
        cluster.kill(victim, power=victim.startswith("bookie"))
        down.add(victim)
        await trio.sleep(rng.uniform(0.1, 1.5))
        down.discard(victim)
        await cluster.start(victim)


def _connect(cluster: Cluster, host: str, rng: Random) -> connect:
    return connect(
        cluster.service_url,
        timeout_s=None,
        network=cluster.network.of(host),
        clock=cluster.clock,
        rng=Random(rng.random()),
    )


async def _work(
    cluster: Cluster,
    host: str,
    rng: Random,
    oracle: Oracle,
    numbers: Iterator[int],
    ended: trio.Event,
) -> None:
    async with _connect(cluster, host, rng) as client:
        HOST.set(host)
        for _ in range(ROUNDS):
            topic = f"{TOPIC}-partition-{rng.randrange(PARTITIONS)}"
            names = "".join(sorted(rng.sample(FIELDS, rng.randint(1, 3))))
            # A producer that gives up now and then leaves its addition to the broker.
            with trio.move_on_after(rng.choice([0.05, 1.0, 60.0])):
                await _produce(client, topic, names, next(numbers), oracle)
            await trio.sleep(rng.uniform(0, 0.3))
    ended.set()


def _schema(names: str) -> schemas.Schema[dict[str, Any]]:
    """Return a schema with these fields.  They have defaults, except `a` alone, which fits none."""
    fields: list[dict[str, Any]] = [{"name": "number", "type": "long"}]
    for name in names:
        member: dict[str, Any] = {"name": name, "type": "long"}
        if name != "a" or len(names) != 1:
            member["default"] = 0
        fields.append(member)
    return schemas.avro_dict({"type": "record", "name": "R", "fields": fields})


async def _produce(client: Client, topic: str, names: str, number: int, oracle: Oracle) -> None:
    schema = _schema(names)
    value = {"number": number, **dict.fromkeys(names, number)}
    while True:
        try:
            async with await client.create_producer(topic, schema=schema) as producer:
                version = producer.schema_version
                assert version is not None
                oracle.confirmed(version, schema.info.data)
                oracle.sent[number] = value
                await producer.send(value)
                oracle.acknowledged.setdefault(topic, set()).add(number)
                return
        except IncompatibleSchemaError:
            oracle.refused += 1
            return
        except BrokerError as error:
            if error.remedy is Remedy.GIVE_UP:
                raise
        await trio.sleep(0.2)


async def _audit(cluster: Cluster, oracle: Oracle) -> None:
    """Compare what is stored with what was confirmed."""
    async with (
        cluster.metadata.open("auditor") as store,
        _connect(cluster, "auditor", Random(1)) as client,
    ):
        HOST.set("auditor")
        record = await store.get(locator_path(TopicName.parse(TOPIC)))
        stored = [] if record is None else decode_locator(record.value, TOPIC).all
        assert [each.version for each in stored] == list(range(len(stored)))
        assert oracle.versions.keys() <= set(range(len(stored))), stored
        for topic, wanted in oracle.acknowledged.items():
            await _read(client, topic, wanted, oracle)


async def _read(client: Client, topic: str, wanted: set[int], oracle: Oracle) -> None:
    found: dict[int, Any] = {}
    async with await client.create_reader(topic, start="earliest", schema=schemas.AUTO) as reader:
        while not wanted <= found.keys():
            message = await reader.receive()
            value: dict[str, int] = message.value or {}
            found[value["number"]] = value
            assert value == oracle.sent[value["number"]]
            version = message.schema_version
            assert version is not None
            names = "".join(key for key in value if key != "number")
            assert oracle.versions[version] == _schema(names).info.data
            oracle.read += 1
