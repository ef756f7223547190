"""Rules of deduplication, broken one at a time (`docs/formats/managed_ledger.md`)."""

from tests.mutants.patch import Edit, Mutant

_STATE = "daybook.broker.protocol.deduplication"
_SHELL = "daybook.broker.topics.deduplication"
_PRODUCER = "daybook.broker.topics.producer"
_TOPIC = "daybook.broker.topics.topic"
_CURSOR = "daybook.managed_ledger.cursor"
_BY_STATE = "tests:tests/broker/protocol/test_deduplication.py"
_BY_TOPIC = "tests:tests/broker/test_deduplication.py"
_BY_CURSOR = "tests:tests/managed_ledger/test_cursors.py"

MUTANTS = [
    Mutant(
        id="P75",
        rule="a sequence id counts as seen when its entry is confirmed -> when it is appended",
        module=_STATE,
        name="DeduplicationState.appended",
        replacement=Edit(
            "    self._order.append(producer)",
            "    self._order.append(producer)\n    producer.seen = producer.pushed",
        ),
        caught_by="storms:producer",
    ),
    Mutant(
        id="P75 refused",
        rule="what the log refuses is not seen -> it is",
        module=_PRODUCER,
        name="Producer._not_stored",
        replacement=Edit("if self.topic.deduplication is not None:", "if False:"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P75 repeat",
        rule="a repeat of a pending message gets its receipt with the first -> at once",
        module=_PRODUCER,
        name="Producer._answer_repeat",
        replacement=Edit("if self._outstanding:", "if False:"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P75 settle",
        rule="a producer is opened when its earlier entries are settled -> at once",
        module=_SHELL,
        name="Deduplication.last_stored",
        replacement=Edit(
            "return None if self._state.is_pending(name) else self._state.last_seen(name)",
            "return self._state.last_seen(name)",
        ),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P75 told",
        rule="a producer is told its last stored id -> the last one that was appended",
        module=_STATE,
        name="DeduplicationState.last_seen",
        replacement=Edit("producer.seen.last", "producer.pushed.last"),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P76",
        rule="what is known is the snapshot and the entries behind it -> the snapshot alone",
        module=_SHELL,
        name="load",
        replacement=Edit(
            "entries, size = await _replay(log, cursor.mark_delete, state, on_progress)",
            "entries, size = 0, 0",
        ),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P76 lost",
        rule="without a snapshot the log is replayed from its begin -> nothing is known",
        module=_SHELL,
        name="load",
        replacement=Edit("await _replay(log, start, state, on_progress)\n", "pass\n"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P76 begun",
        rule="a new cursor stands at the begin until its snapshot is stored -> at the end",
        module=_SHELL,
        name="load",
        replacement=Edit("initial=start", "initial=log.last_confirmed"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P76 record",
        rule="position and properties change in one record -> without the properties",
        module=_CURSOR,
        name="Cursor._write",
        replacement=Edit("more = self._new_properties or ", "more = "),
        caught_by=_BY_CURSOR,
    ),
    Mutant(
        id="P76 pointer",
        rule="the record of a cursor keeps position and properties together -> a newer position",
        module="daybook.managed_ledger.cursor_ledger",
        name="pointing",
        replacement=Edit(
            "before = Position(info.markDeleteLedgerId, info.markDeleteEntryId)",
            "before = mark_delete",
        ),
        caught_by=_BY_CURSOR,
    ),
    Mutant(
        id="P76 closed",
        rule="a topic that is closed leaves a snapshot -> the last one that was due",
        module=_TOPIC,
        name="Topic.close",
        replacement=Edit("if self.deduplication is not None:", "if False:"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P76 off",
        rule="the cursor is deleted when deduplication is switched off -> it holds ledgers",
        module="daybook.broker.topics.topics",
        name="Topics._load_deduplication",
        replacement=Edit("await deduplication.remove(name, log)", "pass"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P84 accepted",
        rule="a batch that is stored in part is refused -> it is accepted",
        module=_STATE,
        name="_Seen.judge",
        replacement=Edit("if ids.first <= self.last:", "if False:"),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P84 repeat",
        rule="a batch that is stored in part is refused -> it is a repeat",
        module=_STATE,
        name="_Seen.judge",
        replacement=Edit("return Verdict.TORN", "return Verdict.REPEAT"),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P85",
        rule="the last id of a batch is that of its last message -> of its first",
        module=_SHELL,
        name="entry_ids",
        replacement=Edit(
            "metadata.highest_sequence_id or _last_of_batch(metadata, body)",
            "metadata.highest_sequence_id or first",
        ),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P86",
        rule="a message in chunks is seen with its last chunk -> with its first",
        module=_SHELL,
        name="entry_ids",
        replacement=Edit("if chunks > 1:", "if chunks < 0:"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P86 cut",
        rule="chunks of a message that is cut in other places are new -> repeats",
        module=_STATE,
        name="_Seen._judge_chunk",
        replacement=Edit(" and chunk.continues(progress)", ""),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P86 gap",
        rule="a chunk whose predecessor is not stored is refused -> it is new",
        module=_STATE,
        name="_Seen._judge_chunk",
        replacement=Edit("else Verdict.GAP", "else Verdict.NEW"),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P86 replayed gap",
        rule="a message counts as seen if all of its chunks are in the log -> if its last is",
        module=_STATE,
        name="DeduplicationState.replay",
        replacement=Edit(
            "if judged is Verdict.NEW or judged is Verdict.TORN:",
            "if judged is not Verdict.REPEAT:",
        ),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P87",
        rule="a message must name the producer that sends it -> any name",
        module=_PRODUCER,
        name="Producer._bad_ids",
        replacement=Edit("if ids.producer != self.name:", "if False:"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P88",
        rule="generated names are forgotten first -> the idlest",
        module=_STATE,
        name="_Producer.may_go_before",
        replacement=Edit("return 0, self.idle_since_s", "return 1, self.idle_since_s"),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P88 connected",
        rule="the name of a connected producer is not forgotten -> it is",
        module=_STATE,
        name="DeduplicationState.forget",
        replacement=Edit("if not p.connected and not p.pending", "if not p.pending"),
        caught_by=_BY_STATE,
    ),
    Mutant(
        id="P89",
        rule="a client sends no batch that spans stored and new messages -> it does",
        module="daybook.clients.python.topic_producer",
        name="TopicProducer.send",
        replacement=Edit("if sequence_id == self._first_new_id:", "if False:"),
        caught_by="tests:tests/clients/python/test_deduplication.py",
    ),
    Mutant(
        id="P89b",
        rule="no batch of plain messages spans stored and new ones -> it does",
        module="daybook.clients.python.topic_producer",
        name="TopicProducer.send_plain",
        replacement=Edit("sequence_id == self._first_new_id", "False"),
        caught_by="tests:tests/clients/python/test_deduplication.py -k plain",
    ),
    Mutant(
        id="DP90",
        rule="a replay that advances may take long -> a topic with a long one is never loaded",
        module="daybook.broker.topics.loads",
        name="Load.advance",
        replacement=Edit(
            "trio.current_time() + self.patience_s",
            "min(self.scope.deadline, trio.current_time() + self.patience_s)",
        ),
        caught_by="tests:tests/broker/test_deduplication.py -k may_take_long",
    ),
]
