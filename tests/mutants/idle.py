"""Rules of many topics and many readers, broken one at a time.

Idle topics leave memory, lists come in pages, readers share what was read.
"""

from tests.mutants.patch import Edit, Mutant

_RULE = "daybook.broker.protocol.idle"
_SHELL = "daybook.broker.topics.idle"
_MACHINE = "daybook.broker.protocol.topics"
_TOPICS = "daybook.broker.topics.topics"
_TOPIC = "daybook.broker.topics.topic"
_TESTS = "tests:tests/broker/test_idle_topics.py"
_TAILING = "tests:tests/managed_ledger/test_tailing.py"
_LOADS = "daybook.broker.topics.loads"
_LOAD_TESTS = "tests:tests/broker/test_loads.py"
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
    Mutant(
        id="ID16",
        rule="pages that are read one after the other come from one list -> each reads it again",
        module="daybook.broker.admin.pages",
        name="Pages.page",
        replacement=Edit("now_s < self._until_s", "False"),
        caught_by="tests:tests/broker/control/test_pages.py",
    ),
    Mutant(
        id="ID17",
        rule="the last page drops the list -> it stays in memory",
        module="daybook.broker.admin.pages",
        name="Pages.page",
        replacement=Edit('self._key, self._names = "", ()', "pass"),
        caught_by="tests:tests/broker/control/test_pages.py",
    ),
    Mutant(
        id="ID18",
        rule="some topics load at a time -> all that are asked for",
        module=_LOADS,
        name="Loads._take_place",
        replacement=Edit(
            "await self._places.take(load, self._callers.get(load.name.full, 0))", "pass"
        ),
        caught_by=_LOAD_TESTS,
    ),
    Mutant(
        id="ID19",
        rule="a slow load gives its place to others -> keeps it",
        module=_LOADS,
        name="Loads._take_place",
        replacement=Edit("self._limits.slow_s", "self._limits.load_s"),
        caught_by=_LOAD_TESTS,
    ),
    Mutant(
        id="ID20",
        rule="a load that takes too long is given up -> its callers wait for ever",
        module=_LOADS,
        name="Load.advance",
        replacement=Edit("trio.current_time() + self.patience_s", "1e9"),
        caught_by=_LOAD_TESTS,
    ),
    Mutant(
        id="ID21",
        rule="a load that has ended frees its place -> only when it would have been slow",
        module=_LOADS,
        name="Loads.begin",
        replacement=Edit("self._give_back(load)", "pass"),
        caught_by=_LOAD_TESTS,
    ),
    Mutant(
        id="ID22",
        rule="what has ended is freed at once -> a part of the topic keeps it",
        module="daybook.broker.topics.topic_subscriptions",
        name="TopicSubscriptions.__init__",
        replacement=Edit("weak(topic)", "lambda: topic"),
        caught_by="tests:tests/broker/test_freed_topics.py",
    ),
    Mutant(
        id="ID23",
        rule="what has ended is freed at once -> its quotas keeps it",
        module="daybook.broker.topics.topic",
        name="Topic.__init__",
        replacement=Edit("weakly(self._stop_producers)", "self._stop_producers"),
        caught_by="tests:tests/broker/test_freed_topics.py",
    ),
    Mutant(
        id="ID24",
        rule="what has ended is freed at once -> its log keeps it",
        module="daybook.broker.topics.topic",
        name="Topic._let_go",
        replacement=Edit("self.log.on_fenced = self.log.on_confirmed = _nothing", "pass"),
        caught_by="tests:tests/broker/test_freed_topics.py",
    ),
    Mutant(
        id="ID25",
        rule="what has ended is freed at once -> a reader that waits keeps it",
        module="daybook.broker.topics.topic",
        name="Topic._let_go",
        replacement=Edit("self._call_when_appended.clear()", "pass"),
        caught_by="tests:tests/broker/test_freed_topics.py",
    ),
    Mutant(
        id="ID26",
        rule="what has ended is freed at once -> a dispatcher keeps it",
        module="daybook.broker.dispatch.subscription",
        name="Subscription.drop",
        replacement=Edit("self.dispatcher.end()", "pass"),
        caught_by="tests:tests/broker/test_freed_topics.py",
    ),
    Mutant(
        id="ID27",
        rule="what has ended is freed at once -> the frame of a refused producer keeps it",
        module="daybook.broker.service.client_producers",
        name="ClientProducers._open",
        replacement=Edit(".with_traceback(None)", ""),
        caught_by="tests:tests/broker/test_freed_topics.py",
    ),
    Mutant(
        id="ID28",
        rule="what has ended is freed at once -> the writer of a ledger keeps it",
        module="daybook.bookie.ledger.writer",
        name="LedgerWriter._withdraw",
        replacement=Edit(
            "withdrawn, self._on_withdrawn, self._on_confirmed = self._on_withdrawn, None, None",
            "withdrawn = self._on_withdrawn",
        ),
        caught_by="tests:tests/managed_ledger/test_freed_logs.py",
    ),
    Mutant(
        id="ID29",
        rule="what has ended is freed at once -> a cursor keeps it",
        module="daybook.managed_ledger.log",
        name="ManagedLedger.__init__",
        replacement=Edit("weakly(self._present_config)", "self._present_config"),
        caught_by="tests:tests/managed_ledger/test_freed_logs.py",
    ),
    Mutant(
        id="ID30",
        rule="what has ended is freed at once -> the look after its ledger keeps it",
        module="daybook.managed_ledger.log",
        name="ManagedLedger.__init__",
        replacement=Edit("weakly(self._unclosed)", "self._unclosed"),
        caught_by="tests:tests/managed_ledger/test_freed_logs.py",
    ),
    Mutant(
        id="ID12",
        rule="an entry for which somebody has waited long is cached -> only for ten seconds",
        module="daybook.managed_ledger.reading",
        name="LogReader.await_next",
        replacement=Edit("self._awaited = True", "pass"),
        caught_by=_TAILING,
    ),
    Mutant(
        id="ID13",
        rule="entries are cached while somebody waits -> for ever after",
        module="daybook.managed_ledger.reading",
        name="LogReader.has_grown",
        replacement=Edit("self._awaited = False", "pass"),
        caught_by=_TAILING,
    ),
    Mutant(
        id="ID14",
        rule="who wants what another one reads waits for it -> reads it, too",
        module="daybook.managed_ledger.reading",
        name="LogReader.read",
        replacement=Edit("(shared or self._streams) and at not in", "False and at not in"),
        caught_by=_TAILING,
    ),
    Mutant(
        id="ID15",
        rule="a shared read that fails wakes those who wait -> they wait for ever",
        module="daybook.managed_ledger.reading",
        name="LogReader._fetch_for_all",
        replacement=Edit(".set()", ""),
        caught_by=_TAILING,
    ),
]
