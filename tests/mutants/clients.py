"""What a client opens, receives and gives back, broken one rule at a time."""

from tests.mutants.patch import Edit, Mutant

_CONSUMER = "clients.python.consumer"
_QUEUE = "tests:tests/clients/python/test_message_queue.py"

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
        module="clients.python.topic_consumer",
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

MUTANTS = [*RECEIVING]
