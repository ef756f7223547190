"""Rules of delivering a subscription's entries, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_EXCLUSIVE = "daybook.broker.protocol.dispatch.exclusive"
_FAILOVER = "daybook.broker.protocol.dispatch.failover"
_SHARED = "daybook.broker.protocol.dispatch.shared"
_PENDING = "daybook.broker.protocol.dispatch.pending"
_STORMS = "storms:dispatch"

MUTANTS = [
    Mutant(
        id="AK01",
        rule="a broker without contact does not know the end of a log -> an acknowledgement is no",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements._no_entry",
        replacement=Edit("if self._topic.logs.in_contact:", "if True:"),
        caught_by="tests:tests/broker/test_acks_behind_the_end.py",
    ),
    Mutant(
        id="AK02",
        rule="a broker in contact knows the end of its log -> it says that another may have more",
        module="daybook.broker.dispatch.acknowledgements",
        name="Acknowledgements._no_entry",
        replacement=Edit("if self._topic.logs.in_contact:", "if False:"),
        caught_by="tests:tests/broker/test_acks_behind_the_end.py",
    ),
    Mutant(
        id="C73",
        rule="an entry is acknowledged when all messages of its batch are -> when one is",
        module="daybook.managed_ledger.partial_acks",
        name="PartialAcks.ack",
        replacement=Edit("if not left:", "if True:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q01",
        rule="entries read before a rewind are dropped -> delivered",
        module=_EXCLUSIVE,
        name="ExclusiveDispatch.entries_read",
        replacement=Edit(
            "want.generation != self._generation or self._active is None", "self._active is None"
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q02",
        rule="the next active consumer starts at the first unacked entry -> at the read position",
        module=_EXCLUSIVE,
        name="ExclusiveDispatch._serve",
        replacement=Edit("return self._rewind()", "return []"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q03",
        rule="reading goes on behind the delivered entries -> behind those that were read",
        module=_EXCLUSIVE,
        name="ExclusiveDispatch.entries_read",
        replacement=Edit("Taken(count)]", "Taken(len(entries))]"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q04",
        rule="nothing is delivered without permits -> a read is delivered whole",
        module=_EXCLUSIVE,
        name="ExclusiveDispatch.entries_read",
        replacement=Edit("if active.permits <= 0:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q05",
        rule="another consumer takes over when the active one leaves -> when the next one joins",
        module=_FAILOVER,
        name="FailoverDispatch.left",
        replacement=Edit("if not self._consumers:", "if True:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q06",
        rule="entries read before the pending ones were dropped are dropped -> delivered",
        module=_SHARED,
        name="SharedDispatch.entries_read",
        replacement=Edit("if want.generation != self._generation:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q07",
        rule="entries of a lost consumer go to others -> they are forgotten",
        module=_SHARED,
        name="SharedDispatch.left",
        replacement=Edit("self._return([*had, ", "self._return([*had[:0], "),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q08",
        rule="entries that cannot be delivered now are read again -> skipped",
        module=_SHARED,
        name="SharedDispatch._assign",
        replacement=Edit("return count\n", "return len(entries)\n"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q09",
        rule="a consumer with too many unacknowledged messages gets none -> it does",
        module=_SHARED,
        name="SharedConsumer.available",
        replacement=Edit(" and not self.blocked", ""),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q10",
        rule="with too many unacknowledged messages, nothing is sent -> the rest of a read is",
        module=_SHARED,
        name="SharedDispatch._assign",
        replacement=Edit("if self._blocked:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q11",
        rule="acknowledging unblocks a consumer -> only redelivery does",
        module=_SHARED,
        name="SharedDispatch._unblock",
        replacement=Edit("if not self._some_blocked:", "if True:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q12",
        rule="a delayed entry waits for its time -> it is delivered at once",
        module=_SHARED,
        name="SharedDispatch._assign",
        replacement=Edit("if entry.deliver_at_ms:", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q13",
        rule="all chunks of a message go to one consumer -> each to the next consumer",
        module=_SHARED,
        name="SharedDispatch._assign",
        replacement=Edit("fixed = self._chunks.consumer_of(entry)", "fixed = None"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q14",
        rule="a chunk is delivered after the one before it -> held forever",
        module=_SHARED,
        name="SharedDispatch._hold_back",
        replacement=Edit(
            "    if due_ms is None:\n        return False\n",
            "    if due_ms is None:\n"
            "        return False\n"
            "    if fixed is not None:\n"
            "        self._chunks.hold(entry, fixed)\n"
            "        return True\n",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q15",
        rule="redeliveries after a nack are counted -> those after a lost consumer, too",
        module=_PENDING,
        name="Unacked.leave",
        replacement=Edit(
            "    self._release(consumer, places)\n",
            "    self._release(consumer, places)\n"
            "    for place in places:\n"
            "        self._redeliveries[place] = self._redeliveries.get(place, 0) + 1\n",
        ),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q16",
        rule="entries acknowledged before their replay are forgotten -> requested again and again",
        module=_SHARED,
        name="SharedDispatch._replayed",
        replacement=Edit("for place in sorted(gone):", "for place in ():"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q17",
        rule="an entry that a replay returns twice is delivered once -> each time",
        module=_SHARED,
        name="SharedDispatch._assign",
        replacement=Edit("if self._unacked.is_held(entry.place):", "if False:"),
        caught_by=_STORMS,
    ),
    Mutant(
        id="Q40",
        rule="a chunk that comes back alone goes to who has the others -> to any consumer",
        module="daybook.broker.protocol.dispatch.chunks",
        name="Chunks.came_back",
        replacement=Edit("self._left[group] -= 1", "self._left[group] = 0"),
        caught_by="tests:tests/broker/protocol/test_dispatch.py",
    ),
    Mutant(
        id="Q41",
        rule="bits of a seek count for the entry that it names -> for the first that is left",
        module="daybook.broker.service.handlers",
        name="Handlers._begin_seek",
        replacement=Edit("pending if found == named else None", "pending"),
        caught_by="tests:tests/broker/test_moves.py",
    ),
    Mutant(
        id="Q42",
        rule="a batch without a pending message is done -> it is delivered with none",
        module="daybook.broker.dispatch.dispatcher",
        name="Dispatcher._visible",
        replacement=Edit("if not messages:", "if False:"),
        caught_by="tests:tests/broker/test_moves.py",
    ),
    Mutant(
        id="Q43",
        rule="a reset to a message leaves out those before it in its batch -> it does not",
        module="daybook.broker.admin.owned_topics",
        name="_target",
        replacement=Edit("if start.symbolic or index < 0:", "if True:"),
        caught_by="tests:tests/broker/control/test_subscription_admin.py -k within_a_batch",
    ),
    Mutant(
        id="Q44",
        rule="a message id of another partition is refused -> it moves this one",
        module="daybook.broker.admin.owned_topics",
        name="_check_partition",
        replacement=Edit("start.partition_index != topic.partition", "False"),
        caught_by="tests:tests/broker/control/test_subscription_admin.py -k names_the_partition",
    ),
]
