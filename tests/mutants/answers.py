"""Rules about a broker's answers and their time, broken one at a time: refusals, ends of topics."""

from tests.mutants.patch import Edit, Mutant

_BROKER = "tests:tests/broker"

MUTANTS = [
    Mutant(
        id="AN01",
        rule="a command that is refused repeatedly is answered later -> at once",
        module="daybook.broker.protocol.refusals",
        name="Repeats.delay_s",
        replacement=Edit("min(DELAY_MAX_S, max(DELAY_MIN_S, 2 * before.delay_s))", "0.0"),
        caught_by=f"{_BROKER}/test_refusals.py -k repeats_a_refused_command",
    ),
    Mutant(
        id="AN02",
        rule="delayed answers are bounded -> unbounded",
        module="daybook.broker.service.refused_requests",
        name="RefusedRequests._answer_at",
        replacement=Edit("len(self._waiting) > _WAITING_MAX", "False"),
        caught_by=f"{_BROKER}/test_refusals.py -k bounded",
    ),
    Mutant(
        id="AN03",
        rule="sends are answered after the end of their topic is stored -> before that",
        module="daybook.broker.topics.producer",
        name="Producer.send",
        replacement=Edit("self._held is not None or topic.termination is not None", "False"),
        caught_by=f"{_BROKER}/test_topics.py -k while_a_topic_is_terminated",
    ),
    Mutant(
        id="AN04",
        rule="a producer goes on without a gap if its topic does -> as if nothing was pending",
        module="daybook.broker.topics.topic_producers",
        name="TopicProducers.resume",
        replacement=Edit("if producer.holds_sends:", "if False:"),
        caught_by=f"{_BROKER}/test_topics.py -k could_not_be_terminated",
    ),
    Mutant(
        id="AN05",
        rule="a consumer is told that it is active when its client knows it -> at once",
        module="daybook.broker.dispatch.consumer",
        name="Consumer.send_active",
        replacement=Edit("if self._registered:", "if True:"),
        caught_by=f"{_BROKER}/test_subscriptions.py -k hears_that_it_is_active",
    ),
    Mutant(
        id="AN05 closed",
        rule="a consumer is told that it is closed when its client knows it -> at once",
        module="daybook.broker.dispatch.consumer",
        name="Consumer.disconnect",
        replacement=Edit("if self._registered or self.connection.is_ours:", "if True:"),
        caught_by=f"{_BROKER}/test_subscriptions.py -k closed_at_once",
    ),
    Mutant(
        id="AN06",
        rule="an entry that no bookie accepts is rejected -> it ends the log",
        module="daybook.managed_ledger.log",
        name="ManagedLedger.append",
        replacement=Edit(
            "if size > ALWAYS_TAKEN_BYTES and size > (size_max := self.entry_bytes_max):",
            "if (size_max := 0):",
        ),
        caught_by="tests:tests/managed_ledger/test_log.py -k no_bookie_would_take",
    ),
    Mutant(
        id="AN07",
        rule="each client gets the error code that fails one message only -> all get the same code",
        module="daybook.broker.topics.producer",
        name="Producer._code_for_client",
        replacement=Edit("return pb.ChecksumError", "return code"),
        caught_by=f"{_BROKER}/test_produce_consume.py -k too_large",
    ),
    Mutant(
        id="AN21",
        rule="a long name is remembered by its digest -> as it is",
        module="daybook.broker.protocol.refusals",
        name="_NAME_CHARS_MAX",
        replacement=1 << 30,
        caught_by=f"{_BROKER}/protocol/test_repeats.py -k long_name",
    ),
    Mutant(
        id="AN22",
        rule="the reason of a refusal has a bound -> it quotes what the client has sent",
        module="daybook.broker.service.refused_requests",
        name="RefusedRequests.refuse",
        replacement=Edit("error.reason[:REASON_CHARS_MAX]", "error.reason"),
        caught_by=f"{_BROKER}/test_refusals.py -k quote_megabytes",
    ),
    Mutant(
        id="AN23",
        rule="metadata of a consumer are small -> of any size",
        module="daybook.broker.service.command_bodies",
        name="check_metadata",
        replacement=Edit("if size > most:", "if False:"),
        caught_by=f"{_BROKER}/test_subscriptions.py -k metadata_of_megabytes",
    ),
    Mutant(
        id="AN24",
        rule="a bounded number of acks waits for receipts -> any number",
        module="daybook.broker.service.client_consumers",
        name="ClientConsumers.ack",
        replacement=Edit("elif self._acks_waiting >= ACKS_WAITING_MAX:", "elif False:"),
        caught_by=f"{_BROKER}/test_produce_consume.py -k receipts_are_bounded",
    ),
]
