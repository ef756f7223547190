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
_UPKEEP = "daybook.broker.topics.upkeep"
_DECISIONS = "daybook.broker.protocol.upkeep"
_QUOTA = "daybook.broker.topics.backlog_quota"
_SUBSCRIPTION = "daybook.broker.dispatch.subscription"
_TIMES = "daybook.managed_ledger.stored_times"
_LOG = "daybook.managed_ledger.log"
_BY_UPKEEP = "tests:tests/broker/test_upkeep.py"
_BY_TIMES = "tests:tests/managed_ledger/test_stored_times.py"
_BY_RATE = "tests:tests/broker/protocol/test_publish_rate.py"

MUTANTS = [
    Mutant(
        id="BQ01",
        rule="producers that wait for room share one look at the backlog -> each looks",
        module="daybook.broker.topics.backlog_quota",
        name="BacklogQuotas._blocking",
        replacement=Edit("trio.current_time() >= self._looked_s + _LOOK_S", "True"),
        caught_by="tests:tests/broker/test_upkeep.py -k share_one_look",
    ),
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
        module="daybook.broker.topics.topic_producers",
        name="TopicProducers._check_room",
        replacement=Edit("topic.policies.max_producers or topic", "topic"),
        caught_by=_BY_TOPIC,
    ),
    Mutant(
        id="P93 waiting",
        rule="producers that wait to be admitted count -> only those that are admitted",
        module="daybook.broker.topics.topic_producers",
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
        module="daybook.broker.topics.publish_limits",
        name="PublishLimits.wait_room",
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
    Mutant(
        id="P94",
        rule="messages expire when they are old enough -> a minute earlier",
        module=_UPKEEP,
        name="Upkeep._expire_messages",
        replacement=Edit(
            "topic.clock.now_ms() - ttl_s * 1000", "topic.clock.now_ms() - ttl_s * 1000 + 60_000"
        ),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P94 young",
        rule="a ledger with a young entry is not passed -> it is if its first entry is old",
        module=_TIMES,
        name="first_stored_since",
        replacement=Edit("elif time_ms >= since_ms:", "elif False:"),
        caught_by=_BY_TIMES,
    ),
    Mutant(
        id="P94 clock",
        rule="times in a ledger never fall -> they follow the clock",
        module=_LOG,
        name="ManagedLedger.append",
        replacement=Edit(
            "max(self._stored_ms, self.context.clock.now_ms())", "self.context.clock.now_ms()"
        ),
        caught_by=_BY_TIMES,
    ),
    Mutant(
        id="P94 undated",
        rule="entries without a broker's time are looked at one by one -> bisected",
        module=_TIMES,
        name="first_stored_since",
        replacement=Edit("if not dated:", "if False:"),
        caught_by=_BY_TIMES,
    ),
    Mutant(
        id="P94 moved",
        rule="nothing expires while a cursor is moved -> it does",
        module=_SUBSCRIPTION,
        name="Subscription.skip_to",
        replacement=Edit("if self.gone or self.moving or position", "if position"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P94 hung",
        rule="a topic whose bookies are away delays no others -> they wait for it",
        module=_UPKEEP,
        name="_TOPIC_S",
        replacement=1e9,
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95",
        rule="a backlog beyond its quota keeps producers out -> it does not",
        module=_DECISIONS,
        name="exceeded",
        replacement=Edit("backlog_bytes >= size.limit_size", "False"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95 room",
        rule="producers that wait for room are opened when there is some -> after all of the time",
        module=_QUOTA,
        name="_LOOK_S",
        replacement=30.0,
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95 code",
        rule="producer_exception has a code of its own -> that of producer_request_hold",
        module=_QUOTA,
        name="BacklogQuotas.wait_room",
        replacement=Edit(
            "pb.ProducerBlockedQuotaExceededException", "pb.ProducerBlockedQuotaExceededError"
        ),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95 sent",
        rule="a producer is closed when all that it sent is stored -> at once",
        module=_PRODUCER,
        name="Producer.stop",
        replacement=Edit("await self.wait_drained()", "pass"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95 evict",
        rule="an eviction leaves as much as the quota allows -> it takes everything",
        module=_DECISIONS,
        name="kept_bytes",
        replacement=Edit("int(quota.limit_size * _KEPT)", "0"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95 system",
        rule="system cursors count for no quota -> they do",
        module=_QUOTA,
        name="BacklogQuotas.exceeded",
        replacement=Edit(
            "max((s.backlog.bytes for s in self._subscriptions()), default=0)",
            "max(topic.log.behind(c.mark_delete).bytes for c in topic.log.cursors.values())",
        ),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P95 together",
        rule="a quota is smaller than the retention -> any quota is taken",
        module=_TABLE,
        name="check_together",
        replacement=Edit("if megabytes <= 0 or minutes <= 0:", "if True:"),
        caught_by=_BY_RECORDS,
    ),
    Mutant(
        id="P96",
        rule="a topic with messages is never inactive -> it is when nobody uses it",
        module=_DECISIONS,
        name="is_inactive",
        replacement=Edit("or use.retained ", ""),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P96 again",
        rule="what comes at the last moment keeps a topic -> it is deleted all the same",
        module=_TOPIC,
        name="Topic.delete",
        replacement=Edit("used = used or bool(log.pending_bytes)", "used = False"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P96 default",
        rule="topics are deleted only if a policy says so -> by default",
        module=_DECISIONS,
        name="is_inactive",
        replacement=Edit("if not policy.delete_while_inactive:", "if False:"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P96 subscriptions",
        rule="a subscription that nobody uses for long is deleted -> it stays",
        module=_UPKEEP,
        name="Upkeep._expire_subscriptions",
        replacement=Edit("unused_ms >= minutes * 60_000", "False"),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P96 left",
        rule="the time of a subscription begins when its last consumer leaves -> long before",
        module=_SUBSCRIPTION,
        name="Subscription.unused_since_ms",
        replacement=Edit(
            "self._clock.now_ms() if self.consumers or self.moving else self._unused_since_ms", "0"
        ),
        caught_by=_BY_UPKEEP,
    ),
    Mutant(
        id="P97",
        rule="a policy asks for no more copies than the operator allows -> for any number",
        module="daybook.broker.admin.replica_limit",
        name="ReplicaLimit.check",
        replacement=Edit("wanted > self._ensemble_max", "False"),
        caught_by="tests:tests/broker/control/test_policies.py -k no_more_copies",
    ),
    Mutant(
        id="P97 namespace",
        rule="a new namespace asks for no more copies than allowed -> for any number",
        module="daybook.broker.admin.replica_limit",
        name="ReplicaLimit.check_all",
        replacement=Edit("PERSISTENCE.namespace.key)", "PERSISTENCE.name + '!')"),
        caught_by="tests:tests/broker/control/test_policies.py -k no_more_copies",
    ),
    Mutant(
        id="P97 behalf",
        rule="only a super user that asks for itself may exceed the copies -> a proxy of one",
        module="daybook.broker.admin.replica_limit",
        name="ReplicaLimit._asks_super_user",
        replacement=Edit("all(", "any("),
        caught_by="tests:tests/broker/control/test_policies.py -k ask_for_more_copies",
    ),
    Mutant(
        id="P98",
        rule="a limit of -1 is refused, as by Pulsar -> it removes the limit without a word",
        module="daybook.broker.admin.policies",
        name="_value",
        replacement=Edit("if value == -1 and path.policy.says_nothing(value):", "if False:"),
        caught_by="tests:tests/broker/control/test_policies.py -k neither_negative",
    ),
    Mutant(
        id="P99",
        rule="a namespace is unloaded to a live broker only -> the destination is not looked at",
        module="daybook.broker.admin.bundle_operations",
        name="BundleOperations.unload_namespace",
        replacement=Edit("destination=destination, ", ""),
        caught_by="tests:tests/broker/control/test_admin.py -k unloaded_to_the_broker",
    ),
    Mutant(
        id="P99 owner",
        rule="the owner of a bundle learns its destination -> it chooses one itself",
        module="daybook.broker.admin.bundle_operations",
        name="BundleOperations._unload_anywhere",
        replacement=Edit("if destination else {}", "if False else {}"),
        caught_by="tests:tests/broker/control/test_admin.py -k unloaded_to_the_broker",
    ),
]
