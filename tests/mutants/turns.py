"""Rules about the turns of clients' requests, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_TURNS = "daybook.broker.service.request_turns"
_HANDLERS = "daybook.broker.service.handlers"
_TESTS = "tests:tests/broker/test_request_turns.py"

MUTANTS = [
    Mutant(
        id="RQ01",
        rule="requests under way never stop the reading of sends and pings -> they do at the limit",
        module=_HANDLERS,
        name="Handlers._wait_room",
        replacement=Edit(
            "    connection.reading = False\n",
            "    connection.reading = False\n"
            "    limit = self._broker.limits.requests.under_way_max\n"
            "    while self._requests.under_way >= limit:\n"
            "        await trio.sleep(0.01)\n",
        ),
        caught_by=f"{_TESTS} -k sends_and_pings",
    ),
    Mutant(
        id="RQ02",
        rule="waiting requests are bounded in count -> unbounded",
        module=_TURNS,
        name="RequestQueue._is_full",
        replacement=Edit("len(self._waiting) >= limits.waiting_max", "False"),
        caught_by=f"{_TESTS} -k bound",
    ),
    Mutant(
        id="RQ02b",
        rule="waiting requests of a connection are bounded in bytes -> unbounded",
        module=_TURNS,
        name="RequestQueue._is_full",
        replacement=Edit("self._waiting_bytes + size_bytes > limits.waiting_bytes_max", "False"),
        caught_by=f"{_TESTS} -k bytes",
    ),
    Mutant(
        id="RQ02c",
        rule="waiting requests of all connections are bounded in bytes -> unbounded",
        module=_TURNS,
        name="RequestQueue._is_full",
        replacement=Edit(
            "self._turns.waiting_bytes + size_bytes > limits.waiting_total_bytes", "False"
        ),
        caught_by=f"{_TESTS} -k bytes",
    ),
    Mutant(
        id="RQ03",
        rule="a request is for the consumer that was open -> for the next one of its id, too",
        module="daybook.broker.service.client_consumers",
        name="ClientConsumers.known",
        replacement=Edit(
            "if consumer is None or self.opened.get(consumer_id) is not consumer:",
            "consumer = self.opened.get(consumer_id)\n    if consumer is None:",
        ),
        caught_by=f"{_TESTS} -k next_one_of_its_id",
    ),
    Mutant(
        id="RQ04",
        rule="connections start requests in turn -> each starts all of its requests",
        module=_TURNS,
        name="RequestTurns._take_turns",
        replacement=Edit("self._ready[queue] = None", "self._ready = {queue: None, **self._ready}"),
        caught_by=f"{_TESTS} -k flood",
    ),
    Mutant(
        id="RQ05",
        rule="a client that reads no answers gets no more -> its requests are started",
        module=_TURNS,
        name="RequestQueue._may_begin",
        replacement=Edit("and self._connection.takes_answers", ""),
        caught_by=f"{_TESTS} -k takes_no_answers",
    ),
    Mutant(
        id="RQ06",
        rule="a client without requests under way gets one -> not while others use all",
        module=_TURNS,
        name="RequestTurns.has_place_for",
        replacement=Edit("or not queue.under_way", ""),
        caught_by=f"{_TESTS} -k shuts_nobody_out",
    ),
    Mutant(
        id="RQ07",
        rule="a producer that waits for another one uses no slot -> it keeps its slot",
        module="daybook.broker.service.client_producers",
        name="ClientProducers._attach",
        replacement=Edit("self._openings.step_aside(opening)", "pass"),
        caught_by=f"{_TESTS} -k take_no_place",
    ),
    Mutant(
        id="RQ08",
        rule="a shared read begins after all its callers have asked -> before",
        module="daybook.broker.namespaces.shared_reads",
        name="SharedReads.get",
        replacement=Edit(
            "shared = self._next.get(path)",
            "shared = self._next.get(path) or self._current.get(path)",
        ),
        caught_by="tests:tests/broker/test_shared_reads.py",
    ),
    Mutant(
        id="RQ09",
        rule="a client that is not read from is told that the broker lives -> it is not",
        module=_HANDLERS,
        name="Handlers._wait_room_of",
        replacement=Edit("self._connection.send_ping()", "pass"),
        caught_by=f"{_TESTS} -k slow_topic",
    ),
]
