"""Rules of topics and subscriptions, broken one at a time.

They are about wake-ups, the requests that a reset makes void, the order of operations, and orphans.
"""

from tests.mutants.patch import Edit, Mutant

_MOVES = "tests:tests/broker/test_moves.py"
_TOPICS = "tests:tests/broker/test_topics.py"
_ORDER = "tests:tests/broker/test_order.py"
_ORPHANS = "daybook.managed_ledger.protocol.orphans"
_ORPHAN_TESTS = "tests:tests/managed_ledger/test_orphans.py"

MUTANTS = [
    Mutant(
        id="TN01",
        rule="a name has no path of its own -> the topic of a partition may be named ..",
        module="daybook.wire.topics",
        name="TopicName.parse",
        replacement=Edit("match[1] if match else local", "local"),
        caught_by="tests:tests/broker/test_topics.py -k partition_of_no_topic",
    ),
    Mutant(
        id="TN04",
        rule="the name of a loaded topic is parsed once -> for each bundle that is dropped",
        module="daybook.broker.topics.topics",
        name="Topics._parsed",
        replacement=Edit("if topic is None else topic.name", ""),
        caught_by="tests:tests/broker/test_topics.py -k parsed_once",
    ),
    Mutant(
        id="MV08",
        rule="a client whose unsubscription failed is told that its consumer is closed -> it waits",
        module="daybook.broker.service.handlers",
        name="Handlers._tell_closed",
        replacement=Edit("consumer.tell_closed()", "pass"),
        caught_by="tests:tests/broker/test_removals_that_fail.py",
    ),
    Mutant(
        id="TN02",
        rule="a topic that cannot be loaded because of a bug costs no other -> the broker ends",
        module="daybook.broker.topics.topics",
        name="Topics._load",
        replacement=Edit("except Exception as bug:", "except MemoryError as bug:"),
        caught_by="tests:tests/broker/test_topics.py -k bug_costs",
    ),
    Mutant(
        id="TN05",
        rule="a load whose topic was dropped while it waited opens nothing -> it opens the log",
        module="daybook.broker.topics.topics",
        name="Topics._load",
        replacement=Edit("not self._protocol.wants(name.full, load) or ", ""),
        caught_by="tests:tests/broker/test_loads.py -k that_waited",
    ),
    Mutant(
        id="TN06",
        rule="a load that waited until the bundle was lost opens nothing -> it opens the log",
        module="daybook.broker.topics.topics",
        name="Topics._load",
        replacement=Edit(" or not self._owns(name)", ""),
        caught_by="tests:tests/broker/test_loads.py -k that_waited",
    ),
    Mutant(
        id="TN03",
        rule="a topic that cannot be closed because of a bug costs no other -> the broker ends",
        module="daybook.broker.topics.topics",
        name="Topics._close",
        replacement=Edit("except Exception as error:", "except MemoryError as error:"),
        caught_by="tests:tests/broker/test_topics.py -k bug_costs",
    ),
    Mutant(
        id="TP01",
        rule="the log reports a move of its end -> the producer does, while it is open",
        module="daybook.managed_ledger.log",
        name="ManagedLedger._confirmed",
        replacement=Edit("self.on_confirmed()", "pass"),
        caught_by="tests:tests/managed_ledger/test_log.py",
    ),
    Mutant(
        id="TP02",
        rule="all waiters for a drained producer are woken -> only the last one",
        module="daybook.broker.topics.producer",
        name="Producer._drained",
        replacement=Edit("for call in calls:", "for call in calls[-1:]:"),
        caught_by=f"{_TOPICS} -k unload",
    ),
    Mutant(
        id="TP03",
        rule="the end of a topic is told to consumers that have read all -> that had read all",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher.at_end",
        replacement=Edit("self._end == self._log.last_confirmed", "self._end is not None"),
        caught_by=f"{_TOPICS} -k end",
    ),
    Mutant(
        id="MV01",
        rule="acks of messages not delivered since a reset are void -> they count",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements._is_void",
        replacement=Edit("furthest is not None and place > furthest", "False"),
        caught_by=f"{_MOVES} -k void",
    ),
    Mutant(
        id="MV02",
        rule="acks after a takeover count -> those not delivered here are void",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements._is_void",
        replacement=Edit(
            "furthest is not None and place > furthest", "furthest is None or place > furthest"
        ),
        caught_by=f"{_MOVES} -k takeover",
    ),
    Mutant(
        id="MV20",
        rule="an ack that waits for the next flush is answered at the end -> never",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements.fail",
        replacement=Edit("call(error)", "pass"),
        caught_by="tests:tests/broker/test_subscriptions.py -k before_it_is_durable",
    ),
    Mutant(
        id="MV03",
        rule="a client acknowledges nothing from before a reset -> it does",
        module="daybook.clients.python.topic_consumer",
        name="TopicConsumer._check_moved",
        replacement=Edit("self._forget(moved_by_us=self._seeking)", "pass"),
        caught_by=f"{_MOVES} -k outlives",
    ),
    Mutant(
        id="MV04",
        rule="an ack that was forgotten while it was sent is not repeated -> a cumulative one is",
        module="daybook.clients.python.protocol.acks",
        name="AckTracker.give_back",
        replacement=Edit(" and self._mark == cumulative[:2]", ""),
        caught_by="tests:tests/clients/python/protocol/test_rules.py",
    ),
    Mutant(
        id="OR01",
        rule="only a ledger of this tree of logs may be an orphan -> one of any tree",
        module=_ORPHANS,
        name="may_be_orphan",
        replacement=Edit("candidate.tree == tree and ", ""),
        caught_by=_ORPHAN_TESTS,
    ),
    Mutant(
        id="OR02",
        rule="only an old ledger may be an orphan -> a new one, too",
        module=_ORPHANS,
        name="may_be_orphan",
        replacement=Edit(" and now_ms - created_ms >= age_ms", ""),
        caught_by=_ORPHAN_TESTS,
    ),
    Mutant(
        id="OR03",
        rule="a ledger that an open log is about to name is no orphan -> it is",
        module=_ORPHANS,
        name="is_orphan_of_open_log",
        replacement=Edit(" and not creating", ""),
        caught_by=f"{_ORPHAN_TESTS} -k what_is_being_created",
    ),
    Mutant(
        id="OR03 late",
        rule="a ledger that a former owner created late is an orphan -> it stays",
        module=_ORPHANS,
        name="is_orphan_of_open_log",
        replacement=Edit(" or (candidate.topic is None and not creating)", ""),
        caught_by="tests:tests/simulation/test_orphans.py",
    ),
    Mutant(
        id="OR03 compacted",
        rule="a compacted ledger younger than the opening is kept -> it is an orphan",
        module=_ORPHANS,
        name="is_orphan_of_open_log",
        replacement=Edit("candidate.topic is None and ", ""),
        caught_by=f"{_ORPHAN_TESTS} -k compacted",
    ),
    Mutant(
        id="OR03 doubt",
        rule="a ledger that a write in doubt may name is no orphan -> it is",
        module="daybook.managed_ledger.orphans",
        name="_is_orphan",
        replacement=Edit("creating |= ledgers.doubtful", "pass"),
        caught_by=f"{_ORPHAN_TESTS} -k without_an_answer",
    ),
    Mutant(
        id="OR03 again",
        rule="a list is the same one if its transaction is -> if its version is",
        module="daybook.managed_ledger.orphans",
        name="_Pass._is_unnamed",
        replacement=Edit("(stat.created_txid, stat.version) == known", "stat.version == known[1]"),
        caught_by=f"{_ORPHAN_TESTS} -k new_list",
    ),
    Mutant(
        id="OR03 cursor",
        rule="the ledger of a cursor is no orphan before the record names it -> it is",
        module="daybook.managed_ledger.cursor",
        name="Cursor._start_ledger",
        replacement=Edit("naming.add(name)", "pass"),
        caught_by=f"{_ORPHAN_TESTS} -k what_is_being_created",
    ),
    Mutant(
        id="OR03 list",
        rule="the next ledger is no orphan before the list names it -> it is",
        module="daybook.managed_ledger.log",
        name="ManagedLedger._create_next",
        replacement=Edit("self.ledgers.naming.add(None)", "pass"),
        caught_by=f"{_ORPHAN_TESTS} -k what_is_being_created",
    ),
    Mutant(
        id="OR04",
        rule="a ledger of a deleted log must be found twice -> once",
        module=_ORPHANS,
        name="Suspects.is_found_again",
        replacement=Edit(
            "return self._before.get(candidate.ledger_id) == candidate.version", "return True"
        ),
        caught_by=_ORPHAN_TESTS,
    ),
    Mutant(
        id="OR05",
        rule="a log is deleted if the newest state has no list -> if this server has none",
        module="daybook.managed_ledger.orphans",
        name="_Pass._is_of_gone",
        replacement=Edit("await self._context.read_newest(path) is not None", "False"),
        caught_by=f"{_ORPHAN_TESTS} -k not_seen",
    ),
    Mutant(
        id="OR06",
        rule="a log removes orphans while its list is its own -> later, too",
        module="daybook.managed_ledger.orphans",
        name="_Pass._is_of_open",
        replacement=Edit("await log.ledgers.guarded([])", "pass"),
        caught_by="tests:tests/managed_ledger/test_trimming.py -k stale_owner",
    ),
    Mutant(
        id="MV05",
        rule="no consumer joins during a reset -> one that waited for a dead consumer does",
        module="daybook.broker.dispatch.subscription",
        name="Subscription.make_way",
        replacement=Edit(
            "await self._wait_moved()\n    if self._in", "self._check_here()\n    if self._in"
        ),
        caught_by=f"{_ORDER} -k dead_consumer",
    ),
    Mutant(
        id="MV06",
        rule="a new subscription waits for the deletion of its predecessor -> finds it",
        module="daybook.broker.topics.topic_subscriptions",
        name="TopicSubscriptions._wait_changed",
        replacement=Edit("await change.wait()", "break"),
        caught_by=f"{_ORDER} -k new_subscription",
    ),
    Mutant(
        id="RQ10",
        rule="a seek removes consumers in the turn in which it begins -> in a task of its own",
        module="daybook.broker.service.request_turns",
        name="RequestQueue._start",
        replacement=Edit(
            "        request.begin()\n",
            "        run, begin = request.run, request.begin\n\n"
            "        async def late() -> None:\n"
            "            begin()\n"
            "            await run()\n\n"
            "        request.run = late\n",
        ),
        caught_by=f"{_ORDER} -k front",
    ),
    Mutant(
        id="MV07",
        rule="the next owner of a topic knows the latest reset -> only the owner that did it",
        module="daybook.broker.dispatch.subscription",
        name="Subscription.__init__",
        replacement=Edit("cursor.properties.get(MOVED)", "None"),
        caught_by=f"{_MOVES} -k takeover",
    ),
    Mutant(
        id="TP21",
        rule="a reader that is refused leaves no subscription -> the one that it began stays",
        module="daybook.broker.topics.topic_subscriptions",
        name="TopicSubscriptions._prepare",
        replacement=Edit("subscription.drop_if_unused()", "pass"),
        caught_by="tests:tests/broker/test_key_shared.py -k leaves_no_subscription",
    ),
    Mutant(
        id="TP22",
        rule="a dead consumer in the way does not count for the limit -> it does",
        module="daybook.broker.dispatch.subscription",
        name="Subscription.make_way",
        replacement=Edit(
            "    keys = keys or KeyPolicy()\n",
            "    keys = keys or KeyPolicy()\n    self._check_room()\n",
        ),
        caught_by="tests:tests/broker/test_subscriptions.py -k count_for_the_limit",
    ),
    Mutant(
        id="TN10",
        rule="a name is looked at again after its holder was asked -> it is taken for free",
        module="daybook.broker.topics.topic_producers",
        name="TopicProducers._make_way",
        replacement=Edit(
            "while (holder := self._holder(request.name)) is not None:",
            "if (holder := self._holder(request.name)) is not None:",
        ),
        caught_by="tests:tests/broker/test_probes.py",
    ),
    Mutant(
        id="TN11",
        rule="truncation stores the snapshot of deduplication first -> its cursor keeps the log",
        module="daybook.broker.topics.topic",
        name="Topic.release_stored",
        replacement=Edit("if self.deduplication is not None:", "if False:"),
        caught_by="tests:tests/broker/control/test_subscription_admin.py -k would_keep",
    ),
    Mutant(
        id="TN12",
        rule="truncation deletes the compacted ledger -> its cursor keeps the log",
        module="daybook.broker.topics.topic",
        name="Topic.release_stored",
        replacement=Edit("await self.compaction.forget()", "pass"),
        caught_by="tests:tests/broker/control/test_subscription_admin.py -k would_keep",
    ),
]
