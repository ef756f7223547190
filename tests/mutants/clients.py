"""What a client opens, receives and gives back, broken one rule at a time."""

from tests.mutants.patch import Edit, Mutant

_CONSUMER = "clients.python.consumer"
_TOPIC_CONSUMER = "clients.python.topic_consumer"
_QUEUE = "tests:tests/clients/python/test_message_queue.py"

_PERMITS = "tests:tests/clients/python/test_permits.py"

RECEIVING = [
    Mutant(
        id="CL01",
        rule="what arrives wakes all who wait for it -> the one who came last",
        module=_CONSUMER,
        name="MessageQueue._wait_for_news",
        replacement=Edit("if self._arrived.is_set():", "if True:"),
        source_hash="3710c36a18eb",
        caught_by=f"{_QUEUE} -k as_many_tasks",
    ),
    Mutant(
        id="CL02",
        rule="who waits for a message hears that the consumer was closed -> waits for ever",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer._ended",
        replacement=Edit("self._inbox.wake()", "pass"),
        source_hash="2a51d5c7981c",
        caught_by="tests:tests/clients/python/test_consumer.py -k several_tasks",
    ),
    Mutant(
        id="CL03",
        rule="what one thread fetches is for all that wait -> for itself",
        module="clients.python.blocking",
        name="_Source._take",
        replacement=Edit(
            "self._fetching.acquire(timeout=patience_s)", "self._fetching.acquire(timeout=0)"
        ),
        source_hash="a099d9cee119",
        caught_by="tests:tests/clients/python/test_blocking.py -k several_threads",
    ),
]

PERMITS = [
    Mutant(
        id="CL11",
        rule="an entry that cannot be read gives back the permits that it took -> one",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer.unpack",
        replacement=Edit(
            "        self._pay_back(delivery, payload)\n        where",
            "        self._give_permits(1, len(payload))\n        where",
        ),
        source_hash="a03c6f32df4f",
        caught_by=f"{_PERMITS} -k every_kind",
    ),
    Mutant(
        id="CL12",
        rule="an entry that came twice gives back the permits of both -> of one",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer.on_delivery",
        replacement=Edit("self._pay_back(delivery, delivery.payload)", "pass"),
        source_hash="bac1cdb5f26c",
        caught_by=f"{_PERMITS} -k reader_that_comes_back",
    ),
    Mutant(
        id="CL13",
        rule="what waits when a consumer goes back gives back its permits -> is forgotten",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer._drop",
        replacement=Edit("self._pay_back(waiting.delivery, waiting.payload)", "pass"),
        source_hash="54aa22c93eee",
        caught_by=f"{_PERMITS} -k before_it",
    ),
    Mutant(
        id="CL14",
        rule="what waits in a reader that comes back counts as permitted -> is granted once more",
        module="clients.python.protocol.permits",
        name="Permits.restart",
        replacement=Edit("self._outstanding - waiting", "self._outstanding"),
        source_hash="8192be557a22",
        caught_by=f"{_PERMITS} -k reader_that_comes_back",
    ),
    Mutant(
        id="CL15",
        rule="messages of a batch that are acknowledged took no permits -> are given back",
        module="clients.python.entries",
        name="_permits",
        replacement=Edit("count if ack_set is None else", "count if True else"),
        source_hash="d46468c91f22",
        caught_by=f"{_PERMITS} -k count_the_same",
    ),
    Mutant(
        id="CL16",
        rule="what cannot be read counts as the broker counts it -> as one message",
        module="clients.python.entries",
        name="permits_of",
        replacement=Edit("count_messages(memoryview(payload))", "1"),
        source_hash="9af1412e6fd5",
        caught_by=f"{_PERMITS} -k every_kind",
    ),
]

MUTANTS = [*RECEIVING, *PERMITS]
