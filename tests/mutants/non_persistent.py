"""Rules of topics that store nothing, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.dispatch.non_persistent"
_TOPIC = "daybook.broker.topics.non_persistent"
_SUBSCRIPTION = "daybook.broker.dispatch.non_persistent"
_HANDLERS = "daybook.broker.service.handlers"
_CONSUMER = "daybook.clients.python.topic_consumer"
_BY_MACHINE = "tests:tests/broker/protocol/test_non_persistent_dispatch.py"
_BY_CLIENTS = "tests:tests/broker/test_non_persistent.py"
_BY_BROKERS = "tests:tests/broker/control/test_non_persistent_topics.py"

MUTANTS = [
    Mutant(
        id="NP01",
        rule="a consumer without permits gets nothing -> it gets everything",
        module=_MACHINE,
        name="NonPersistentDispatch._takes",
        replacement=Edit("self._consumers[consumer].permits > 0 and ", ""),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="NP02",
        rule="a consumer whose client does not read gets nothing -> its queue grows",
        module=_MACHINE,
        name="NonPersistentDispatch._takes",
        replacement=Edit(" and left[consumer] > 0", ""),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP03",
        rule="a batch takes as many permits as it has messages -> one",
        module=_MACHINE,
        name="NonPersistentDispatch._give",
        replacement=Edit("permits -= entry.messages", "permits -= 1"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="NP04",
        rule="messages that nobody takes are counted -> entries",
        module=_MACHINE,
        name="NonPersistentDispatch.assign",
        replacement=Edit(
            "assigned.dropped += entry.messages\n            continue",
            "assigned.dropped += 1\n            continue",
        ),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="NP05",
        rule="shared consumers take turns -> the first one gets what it can",
        module=_MACHINE,
        name="NonPersistentDispatch.assign",
        replacement=Edit("ready.rotate(-1)", "pass"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="NP06",
        rule="the next priority is served when the best one is full -> entries are dropped",
        module=_MACHINE,
        name="NonPersistentDispatch.assign",
        replacement=Edit("if not ready:\n                ready = self._ready(left)", "pass"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="NP07",
        rule="a failover subscription changes its active consumer at once -> never",
        module=_MACHINE,
        name="NonPersistentDispatch._chosen",
        replacement=Edit(", *self._chooser.tick(_FAR_MS)", ""),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="NP15",
        rule="only the consumer of a key gets its messages -> another one that has room",
        module=_MACHINE,
        name="NonPersistentDispatch.assign",
        replacement=Edit(
            "owner = self.ranges.owner_of(entry.key)",
            "owner = next((c for c in self._consumers if self._takes(c, left)), None)",
        ),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP08",
        rule="a subscription ends with its last consumer -> it stays",
        module=_SUBSCRIPTION,
        name="NonPersistentSubscription.drop_if_unused",
        replacement=Edit("if not self.consumers:", "if False:"),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP09",
        rule="a topic that nobody uses is forgotten -> it stays in memory",
        module=_TOPIC,
        name="NonPersistentTopics._forget_unused",
        replacement=Edit("self._drop(topic)", "pass"),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP10",
        rule="a topic goes with its bundle -> it stays on the broker that lost it",
        module=_TOPIC,
        name="NonPersistentTopics.close_bundle",
        replacement=Edit("self._drop(topic)", "pass"),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP11",
        rule="a flood lets other tasks run -> it does not",
        module=_TOPIC,
        name="NonPersistentTopic.append",
        replacement=Edit("producer.connection.yield_soon()", "pass"),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP12",
        rule="what needs stored messages is refused -> the connection fails",
        module=_HANDLERS,
        name="_stored",
        replacement=Edit("if not isinstance(subscription, Subscription):", "if False:"),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP13",
        rule="a partition has to be one of its topic -> any index is created",
        module=_TOPIC,
        name="NonPersistentTopics._check_creation",
        replacement=Edit(
            "partitions = await self._policies.newest_partitions(name.base)", "partitions = 1 << 30"
        ),
        caught_by=_BY_CLIENTS,
    ),
    Mutant(
        id="NP14",
        rule="messages with the id 0:0 are no repeats of each other -> the client drops them",
        module=_CONSUMER,
        name="TopicConsumer.on_delivery",
        replacement=Edit("not self._acknowledges or ", ""),
        caught_by=_BY_BROKERS,
    ),
]
