"""Rules of the Python client's larger features, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MULTI = "daybook.clients.python.multi_topic"
_CHOICE = "daybook.clients.python.topic_choice"
_QUEUE = "daybook.clients.python.message_queue"
_LETTERS = "daybook.clients.python.dead_letters"
_BY_LETTERS = "tests:tests/clients/python/test_dead_letters.py"
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
        name="MultiTopicConsumer.watch",
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
        name="MessageQueue._fill_nowait",
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
        id="PC10",
        rule="a message is acknowledged when its dead letter is stored -> when it is given up",
        module=_LETTERS,
        name="DeadLetters.give_up",
        replacement=Edit(
            "self._known.add(message.message_id)",
            "self._known.add(message.message_id)\n    acknowledge()",
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
        replacement=Edit("min(delay_s, self._delay_max_s)", "delay_s"),
        caught_by=f"{_BY_LETTERS} -k doubles",
    ),
    Mutant(
        id="PC18",
        rule="a batch is in time when all of it is acknowledged -> with its first message",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer._settle_timeout",
        replacement=Edit("and not self._acks.tracker.is_pending(key)", ""),
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

MUTANTS = [*SEVERAL_TOPICS, *REJECTED]
