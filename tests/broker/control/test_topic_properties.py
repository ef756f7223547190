"""Properties of topics, over whole brokers on simulated seams."""

from daybook.managed_ledger.records import log_path, parse, properties_of
from daybook.managed_ledger.records_pb2 import ManagedLedgerInfo
from daybook.wire.topics import TopicName
from tests.broker.control.test_server import ORDERS, World, send, simulated
from tests.broker.control.test_subscription_admin import TOPICS, Rest

PROPERTIES = f"{TOPICS}/orders/properties"


def test_properties_are_added_replaced_and_removed() -> None:
    async def story(world: World) -> None:
        rest = Rest(await world.broker("one"))
        await rest.do("PUT", f"{TOPICS}/orders", {"team": "billing"})
        assert (await rest.do("GET", PROPERTIES)).json == {"team": "billing"}
        await rest.do("PUT", PROPERTIES, {"team": "sales", "pager": "7"})
        await rest.do("PUT", PROPERTIES, {})
        assert (await rest.do("GET", PROPERTIES)).json == {"team": "sales", "pager": "7"}
        await rest.do("DELETE", PROPERTIES, key="team")
        await rest.do("DELETE", PROPERTIES, key="team")
        assert (await rest.do("GET", PROPERTIES)).json == {"pager": "7"}
        assert (await rest.ask("DELETE", PROPERTIES)).status == 412
        assert (await rest.ask("GET", f"{TOPICS}/none/properties")).status == 404
        assert (await rest.ask("PUT", f"{TOPICS}/none/properties", {"a": "b"})).status == 404

    simulated(story)


def test_properties_outlive_an_unload_and_leave_those_of_brokers_alone() -> None:
    async def story(world: World) -> None:
        broker = await world.broker("one")
        rest = Rest(broker)
        await rest.do("PUT", f"{TOPICS}/orders")
        async with world.client("one") as client:
            await send(client, ORDERS.full, 3)
        await (await broker.operations.owned.get(ORDERS)).store_epoch(4)
        await rest.do("PUT", PROPERTIES, {"team": "billing"})
        await rest.do("PUT", f"{TOPICS}/orders/unload")
        assert (await rest.do("GET", PROPERTIES)).json == {"team": "billing"}
        async with world.cluster.metadata.open("reader") as store:
            record = await store.get(log_path(ORDERS.managed_ledger_name))
        assert record is not None
        stored = properties_of(parse(ManagedLedgerInfo(), record.value, "the list"))
        assert stored["team"] == "billing"
        assert stored["index"] == "2"
        assert (await broker.operations.owned.get(ORDERS)).stored_epoch == 4
        async with world.client("one") as client:
            assert (await client.offsets(ORDERS.full)).next == 3

    simulated(story)


def test_names_that_brokers_use_are_refused() -> None:
    async def story(world: World) -> None:
        rest = Rest(await world.broker("one"))
        for name in ("index", "daybook.instance", "pulsar.topic.epoch", "PULSAR.SHADOW_SOURCE"):
            answer = await rest.ask("PUT", f"{TOPICS}/orders", {name: "1"})
            assert (answer.status, name in answer.json["reason"]) == (412, True)
        await rest.do("PUT", f"{TOPICS}/orders")
        assert (await rest.ask("PUT", PROPERTIES, {"index": "9"})).status == 412
        assert (await rest.ask("DELETE", PROPERTIES, key="daybook.instance")).status == 412
        assert (await rest.do("GET", PROPERTIES)).json == {}

    simulated(story)


def test_all_properties_together_have_a_limit() -> None:
    async def story(world: World) -> None:
        rest = Rest(await world.broker("one"))
        await rest.do("PUT", f"{TOPICS}/orders", {"a": "x" * 40_000})
        assert (await rest.ask("PUT", PROPERTIES, {"b": "x" * 40_000})).status == 412
        await rest.do("PUT", PROPERTIES, {"a": "y" * 60_000})
        await rest.do("DELETE", PROPERTIES, key="a")
        await rest.do("PUT", PROPERTIES, {"b": "x" * 40_000})

    simulated(story)


def test_a_partitioned_topic_and_its_partitions_have_properties_of_their_own() -> None:
    async def story(world: World) -> None:
        rest = Rest(await world.broker("one"))
        new = {"partitions": 2, "properties": {"team": "billing"}}
        await rest.do("PUT", f"{TOPICS}/many/partitions", new)
        await rest.do("PUT", f"{TOPICS}/many/properties", {"pager": "7"})
        both = {"team": "billing", "pager": "7"}
        assert (await rest.do("GET", f"{TOPICS}/many/properties")).json == both
        found = (await rest.do("GET", f"{TOPICS}/many/partitions")).json
        assert (found["partitions"], found["properties"]) == (2, both)
        async with world.client("one") as client:
            await send(client, TopicName.parse("many").full, 2)
        first = f"{TOPICS}/many-partition-0/properties"
        await rest.do("PUT", first, {"disk": "slow"})
        assert (await rest.do("GET", first)).json == {"disk": "slow"}
        await rest.do("DELETE", f"{TOPICS}/many/properties", key="team")
        assert (await rest.do("GET", f"{TOPICS}/many/properties")).json == {"pager": "7"}

    simulated(story)
