"""Rules of the Python client: watches, interceptors, listeners, schemas, chunks; broken in turn."""

from tests.mutants.patch import Edit, Mutant

_PYTHON = "daybook.clients.python"
_BY_WATCH = "tests:tests/clients/python/test_topic_watch.py"
_BY_HOOKS = "tests:tests/clients/python/test_interceptors.py"
_BY_SCHEMAS = "tests:tests/clients/python/test_schemas.py"
_BY_CODEC = "tests:tests/clients/python/test_avro_codec.py"
_BY_CHUNKS = "tests:tests/clients/python/test_chunks.py"
_CODEC = f"{_PYTHON}.schemas.avro_codec"

MUTANTS = [
    Mutant(
        id="PF01",
        rule="a lost watch is opened again -> it ends",
        module=f"{_PYTHON}.topic_watch",
        name="TopicWatch.on_detached",
        replacement=Edit("self._detached.set()", "pass"),
        caught_by=f"{_BY_WATCH} -k connection_is_lost",
    ),
    Mutant(
        id="PF02",
        rule="the expression matches what the pattern may -> a repeated character is fixed",
        module=f"{_PYTHON}.topic_watch",
        name="expression_for",
        replacement=Edit("if char in _REPEATS:", "if False:"),
        caught_by=f"{_BY_WATCH} -k expression",
    ),
    Mutant(
        id="PF03",
        rule="a topic that could not be opened is tried again soon -> in the next round",
        module=f"{_PYTHON}.multi_topic",
        name="MultiTopicConsumer._poll",
        replacement=Edit("min(_AGAIN_S if is_first else 2 * wait_s, interval_s)", "interval_s"),
        caught_by=f"{_BY_WATCH} -k tried_again",
    ),
    Mutant(
        id="PF04",
        rule="a message goes on as it was before an interceptor that raises -> as it left it",
        module=f"{_PYTHON}.interceptors",
        name="ProducerInterceptors.before_send",
        replacement=Edit("message = before", "pass"),
        caught_by=f"{_BY_HOOKS} -k changes_nothing",
    ),
    Mutant(
        id="PF05",
        rule="an interceptor that raises does not break sending -> it does",
        module=f"{_PYTHON}.interceptors",
        name="_called",
        replacement=Edit("except Exception:", "except MemoryError:"),
        caught_by=f"{_BY_HOOKS} -k changes_nothing",
    ),
    Mutant(
        id="PF06",
        rule="flush raises failures without a callback, also with interceptors -> it does not",
        module=f"{_PYTHON}.producer",
        name="_Intercepted.__call__",
        replacement=Edit("elif error is not None:", "elif False:"),
        caught_by=f"{_BY_HOOKS} -k raised_by_flush",
    ),
    Mutant(
        id="PF07",
        rule="a message whose listener failed comes again -> it does not",
        module=f"{_PYTHON}.listener",
        name="Listening._handle",
        replacement=Edit("self._consumer.nack(message)", "pass"),
        caught_by=f"{_BY_HOOKS} -k gets_the_messages",
    ),
    Mutant(
        id="PF08",
        rule="close waits for the listener -> it does not",
        module=f"{_PYTHON}.listener",
        name="Listening.stop",
        replacement=Edit("await self._ended.wait()", "pass"),
        caught_by=f"{_BY_HOOKS} -k close_waits",
    ),
    Mutant(
        id="PF09",
        rule="rates are those of the last minute -> of all time",
        module=f"{_PYTHON}.protocol.statistics",
        name="Rate._forget",
        replacement=Edit("self._buckets.popleft()", "break"),
        caught_by=f"{_BY_HOOKS} -k rates",
    ),
    Mutant(
        id="PF10",
        rule="an Avro record has nothing behind it -> the rest is ignored without fastavro",
        module=_CODEC,
        name="_Compiler.functions",
        replacement=Edit('"        if i == len(d):",', '"        if i <= len(d):",'),
        caught_by=f"{_BY_CODEC} -k follows_a_record",
    ),
    Mutant(
        id="PF11",
        rule="null is the second branch behind a default -> it is the first",
        module=_CODEC,
        name="_null_last",
        replacement=lambda cls: set(),
        caught_by=f"{_BY_CODEC} -k as_by_fastavro",
    ),
    Mutant(
        id="PF12",
        rule="an int of 32 bits is checked -> it is not",
        module=_CODEC,
        name="_INT_MAX",
        replacement=1 << 40,
        caught_by=f"{_BY_CODEC} -k unusual",
    ),
    Mutant(
        id="PF13",
        rule="classes with checks of their own are left to fastavro -> they are not",
        module=_CODEC,
        name="_kind_of",
        replacement=Edit("not isinstance(extras[0], AvroType)", "False"),
        caught_by=f"{_BY_CODEC} -k left_to_fastavro",
    ),
    Mutant(
        id="PF14",
        rule="the key of a separated pair is the key of the message -> the pair is its data",
        module=f"{_PYTHON}.schemas.key_value",
        name="KeyValueSchema.separates_key",
        replacement=property(lambda self: False),
        caught_by=f"{_BY_SCHEMAS} -k separated",
    ),
    Mutant(
        id="PF15",
        rule="a letter has the schema of its message -> it has none",
        module=f"{_PYTHON}.dead_letters",
        name="DeadLetters._open_producer",
        replacement=Edit("if not message.entry.schema_version:", "if True:"),
        caught_by=f"{_BY_SCHEMAS} -k letter_has",
    ),
    Mutant(
        id="PF16",
        rule="a letter that cannot have the schema comes without it -> it does not come",
        module=f"{_PYTHON}.dead_letters",
        name="DeadLetters._open_producer",
        replacement=Edit("(TopicNotFoundError, IncompatibleSchemaError)", "TopicNotFoundError"),
        caught_by=f"{_BY_SCHEMAS} -k comes_without",
    ),
    Mutant(
        id="PF17",
        rule="chunks of a message that was dropped come again -> they are acknowledged",
        module=f"{_PYTHON}.topic_consumer",
        name="TopicConsumer._settle_dropped_chunks",
        replacement=Edit("if limits.ack_incomplete_chunks:", "if True:"),
        caught_by=f"{_BY_CHUNKS} -k come_again_or",
    ),
    Mutant(
        id="PF18",
        rule="a message expires when its time is over -> at once",
        module=f"{_PYTHON}.protocol.chunks",
        name="Chunks.expire",
        replacement=Edit("if each.began + self._expire_s <= now:", "if True:"),
        caught_by=f"{_BY_CHUNKS} -k not_whole_in_time",
    ),
    Mutant(
        id="PF19",
        rule="chunks that come again are not covered by a later acknowledgement -> they are",
        module=f"{_PYTHON}.protocol.chunks",
        name="Chunks.owe",
        replacement=Edit("self._owed[key] = None", "pass"),
        caught_by=f"{_BY_CHUNKS} -k leaves_chunks_alone",
    ),
    Mutant(
        id="PF20",
        rule="a record is made by position if the parameters are its fields -> in any order",
        module=_CODEC,
        name="_takes_positions",
        replacement=Edit(" and list(parameters) == list(fields)", ""),
        caught_by=f"{_BY_CODEC} -k order_of_the_parameters",
    ),
    Mutant(
        id="PF90",
        rule="a chunk whose earlier ones never come is asked for less and less often -> as often",
        module=f"{_PYTHON}.topic_consumer",
        name="TopicConsumer._settle_dropped_chunks",
        replacement=Edit("chunks.times(key), _CHUNK_DELAY_MAX_S", "0"),
        caught_by=f"{_BY_CHUNKS} -k less_and_less",
    ),
    Mutant(
        id="PF91",
        rule="the repeats of a message are bounded -> they are not",
        module=f"{_PYTHON}.protocol.chunks",
        name="Chunks.add",
        replacement=Edit(
            "if len(partial.keys) > count + _REPEATS_MAX:", "if len(partial.keys) > 9_000:"
        ),
        caught_by=f"{_BY_CHUNKS} -k repeats_of_a_message",
    ),
]
