"""Rules of the limits of unacknowledged messages, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_PENDING = "daybook.broker.protocol.dispatch.pending"
_ACKS = "daybook.broker.dispatch.acknowledgements"
_RULES = "daybook.broker.protocol.dispatch.broker_limit"
_LIMIT = "daybook.broker.dispatch.unacked_limit"
_DISPATCHER = "daybook.broker.dispatch.dispatcher"
_BY_RULES = "tests:tests/broker/protocol/test_broker_limit.py"
_BY_COUNTS = "tests:tests/broker/test_unacked_counts.py"

MUTANTS = [
    Mutant(
        id="UC01",
        rule="a batch that is acknowledged in part counts with what is left -> as a whole",
        module=_PENDING,
        name="Unacked.ack_part",
        replacement=Edit("if acked > 0:", "if False:"),
        caught_by="storms:dispatch",
    ),
    Mutant(
        id="UC02",
        rule="what is acknowledged in part lowers the subscription's count -> the consumer's only",
        module=_PENDING,
        name="Unacked.ack_part",
        replacement=Edit("    self.messages -= acked\n", "    pass\n"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC03",
        rule="a part that an administrator acknowledges lowers the counts -> only the backlog",
        module=_ACKS,
        name="Acknowledgements.add_part",
        replacement=Edit("self._note_parts([place])", "pass"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC04",
        rule="a batch that an administrator finishes counts for nobody -> still for its consumer",
        module=_ACKS,
        name="Acknowledgements.add_part",
        replacement=Edit(
            "self._add_whole(_ADMINISTRATOR, [place])", "self._cursor.ack([position])"
        ),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC05",
        rule="a part that is acknowledged lets a consumer that has too much go on -> it waits",
        module=_ACKS,
        name="Acknowledgements._note_parts",
        replacement=Edit("dispatcher.wake()", "pass"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC06",
        rule="a full broker stops a subscription with more than its share -> it goes on",
        module=_DISPATCHER,
        name="Dispatcher.stopped_by_broker",
        replacement=Edit("return self._unacked_limit.rules.blocks(self)", "return False"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC07",
        rule="what was being read when the broker became full waits -> it is delivered",
        module=_DISPATCHER,
        name="Dispatcher._serve_once",
        replacement=Edit("    if self.stopped_by_broker:\n", "    if False:\n"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC08",
        rule="a subscription goes on when others have acknowledged -> at its own next input",
        module=_LIMIT,
        name="UnackedLimit.count",
        replacement=Edit("each.wake()", "pass"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC09",
        rule="the broker is full until half of its limit -> until it is below the limit",
        module=_RULES,
        name="BrokerLimit.count",
        replacement=Edit(
            "self.messages <= self.messages_max // 2", "self.messages < self.messages_max"
        ),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="UC10",
        rule="a subscription with its share or less goes on -> all wait",
        module=_RULES,
        name="BrokerLimit._fill",
        replacement=Edit("if messages > self.share_max\n", "\n"),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="UC11",
        rule="a subscription goes on at half of its share -> only with the broker",
        module=_RULES,
        name="BrokerLimit.count",
        replacement=Edit("elif messages <= self.share_max // 2 and", "elif False and"),
        caught_by="storms:dispatch",
    ),
    Mutant(
        id="UC12",
        rule="deliveries count for the broker -> only what comes back",
        module=_DISPATCHER,
        name="Dispatcher._assign",
        replacement=Edit("self._count_unacked()", "pass"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC13",
        rule="what is acknowledged or lost counts no more -> only deliveries are counted",
        module=_DISPATCHER,
        name="Dispatcher.perform_all",
        replacement=Edit("self._count_unacked()", "pass"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC14",
        rule="without a limit nobody waits -> everybody does",
        module=_RULES,
        name="BrokerLimit.count",
        replacement=Edit("if not self.messages_max:", "if False:"),
        caught_by=_BY_RULES,
    ),
    Mutant(
        id="UC15",
        rule="a subscription that exceeds its share of a full broker waits -> it goes on",
        module=_RULES,
        name="BrokerLimit.count",
        replacement=Edit("if messages > self.share_max:", "if False:"),
        caught_by="storms:dispatch",
    ),
]
