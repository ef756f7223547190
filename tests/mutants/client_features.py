"""Rules of the Python client, broken in turn: watches, interceptors, listeners, schemas, chunks,
pipes."""

from tests.mutants.patch import Edit, Mutant

_PYTHON = "daybook.clients.python"
_BY_WATCH = "tests:tests/clients/python/test_topic_watch.py"
_BY_HOOKS = "tests:tests/clients/python/test_interceptors.py"
_BY_SCHEMAS = "tests:tests/clients/python/test_schemas.py"
_BY_CODEC = "tests:tests/clients/python/test_avro_codec.py"
_BY_CHUNKS = "tests:tests/clients/python/test_chunks.py"
_CODEC = f"{_PYTHON}.schemas.avro_codec"

FEATURES = [
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

_PIPE = f"{_PYTHON}.pipe"
_PIPING = f"{_PYTHON}.protocol.piping"
_PARTITION = f"{_PYTHON}.pipe_partition"
_BY_PIPE = "tests:tests/clients/python/test_pipe.py"
_BY_PARTITIONS = "tests:tests/clients/python/test_pipe_partitions.py"
_BY_RULES = "tests:tests/clients/python/protocol/test_piping.py"

PIPES = [
    Mutant(
        id="PP01",
        rule="the key of the input decides the partition of the outputs -> its own partition does",
        module=_PIPING,
        name="output_partition",
        replacement=Edit("if key is None:", "if True:"),
        caught_by=f"{_BY_PARTITIONS} -k not_that_of_the_output",
    ),
    Mutant(
        id="PP02",
        rule="a pipe resumes at the smallest of its partitions -> at the largest",
        module=_PIPING,
        name="PipeStart.resume",
        replacement=Edit("min(self.outputs) // OUTPUTS_MAX", "max(self.outputs) // OUTPUTS_MAX"),
        caught_by=f"{_BY_RULES} -k once",
    ),
    Mutant(
        id="PP03",
        rule="a partition without outputs says nothing -> it is left out",
        module=_PIPING,
        name="PipeStart.resume",
        replacement=Edit(
            "min(self.outputs)", "min((each for each in self.outputs if each >= 0), default=-1)"
        ),
        caught_by=f"{_BY_RULES} -k may_lack",
    ),
    Mutant(
        id="PP04",
        rule="an output proves what lies a window behind it -> everything before it",
        module=_PIPING,
        name="PipeStart.resume",
        replacement=Edit(" - self.window + 1", ""),
        caught_by=f"{_BY_RULES} -k once",
    ),
    Mutant(
        id="PP05",
        rule="no output is sent a window ahead of an unfinished message -> it is",
        module=_PIPING,
        name="PipeProgress.has_room",
        replacement=Edit("< self.window", "< 100 * self.window"),
        caught_by=f"{_BY_PARTITIONS} -k far_ahead",
    ),
    Mutant(
        id="PP06",
        rule="a message is finished if its partition has a later one -> if another one has",
        module=_PIPING,
        name="PipeStart.is_finished",
        replacement=Edit("self.outputs[partition]", "max(self.outputs)"),
        caught_by=f"{_BY_RULES} -k once",
    ),
    Mutant(
        id="PP07",
        rule="a letter waits for all messages before it -> it does not",
        module=_PARTITION,
        name="PipePartition._give_up",
        replacement=Edit("self._progress.is_alone(each)", "True"),
        caught_by=f"{_BY_PARTITIONS} -k wait_for_it",
    ),
    Mutant(
        id="PP08",
        rule="nothing is sent behind a letter before it is stored -> it is",
        module=_PARTITION,
        name="PipePartition._give_up",
        replacement=Edit("not self._progress.under_way", "True"),
        caught_by=f"{_BY_PARTITIONS} -k wait_for_it",
    ),
    Mutant(
        id="PP09",
        rule="a message with outputs gets no letter -> it gets both",
        module=_PIPING,
        name="PipeStart.is_begun",
        replacement=Edit("sequence_id(offset, 0) <= self.outputs[partition]", "offset < 0"),
        caught_by=f"{_BY_PARTITIONS} -k has_outputs",
    ),
    Mutant(
        id="PP10",
        rule="a message with a letter is finished -> it is transformed again",
        module=_PIPING,
        name="PipeStart.is_finished",
        replacement=Edit("sequence_id(offset, 0) <= self.letters", "False"),
        caught_by=f"{_BY_PARTITIONS} -k not_transformed_again",
    ),
    Mutant(
        id="PP11",
        rule="another number of partitions is refused -> keys go elsewhere",
        module=_PIPE,
        name="Pipe._window",
        replacement=Edit("if record.partitions != self._partitions:", "if False:"),
        caught_by=f"{_BY_PARTITIONS} -k has_changed",
    ),
    Mutant(
        id="PP12",
        rule="a pipe that has outputs creates no subscription -> it does, and is deceived",
        module=_PIPE,
        name="Pipe._run_partition",
        replacement=Edit("is_old=outputs.start(WINDOW).last >= 0", "is_old=False"),
        caught_by=f"{_BY_PIPE} -k subscription_is_gone",
    ),
    Mutant(
        id="PP13",
        rule="a pipe that runs creates its subscription no more -> it does",
        module=f"{_PYTHON}.topic_consumer",
        name="TopicConsumer._register",
        replacement=Edit("if settings.identity and self._ever_attached:", "if False:"),
        caught_by=f"{_BY_PIPE} -k created_anew",
    ),
    Mutant(
        id="PP14",
        rule="a subscription with another record ends the pipe -> it is taken for the old one",
        module=f"{_PYTHON}.topic_consumer",
        name="TopicConsumer._check_identity",
        replacement=Edit("if identity and", "if False and"),
        caught_by=f"{_BY_PIPE} -k created_anew",
    ),
    Mutant(
        id="PP15",
        rule="a subscription that must exist is not created -> it is",
        module="daybook.broker.topics.topic_subscriptions",
        name="TopicSubscriptions._get_or_create",
        replacement=Edit("if not request.creates:", "if False:"),
        caught_by=f"{_BY_PIPE} -k subscription_is_gone",
    ),
    Mutant(
        id="PP16",
        rule="no partition is piped before all are open -> each when it is",
        module=_PIPE,
        name="Pipe._wait_others",
        replacement=Edit("await self._opened.wait()", "pass"),
        caught_by=f"{_BY_PARTITIONS} -k one_is_refused",
    ),
    Mutant(
        id="PP18",
        rule="what a pipe sent behind a refused output is refused, too -> it is stored",
        module="daybook.broker.topics.producer",
        name="Producer._refuse",
        replacement=Edit("if self.name.startswith(PIPE)", "if False"),
        caught_by=f"{_BY_PIPE} -k broker_refuses",
    ),
    Mutant(
        id="PP17",
        rule="a result of a wrong kind stops the pipe -> each message becomes a letter",
        module=_PARTITION,
        name="PipePartition._process",
        replacement=Edit("except WrongResultError:", "except NotImplementedError:"),
        caught_by=f"{_BY_PARTITIONS} -k wrong_kind",
    ),
]

MUTANTS = [*FEATURES, *PIPES]
