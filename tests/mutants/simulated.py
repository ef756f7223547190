"""Rules of features of topics, broken one at a time, for the runs of the simulator to notice.

The runs are `tests/simulation/test_features.py`: the layers of these rules have tests of their own.
"""

from tests.mutants.patch import Edit, Mutant

_UPKEEP = "daybook.broker.topics.upkeep"
_QUOTA = "daybook.broker.protocol.upkeep"
_RUNS = "tests:tests/simulation/test_features.py -k"

MUTANTS = [
    Mutant(
        id="F1",
        rule="a run goes on from the compacted ledger -> from nothing, and loses trimmed keys",
        module="daybook.broker.compaction.topic_compaction",
        name="TopicCompaction._compact",
        replacement=Edit("if before is not None:\n", "if False:\n"),
        caught_by=f"{_RUNS} compaction",
    ),
    Mutant(
        id="F1 first",
        rule="the last message of a key is kept -> the first",
        module="daybook.broker.protocol.compaction",
        name="Selection._replace",
        replacement=Edit(
            "self._remove(self._chunks.pop(before, (before,)))",
            "self._remove((before if number is None else number,))",
        ),
        caught_by=f"{_RUNS} compaction",
    ),
    Mutant(
        id="F2",
        rule="a message expires when it is older than its TTL -> ten times as early",
        module=_UPKEEP,
        name="Upkeep._expire_messages",
        replacement=Edit("- ttl_s * 1000", "- ttl_s * 100"),
        caught_by=f"{_RUNS} message_ttl",
    ),
    Mutant(
        id="F2 by hand",
        rule="an administrator expires what is older than that -> everything",
        module="daybook.broker.admin.subscription_operations",
        name="SubscriptionOperations.expire",
        replacement=Edit("now_ms - 1000 * seconds", "now_ms"),
        caught_by=f"{_RUNS} expire_by_hand",
    ),
    Mutant(
        id="F3",
        rule="an eviction by size leaves nine tenths of the quota -> a tenth",
        module=_QUOTA,
        name="kept_bytes",
        replacement=Edit("quota.limit_size * _KEPT", "quota.limit_size * 0.1"),
        caught_by=f"{_RUNS} evict_by_size",
    ),
    Mutant(
        id="F3 age",
        rule="an eviction by age takes what is too old -> everything",
        module="daybook.broker.topics.backlog_quota",
        name="BacklogQuotas._evict",
        replacement=Edit("- why.quota.limit_time * 1000", ""),
        caught_by=f"{_RUNS} evict_by_age",
    ),
    Mutant(
        id="F4",
        rule="a delayed message waits until it is due -> comes up to a second early",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._visible",
        replacement=Edit("due_ms > self._clock.now_ms()", "due_ms > self._clock.now_ms() + 1_000"),
        caught_by=f"{_RUNS} delays",
    ),
    Mutant(
        id="F5",
        rule="a pipe goes on with the message of its last output -> two messages later",
        module="daybook.clients.python.protocol.piping",
        name="PipeStart.resume",
        replacement=Edit(
            "min(self.outputs) // OUTPUTS_MAX", "min(self.outputs) // OUTPUTS_MAX + 2"
        ),
        caught_by=f"{_RUNS} pipe",
    ),
    Mutant(
        id="F6",
        rule="a message is acknowledged when its letter is stored -> instead of sending it",
        module="daybook.clients.python.dead_letters",
        name="DeadLetters._store",
        replacement=Edit(
            "await self._send(topic, message, properties, None, letter.acknowledge)",
            "letter.acknowledge()",
        ),
        caught_by=f"{_RUNS} dead_letters",
    ),
    Mutant(
        id="F7",
        rule="a broker that is drained hands over all of its bundles -> the first one",
        module="daybook.broker.ownership.hand_over",
        name="HandOvers.drain",
        replacement=Edit("for bundle, member in plan or ():", "for bundle, member in plan[:1]:"),
        caught_by=f"{_RUNS} drain",
    ),
    Mutant(
        id="F8",
        rule="what consumers are sent counts for their rates -> it is free",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._perform",
        replacement=Edit("if self.rates is not None:", "if False:"),
        caught_by=f"{_RUNS} dispatch_rate",
    ),
    Mutant(
        id="F8 subscription",
        rule="a subscription has a rate of its own -> the topic only",
        module="daybook.broker.dispatch.subscription",
        name="Subscription._apply_rates",
        replacement=Edit(", self.dispatch_rate.limit)", ",)"),
        caught_by=f"{_RUNS} subscription_rate",
    ),
    Mutant(
        id="F9",
        rule="at half of its limit a broker lets all subscriptions go on -> they stay blocked",
        module="daybook.broker.protocol.dispatch.broker_limit",
        name="BrokerLimit.count",
        replacement=Edit("        self._blocked.clear()\n", "        pass\n"),
        caught_by=f"{_RUNS} broker_limit",
    ),
    Mutant(
        id="F10",
        rule="a watch of a list of topics is set again when it has fired -> it stays off",
        module="daybook.broker.namespaces.topic_lists",
        name="_Watches.disarm",
        replacement=Edit("self._set.discard((kind, path))", "pass"),
        caught_by=f"{_RUNS} pattern",
    ),
    Mutant(
        id="F11",
        rule="a topic that nobody uses is deleted -> only closed",
        module="daybook.broker.topics.topics",
        name="Topics._close",
        replacement=Edit("await topic.delete(unless_used=_is_used)", "await topic.close()"),
        caught_by=f"{_RUNS} unused",
    ),
    Mutant(
        id="F12",
        rule="a subscription expires when it had no consumer for so long -> since it was loaded",
        module="daybook.broker.dispatch.subscription",
        name="Subscription.unused_since_ms",
        replacement=Edit("self._clock.now_ms() if self.consumers or self.moving else ", ""),
        caught_by=f"{_RUNS} subscription_expiry",
    ),
    Mutant(
        id="F13",
        rule="the last message of a key is kept in each partition -> the first",
        module="daybook.broker.protocol.compaction",
        name="Selection._replace",
        replacement=Edit(
            "self._remove(self._chunks.pop(before, (before,)))",
            "self._remove((before if number is None else number,))",
        ),
        caught_by=f"{_RUNS} compacted_partitions",
    ),
]
