"""Rules of many topics, broken one at a time: idle ones leave memory, lists come in pages."""

from tests.mutants.patch import Edit, Mutant

_RULE = "daybook.broker.protocol.idle"
_SHELL = "daybook.broker.topics.idle"
_MACHINE = "daybook.broker.protocol.topics"
_TOPICS = "daybook.broker.topics.topics"
_TOPIC = "daybook.broker.topics.topic"
_TESTS = "tests:tests/broker/test_idle_topics.py"
_SCENARIOS = "tests:tests/broker/protocol/test_topics_scenarios.py"

MUTANTS = [
    Mutant(
        id="ID01",
        rule="a topic that somebody uses stays in memory -> it rests",
        module=_RULE,
        name="may_unload",
        replacement=Edit("presence.use.in_use or presence.busy", "presence.busy"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID02",
        rule="a topic in which something is under way stays -> it rests",
        module=_RULE,
        name="may_unload",
        replacement=Edit("presence.use.in_use or presence.busy", "presence.use.in_use"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID03",
        rule="counts of redeliveries keep a topic for an hour -> they are forgotten at once",
        module=_RULE,
        name="may_unload",
        replacement=Edit("presence.remembers and", "False and"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID04",
        rule="a topic whose messages will expire stays -> it rests, and they never expire",
        module=_RULE,
        name="has_work_to_come",
        replacement=Edit("use.backlogs and policies.message_ttl_s", "False"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID05",
        rule="a question about a topic restarts its idle time -> it does not",
        module=_TOPICS,
        name="Topics.get",
        replacement=Edit("topic.asked_s = trio.current_time()", "pass"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID06",
        rule="the close looks again whether somebody has come -> it closes the topic",
        module=_TOPICS,
        name="Topics._close",
        replacement=Edit("self._protocol.rests(name) and not", "False and not"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID07",
        rule="the idle time begins when the last client has left -> when it came",
        module=_SHELL,
        name="IdleTopics.may_rest",
        replacement=Edit("topic.asked_s = now_s", "pass"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID08",
        rule="who comes while an idle topic is closed waits -> is refused",
        module=_MACHINE,
        name="TopicsProtocol.get",
        replacement=Edit("if topic.resting and not topic.unload_waiters", "if False"),
        caught_by=_SCENARIOS,
    ),
    Mutant(
        id="ID09",
        rule="a topic that is to leave this broker is not loaded again -> it is",
        module=_MACHINE,
        name="TopicsProtocol.get",
        replacement=Edit("if topic.resting and not topic.unload_waiters", "if topic.resting"),
        caught_by=_SCENARIOS,
    ),
    Mutant(
        id="ID10",
        rule="a producer that waits to be admitted holds its topic -> it does not",
        module=_TOPIC,
        name="Topic.is_held",
        replacement=Edit("self.producers.arriving or subscriptions.arriving", "False"),
        caught_by=_TESTS,
    ),
    Mutant(
        id="ID11",
        rule="a page begins behind the last name of the page before -> with it",
        module="daybook.broker.admin.pages",
        name="page",
        replacement=Edit("bisect_right(names, after)", "bisect_right(names, after) - 1"),
        caught_by="tests:tests/broker/control/test_pages.py",
    ),
]
