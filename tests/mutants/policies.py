"""Rules of policies, broken one at a time (`broker.namespaces.policy_table`)."""

from tests.mutants.patch import Edit, Mutant

_POLICIES = "daybook.broker.namespaces.policies"
_TABLE = "daybook.broker.namespaces.policy_table"
_UNUSED = "daybook.broker.namespaces.unused_policies"
_TOPIC = "daybook.broker.topics.topic"
_PRODUCER = "daybook.broker.topics.producer"
_UPDATES = "daybook.broker.topics.policy_updates"
_SHARED = "daybook.broker.protocol.dispatch.shared"
_RATE = "daybook.broker.protocol.publish_rate"
_BY_RECORDS = "tests:tests/broker/control/test_policies.py"
_BY_TOPIC = "tests:tests/broker/test_policies.py"
_BY_RATE = "tests:tests/broker/protocol/test_publish_rate.py"

MUTANTS = [
    Mutant(
        id="P90",
        rule="the policy of a topic goes over that of its namespace -> it does not count",
        module=_POLICIES,
        name="Policies.effective",
        replacement=Edit(
            "return of_namespace if layer is None else layer.over(of_namespace)",
            "return of_namespace",
        ),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P90 refused",
        rule="a topic whose retention is not valid is not loaded -> it is, by the default",
        module=_TABLE,
        name="Layer._invalid",
        replacement=Edit("match policy.on_invalid:", "match OnInvalid.INHERIT:"),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P90 others",
        rule="a value that is not valid leaves the other policies alone -> the topic is refused",
        module=_TABLE,
        name="Layer._invalid",
        replacement=Edit("match policy.on_invalid:", "match OnInvalid.REFUSE:"),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P90 first",
        rule="a broker hears of the first topic of a namespace that gets policies -> it does not",
        module=_POLICIES,
        name="ChildrenCache.get",
        replacement=Edit(
            "await self._store.get(path, touched) is not None",
            "await self._store.get(path) is not None",
        ),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P90 away",
        rule="without contact the last known policies count -> the topic is unavailable",
        module=_POLICIES,
        name="ChildrenCache.get",
        replacement=Edit("(entry.fresh or not in_contact)", "entry.fresh"),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P90 own",
        rule="a broker sees its own changes at once -> when the watch has fired",
        module=_POLICIES,
        name="Policies._forget_topic",
        replacement=Edit("self._topics.invalidate(path)", "pass"),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P91",
        rule="a policy without a use takes only what asks for nothing -> it takes all",
        module=_UNUSED,
        name="UnusedPolicy.check",
        replacement=Edit(
            "if not (is_empty(value) or _is_one_of(value, self.harmless)):", "if False:"
        ),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P91 other clusters",
        rule="a namespace cannot be replicated to other clusters -> it seems so",
        module=_UNUSED,
        name="check_clusters",
        replacement=Edit("if any(other != cluster for other in clusters):", "if False:"),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P92",
        rule="loaded topics follow a change -> when they are loaded again",
        module=_UPDATES,
        name="PolicyUpdates._change",
        replacement=Edit("topic.apply_policies(found)", "pass"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P92 log",
        rule="the log of a loaded topic is kept as the policies say -> as it was",
        module=_UPDATES,
        name="PolicyUpdates._apply",
        replacement=Edit("await self._logs.apply(found, changed)", "pass"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P92 reload",
        rule="deduplication that is switched on loads the topic again -> it does not",
        module=_UPDATES,
        name="PolicyUpdates._change",
        replacement=Edit(
            "if found.deduplication != (topic.deduplication is not None):", "if False:"
        ),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P93 producers",
        rule="a topic has so many producers as the policy allows -> any number",
        module=_TOPIC,
        name="TopicProducers._check_room",
        replacement=Edit("topic.policies.max_producers or topic", "topic"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P93 waiting",
        rule="producers that wait to be admitted count -> only those that are admitted",
        module=_TOPIC,
        name="TopicProducers._check_room",
        replacement=Edit(" + len(self._applicants)", ""),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P93 unacked",
        rule="a limit that rises lets consumers go on -> they stay blocked",
        module=_SHARED,
        name="SharedDispatch.limit",
        replacement=Edit("self._block()", "pass"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P93 rate",
        rule="a producer that is too fast waits -> it does not",
        module=_TOPIC,
        name="Topic.wait_room",
        replacement=Edit("if not wait_s:", "if True:"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P93 burst",
        rule="the balance of a rate holds one second -> all the time that has passed",
        module=_RATE,
        name="_Balance.take",
        replacement=Edit("min(self._per_s, self._left + grown)", "(self._left + grown)"),
        caught_by=_BY_RATE,
    ),
    Mutant(
        id="P93 delay",
        rule="a message that asks for a longer delay than allowed is refused -> it is stored",
        module=_PRODUCER,
        name="Producer._forbidden",
        replacement=Edit("if delay_ms > delay_max_ms:", "if False:"),
        caught_by=_BY_TOPIC,
    ),
]
