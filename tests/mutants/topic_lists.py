"""Rules of topic lists and their watchers, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_MACHINE = "daybook.broker.protocol.topic_watchers"
_PATTERNS = "daybook.broker.protocol.patterns"
_LISTS = "daybook.broker.namespaces.topic_lists"
_SHELL = "daybook.broker.service.topic_watchers"
_BY_MACHINE = "tests:tests/broker/protocol/test_topic_watchers.py"
_BY_PATTERNS = "tests:tests/broker/protocol/test_patterns.py"
_BY_WATCHERS = "tests:tests/broker/test_topic_watchers.py"

MUTANTS = [
    Mutant(
        id="W20 outage",
        rule="a read that fails is tried again soon -> after ten times as long as it took to fail",
        module=_LISTS,
        name="TopicLists._keep",
        replacement=Edit("continue", "pass"),
        caught_by=f"{_BY_WATCHERS} -k outage_of_the_store",
    ),
    Mutant(
        id="W20",
        rule="a watcher is told the difference from what its client knows -> from nothing",
        module=_MACHINE,
        name="TopicWatchersProtocol.next_update",
        replacement=Edit("sorted(latest.names - before.names)", "sorted(latest.names)"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W20 parts",
        rule="the rest of a long difference is told later -> it is forgotten",
        module=_MACHINE,
        name="TopicWatchersProtocol.next_update",
        replacement=Edit("self._note(watcher_id, watcher)", "pass"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W20 first",
        rule="the rest of a long first list is told later -> it is forgotten",
        module=_MACHINE,
        name="TopicWatchersProtocol._succeed",
        replacement=Edit("self._note(watcher_id, watcher)", "pass"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W20 bytes",
        rule="an update has a bounded size -> it has none",
        module=_MACHINE,
        name="_part",
        replacement=Edit("size > bytes_max and", "False and"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W20 hash",
        rule="a client that names the hash of the list gets no list -> it gets no changes either",
        module=_MACHINE,
        name="TopicWatchersProtocol._succeed",
        replacement=Edit(
            "watcher.hash_known == latest.hash", "watcher.hash_known in (latest.hash, '00000000')"
        ),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W20 attempt",
        rule="a list that was asked for by an earlier opening is void -> it counts",
        module=_MACHINE,
        name="TopicWatchersProtocol.listed",
        replacement=Edit("watcher is None or watcher.attempt != attempt", "watcher is None"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W20 many",
        rule="a connection has a bounded number of watchers -> any number",
        module=_MACHINE,
        name="TopicWatchersProtocol.open",
        replacement=Edit("len(self._watchers) >= self._watchers_max", "False"),
        caught_by=_BY_MACHINE,
    ),
    Mutant(
        id="W21",
        rule="nothing is sent to a client that takes nothing -> updates are queued",
        module=_SHELL,
        name="TopicWatchers._send_updates",
        replacement=Edit("if not connection.takes_answers:", "if False:"),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W21 end",
        rule="a connection that ends stops its watchers -> they follow on",
        module=_SHELL,
        name="TopicWatchers.end",
        replacement=Edit("self._perform(self._machine.end())", "self._machine.end()"),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W22",
        rule="a partitioned topic whose record changes is read again -> its number stays",
        module=_LISTS,
        name="_Namespace.touch",
        replacement=Edit("self._outdated.add(topic)", "pass"),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W22 none",
        rule="a namespace without topics is watched, too -> its first topic is missed",
        module=_LISTS,
        name="_Namespace._children",
        replacement=Edit(
            "await self._store.get(path, watch) is None", "await self._store.get(path) is None"
        ),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W22 away",
        rule="while the store is away the last list stays -> the list is empty",
        module=_LISTS,
        name="_Namespace.failed",
        replacement=Edit(
            "filtered.failed(why)", "filtered.failed(why); filtered.latest = TopicList(frozenset())"
        ),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W22 twice",
        rule="a path is watched once -> once for each read",
        module=_LISTS,
        name="_Watches.armed",
        replacement=Edit("if (kind, path) in self._set:", "if False:"),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W22 follower",
        rule="a watch serves whoever follows the namespace then -> it stays off once it has fired",
        module=_LISTS,
        name="_Watches.disarm",
        replacement=Edit("self._set.discard((kind, path))", "pass"),
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W22 fast",
        rule="changes that come fast are read together -> each one alone",
        module=_LISTS,
        name="_INTERVAL_S",
        replacement=0.0,
        caught_by=_BY_WATCHERS,
    ),
    Mutant(
        id="W23",
        rule="an expression has to match the whole name -> its beginning",
        module=_PATTERNS,
        name="TopicPattern.matches",
        replacement=Edit("fullmatch(", "match("),
        caught_by=_BY_PATTERNS,
    ),
    Mutant(
        id="W23 memory",
        rule="the memory of an expression is bounded -> it is not",
        module=_PATTERNS,
        name="_options",
        replacement=Edit("options.max_mem = _MEMORY_MAX", "options.max_mem = 1 << 40"),
        caught_by=_BY_PATTERNS,
    ),
]
