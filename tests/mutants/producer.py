"""Rules of producers, broken one at a time: receipts, lost connections, admission."""

from tests.mutants.patch import Edit, Mutant

_PRODUCER = "daybook.broker.topics.producer"
_PRODUCING = "daybook.broker.protocol.producing"
_ACCESS = "daybook.broker.protocol.access"
_SENDS = "daybook.clients.python.protocol.sends"
_STORMS = "storms:producer"

MUTANTS = [
    Mutant(
        id="P77",
        rule="receipts are given in the order of the sends -> for the newest send",
        module=_PRODUCER,
        name="Producer.stored",
        replacement=Edit("self._outstanding.popleft()", "self._outstanding.pop()"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="P77b",
        rule="a closed producer gives no receipts -> for messages that are stored later",
        module=_PRODUCER,
        name="Producer.stored",
        replacement=Edit("if self.closed:", "if self.closed and error is not None:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="P77c",
        rule="a receipt must be for the oldest send, else the connection ends -> any is accepted",
        module=_SENDS,
        name="PendingSends.receipt",
        replacement=Edit("if sequence_id > queue[0].sequence_id:", "if False:"),
        caught_by="tests:tests/clients/python/protocol/test_rules.py",
    ),
    Mutant(
        id="P79",
        rule="a receipt is given when the log has confirmed -> when the entry was handed to it",
        module=_PRODUCER,
        name="Producer.send",
        replacement=Edit(
            "    topic.append(send.payload",
            "    self._receipts.append((send.sequence_id, send.highest_sequence_id, 0, 0))\n"
            "    self.connection.call_at_flush(self.flush_receipts)\n"
            "    topic.append(send.payload",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="P80",
        rule="sends without a receipt are repeated in order -> the newest first",
        module=_SENDS,
        name="PendingSends.all",
        replacement=Edit("list(self._queue)", "list(self._queue)[::-1]"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="P80b",
        rule="only sends that no broker has are given up for a quota -> those in doubt, too",
        module=_SENDS,
        name="PendingSends.take_unsent",
        replacement=Edit("not (queue[-1].sent or queue[-1].sent_before)", "queue[-1]"),
        caught_by="tests:tests/clients/python/protocol/test_rules.py",
    ),
    Mutant(
        id="P81",
        rule="sends for a dropped producer are ignored -> a violation",
        module=_PRODUCING,
        name="ProducingProtocol.dropped",
        replacement=Edit("self._dropped[producer_id] = now_s + self._ignore_s", "pass"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="P82",
        rule="sends for a producer that is being opened belong to the previous one -> are accepted",
        module=_PRODUCING,
        name="ProducingProtocol.sending",
        replacement=Edit(
            "Sending.TAKE if producer.state is ProducerState.OPEN else Sending.IGNORE",
            "Sending.TAKE",
        ),
        caught_by="tests:tests/broker/protocol/test_connection_machines.py",
    ),
    Mutant(
        id="A01",
        rule="an exclusive producer is alone -> may join others",
        module=_ACCESS,
        name="AccessProtocol.join",
        replacement=Edit(
            "        if occupied:\n"
            '                return [Refuse(producer, pb.ProducerFenced, "the topic has',
            "        if False:\n"
            '                return [Refuse(producer, pb.ProducerFenced, "the topic has',
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="A02",
        rule="a producer with an old epoch is refused -> becomes exclusive again",
        module=_ACCESS,
        name="AccessProtocol._refusal",
        replacement=Edit("candidate.epoch >= self.epoch", "True"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="A02 largest",
        rule="no client names an epoch that no topic has had -> any number",
        module=_ACCESS,
        name="AccessProtocol._refusal",
        replacement=Edit("candidate.epoch > EPOCH_MAX", "False"),
        caught_by="tests:tests/broker/test_topics.py -k no_topic_has_had",
    ),
    Mutant(
        id="A03",
        rule="a fencing producer expels the others -> only the waiting ones",
        module=_ACCESS,
        name="AccessProtocol._fence",
        replacement=Edit(
            "[Expel(producer) for producer in self._admitted]",
            "[Expel(producer) for producer in ()]",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="A04",
        rule="a producer is exclusive when its epoch is stored -> whatever the outcome",
        module=_ACCESS,
        name="AccessProtocol.epoch_not_stored",
        replacement=Edit("self._becoming = None", "return self.epoch_stored(producer)"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="A05",
        rule="a waiting producer becomes exclusive when all have left -> when one leaves",
        module=_ACCESS,
        name="AccessProtocol._promote",
        replacement=Edit("not self._admitted and ", ""),
        caught_by=_STORMS,
    ),
]
