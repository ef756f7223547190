"""Rules of the Python client's larger features, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MULTI = "daybook.clients.python.multi_topic"
_CHOICE = "daybook.clients.python.topic_choice"
_QUEUE = "daybook.clients.python.message_queue"
_CONNECTION = "daybook.clients.python.connection"
_BY_PATIENCE = "tests:tests/clients/python/test_patience.py"
_LETTERS = "daybook.clients.python.dead_letters"
_BY_LETTERS = "tests:tests/clients/python/test_dead_letters.py"
_BY_AIO = "tests:tests/clients/python/test_aio.py"
_PIPE = "daybook.clients.python.pipe"
_PARTITION = "daybook.clients.python.pipe_partition"
_RULES = "daybook.clients.python.protocol.piping"
_BY_RULES = "tests:tests/clients/python/protocol/test_piping.py"
_BY_PIPE = "tests:tests/clients/python/test_pipe.py"
_CHUNKS = "daybook.clients.python.protocol.chunks"
_BY_CHUNKS = "tests:tests/clients/python/test_chunks.py"
_BY_MULTI = "tests:tests/clients/python/test_multi_topic.py"

SEVERAL_TOPICS = [
    Mutant(
        id="PC01",
        rule="a deleted topic of a pattern is not created again -> its consumer creates it",
        module="daybook.clients.python.topic_consumer",
        name="ConsumerSettings.request",
        replacement=Edit("if not self.create:", "if False:"),
        caught_by=f"{_BY_MULTI} -k deleted",
    ),
    Mutant(
        id="PC02",
        rule="a topic that comes later is read from its first message on -> from its end",
        module=_MULTI,
        name="MultiTopicConsumer._poll",
        replacement=Edit("replace(self._settings, start=EARLIEST)", "self._settings"),
        caught_by=f"{_BY_MULTI} -k nothing_yet",
    ),
    Mutant(
        id="PC03",
        rule="topics take turns -> a topic is served until it has no entries",
        module=_QUEUE,
        name="MessageQueue._unpack",
        replacement=Edit("len(self._entries) > 1", "False"),
        caught_by=f"{_BY_MULTI} -k turns",
    ),
    Mutant(
        id="PC04",
        rule="all topics of a consumer share its queue -> each has all of it",
        module="daybook.clients.python.protocol.permits",
        name="Permits.target",
        replacement=Edit("self._shares.count or 1", "1"),
        caught_by=f"{_BY_MULTI} -k share_one_queue",
    ),
    Mutant(
        id="PC05",
        rule="an id goes to its topic -> to the first one",
        module=_MULTI,
        name="MultiTopicConsumer._consumer_of",
        replacement=Edit("or consumer.topic.full == place.topic", "or True"),
        caught_by=f"{_BY_MULTI} -k of_the_id",
    ),
    Mutant(
        id="PC06",
        rule="the end of all present topics of a pattern is not the end -> it is",
        module=_QUEUE,
        name="MessageQueue._has_ended",
        replacement=Edit("not self._endless and all(", "all("),
        caught_by=f"{_BY_MULTI} -k nothing_yet",
    ),
    Mutant(
        id="PC07",
        rule="a pattern is for the whole name -> for its beginning",
        module=_CHOICE,
        name="TopicPattern.matches",
        replacement=Edit("self.regex.fullmatch(name)", "self.regex.match(name)"),
        caught_by=f"{_BY_MULTI} -k whole_names",
    ),
]

REJECTED = [
    Mutant(
        id="PC77",
        rule="a dead letter goes to the topic of its own topic -> to that of the first one",
        module=_LETTERS,
        name="DeadLetters.__init__",
        replacement=Edit(
            "policy.dead_letter_topic(name, subscription) if retry else policy.topic",
            "policy.dead_letter_topic(name, subscription)",
        ),
        caught_by=f"{_BY_LETTERS} -k several_topics",
    ),
    Mutant(
        id="PC10",
        rule="a message is acknowledged when its dead letter is stored -> when it is given up",
        module=_LETTERS,
        name="DeadLetters.give_up",
        replacement=Edit(
            "self._known.add(known)",
            "self._known.add(known)\n    acknowledge()",
        ),
        caught_by=f"{_BY_LETTERS} -k letter_is_stored",
    ),
    Mutant(
        id="PC11",
        rule="only messages of a batch that are not acknowledged are given up -> all of them",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.unpack",
        replacement=Edit(
            "self._give_up(dead, messages, unpacked.permits",
            "self._give_up(dead, unpacked.messages, unpacked.permits",
        ),
        caught_by=f"{_BY_LETTERS} -k no_dead_letters",
    ),
    Mutant(
        id="PC12",
        rule="a message whose letter was refused comes again -> it is forgotten",
        module=_LETTERS,
        name="DeadLetters._settle",
        replacement=Edit("if not stored:", "if False:"),
        caught_by=f"{_BY_LETTERS} -k without_its_dead_letter_topic",
    ),
    Mutant(
        id="PC13",
        rule="permits of given-up entries come back with their letters -> at once",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer._give_up",
        replacement=Edit(
            "left, attachment, generation = len(messages), self._attachments, self.generation",
            "left, attachment, generation = -1, self._attachments, self.generation\n"
            "    self._give_permits(permits, size)",
        ),
        caught_by=f"{_BY_LETTERS} -k hold_the_broker_back",
    ),
    Mutant(
        id="PC14",
        rule="a message is given up after max_redeliveries -> one later",
        module="daybook.clients.python.protocol.letters",
        name="DeadLetterPolicy.is_last",
        replacement=Edit("redeliveries >= self", "redeliveries > self"),
        caught_by=f"{_BY_LETTERS} -k takes_no_other",
    ),
    Mutant(
        id="PC15",
        rule="a retry keeps the origin of the first -> takes that of the last",
        module="daybook.clients.python.protocol.letters",
        name="origin",
        replacement=Edit(
            "{REAL_TOPIC: topic, ORIGIN_MESSAGE_ID: message_id, **properties}",
            "{**properties, REAL_TOPIC: topic, ORIGIN_MESSAGE_ID: message_id}",
        ),
        caught_by=f"{_BY_LETTERS} -k tried_again_later",
    ),
    Mutant(
        id="PC16",
        rule="the receipt of a retry acknowledges the original -> the task that sent it",
        module=_LETTERS,
        name="DeadLetters._send",
        replacement=Edit("acknowledge()", "failures.clear()"),
        caught_by=f"{_BY_LETTERS} -k retry_that_was_cancelled",
    ),
    Mutant(
        id="PC17",
        rule="the delay of a nack grows up to its maximum -> beyond it",
        module="daybook.clients.python.protocol.acks",
        name="NackTracker.nack",
        replacement=Edit("min(delay_s, most_s)", "delay_s"),
        caught_by=f"{_BY_LETTERS} -k doubles",
    ),
    Mutant(
        id="PC69",
        rule="a flush repeats an older cumulative ack only if no newer one waits -> in its place",
        module="daybook.clients.python.protocol.acks",
        name="AckTracker._recall_place",
        replacement=Edit("key <= self._mark", "key < self._mark"),
        caught_by="tests:tests/clients/python/protocol/test_rules.py -k older_cumulative",
    ),
    Mutant(
        id="PC18",
        rule="a batch is in time when all of it is acknowledged -> with its first message",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer._settle_entry",
        replacement=Edit(
            "self._timeouts is not None and not self._acks.tracker.is_pending(key)",
            "self._timeouts is not None",
        ),
        caught_by=f"{_BY_LETTERS} -k batch_is_in_time",
    ),
    Mutant(
        id="PC19",
        rule="a delayed message is alone in its entry -> in a batch",
        module="daybook.clients.python.topic_producer",
        name="TopicProducer.send",
        replacement=Edit(" or deliver_at_ms is not None", ""),
        caught_by=f"{_BY_LETTERS} -k delivered_at_its_time",
    ),
]

ASYNCIO = [
    Mutant(
        id="PC20",
        rule="the result of a call that was cancelled is given back -> it is lost",
        module="daybook.clients.python.guest",
        name="Guest.call",
        replacement=Edit("if call.succeeded and unwanted is not None:", "if False:"),
        caught_by=f"{_BY_AIO} -k given_back",
    ),
    Mutant(
        id="PC21",
        rule="a cancelled call ends when the function behind it has ended -> at once",
        module="daybook.clients.python.guest",
        name="Guest.call",
        replacement=Edit("while not call.settled:", "while False:"),
        caught_by=f"{_BY_AIO} -k function_has_ended",
    ),
    Mutant(
        id="PC22",
        rule="other tasks get turns while messages are taken -> they get none",
        module="daybook.clients.python.aio",
        name="_Source._receive",
        replacement=Edit("if self._turn >= _TURNS:", "if False:"),
        caught_by=f"{_BY_AIO} -k other_tasks",
    ),
    Mutant(
        id="PC23",
        rule="a call from another loop is an error -> is carried out there",
        module="daybook.clients.python.guest",
        name="Guest.check",
        replacement=Edit("if here is not self._loop:", "if False:"),
        caught_by=f"{_BY_AIO} -k another_loop",
    ),
    Mutant(
        id="PC24",
        rule="a forked client says so -> sends on its parent's connections",
        module="daybook.clients.python.client",
        name="Client.on_forked",
        replacement=Edit("producer.on_forked(error)", "pass"),
        caught_by=f"{_BY_AIO} -k forked",
    ),
    Mutant(
        id="PC25",
        rule="an acknowledgement in a forked process is an error -> it is taken",
        module="daybook.clients.python.consumer",
        name="Consumer.ack_nowait",
        replacement=Edit("if self._forked is not None:", "if False:"),
        caught_by=f"{_BY_AIO} -k forked",
    ),
    Mutant(
        id="PC26",
        rule="a listener that ends as cancelled has failed -> it ends all clients of its loop",
        module="daybook.clients.python.guest",
        name="wait_for_asyncio",
        replacement=Edit("if task.cancelled():", "if False:"),
        caught_by=f"{_BY_AIO} -k ends_as_cancelled",
    ),
    Mutant(
        id="PC27",
        rule="a plain listener that ends as cancelled has failed -> it ends all clients",
        module="daybook.clients.python.aio",
        name="Consumer.caller_of",
        replacement=Edit("except asyncio.CancelledError as", "except KeyError as"),
        caught_by=f"{_BY_AIO} -k ends_as_cancelled",
    ),
]

PIPES = [
    Mutant(
        id="PC30",
        rule="an output that is stored already is not sent again -> it is",
        module=_PARTITION,
        name="PipePartition._send_output",
        replacement=Edit("if name <= self._start.outputs[partition]:", "if False:"),
        caught_by=f"{_BY_PIPE} -k every_step",
    ),
    Mutant(
        id="PC31",
        rule="a message that comes again in one run is under way already -> it is piped again",
        module=_PARTITION,
        name="PipePartition._is_new",
        replacement=Edit("if message.offset <= self._last_read:", "if False:"),
        caught_by=f"{_BY_PIPE} -k takeover_has_lost",
    ),
    Mutant(
        id="PC32",
        rule="a pipe starts behind its last output -> where its cursor is",
        module=_PIPE,
        name="Pipe._resume",
        replacement=Edit("await consumer.seek(Offset(max(offset, first)))", "pass"),
        caught_by=f"{_BY_PIPE} -k where_its_cursor_is",
    ),
    Mutant(
        id="PC33",
        rule="a pipe whose subscription is gone is refused -> it takes new messages for repeats",
        module=_RULES,
        name="is_lost",
        replacement=Edit("mark_delete >= end_before", "False"),
        caught_by=f"{_BY_PIPE} -k were_skipped",
    ),
    Mutant(
        id="PC34",
        rule="the last finished message stays without acknowledgement -> it is acknowledged",
        module=_RULES,
        name="PipeProgress._finish",
        replacement=Edit("if not self.keep_last:", "if True:"),
        caught_by=f"{_BY_RULES} -k acknowledgements_follow",
    ),
    Mutant(
        id="PC35",
        rule="a message is finished when its outputs are stored -> when they are sent",
        module=_RULES,
        name="PipeProgress._finish",
        replacement=Edit(" and not self._inputs[0].unstored", ""),
        caught_by=f"{_BY_RULES} -k acknowledgements_follow",
    ),
    Mutant(
        id="PC36",
        rule="a pipe goes on with the message of its last output -> behind it",
        module=_RULES,
        name="PipeStart.resume",
        replacement=Edit(
            "min(self.outputs) // OUTPUTS_MAX", "min(self.outputs) // OUTPUTS_MAX + 1"
        ),
        caught_by=f"{_BY_PIPE} -k made_good",
    ),
    Mutant(
        id="PC37",
        rule="an output topic without deduplication is refused -> it is taken",
        module=_PIPE,
        name="Pipe._open_outputs",
        replacement=Edit("if not each.deduplicated:", "if False:"),
        caught_by=f"{_BY_PIPE} -k have_deduplication",
    ),
    Mutant(
        id="PC38",
        rule="a refused pipe leaves no new subscription -> the next start is deceived",
        module=_PIPE,
        name="Pipe._resume",
        replacement=Edit("await consumer.unsubscribe()", "pass"),
        caught_by=f"{_BY_PIPE} -k were_skipped",
    ),
]

REPEATED = [
    Mutant(
        id="PC65",
        rule="a letter has the ordering key of its message -> it has none",
        module=_LETTERS,
        name="DeadLetters._send",
        replacement=Edit("ordering_key=message.ordering_key", "ordering_key=None"),
        caught_by=f"{_BY_LETTERS} -k rejected_too_often",
    ),
    Mutant(
        id="PC62",
        rule="a pipe repeats an acknowledgement that a takeover has lost -> it does not",
        module=_PARTITION,
        name="PipePartition._is_new",
        replacement=Edit("if message.offset <= self._acknowledged:", "if False:"),
        caught_by=f"{_BY_PIPE} -k takeover_has_lost",
    ),
]

CHUNKED = [
    Mutant(
        id="PC40",
        rule="all chunks of a message are acknowledged with it -> only the last one",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer._ack_chunks",
        replacement=Edit("if self._chunked:", "if False:"),
        caught_by=f"{_BY_CHUNKS} -k there_and_back",
    ),
    Mutant(
        id="PC41",
        rule="a chunk without its earlier ones comes again -> it is added",
        module=_CHUNKS,
        name="Chunks.add",
        replacement=Edit("chunk > len(partial.parts) or ", ""),
        caught_by=f"{_BY_CHUNKS} -k without_its_earlier",
    ),
    Mutant(
        id="PC42",
        rule="a repeated chunk is no other chunk -> it is added twice",
        module=_CHUNKS,
        name="Chunks.add",
        replacement=Edit("if chunk < len(partial.parts):", "if False:"),
        caught_by=f"{_BY_CHUNKS} -k repeats",
    ),
    Mutant(
        id="PC43",
        rule="incomplete messages are bounded in bytes -> they are not",
        module=_CHUNKS,
        name="Chunks.add",
        replacement=Edit("self.size > self._bytes_max or ", ""),
        caught_by=f"{_BY_CHUNKS} -k memory_is_bounded",
    ),
    Mutant(
        id="PC44",
        rule="the entries of a message that began anew are acknowledged with it -> they are not",
        module=_CHUNKS,
        name="Chunks._begin",
        replacement=Edit("keys = before.keys", "pass"),
        caught_by=f"{_BY_CHUNKS} -k repeats",
    ),
    Mutant(
        id="PC45",
        rule="a cumulative acknowledgement leaves incomplete messages alone -> it covers them",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.ack_cumulative",
        replacement=Edit("first is not None and first < key", "False"),
        caught_by=f"{_BY_CHUNKS} -k cumulative",
    ),
    Mutant(
        id="PC46",
        rule="a rejected message comes again with all its chunks -> with the last one",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.nack",
        replacement=Edit("(*self._chunked.get(key, ()), key)", "(key,)"),
        caught_by=f"{_BY_CHUNKS} -k as_a_whole",
    ),
    Mutant(
        id="PC61",
        rule="the chunks of a message are given up together -> each at its own time",
        module="daybook.clients.python.topic_producer",
        name="TopicProducer._push_chunks",
        replacement=Edit("            deadline,\n", "            self._deadline(),\n"),
        caught_by=f"{_BY_CHUNKS} -k given_up_together",
    ),
    Mutant(
        id="PC63",
        rule="a cumulative ack covers the messages behind a chunk -> the last of them only",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.ack_cumulative",
        replacement=Edit("self.ack(each, -1)", "pass"),
        caught_by=f"{_BY_CHUNKS} -k behind_a_chunk",
    ),
    Mutant(
        id="PC66",
        rule="a reader remembers no entries behind a chunk -> all of them, forever",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.unpack",
        replacement=Edit(" and self._settings.durable", ""),
        caught_by=f"{_BY_CHUNKS} -k remembered_behind",
    ),
    Mutant(
        id="PC64",
        rule="a message in chunks may be compressed -> it has to be as small as a batch",
        module="daybook.clients.python.entries",
        name="EntryReader.unpack",
        replacement=Edit("max(_DECOMPRESSED_MAX, self._whole_bytes_max)", "_DECOMPRESSED_MAX"),
        caught_by=f"{_BY_CHUNKS} -k compression_makes",
    ),
    Mutant(
        id="PC67",
        rule="a chunk that a reader lacks is not asked for -> its queue is dropped",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer._settle_dropped_chunks",
        replacement=Edit("if self._settings.durable and self._acknowledges:", "if True:"),
        caught_by=f"{_BY_CHUNKS} -k lacks_a_chunk",
    ),
    Mutant(
        id="PC68",
        rule="a cumulative ack behind chunk 0 of a ledger covers the ledgers before -> nothing",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer.ack_cumulative",
        replacement=Edit(
            "key, batch_index = (first[0], first[1] - 1), -1",
            "key, batch_index = (first[0], first[1] - 1), -1\n"
            "        if key[1] < 0:\n"
            "            return",
        ),
        caught_by=f"{_BY_CHUNKS} -k reaches_back",
    ),
]

_BATCH = "daybook.wire.batch"
_BY_BATCH = "tests:tests/wire/test_batch.py"

NUMBERED = [
    Mutant(
        id="PC70",
        rule="messages that share their metadata count up -> any ids are taken for that",
        module=_BATCH,
        name="_counts_up",
        replacement=Edit("return False\n    return True", "pass\n    return True"),
        caught_by=f"{_BY_BATCH} -k not_count_up",
    ),
    Mutant(
        id="PC71",
        rule="an id that is not the expected one is stated -> none is stated",
        module=_BATCH,
        name="BatchReader._metadata",
        replacement=Edit("if sequence_id != expected_id:", "if False:"),
        caught_by=f"{_BY_BATCH} -k protobuf_reads",
    ),
    Mutant(
        id="PC72",
        rule="metadata with two ids are parsed as a whole -> the first id counts",
        module=_BATCH,
        name="BatchReader._metadata",
        replacement=Edit(
            "if single is None or single.sequence_id is not None:", "if single is None:"
        ),
        caught_by=f"{_BY_BATCH} -k looks_like",
    ),
    Mutant(
        id="PC73",
        rule="an id that comes twice is stated -> the second one counts up",
        module=_BATCH,
        name="BatchReader._one_by_one",
        replacement=Edit(
            'head = b"" if id_bytes else body[offset:first]', "head = body[offset:first]"
        ),
        caught_by=f"{_BY_BATCH} -k not_count_up",
    ),
]

PATIENCE = [
    Mutant(
        id="PC74",
        rule="a broker that works requests off is not asked again -> each request has its own time",
        module=_CONNECTION,
        name="BrokerConnection._patience_s",
        replacement=Edit("max(answer.asked_s, self._worked_off_s)", "answer.asked_s"),
        caught_by=f"{_BY_PATIENCE} -k many_topics",
    ),
    Mutant(
        id="PC75",
        rule="only late answers show that requests are worked off -> all answers do",
        module=_CONNECTION,
        name="BrokerConnection._give",
        replacement=Edit(">= _LATE_S", ">= 0"),
        caught_by=f"{_BY_PATIENCE} -k prompt",
    ),
    Mutant(
        id="PC76",
        rule="one answer takes no longer than an operation -> the client waits for ever",
        module=_CONNECTION,
        name="BrokerConnection._patience_s",
        replacement=Edit("return until_s - ", "return began_s + self._limits.request_timeout_s - "),
        caught_by=f"{_BY_PATIENCE} -k no_longer",
    ),
]

MUTANTS = [*PATIENCE, *NUMBERED, *SEVERAL_TOPICS, *REJECTED, *ASYNCIO, *PIPES, *REPEATED, *CHUNKED]
