"""Rules about what a client opens, receives and gives back, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_HANDLER = "daybook.clients.python.connection_handler"
_CONSUMER = "daybook.clients.python.consumer"
_TOPIC_CONSUMER = "daybook.clients.python.topic_consumer"
_QUEUE = "tests:tests/clients/python/test_message_queue.py"

_BLOCKING = "tests:tests/clients/python/test_blocking.py"
_BLOCKING_END = "tests:tests/clients/python/test_blocking_end.py"
_PERMITS = "tests:tests/clients/python/test_permits.py"
_GIVEN_UP = "tests:tests/clients/python/test_given_up.py"
_CONNECTIONS = "tests:tests/broker/test_connection.py"

RECEIVING = [
    Mutant(
        id="CL01",
        rule="a message wakes all waiting receivers -> only the last one",
        module="daybook.clients.python.message_queue",
        name="MessageQueue._wait_for_news",
        replacement=Edit("if self._arrived.is_set():", "if True:"),
        caught_by=f"{_QUEUE} -k as_many_tasks",
    ),
    Mutant(
        id="CL02",
        rule="a receiver gets an error when the consumer is closed -> waits forever",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer._ended",
        replacement=Edit("self._queue.wake()", "pass"),
        caught_by="tests:tests/clients/python/test_consumer.py -k several_tasks",
    ),
    Mutant(
        id="CL03",
        rule="messages that one thread fetches are for all waiting threads -> for itself",
        module="daybook.clients.python.blocking",
        name="_Source._take",
        replacement=Edit("timeout=-1 if left_s == inf else _lock_s(left_s)", "timeout=0"),
        caught_by=f"{_BLOCKING} -k several_threads",
    ),
    Mutant(
        id="CL04",
        rule="messages fetched for an interrupted caller stay -> are lost",
        module="daybook.clients.python.blocking",
        name="_Source._fetch",
        replacement=Edit(
            "        self._fetched.extend(messages)\n"
            "        return bool(messages), in_time\n"
            "    return self._portal.call(fetch)\n",
            "        return messages, in_time\n\n"
            "    messages, in_time = self._portal.call(fetch)\n"
            "    self._fetched.extend(messages)\n"
            "    return bool(messages), in_time\n",
        ),
        caught_by=f"{_BLOCKING} -k interrupted_receive",
    ),
]

ENDING = [
    Mutant(
        id="CL05",
        rule="a closed client stores all accepted messages -> only those taken so far",
        module="daybook.clients.python.blocking",
        name="Client._close_all",
        replacement=Edit("*(producer.close_here for producer in self._producers), ", ""),
        caught_by=f"{_BLOCKING_END} -k queued_is_stored",
    ),
    Mutant(
        id="CL06",
        rule="callbacks are called for messages that were never sent -> they are not",
        module="daybook.clients.python.blocking_producer",
        name="Producer._ended",
        replacement=Edit("for message in left:", "for message in ():"),
        caught_by=f"{_BLOCKING_END} -k cut_off",
    ),
]

PERMITS = [
    Mutant(
        id="CL11",
        rule="an unreadable entry returns all permits that it took -> one",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer.unpack",
        replacement=Edit(
            "        self._pay_back(delivery, payload)\n        where",
            "        self._give_permits(1, len(payload))\n        where",
        ),
        caught_by=f"{_PERMITS} -k every_kind",
    ),
    Mutant(
        id="CL12",
        rule="an entry that came twice returns the permits of both -> of one",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer.on_delivery",
        replacement=Edit("self._pay_back(delivery, delivery.payload)", "pass"),
        caught_by=f"{_PERMITS} -k reader_that_comes_back",
    ),
    Mutant(
        id="CL13",
        rule="waiting entries return their permits when a consumer seeks back -> they do not",
        module=_TOPIC_CONSUMER,
        name="TopicConsumer._drop",
        replacement=Edit("self._pay_back(waiting.delivery, waiting.payload)", "pass"),
        caught_by=f"{_PERMITS} -k before_it",
    ),
    Mutant(
        id="CL14",
        rule="entries that wait in a reconnected reader count as permitted -> are granted again",
        module="daybook.clients.python.protocol.permits",
        name="Permits.restart",
        replacement=Edit("self._outstanding - waiting", "self._outstanding"),
        caught_by=f"{_PERMITS} -k reader_that_comes_back",
    ),
    Mutant(
        id="CL15",
        rule="acknowledged messages of a batch took no permits -> return some",
        module="daybook.clients.python.entries",
        name="_permits",
        replacement=Edit("count if ack_set is None else", "count if True else"),
        caught_by=f"{_PERMITS} -k count_the_same",
    ),
    Mutant(
        id="CL16",
        rule="an unreadable entry counts as the broker counts it -> as one message",
        module="daybook.clients.python.entries",
        name="permits_of",
        replacement=Edit("count_messages(memoryview(payload))", "1"),
        caught_by=f"{_PERMITS} -k every_kind",
    ),
]

GIVING_UP = [
    Mutant(
        id="CL21",
        rule="an open that is given up is closed at the broker -> its result stays",
        module=_HANDLER,
        name="ConnectionHandler._attach",
        replacement=Edit("self._take_back(connection)", "pass"),
        caught_by=f"{_GIVEN_UP} -k cancelled_leaves",
    ),
    Mutant(
        id="CL21b",
        rule="a caller cancelled as it was registered is removed -> it stays",
        module=_HANDLER,
        name="ConnectionHandler._attach",
        replacement=Edit("registered = not detached.is_set()", "registered = True"),
        caught_by=f"{_GIVEN_UP} -k in_the_moment",
    ),
    Mutant(
        id="CL22",
        rule="the broker is told about an end without a close -> it is not",
        module=_HANDLER,
        name="ConnectionHandler._end",
        replacement=Edit("self._take_back(connection)", "pass"),
        caught_by=f"{_GIVEN_UP} -k partition",
    ),
    Mutant(
        id="CL23",
        rule="a cancelled close ends the connection handler -> leaves it",
        module=_HANDLER,
        name="ConnectionHandler.close",
        replacement=Edit(
            "    finally:\n        self.abandon()\n",
            "    except KeyError:\n        pass\n    self.abandon()\n",
        ),
        also=(
            Mutant(
                id="CL23/2",
                rule="the same for objects made of several connection handlers",
                module=_CONSUMER,
                name="MessageSource.aclose",
                replacement=Edit(
                    "    finally:\n        self.abandon()\n",
                    "    except KeyError:\n        pass\n    self.abandon()\n",
                ),
                caught_by="",
            ),
        ),
        caught_by=f"{_GIVEN_UP} -k ends_with_an_error",
    ),
    Mutant(
        id="CL24",
        rule="a reader that cannot seek to its start is closed -> it is leaked",
        module="daybook.clients.python.sources",
        name="Sources.open_reader",
        replacement=Edit("reader.abandon()\n", "pass\n"),
        caught_by=f"{_GIVEN_UP} -k first_seek",
    ),
    Mutant(
        id="CL24b",
        rule="an object made for an interrupted caller is closed -> it is leaked",
        module="daybook.clients.python.portal",
        name="_give_up",
        replacement=Edit("unwanted(result.result())", "pass"),
        caught_by="tests:tests/clients/python/test_portal.py -k given_up",
    ),
    Mutant(
        id="CL25",
        rule="a close is answered when the consumer's open is undone -> at once",
        module="daybook.broker.protocol.consuming",
        name="ConsumingProtocol.close",
        replacement=Edit(
            "consumer.close_requests.append(request_id)\n"
            "            return [Abort(consumer_id, consumer.attempt)]\n",
            "return [Abort(consumer_id, consumer.attempt), Confirm(request_id)]\n",
        ),
        caught_by=f"{_CONNECTIONS} -k opening_is_undone",
    ),
    Mutant(
        id="CL26",
        rule="a close is answered when the producer's open is undone -> at once",
        module="daybook.broker.protocol.producing",
        name="ProducingProtocol.close",
        replacement=Edit(
            "producer.close_requests.append(request_id)\n"
            "            return [Abort(producer_id, producer.attempt)]\n",
            "return [Abort(producer_id, producer.attempt), Confirm(request_id)]\n",
        ),
        caught_by=f"{_CONNECTIONS} -k opening_is_undone",
    ),
    Mutant(
        id="CL27",
        rule="a consumer closed during its open does not join -> joins and leaves",
        module="daybook.broker.service.client_consumers",
        name="ClientConsumers._open",
        replacement=Edit("(scope.cancel_called or connection.closing)", "False"),
        caught_by=f"{_CONNECTIONS} -k volatile",
    ),
    Mutant(
        id="CL28",
        rule="a volatile subscription is deleted with the open that made it -> stays forever",
        module="daybook.broker.dispatch.subscription",
        name="Subscription.drop_if_unused",
        replacement=Edit("self.drop()", "pass"),
        caught_by=f"{_CONNECTIONS} -k volatile",
    ),
]

MUTANTS = [*RECEIVING, *ENDING, *PERMITS, *GIVING_UP]
