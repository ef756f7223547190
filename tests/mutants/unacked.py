"""Rules of the limits of unacknowledged messages, broken one at a time."""

from tests.mutants.patch import Edit, Mutant

_PENDING = "daybook.broker.protocol.dispatch.pending"
_SUBSCRIPTION = "daybook.broker.dispatch.subscription"
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
        module=_SUBSCRIPTION,
        name="Subscription.acknowledge",
        replacement=Edit("self._note_parts([place])", "pass"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC04",
        rule="a batch that an administrator finishes counts for nobody -> still for its consumer",
        module=_SUBSCRIPTION,
        name="Subscription.acknowledge",
        replacement=Edit("self._ack_whole(_ADMINISTRATOR, [place])", "self.cursor.ack([part[0]])"),
        caught_by=_BY_COUNTS,
    ),
    Mutant(
        id="UC05",
        rule="a part that is acknowledged lets a consumer that has too much go on -> it waits",
        module=_SUBSCRIPTION,
        name="Subscription._note_parts",
        replacement=Edit("self.dispatcher.wake()", "pass"),
        caught_by=_BY_COUNTS,
    ),
]
