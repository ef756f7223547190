"""Rules of consumers of several topics, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MULTI = "daybook.clients.python.multi_topic"
_CHOICE = "daybook.clients.python.topic_choice"
_QUEUE = "daybook.clients.python.message_queue"
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

MUTANTS = [*SEVERAL_TOPICS]
